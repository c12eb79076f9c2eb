//! Protection domains and registered memory.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::error::{Call, VerbsError};
use crate::ffi::*;

/// What a registration permits, as bits. Reading from here is always permitted to the device itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u32);

impl Access {
    /// The device may read it, for requests of this process.
    pub const LOCAL_READ: Self = Self(0);
    /// The device may write it, for requests of this process. Needed for writes by peers as well.
    pub const LOCAL_WRITE: Self = Self(IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write it.
    pub const REMOTE_WRITE: Self = Self(IBV_ACCESS_REMOTE_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(IBV_ACCESS_REMOTE_READ);
    /// Pages are brought in when they are used and are not pinned.
    pub const ON_DEMAND: Self = Self(IBV_ACCESS_ON_DEMAND);
    /// Writes may arrive in any order, which some hosts carry faster; left out where it cannot be asked for.
    pub const RELAXED_ORDERING: Self = Self(IBV_ACCESS_RELAXED_ORDERING);

    /// The library's bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether it permits all that the other does.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({:#x})", self.0)
    }
}

/// What keeps registered memory valid: dropped after the device has let go of the memory.
pub type Keep = Box<dyn Any + Send + Sync>;

/// What registrations and queue pairs that may be used together are made in. Copies are the same.
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<Domain>);

pub(crate) struct Domain {
    raw: NonNull<ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        let loaded = self.context.loaded();
        // SAFETY: whatever was made in the domain had a share of it, and is gone.
        loaded.destroyed(unsafe { (loaded.symbols.dealloc_pd)(self.raw.as_ptr()) });
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", &self.context().name()).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.symbols().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(Call::AllocPd, context.name()))?;
        Ok(Self(Arc::new(Domain { raw, context: context.clone() })))
    }

    /// The device it is of.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    /// Registers memory of this process: pins it and gives it keys, under which the device and, as far as `access` permits,
    /// peers read and write it.
    ///
    /// # Safety
    ///
    /// Until `keep` is dropped, the range must stay mapped, and nothing in this process may rely on its bytes not being
    /// read or written at any moment in ways that `access` permits. Where `keep` is none, that holds until
    /// [`MemoryRegion::deregister`] has succeeded, or, if the region is dropped instead, for ever.
    ///
    /// # Errors
    ///
    /// The range is not mapped or cannot be pinned, or the device is out of keys; see [`VerbsError::hint`]. `keep` is
    /// dropped then.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
        keep: Option<Keep>,
    ) -> Result<MemoryRegion, VerbsError> {
        let symbols = self.context().symbols();
        let optional = access.0 & IBV_ACCESS_OPTIONAL_RANGE;
        let (address, iova) = (start.as_ptr().cast(), start.addr().get() as u64);
        let raw = match symbols.reg_mr_iova2 {
            // This one drops optional bits that the kernel does not know; the other refuses them.
            Some(register) if optional != 0 => {
                // SAFETY: the domain exists; the caller vouches for the range.
                unsafe { register(self.raw(), address, len, iova, access.0) }
            }
            _ => {
                let bits = (access.0 & !IBV_ACCESS_OPTIONAL_RANGE) as i32;
                // SAFETY: as above.
                unsafe { (symbols.reg_mr)(self.raw(), address, len, bits) }
            }
        };
        let on =
            || format!("{} for {len} bytes at {:#x} with {access:?}", self.context().name(), start.addr());
        self.region(raw, Call::RegMr, on, start.addr().get() as u64, len, keep)
    }

    /// Registers memory of another device by the descriptor of its dma-buf: `len` bytes from `offset` in it, which peers and
    /// requests address from `iova` on.
    ///
    /// # Safety
    ///
    /// As [`Self::register`], for the memory behind the descriptor, wherever it is mapped.
    ///
    /// # Errors
    ///
    /// The library, the kernel or the device lacks this; or as for [`Self::register`].
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
        keep: Option<Keep>,
    ) -> Result<MemoryRegion, VerbsError> {
        let on = || format!("{} for {len} bytes at {offset:#x} of a dma-buf", self.context().name());
        let Some(register) = self.context().symbols().reg_dmabuf_mr else {
            return Err(VerbsError::new(Call::RegDmabufMr, on(), libc::EOPNOTSUPP));
        };
        let bits = (access.0 & !IBV_ACCESS_OPTIONAL_RANGE) as i32;
        // SAFETY: the domain exists and the descriptor is open; the caller vouches for the memory.
        let raw = unsafe { register(self.raw(), offset, len, iova, fd.as_raw_fd(), bits) };
        self.region(raw, Call::RegDmabufMr, on, iova, len, keep)
    }

    fn region(
        &self,
        raw: *mut ibv_mr,
        call: Call,
        on: impl FnOnce() -> String,
        address: u64,
        len: usize,
        keep: Option<Keep>,
    ) -> Result<MemoryRegion, VerbsError> {
        let Some(raw) = NonNull::new(raw) else { return Err(VerbsError::last(call, on())) };
        // SAFETY: just made by the library; its keys do not change.
        let shown = unsafe { raw.as_ref() };
        let keys = (shown.lkey, shown.rkey);
        let region = RawRegion { raw: Some(raw), domain: self.clone(), keep: ManuallyDrop::new(keep) };
        Ok(MemoryRegion { region: Some(region), keys, address, len })
    }
}

