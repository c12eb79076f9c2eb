//! The contract between the engine and whatever moves bytes. This crate moves none itself and knows no backend.
//!
//! A backend implements [`Transport`]: it is asked to register regions, to describe itself in the segment
//! descriptor, and to open a [`Path`] to a peer's descriptor snapshot. The engine submits [`Submission`]s to
//! paths; each [`Slice`] in them carries a [`CompletionToken`] that is resolved exactly once.
//!
//! # Quick start
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use te_transport::{CompletionSink, CompletionToken, Outcome};
//!
//! #[derive(Default)]
//! struct Log(Mutex<Vec<(u32, bool)>>);
//! impl CompletionSink for Log {
//!     fn complete(&self, index: u32, outcome: Outcome) {
//!         self.0.lock().unwrap().push((index, outcome.is_done()));
//!     }
//! }
//!
//! let log = Arc::new(Log::default());
//! let sink: Arc<dyn CompletionSink> = log.clone();
//! CompletionToken::new(sink.clone(), 0).done(4096);
//! drop(CompletionToken::new(sink, 1)); // dropped unused: a failure, never silence
//! assert_eq!(*log.0.lock().unwrap(), [(0, true), (1, false)]);
//! ```
//!
//! # Guarantees a backend gives
//!
//! * **Applied.** `done` is called only when the bytes are at the destination.
//! * **Quiescent.** Whatever the outcome, a token is resolved only when no local socket, NIC or copy engine can
//!   still touch the slice's memory; the [`te_memory::Hold`] inside the slice lives at least until then.
//! * **Bounded.** Each slice is resolved by the submission's deadline, and soon after its [`CancelScope`] is
//!   cancelled; a peer that is dead or stopped delays only what was submitted to it.
//! * **Never blocking.** [`Path::submit`] with [`SubmitMode::Background`] does not wait for a peer.
//!
//! # Failure behaviour
//!
//! Every failure is a [`Failure`]: kind, path, cause, what may have happened to the remote bytes
//! ([`RemoteEffect`]) and whether a retry can help. A backend that cannot run on this host returns
//! [`InstallError::Unavailable`] with the missing piece, a region it cannot serve is [`Registration::NotMine`].

#![forbid(unsafe_code)]

mod admission;
mod cancel;
mod capability;
mod compare;
mod completion;
mod context;
mod contract;
mod failure;
pub mod settings;
mod slice;
mod sync;
mod tally;
mod threads;

#[cfg(test)]
mod tests;

pub use admission::{Admission, AdmitAll, Admitted, AttemptId};
pub use cancel::{Abort, AbortGuard, CancelReason, CancelScope};
pub use capability::{Capabilities, Fencing, Reach};
pub use compare::{Compare, Comparing};
pub use completion::{CompletionSink, CompletionToken, Outcome};
pub use context::{
    Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, Context, LocateError, PortRange, Publisher,
    RDMA_PROTOCOL, Unpublished,
};
pub use contract::{
    Assessment, IfAvailable, Install, InstallError, Path, PathHealth, PathLabel, Registration, Transport,
    TransportError,
};
pub use failure::{Failure, FailureKind, RemoteEffect, stopped};
pub use settings::ConfigError;
pub use slice::{Op, Slice, Submission, SubmitMode};
pub use tally::{Opened, Share, SliceEnd, Tally};
pub use threads::{Caller, Threads};
