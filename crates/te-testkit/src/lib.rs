//! Not for production: conformance suites, fakes and fault injection for tests of te backends and of the engine.
//!
//! # Quick start
//!
//! A transport backend implements [`Rig`] and calls [`transport_conformance!`]; a metadata store implements
//! [`StoreRig`] and calls [`store_conformance!`], a directory [`DirectoryRig`] and [`directory_conformance!`]. Each
//! makes one `#[test]` per fact.
//!
//! ```
//! use te_testkit::{byte_at, pattern, verify};
//! let bytes = pattern(7, 1000);
//! assert_eq!(bytes[600], byte_at(7, 600));
//! assert!(verify(7, 0, &bytes).is_ok());
//! assert!(verify(7, 1, &bytes).is_err());
//! ```
//!
//! # Guarantees
//!
//! * **Cases can fail.** For each case there is a deliberately broken backend ([`Flaw`], [`StoreFlaw`]) that it
//!   refuses; this crate's own tests prove it.
//! * **Nothing hangs.** Each case runs under a limit and names itself when it exceeds it.
//! * **Faults are reproducible.** A [`Script`] decides by counting and by a seed, never by time.
//!
//! # Failure behaviour
//!
//! Cases return a [`Verdict`] with one line that says what was found; they do not panic. A case that asks for an
//! ability that a backend does not claim is [`Verdict::NotApplicable`], which is reported and never counted as passed.

#![forbid(unsafe_code)]

mod area;
mod copy;
mod directory;
mod explore;
mod fault;
mod freeze;
mod ledger;
mod link;
pub mod node;
mod pattern;
mod ports;
mod report;
mod server;
mod sim;
mod store;
mod switch;
mod transport;
mod watchdog;

pub use area::{Area, AreaDraft, CANARY};
pub use copy::{CopyTransport, Fabric, Flaw};
pub use directory::{
    DirectoryCase, DirectoryFlaw, DirectoryRig, FlawedDirectory, Publisher, directory_cases, directory_report,
};
pub use explore::{Explored, Finding, Model, Move, Wire, explore};
pub use fault::{Fault, FaultTransport, Script, Site, When};
pub use freeze::{freeze, thaw};
pub use ledger::{Ledger, Observer, Reported};
pub use link::{Link, LinkControl, TcpProxy};
pub use pattern::{Mismatch, Shown, byte_at, compare, fill, pattern, verify};
pub use ports::{free_port, free_ports};
pub use report::{Report, Verdict, Violation};
pub use server::{EtcdServer, RedisServer};
pub use sim::{Mishap, Post, Process, Ran, Sim, Weather};
pub use store::{
    FaultStore, FlawedStore, Outage, StoreCall, StoreCase, StoreFlaw, StoreRig, store_cases, store_report,
};
pub use switch::Switchboard;
pub use transport::{
    Profile, Rig, Side, TransportCase, over_rail, redescribe, tcp_link, transport_cases, transport_report,
};
pub use watchdog::{Stuck, Watchdog, within};
