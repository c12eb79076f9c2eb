//! The right to touch a part of a region.

use std::fmt;

use te_segment::{AddressRange, Generation};

use crate::{
    copy,
    error::{CopyError, Refusal},
    gate::{Closed, Side},
    region::Region,
};

/// What a hold was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    Local,
    RemoteRead,
    RemoteWrite,
}

impl HoldKind {
    const fn side(self) -> Side {
        match self {
            Self::Local => Side::Local,
            Self::RemoteRead | Self::RemoteWrite => Side::Remote,
        }
    }
}

/// The right to touch a part of a region. While it lives, the memory stays in place and the region is not released.
///
/// A hold is counted: dropping it is what lets a withdrawal finish, leaking it keeps the memory for ever and does no
/// other harm. It gives no exclusive access: others may read and write the same bytes at any time, so bytes are only
/// reached by copying. Those of a device are not reached by the CPU at all: a hold of them is for devices, which know them by
/// their [addresses](Hold::address).
pub struct Hold {
    region: Region,
    kind: HoldKind,
    range: AddressRange,
}

impl Hold {
    /// Enters the region's gate for a part of it.
    pub(crate) fn enter(region: &Region, kind: HoldKind, offset: u64, len: u64) -> Result<Self, Refusal> {
        let range = part(&region.range(), offset, len)?;
        Self::enter_range(region.clone(), kind, range)
    }

    /// Enters the region's gate for `range`, which must be inside the region.
    pub(crate) fn enter_range(region: Region, kind: HoldKind, range: AddressRange) -> Result<Self, Refusal> {
        debug_assert!(region.range().contains_range(&range));
        region.gate().enter(kind.side()).map_err(|closed| match closed {
            Closed::NotActive => Refusal::OutsideAnyRegion,
            Closed::Blocked => Refusal::Withdrawn,
            Closed::Full => Refusal::TooManyHolds,
        })?;
        Ok(Self { region, kind, range })
    }

    /// The number of bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a hold is never empty")]
    pub fn len(&self) -> u64 {
        self.range.len()
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.range.start()
    }

    /// The addresses it covers.
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// The region it belongs to.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The generation of the region, for comparison with the one a request names.
    pub fn generation(&self) -> Generation {
        self.region.generation()
    }

    /// Whether it was taken for a request of a peer.
    pub fn is_remote(&self) -> bool {
        self.kind.side() == Side::Remote
    }

    /// A hold of `len` bytes at `offset` of this one, counted on its own.
    ///
    /// Works while the region is blocked: it gives no access that its owner does not have already.
    pub fn slice(&self, offset: u64, len: u64) -> Result<Self, Refusal> {
        let range = part(&self.range, offset, len)?;
        self.region.gate().enter_again(self.kind.side()).map_err(|_| Refusal::TooManyHolds)?;
        Ok(Self { region: self.region.clone(), kind: self.kind, range })
    }

