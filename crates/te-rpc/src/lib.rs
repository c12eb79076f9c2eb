//! Not a metadata store and not a data path: the small request and reply messages that engines exchange point to
//! point, over endpoints that the caller already knows. One listener takes all four kinds (connection set-up,
//! descriptor exchange, notification, probe), one client sends them, byte for byte as the reference engine does.
//!
//! # Quick start
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use te_rpc::{AnswerProbes, Bind, Handlers, PortChoice, RpcClient, RpcLimits, RpcListener};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = RpcListener::bind(Bind { host: "127.0.0.1".parse()?, port: PortChoice::default() }).await?;
//! let endpoint = listener.endpoint().try_into()?;
//! let handlers = Handlers { probe: Some(Arc::new(AnswerProbes)), ..Handlers::default() };
//! let server = listener.serve(handlers, RpcLimits::default());
//!
//! let client = RpcClient::new(RpcLimits::default());
//! let deadline = Instant::now() + Duration::from_secs(5);
//! assert!(client.probe(&endpoint, deadline).await?.is_success());
//! server.shutdown(deadline).await;
//! # Ok(()) }
//! ```
//!
//! Between te engines the same listener also takes long-lived connections with requests both ways: [`native`].
//!
//! # Guarantees
//!
//! * Requests are served at the same time. A silent, slow or hostile connection delays nobody else.
//! * Every connect, read, handler and write has a deadline, counted per request and never per byte; every size has a
//!   limit ([`RpcLimits`]). Memory grows with the bytes that arrive, not with the length that a peer claims.
//! * At most [`RpcLimits::max_connections`] are open. Beyond that the oldest one that is already answered goes, else
//!   the oldest one without a whole request, so silence cannot lock newcomers out.
//! * All interfaces are bound only if the caller says so.
//! * No write raises `SIGPIPE`.
//! * No globals, no environment, no signal handlers; logs go to `tracing` with target `te::rpc`.
//!
//! # When it fails
//!
//! Bytes that are no control frame (HTTP, TLS, noise, half frames, impossible lengths, bad or deeply nested JSON) close
//! their connection and leave one debug event; they never reach a handler, never panic and never stop the listener. A
//! failed call says which addresses it tried, how far each came and why ([`RpcError`]), whether a further try can help
//! ([`RpcError::retry`]) and whether the peer may have acted anyway ([`RpcError::may_have_been_delivered`]).
//!
//! The frames carry no authentication and no encryption: whoever reaches the port can ask. Bind to an interface that
//! only peers reach.

#![forbid(unsafe_code)]

mod client;
mod error;
pub mod frame;
mod handler;
mod limits;
mod listener;
pub mod message;
pub mod native;
mod net;
mod server;
mod table;

pub use client::RpcClient;
pub use error::{Attempt, Cause, Retry, RpcError, Stage};
pub use frame::FrameKind;
pub use handler::{AnswerProbes, BoxFuture, Call, Handlers, Reply, RpcHandler, handler_fn};
pub use limits::RpcLimits;
pub use listener::{Bind, PortChoice, RpcListener};
pub use server::RpcServer;
