//! Identities, ranges, locations and descriptors of memory segments, without any I/O.
#![forbid(unsafe_code)]

mod access;
mod endpoint;
mod ids;
mod limits;
mod location;
mod range;

pub use access::{Access, ParseAccessError};
pub use endpoint::{DEFAULT_CONTROL_PORT, Endpoint, EndpointError, Host};
pub use ids::{
    DescriptorVersion, Generation, Incarnation, MemoryKey, NameError, NicName, ParseIncarnationError,
    SegmentName, TransportKind,
};
pub use limits::{DecodeLimits, MAX_BUFFERS, MAX_DEVICES, MAX_DOCUMENT_BYTES, MAX_NAME_BYTES, MAX_NESTING};
pub use location::{DeviceKind, Location};
pub use range::{AddressRange, Pieces, RangeError};
