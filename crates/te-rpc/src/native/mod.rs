//! Control connections between te engines: requests both ways on one connection, with the life of either end known.
//!
//! Not for reference engines, which have one request on each connection ([`RpcClient`](crate::RpcClient)); an engine
//! that takes native connections says so in its descriptor. They come to the same listener and begin with [`PREAMBLE`].
//! A handshake follows, in which each side says who it is and the opener whom it means; then both may ask: keep me
//! informed, forget a version, stop attempts, take a notification.
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use te_rpc::{Bind, BoxFuture, Handlers, PortChoice, RpcLimits, RpcListener, native::*};
//! use te_segment::{DescriptorVersion, Endpoint, Incarnation};
//!
//! struct Engine(PeerId);
//!
//! impl NativeHandler for Engine {
//!     fn identity(&self) -> PeerId {
//!         self.0.clone()
//!     }
//!     fn handle(self: Arc<Self>, _: NativePeer, request: Request) -> BoxFuture<'static, Answer> {
//!         Box::pin(async move {
//!             match request {
//!                 Request::Interest { .. } => Answer::Interest { version: DescriptorVersion::new(7) },
//!                 Request::Fence { requests } => {
//!                     Answer::Fence { stopped: vec![FenceOutcome::Stopped; requests.len()] }
//!                 }
//!                 Request::Notify { .. } => Answer::Notify { taken: false },
//!                 _ => Answer::Invalidate,
//!             }
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = |bits, name: &str| {
//! #     Arc::new(Engine(PeerId { incarnation: Incarnation::from_bits(bits), name: name.to_owned() }))
//! # };
//! let listener = RpcListener::bind(Bind { host: "127.0.0.1".parse()?, port: PortChoice::default() }).await?;
//! let endpoint: Endpoint = listener.endpoint().try_into()?;
//! let handlers = Handlers { native: Some(engine(1, "owner")), ..Handlers::default() };
//! let _server = listener.serve(handlers, RpcLimits::default());
//!
//! let client = NativeClient::new(engine(2, "holder"), NativeLimits::default());
//! let owner = Target { expects: Expectation { name: Some("owner".into()), ..Expectation::default() }, endpoint };
//! let deadline = Instant::now() + Duration::from_secs(5);
//! let served = client.interest(&owner, DescriptorVersion::new(6), deadline).await?;
//! assert_eq!(served.value(), 7);
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * A request is answered at most once, and every call ends by its deadline.
//! * Requests are asked of the handler in the order in which they were sent.
//! * Nothing that a peer does makes a connection hold unbounded memory: frames, requests without an answer and bytes
//!   that wait to be sent are limited ([`NativeLimits`]). A peer that asks and does not read is cut off.
//! * A silent peer is probed and then closed. A peer of another life than the one that was meant is never asked.
//! * Native connections count against the limit of their listener and take at most three quarters of it.

mod client;
mod close;
mod codec;
mod dial;
mod error;
mod frame;
mod handler;
mod limits;
mod machine;
mod pause;
mod peer;
mod queue;
mod request;
mod session;

pub(crate) use peer::Link;
pub(crate) use session::Session;

pub use client::{NativeClient, Target};
pub use close::{CallError, CloseReason, Violation};
pub use codec::{ControlDecoder, ControlReject, MAX_CONTROL_FRAME, MAX_HANDSHAKE_FRAME, PREAMBLE, encode};
pub use error::{DialError, NativeError};
pub use frame::{
    BatchOutcome, ControlFrame, FenceOutcome, FencedAttempt, MAX_ITEMS, MAX_MESSAGE, MAX_NAME, MAX_REASON,
    OverBound, PeerId, RefuseReason, RequestId,
};
pub use handler::NativeHandler;
pub use limits::{NativeLimits, Versions};
pub use machine::{ControlMachine, Expectation, NotSent, Output};
pub use peer::NativePeer;
pub use request::{Answer, Request, RequestKind};