    /// Copies bytes at `offset` to `buffer`. If others write them meanwhile, the bytes read are unspecified. Refused with
    /// [`Refusal::DeviceMemory`] if they are not the host's.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Refusal> {
        let src = self.pointer(offset, buffer.len())?;
        // SAFETY: `pointer` has checked that the bytes are inside the hold, so they are mapped while it lives. The
        // buffer is exclusively ours and elsewhere: safe code has no reference to registered memory. All racing
        // accesses to the source are of the allowed kinds, by the invariant of `Memory`.
        unsafe { copy::copy(buffer.as_mut_ptr(), src, buffer.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`. Refused as [`Hold::read_at`] is, and with [`Refusal::PermissionDenied`] if the hold is for
    /// a remote read.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.check_writable()?;
        let dst = self.pointer(offset, bytes.len())?;
        // SAFETY: as in `read_at`, with the roles exchanged; nobody writes `bytes` while we borrow them.
        unsafe { copy::copy(dst, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Sets every byte. Refused as [`Hold::write_at`] is.
    pub fn fill(&self, byte: u8) -> Result<(), Refusal> {
        self.check_writable()?;
        let (start, len) = (self.as_ptr().ok_or(Refusal::DeviceMemory)?, self.native_len()?);
        // SAFETY: the bytes are inside the hold, so they are mapped while it lives; racing accesses are of the allowed
        // kinds, by the invariant of `Memory`.
        unsafe { copy::fill(start, byte, len) };
        Ok(())
    }

    /// The address of the first byte, for system calls and devices; none for memory of a device, which the CPU and the kernel
    /// do not touch.
    ///
    /// The pointer is good for [`Hold::len`] bytes while the hold lives. Others access the bytes at the same time, so
    /// making a reference from it, or reading and writing through it other than by [`copy()`](copy::copy), is undefined
    /// behaviour. Passing it to the kernel (`recv`, `send`, `read`, `process_vm_readv`) is fine.
    pub fn as_ptr(&self) -> Option<*mut u8> {
        // The range is inside the region, so the offset is below the length of an existing allocation.
        let offset = self.range.start().saturating_sub(self.region.range().start());
        self.region.device().is_none().then(|| self.region.base().at(offset))
    }

    fn native_len(&self) -> Result<usize, Refusal> {
        usize::try_from(self.range.len()).map_err(|_| Refusal::OutsideRange)
    }

    /// A pointer to `len` bytes at `offset`, which are inside the hold. `len` may be 0.
    fn pointer(&self, offset: u64, len: usize) -> Result<*mut u8, Refusal> {
        let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len)).ok_or(Refusal::Wraps)?;
        if end > self.len() {
            return Err(Refusal::OutsideRange);
        }
        let offset = usize::try_from(offset).map_err(|_| Refusal::OutsideRange)?;
        Ok(self.as_ptr().ok_or(Refusal::DeviceMemory)?.wrapping_add(offset))
    }

    fn check_writable(&self) -> Result<(), Refusal> {
        if self.kind == HoldKind::RemoteRead { Err(Refusal::PermissionDenied) } else { Ok(()) }
    }
}

/// The part of `len` bytes at `offset`, with the words of an access for what does not exist.
fn part(whole: &AddressRange, offset: u64, len: u64) -> Result<AddressRange, Refusal> {
    if len == 0 {
        return Err(Refusal::EmptyRange);
    }
    if offset.checked_add(len).is_none() {
        return Err(Refusal::Wraps);
    }
    whole.slice(offset, len).map_err(|_| Refusal::OutsideRange)
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The region's shared part outlives this call, because `self.region` is dropped after it.
        self.region.gate().leave(self.kind.side());
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("kind", &self.kind)
            .field("range", &self.range)
            .field("generation", &self.generation())
            .finish()
    }
}

/// Copies all bytes of `src` to `dst`, which must be of the same length. The two may overlap, and others may access
/// both meanwhile.
///
/// Where others write the source meanwhile, the bytes that arrive are unspecified.
pub fn copy_between(dst: &Hold, src: &Hold) -> Result<(), CopyError> {
    let mismatch = CopyError::LengthMismatch { source_len: src.len(), destination_len: dst.len() };
    if src.len() != dst.len() {
        return Err(mismatch);
    }
    dst.check_writable().map_err(|_| CopyError::PermissionDenied)?;
    let (Some(to), Some(from)) = (dst.as_ptr(), src.as_ptr()) else { return Err(CopyError::DeviceMemory) };
    let len = dst.native_len().map_err(|_| mismatch)?;
    // SAFETY: both holds live during the call, so both ranges are mapped; the routine allows overlap; racing accesses are
    // of the allowed kinds, by the invariant of `Memory`.
    unsafe { copy::copy(to, from, len) };
    Ok(())
}

/// Whether two holds have the same bytes, and as many. Where others write one of them meanwhile, that is unspecified. False for
/// memory of a device, which is not looked at.
pub fn same_bytes(left: &Hold, right: &Hold) -> bool {
    let Ok(len) = left.native_len() else { return false };
    let (Some(ours), Some(theirs)) = (left.as_ptr(), right.as_ptr()) else { return false };
    // SAFETY: both holds live during the call, so both ranges are mapped, and they are of one length; racing accesses are of
    // the allowed kinds, by the invariant of `Memory`.
    left.len() == right.len() && unsafe { copy::same(ours, theirs, len) }
}
