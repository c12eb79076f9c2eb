//! What a host has, as far as moving bytes is concerned: NUMA nodes, RDMA devices, GPUs, NVMe drives, DAX and CXL
//! memory. Read from `/sys` and `/proc`; no device is opened, no vendor library is loaded.
//!
//! # Quick start
//!
//! ```
//! use te_topology::{Host, NicFilter, Root};
//!
//! let host = Host::discover(&Root::system(), &NicFilter::all())?;
//! print!("{}{}", host.table(), host.tree());
//! for nic in &host.nics {
//!     match host.usable(nic, None) {
//!         Ok(usable) => println!("{}: port {}, {}", nic.name, usable.port, usable.gid.reason),
//!         Err(why) => println!("{}: {why}", nic.name),
//!     }
//! }
//! println!("{}", host.matrix().to_matrix());
//! # Ok::<(), te_topology::NoSuchNic>(())
//! ```
//!
//! # Guarantees
//!
//! * The tree to read is a parameter ([`Root`]): a copy of another host's files, or a made-up one, is as good as `/`.
//! * What is missing or malformed is a [`Fact`] with its reason, and costs nothing but itself.
//! * A device that a [`NicFilter`] refuses is not read, and appears nowhere.
//! * The choice of an address ([`choose`]) and the matrix ([`matrix()`]) are pure functions; the same host gives the
//!   same result, numbers in names in the order of their value.
//! * Files and folders are read up to a limit; a pipe or a device in a made-up tree is not opened.
//!
//! # Failure behaviour
//!
//! Discovery fails only when a filter names a device that is not there; a matrix file fails as a whole. Whether this
//! process may open a device, and how the runtime of a GPU numbers it ([`Host::number_gpus`]), is not in these files.
#![forbid(unsafe_code)]

mod cxl;
mod filter;
mod gid;
mod gpu;
mod host;
mod matrix;
mod namespace;
mod natural;
mod netdev;
mod nic;
mod numa;
mod pci;
mod render;
mod root;
mod storage;

pub use cxl::{CxlRegion, DaxDevice};
pub use filter::{NicFilter, NoSuchNic};
pub use gid::{Choice, GidEntry, GidTable, GidType, NoUsableGid, Ranked, Tier, as_ip, choose, rank};
pub use gpu::Gpu;
pub use host::Host;
pub use matrix::{MatrixError, matrix, parse_matrix, read_matrix};
pub use namespace::Namespace;
pub use netdev::Netdev;
pub use nic::{LinkLayer, Nic, NodeType, Port, PortState, Rate, Unusable, Usable};
pub use numa::{CpuList, NumaNode, ParseCpuListError};
pub use pci::{ParsePciAddressError, PciAddress, PciPath};
pub use root::{Cause, Fact, Root, Unknown};
pub use storage::{NvmeController, NvmeNamespace};
