//! RDMA verbs for the te transfer engine: libibverbs found at run time, its structures, and on top of them an owning layer
//! that is safe to use. It knows nothing of the engine.
//!
//! # Quick start
//!
//! ```no_run
//! use te_sys_verbs::{QueueSize, Verbs};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let verbs = Verbs::load()?;
//!     for device in verbs.devices()? {
//!         let context = device.open()?;
//!         let port = context.port(1)?;
//!         println!("{}: active {}, lid {}", device.name(), port.active, port.lid);
//!         let queue = context.completion_queue(QueueSize { entries: 256, vector: 0 }, None, 0)?;
//!         println!("holds {} completions", queue.entries());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! * **No need at link time.** A binary with this crate starts on every host; [`Verbs::load`] says what is lacking.
//! * **Drop in any order.** Each handle has a share of what it was made from. Things are destroyed in the order queue pair,
//!   completion queue, registration, protection domain, context, whichever handle is dropped first;
//!   [`MemoryRegion::deregister`] ends a registration at once.
//! * **Memory outlives its registration.** What keeps it is dropped after the device has let go of it, and never if the
//!   device refuses to.
//! * **Posting is safe**, since requests reach memory through keys of registrations alone; registering is not
//!   ([`ProtectionDomain::register`]).
//! * **No call waits**: descriptors are non-blocking, and are there to be polled with others.
//!
//! # Failure behaviour
//!
//! Errors are values: [`Unavailable`] before a device is open, [`VerbsError`] with the call, the place, the reason and a hint
//! after, [`Refusal`] with how much of a list was accepted, [`TransitionError`] with both sides' addresses. What cannot be
//! destroyed is counted ([`Verbs::undestroyed`]) and leaks.
//!
//! With the feature `fake`, `fake::Fabric` is a network of NICs in this process, with faults on demand.

mod completion;
mod context;
mod error;
mod event;
#[cfg(feature = "fake")]
pub mod fake;
pub mod ffi;
mod memory;
mod port;
mod queue_pair;
mod table;
mod transition;
mod verbs;
mod work;

pub use completion::{Completion, CompletionChannel, CompletionQueue, QueueSize, Status};
pub use context::Context;
pub use error::{Call, Lacking, Unavailable, VerbsError};
pub use event::{AsyncEvent, EventKind, Subject};
pub use memory::{Access, Keep, MemoryRegion, ProtectionDomain};
pub use port::{DeviceLimits, Gid, GidEntry, GidKind, LinkLayer, Mtu, PortInfo};
pub use queue_pair::{PairInfo, PairSize, Path, QueuePair, State, ToInit, ToReceive, ToSend};
pub use transition::{Goal, Own, TransitionError};
pub use verbs::{DEFAULT_LIBRARY, Device, Verbs};
pub use work::{Flags, Local, ReceiveList, Refusal, Remote, Verb, WorkList};