/// A registration that ends when this is dropped.
pub(crate) struct RawRegion {
    /// None once it has been ended or has refused to end.
    raw: Option<NonNull<ibv_mr>>,
    domain: ProtectionDomain,
    keep: ManuallyDrop<Option<Keep>>,
}

// SAFETY: libibverbs may be called from any thread on any of its objects.
unsafe impl Send for RawRegion {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for RawRegion {}

impl RawRegion {
    /// Ends the registration and drops what kept the memory. If the device refuses, the memory is kept for ever: it may
    /// still be read and written. If the device is gone, it is kept until the context is closed: EIO is what the kernel
    /// answers for a device that was removed, whose registrations it has ended by the time the context is closed.
    fn end(&mut self) -> Result<(), VerbsError> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        let loaded = self.domain.context().loaded();
        // SAFETY: taken above, so nobody ends it twice.
        let rc = unsafe { (loaded.symbols.dereg_mr)(raw.as_ptr()) };
        if !loaded.destroyed(rc) {
            let errno = if rc < 0 { crate::error::last_errno() } else { rc };
            if errno == libc::EIO
                && let Some(keep) = self.keep.take()
            {
                self.domain.context().keep_until_closed(keep);
            }
            return Err(VerbsError::new(Call::DeregMr, self.domain.context().name(), errno));
        }
        // SAFETY: not dropped before, since the registration has just ended; not used after.
        unsafe { ManuallyDrop::drop(&mut self.keep) };
        Ok(())
    }
}

impl Drop for RawRegion {
    fn drop(&mut self) {
        // A refusal is counted where it is found.
        let _ = self.end();
    }
}

/// Registered memory.
///
/// [`Self::deregister`] ends the registration at once. Dropping is for shutdown: a region that is dropped while queue pairs
/// or completion queues of its device exist ends after the last of them, so that nothing that is under way finds its
/// memory gone.
pub struct MemoryRegion {
    /// None only while it is dropped.
    region: Option<RawRegion>,
    keys: (u32, u32),
    address: u64,
    len: usize,
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lkey, rkey) = self.keys;
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("lkey", &format_args!("{lkey:#x}"))
            .field("rkey", &format_args!("{rkey:#x}"))
            .finish()
    }
}

impl MemoryRegion {
    /// The key for requests of this process.
    #[must_use]
    pub const fn lkey(&self) -> u32 {
        self.keys.0
    }

    /// The key for requests of peers.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.keys.1
    }

    /// The address it begins at, for peers and for requests.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the registration now. Requests that still name its keys fail; once this returns, the device does not touch the
    /// memory any more.
    ///
    /// # Errors
    ///
    /// The device refuses. What keeps the memory is then never dropped, and [`crate::Verbs::undestroyed`] counts it. A device
    /// that was removed answers EIO: then it is dropped when the device is closed, after the last handle made from it.
    pub fn deregister(mut self) -> Result<(), VerbsError> {
        self.region.take().map_or(Ok(()), |mut region| region.end())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            let context = region.domain.context().clone();
            context.end_later(region);
        }
    }
}
