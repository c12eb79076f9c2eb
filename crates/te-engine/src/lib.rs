//! The engine: life cycle, batches, notify and liveness. It knows no backend; transports and directories come in
//! through their contracts. Programs use the `te` facade, which builds both from a URL and features.
//!
//! # Quick start
//!
//! [`Bound::bind`] binds the control listener and names the segment, [`Bound::start`] installs transports, serves and
//! publishes. Then [`Engine::register`] offers memory, [`Engine::open`] finds a peer, [`Engine::batch`] moves bytes:
//!
//! ```no_run
//! # async fn example(engine: te_engine::Engine) -> Result<(), te_engine::Error> {
//! use te_engine::Deadline;
//! use te_segment::Access;
//!
//! let local = engine.register(vec![0_u8; 4096], Access::LOCAL).await?;
//! let peer = engine.open("prefill-3").await?;
//! let report = engine.batch().read(&peer.buffer(0)?.slice(0, 4096)?, local.slice(..)).submit()?.await?;
//! println!("{report}");
//! let memory = local.unregister(Deadline::after_secs(5)).await?;
//! # drop(memory);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * A completed batch is applied at its destinations; a terminal one touches no local memory any more.
//! * A request that fails on one path, at submission, at completion or by silence, goes on over the next one within its
//!   deadline. Its bytes count once. A write that may still be applied is sent again only when its target has refused the
//!   attempt before, or where the batch allows late duplicates.
//! * Planning happens before sending: an error of [`BatchBuilder::submit`] means that nothing was sent.
//! * Registration is all or nothing, over transports and over the members of a batch.
//! * No byte is registered twice: memory that crosses, contains, lies inside or equals a registered range is refused with
//!   that range, until the withdrawal of that one has ended. Adjacent ranges are fine and stay two buffers: no request
//!   goes over both.
//! * A te engine takes a notification exactly once in its life, after the data of its batch and in its sender's order; a
//!   reference engine at most once.
//! * Memory that [`Buffer::unregister`] gives back is used by no te peer: each has acknowledged or is cut off.
//! * A peer that is only suspect is never refused; one that is lost or replaced is, and [`Engine::watch_peer`] says why.
//! * What is published can be reached: listeners accept before the first record is written.
//! * Two engines in one process do not know of each other. No statics, no environment, no signal handlers.
//! * In a child of fork, whatever can fail at an engine of the parent does so with [`ErrorKind::ForkedChild`], the engine has
//!   nothing to tell, and dropping its handles changes nothing for the parent. Only the state of a peer, as a [`Segment`]
//!   or a [`PeerWatch`] shows it, may wait there for a thread of the parent. A child may start engines of its own.
//!
//! # Thread safety and runtime
//!
//! [`Engine`], [`Segment`], [`Buffer`] and [`Batch`] are `Send` and `Sync`. Control work runs on a tokio runtime of the
//! engine's own, or on one that is lent; futures can be awaited from any executor, and [`block_on`] drives them from a
//! plain thread.
//!
//! # Failure behaviour
//!
//! Every [`Error`] has a kind, the operation, the peer, the path, the cause and whether a retry can help. The error of
//! a batch carries the report of every request. A write that failed may have written any part of its own range;
//! [`Error::remote_effect`] says what is possible. A store that does not answer never stops transfers.

#![forbid(unsafe_code)]

mod batch;
mod bootstrap;
mod buffer;
pub mod catalogue;
mod config;
mod control;
mod core;
mod engine;
mod error;
mod hello;
mod inbox;
mod lane;
mod limits;
mod local;
mod locality;
mod machines;
mod metrics;
mod notify;
mod peers;
mod prepared;
mod probe;
mod process;
mod publisher;
mod register;
mod runtime;
mod segment;
mod shutdown;
pub mod size;
mod start;
mod withdraw;

pub use batch::{AttemptReport, Batch, BatchBuilder, BatchStatus, NotifyOutcome, Report, RequestReport};
pub use buffer::{Buffer, Deadline, LocalSlice, RegisterFailed, UnregisterFailed};
pub use config::{EngineConfig, Naming};
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result, Retry};
pub use hello::ControlProbe;
pub use inbox::{BatchOutcome, Expectation, Expected, Notification};
pub use lane::{PathCircuit, PathCircuitState};
pub use limits::Limits;
pub use local::LocalSegment;
pub use machines::liveness::{Cause as LifeCause, Life as PeerLife};
pub use metrics::{EngineMetrics, TransportMetrics};
pub use peers::{PeerState, PeerWatch};
pub use probe::ProbeReport;
pub use register::RegisterProgress;
pub use runtime::{RuntimeChoice, block_on};
pub use segment::{RemoteRange, Segment};
pub use shutdown::ShutdownReport;
pub use start::Bound;
