//! What can go wrong, one enum per operation.

use std::{fmt, io};

use te_segment::AddressRange;

use crate::memory::Memory;

/// Memory could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Zero bytes were asked for.
    #[error("cannot allocate 0 bytes")]
    Empty,
    /// The length plus guard pages does not fit the address space.
    #[error("cannot allocate {len} bytes: more than the address space")]
    TooLarge {
        /// Length asked for, in bytes.
        len: usize,
    },
    /// The system refused the mapping.
    #[error("cannot map {len} bytes: {source}")]
    Map {
        /// Length asked for, in bytes.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused the file of shareable memory, its size or its seals.
    #[error("cannot make a file of {len} bytes: {source}")]
    File {
        /// Length asked for, in bytes.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The mapping exists, but the system could not back it with pages.
    #[error("cannot fault in {len} bytes: {source}")]
    Populate {
        /// Length asked for, in bytes.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// A range cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The memory begins at the null address.
    #[error("memory of {len} bytes begins at the null address")]
    Null {
        /// Length of the memory in bytes.
        len: u64,
    },
    /// The memory has no bytes.
    #[error("memory at {address:#x} is empty")]
    Empty {
        /// Address of the memory.
        address: u64,
    },
    /// The end of the memory does not fit 64 bits.
    #[error("memory at {address:#x} of {len} bytes wraps around the end of the address space")]
    Wraps {
        /// Address of the memory.
        address: u64,
        /// Length of the memory in bytes.
        len: u64,
    },
    /// The range shares bytes with one that is registered or being registered.
    #[error("range {range} overlaps the registered range {existing}")]
    Overlaps {
        /// The range asked for.
        range: AddressRange,
        /// The range that was there first. If several are, the one with the highest address.
        existing: AddressRange,
    },
    /// Raw memory has pages that are not mapped.
    #[error("range {range} is not mapped, at least in part")]
    Unmapped {
        /// The range asked for.
        range: AddressRange,
    },
    /// The table is full.
    #[error("the limit of {limit} registered ranges is reached")]
    LimitReached {
        /// The limit of the table.
        limit: usize,
    },
}

/// A reservation was refused; the memory comes back with the reason.
#[derive(Debug)]
pub struct ReserveRejected {
    /// Why.
    pub error: RegisterError,
    /// The memory, untouched.
    pub memory: Memory,
}

impl fmt::Display for ReserveRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ReserveRejected {}

impl From<ReserveRejected> for RegisterError {
    fn from(rejected: ReserveRejected) -> Self {
        rejected.error
    }
}

/// An access was refused; nothing was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The range has no bytes.
    #[error("the range is empty")]
    EmptyRange,
    /// The end of the range does not fit 64 bits.
    #[error("the range wraps around the end of the address space")]
    Wraps,
    /// The range is not inside any region that is served.
    #[error("the range is outside of every region")]
    OutsideAnyRegion,
    /// The range begins in one region and goes on in the adjacent one. Regions are never merged.
    #[error("the range crosses the boundary between two regions")]
    CrossesRegions,
    /// The part asked for does not lie inside the region or hold it was asked of.
    #[error("the part is not inside the range it was asked of")]
    OutsideRange,
    /// The region does not allow this operation to peers, or the hold was given for reading only.
    #[error("the region does not permit the operation")]
    PermissionDenied,
    /// The region is being withdrawn or has been.
    #[error("the region is withdrawn")]
    Withdrawn,
    /// The registration that the peer means has ended. Nothing is at the range, or a later registration.
    #[error("the registration of the range has ended")]
    Gone,
    /// The memory is a device's, which the CPU does not touch.
    #[error("the memory is a device's, which the cpu does not touch")]
    DeviceMemory,
    /// The region has as many holds of this kind as can be counted, 2^30 - 1.
    #[error("the region has too many holds")]
    TooManyHolds,
}

/// A region is still in use, or has not been blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("still held: {local} local, {remote} remote")]
pub struct StillHeld {
    /// Holds of this process.
    pub local: u32,
    /// Holds of requests from peers.
    pub remote: u32,
}

/// The memory of a region cannot be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The region accepts new holds; block it first.
    #[error("the region has not been blocked")]
    NotBlocked,
    /// Somebody may still touch the memory.
    #[error("still held: {local} local, {remote} remote")]
    StillHeld {
        /// Holds of this process.
        local: u32,
        /// Holds of requests from peers.
        remote: u32,
    },
    /// There are [`Keep`](crate::Keep)s: a device may still touch the memory. Revoke its registration first.
    #[error("a device may still touch the memory: its registration must be revoked first")]
    Kept,
    /// The memory has been given back before.
    #[error("the region has been released before")]
    Released,
}

/// Two holds of different lengths cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The lengths differ.
    #[error("cannot copy {source_len} bytes to a hold of {destination_len} bytes")]
    LengthMismatch {
        /// Length of the source in bytes.
        source_len: u64,
        /// Length of the destination in bytes.
        destination_len: u64,
    },
    /// The destination was given for reading only.
    #[error("the destination does not permit writing")]
    PermissionDenied,
    /// One of them is memory of a device, which the CPU does not touch.
    #[error("memory of a device is not copied by the cpu")]
    DeviceMemory,
}
