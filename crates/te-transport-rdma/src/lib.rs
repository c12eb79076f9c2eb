//! RDMA transport of the te transfer engine: one-sided READs and WRITEs over the queue pairs of every NIC that libibverbs
//! finds. The library is loaded at run time; a host without it, or without a NIC that can be used, is told what is missing.
//!
//! # Quick start
//!
//! ```no_run
//! use te_transport::{Context, InstallError, Transport};
//! use te_transport_rdma::{Rdma, RdmaConfig};
//!
//! # fn run(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = RdmaConfig::default();
//! config.set("nics", "mlx5_0,mlx5_1")?;
//! // The engine does this, and hands over its control plane, over which queue pairs are joined.
//! match Rdma::new(config).start(context) {
//!     Ok(transport) => println!("{transport:?}"),
//!     Err(InstallError::Unavailable { missing, .. }) => println!("no RDMA here: {missing}"),
//!     Err(other) => return Err(other.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A request is cut where registrations end and at the slice size, and its pieces are spread over the queue pairs of all rails
//! that are close to both buffers. Each NIC has a thread that polls while there is something and sleeps otherwise, and one
//! for everything that waits for a device or a peer. What is decided is decided by values and state machines without I/O,
//! which are public and usable by themselves:
//!
//! | module | decides |
//! |---|---|
//! | [`wire`] | the handshake object, byte by byte, in both roles |
//! | [`negotiate`] | path MTU, sequence numbers, READs at a time, addresses, and how devices are told |
//! | [`endpoint`] | the life of an endpoint, from its queue pairs' creation to their destruction |
//! | [`store`] | how many there are, which one goes, when a peer is tried again |
//! | [`route`] | NIC here, NIC there and queue pair for each piece |
//! | [`slices`] | cutting, posting with few signals, completing each piece once |
//! | [`registration`] | one buffer at every NIC, or at none |
//! | [`offer`] | what descriptors say |
//! | [`error`] | what a failed completion means to the caller |
//!
//! # Guarantees
//!
//! * **No work before the peer is ready**, where both sides know the ready-ack. Both may open at the same time.
//! * **An endpoint never comes back.** What broke is flushed, drained and destroyed, and a fresh one takes its place. What is
//!   late or stale is dropped by its generation.
//! * **Every piece ends exactly once**, through flush, eviction, destruction and doubled completions, and a slice ends with
//!   its last piece.
//! * **NICs go by name.** A NIC that is missing costs its own rails; no pair outside the rail map is ever tried.
//! * **Everything is bounded**: endpoints with those that are being destroyed, requests that wait, what is learned, what is
//!   read from a peer.
//! * **A registration is at every NIC in use or nowhere**, and at most one export is open for it. It keeps the memory in place
//!   until it is given up.
//! * **No WRITE comes late without a word.** One that was posted and did not complete goes on over another rail only after the
//!   peer has cut the queue pairs that it was posted to. Where the peer cannot be asked, as a reference engine cannot, or not
//!   in time, the failure says that the bytes may still arrive.
//! * **A deadline and a cancellation end requests**: what is posted is flushed before its request ends, and others that shared
//!   the queue pairs go on over fresh ones.
//!
//! # Failure behaviour
//!
//! Queue pairs that break are replaced, a NIC whose port goes down or whose device fails gives its work to the others, and all
//! of them are used again once they work. A device that has failed is closed and opened again, less and less often while that
//! is in vain; what is registered is registered at it before it is used, and the engine is told that its keys, like an address
//! that has changed, are to be published. Pieces go on where they can; a request fails when no rail is left, with the reason
//! for each pair of NICs. A key that the peer's NIC refuses fails the request alone. A NIC that cannot be opened costs its own
//! rails.
//!
//! No input and no order of events makes this crate panic. Bad bytes of a peer are a [`wire::WireError`] that names the
//! member; sides that do not fit are a [`negotiate::Disagreement`] with both values; no usable rail is a [`route::NoRoute`].
//! An event that makes no sense changes nothing.
//!
//! The handshake is in `docs/wire/rdma.md`.
#![deny(unsafe_op_in_unsafe_fn)]

mod backend;
mod client;
mod config;
mod counters;
mod device;
pub mod endpoint;
pub mod error;
pub mod negotiate;
pub mod offer;
mod probe;
pub mod registration;
pub mod route;
pub mod slices;
pub mod store;
pub mod wire;

use std::time::{Duration, Instant};

pub use backend::{Rdma, RdmaTransport};
pub use config::RdmaConfig;
pub use counters::RdmaCounters;
pub use probe::{ProbeError, probe};
pub use te_transport::ConfigError;

/// A time of which nobody sees the end, where a sum would overflow the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// `now + wait`; for an absurd wait a time far away.
fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
