//! Chooses paths; opens none. A pure decision from (request, peer descriptor, locality, installed transports) to
//! an ordered plan with a reason for every candidate.
//!
//! # Quick start
//!
//! ```
//! use te_segment::{Location, TransportKind};
//! use te_select::{Installed, Locality, Policy, Request, plan};
//! use te_transport::{Assessment, Capabilities, Fencing, Op, Reach};
//!
//! let tcp = Capabilities {
//!     read: true, write: true, host_memory: true, device_memory: false, max_slice: u64::MAX,
//!     reach: Reach::Network, fencing: Fencing::LocalOnly, checks_identity: false,
//!     registers_at_once: true,
//! };
//! let installed = [Installed::new(TransportKind::TCP, &tcp, Assessment::Usable("10.0.0.3:16411".into()), true)];
//! let request = Request { op: Op::Read, local: &Location::cpu(0), policy: &Policy::default() };
//! let plan = plan(&request, Locality::Network, &installed, &[TransportKind::TCP])?;
//! assert_eq!(plan.chosen(), &TransportKind::TCP);
//! # Ok::<(), te_select::NoPath>(())
//! ```
//!
//! # Guarantees
//!
//! * The same inputs give the same plan; order of the installed list does not matter.
//! * A transport of one host is never a candidate unless locality has been *proven*.
//! * An explicit transport list is exact: nothing else is considered, and an unknown word in it is an error.
//! * Every installed transport appears in the plan once, with its reason.
//!
//! # Failure behaviour
//!
//! [`NoPath`] lists what we have, what the peer offers and why nothing fits.

#![forbid(unsafe_code)]

mod decision;
mod order;
mod plan;

#[cfg(test)]
mod tests;

pub use decision::{Installed, Locality, Policy, Request, plan};
pub use order::{DEFAULT_ORDER, rank};
pub use plan::{Candidate, NoPath, Plan, Verdict};
