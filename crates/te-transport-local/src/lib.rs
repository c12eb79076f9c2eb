//! Copies within one process, for the te transfer engine. Engines that were given the same [`LocalGroup`] reach each other's
//! registered memory with one copy by the initiator's thread; engines that were not do not know of each other. It knows no
//! names and no metadata, and moves host memory only.
//!
//! # Quick start
//!
//! ```no_run
//! use te_transport::{Context, Install};
//! use te_transport_local::{Local, LocalConfig, LocalGroup};
//!
//! fn install(one: &Context, other: &Context) -> Result<(), Box<dyn std::error::Error>> {
//!     let group = LocalGroup::new();
//!     let _near = Local::new(&group, LocalConfig::default()).start(one)?;
//!     let _far = Local::new(&group, LocalConfig::default()).start(other)?;
//!     assert_eq!(group.len(), 2);
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! * **Nothing is shared unasked.** A group is a value that the program hands to its engines; there is no global one.
//! * **Locality is proven** by the group itself: who is found in it has put its own registration table there.
//! * **Requests reach whom they mean.** A member is found by its incarnation, and each piece of a copy enters the target's
//!   table anew with range, access and generation: a withdrawn buffer is [`te_transport::FailureKind::BufferGone`], a member
//!   that has ended [`te_transport::FailureKind::Unreachable`], and there is no path to a life that is not in the group.
//! * **A withdrawal waits for one piece at most**, [`PIECE`] bytes of each copy that is under way.
//! * **A failed request touches nothing any more** once it is reported, so a WRITE moves to another path at once
//!   ([`te_transport::Fencing::Immediate`]).
//! * **Peers and batches take turns**: each peer has threads of its own, and each batch gets one piece at a time.
//!
//! # Failure behaviour
//!
//! There are no connections to lose. A member that is cut off ([`te_transport::Transport::fence`]) fails what it had begun
//! as [`te_transport::FailureKind::ConnectionLost`] and goes on with the next request. A member that shuts down or is
//! dropped leaves the group, and copies from and to it have ended when its shutdown returns.

#![forbid(unsafe_code)]

mod backend;
mod client;
mod config;
mod counters;
mod error;
mod group;
mod offer;

pub use backend::{Local, LocalTransport};
pub use client::PIECE;
pub use config::LocalConfig;
pub use counters::LocalCounters;
pub use group::LocalGroup;
pub use te_transport::ConfigError;
