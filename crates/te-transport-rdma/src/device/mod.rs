//! The transport over devices: NICs, what reaches peers over them, and the two threads that each NIC has.
//!
//! ```text
//! who submits ──pieces──> Link <──completions── polling thread (poll)
//!                          │ ^                    events, what has been stopped
//!             steps, wants │ │ outcomes
//!                          v │
//!                    set-up thread (setup): creates, joins, flushes, destroys, asks peers and answers them
//! ```
//!
//! A [`link`] is locked by whoever has something for it, for a moment, and never while a device or a peer is waited for.
//! Locks are taken in the order NIC, link, then anything of a peer or of a request; nothing is completed under a lock.

mod answers;
mod dial;
mod exchanges;
mod link;
mod nic;
mod open;
mod pairs;
mod poll;
mod rebuild;
mod regions;
mod registering;
mod setup;
mod signals;
mod verdict;
mod work;

pub(crate) use answers::Desk;
pub(crate) use link::{Barred, Link, LinkKey, Trouble};
pub(crate) use nic::Nic;
pub(crate) use open::{all, topology};
pub(crate) use regions::{NotRegistered, Registered, Registry};
pub(crate) use setup::{Errand, Setup};

pub(crate) use poll::{Looking, run as poll};
