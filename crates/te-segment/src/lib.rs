//! Identities, ranges, locations and descriptors of memory segments. Not an engine: nothing here does any I/O, reads a
//! clock or draws a random number.
//!
//! # Quick start
//!
//! ```
//! use std::collections::BTreeMap;
//! use te_segment::*;
//!
//! // What the owner publishes.
//! let buffer = BufferDescriptor::new(
//!     AddressRange::new(0x7f00_0000_0000, 1 << 20)?,
//!     Location::cpu(0),
//!     Access::REMOTE_READ,
//!     Some(Generation::new(1)),
//!     BTreeMap::from([(TransportKind::TCP, Via::Tcp)]),
//! )?;
//! let descriptor = SegmentDescriptor::builder(SegmentName::new("decode-7")?)
//!     .identity(Identity::Te { incarnation: Incarnation::from_bits(1), control: Some("10.0.0.7:15211".parse()?) })
//!     .tcp(TcpService { host: Some("10.0.0.7".parse()?), port: 16411.try_into()?, framing: TcpFraming::V2 })
//!     .buffer(buffer)
//!     .build()?;
//! let record = descriptor.encode(&EncodeOptions {
//!     compat: CompatProtocol::Tcp,
//!     extension: true,
//!     timestamp: "2026-01-15 09:30:11.004211".to_owned(),
//! })?;
//!
//! // What a peer reads.
//! let decoded = SegmentDescriptor::decode(record.as_bytes())?;
//! assert!(decoded.descriptor.same_content(&descriptor));
//! let wanted = AddressRange::new(0x7f00_0000_1000, 4096)?;
//! assert!(!decoded.descriptor.find(wanted)?.access().allows_write());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two models
//!
//! [`wire`] is what a record *says*: every member of every variant, unknown ones included, so that a record survives a
//! round trip byte by byte. [`SegmentDescriptor`] is what a record *means*: it cannot be inconsistent. [`codec`] is the
//! binary form of messages between te engines.
//!
//! # Guarantees
//!
//! - A value that exists is valid: a range neither wraps nor is empty, an endpoint has a port, the buffers of a
//!   descriptor do not overlap, and its keys belong to its devices.
//! - The form of records depends on no feature of any build (B-09). Keys are 64 bits wide (MR-08).
//! - Values are immutable and `Send + Sync`; nothing is shared behind the caller's back.
//!
//! # Failure
//!
//! No input makes this crate panic, recurse without bound or allocate more than a multiple of the input's size. What is
//! wrong is an error that names the member, such as `buffers[3].rkey`. One wrong buffer costs that buffer only:
//! [`Decoded::rejected`] lists it.
#![forbid(unsafe_code)]

mod access;
pub mod codec;
mod descriptor;
mod endpoint;
mod error;
mod ids;
mod json;
mod limits;
mod location;
mod range;
mod topology;
pub mod wire;

pub use access::{Access, ParseAccessError};
pub use descriptor::{
    BufferDescriptor, CompatProtocol, CxlWindow, DecodeOptions, Decoded, DescriptorBuilder, Device,
    EncodeOptions, FileBuffer, FindError, Gid, Identity, ParseGidError, RejectedBuffer, SegmentDescriptor,
    TcpFraming, TcpService, Via,
};
pub use endpoint::{DEFAULT_CONTROL_PORT, Endpoint, EndpointError, Host};
pub use error::{DescriptorError, FieldError, FieldProblem, JsonKind};
pub use ids::{
    DescriptorVersion, Generation, Incarnation, MemoryKey, NameError, NicName, ParseIncarnationError,
    SegmentName, TransportKind,
};
pub use limits::{
    DecodeLimits, MAX_BUFFERS, MAX_DEVICES, MAX_DOCUMENT_BYTES, MAX_NAME_BYTES, MAX_NESTING, MAX_PARTS,
};
pub use location::{DeviceKind, Location};
pub use range::{AddressRange, Pieces, RangeError};
pub use topology::{Rails, Topology};
pub use wire::RpcLocation;
