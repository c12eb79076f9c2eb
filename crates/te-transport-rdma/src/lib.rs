//! RDMA transport of the te transfer engine, as far as it is decided without a device: what is said to a peer, when an
//! endpoint lives and dies, which rail takes which piece, what a completion means. It opens no device, posts no work, reads
//! no clock and draws no random number, and is no installed transport: whoever has devices carries out what it says.
//!
//! # Quick start
//!
//! ```
//! use std::time::Instant;
//! use te_segment::Generation;
//! use te_transport_rdma::endpoint::{Action, Event, Line, ReadyAck, RemoteSet, Timeouts, Turn};
//!
//! let now = Instant::now();
//! let mut line: Line<RemoteSet> = Line::new(Generation::new(1), Turn::Leads, Timeouts::default());
//!
//! // An endpoint is wanted: create queue pairs, and send the open (`wire::Handshake::open`).
//! let first = line.handle(now, Event::Want)[0].endpoint.unwrap();
//! // The peer accepts: join the queue pairs (`negotiate::agree` has the attributes), then confirm.
//! let peer = RemoteSet::of_numbers(vec![17, 18]);
//! let steps = line.handle(now, Event::Opened(first, Ok((peer, ReadyAck::Expected))));
//! assert!(matches!(steps[0].action, Action::Link(_)));
//! assert_eq!(line.handle(now, Event::Link(first, true))[0].action, Action::Confirm);
//! assert!(line.post(1).is_err(), "the peer is not known to be ready");
//! assert_eq!(line.handle(now, Event::Confirmed(first, Ok(())))[0].action, Action::Ready);
//! assert_eq!(line.post(1), Ok(first));
//! ```
//!
//! # Parts
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
//! | [`backend`] | what descriptors say |
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
//! * **A registration is at every NIC or nowhere**, and at most one export is open for it.
//!
//! # Failure behaviour
//!
//! No input and no order of events makes this crate panic. Bad bytes of a peer are a [`wire::WireError`] that names the
//! member; sides that do not fit are a [`negotiate::Disagreement`] with both values; no usable rail is a [`route::NoRoute`]
//! that lists the NICs of both sides and the reason for each pair. An event that makes no sense changes nothing.
//!
//! A WRITE that was posted and failed may still be applied at the peer, as long as the peer's queue pairs exist.
//!
//! The handshake is in `docs/wire/rdma.md`.
#![forbid(unsafe_code)]

pub mod backend;
mod config;
pub mod endpoint;
pub mod error;
pub mod negotiate;
pub mod registration;
pub mod route;
pub mod slices;
pub mod store;
pub mod wire;

use std::time::{Duration, Instant};

pub use config::RdmaConfig;
pub use te_transport::ConfigError;

/// A time of which nobody sees the end, where a sum would overflow the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// `now + wait`; for an absurd wait a time far away.
fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
