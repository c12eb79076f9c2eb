//! Memory that is owned, wherever it came from.

mod mapping;
mod prefault;
mod probe;
mod shared;

use std::{
    fmt,
    mem::ManuallyDrop,
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU8},
};

use memmap2::MmapMut;
use te_segment::{AddressRange, RangeError};

use crate::device::DeviceMemory;
use crate::error::MemoryError;
use mapping::Mapping;
pub(crate) use probe::page_size;
pub use shared::{SharedFile, Sharing};

/// Owned memory that lives until it is dropped, not registered anywhere.
///
/// The value is the only owner of its bytes: nothing in safe code can reach them while it, or a region made from it,
/// exists. The exception is [`Memory::from_shared`], whose bytes are atomics. Leaking it leaks the memory.
///
/// Memory of a device ([`Memory::from_device`]) is owned and registered like any other, and nothing here reads or writes its
/// bytes: only devices do, and what copies for the CPU refuses it.
///
/// ```
/// use te_memory::Memory;
/// let memory = Memory::from_vec(vec![1, 2, 3]);
/// assert_eq!(memory.len(), 3);
/// assert_eq!(memory.into_vec().unwrap(), [1, 2, 3]);
/// ```
pub struct Memory {
    /// May be null for memory from a raw pointer and of a device only; registration refuses that. Of a device: a number.
    ptr: *mut u8,
    len: usize,
    owner: ManuallyDrop<Owner>,
}

/// Who owns the bytes. For the first three, `Memory` itself does, and gives them back as what they were.
enum Owner {
    Vec {
        capacity: usize,
    },
    Boxed,
    Static,
    #[expect(dead_code, reason = "kept only to be dropped")]
    Anonymous(Mapping),
    Shareable {
        #[expect(dead_code, reason = "kept only to be dropped")]
        mapping: Mapping,
        file: SharedFile,
    },
    Mmap(MmapMut),
    Shared(Arc<[AtomicU8]>),
    #[expect(dead_code, reason = "kept only to be dropped")]
    Raw(Box<dyn Send + Sync>),
    Device {
        device: DeviceMemory,
        #[expect(dead_code, reason = "kept only to be dropped")]
        owner: Box<dyn Send + Sync>,
    },
}

// SAFETY: the bytes are owned by this value alone, or are atomics, or are what `from_raw` demands to be usable from any
// thread, or are a device's and not used here. `&Memory` gives numbers and, where exclusive ownership makes it sound, shared
// slices.
unsafe impl Send for Memory {}
// SAFETY: see above.
unsafe impl Sync for Memory {}

/// The first byte of a region's memory. A pointer that may cross threads, because using it is unsafe anyway.
#[derive(Clone, Copy)]
pub(crate) struct Base(*mut u8);

// SAFETY: it is only a number with provenance; whoever dereferences it justifies that.
unsafe impl Send for Base {}
// SAFETY: see above.
unsafe impl Sync for Base {}

impl Base {
    /// The pointer `offset` bytes on. Offsets inside of existing memory fit a pointer's width.
    pub(crate) fn at(self, offset: u64) -> *mut u8 {
        self.0.wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX))
    }
}

impl Memory {
    fn new(ptr: *mut u8, len: usize, owner: Owner) -> Self {
        Self { ptr, len, owner: ManuallyDrop::new(owner) }
    }

    /// Allocates `len` zeroed bytes, page-aligned and already backed by pages.
    ///
    /// The mapping is private and anonymous, with an inaccessible guard page on both sides; from 2 MiB on it is aligned
    /// to 2 MiB and asks for huge pages. What the system
    /// cannot back is an error here, rather than a fault at first use, where the system tells.
    pub fn allocate(len: usize) -> Result<Self, MemoryError> {
        let mapping = Mapping::new(len)?;
        Ok(Self::new(mapping.data(), len, Owner::Anonymous(mapping)))
    }

    /// Allocates `len` zeroed bytes as [`Memory::allocate`] does, in a file without a name that other processes can map, as
    /// far as `sharing` says. The file can be passed on by [`Region::shared_file`](crate::Region::shared_file) alone.
    pub fn allocate_shareable(len: usize, sharing: Sharing) -> Result<Self, MemoryError> {
        let (mapping, file) = SharedFile::create(len, sharing)?;
        Ok(Self::new(mapping.data(), len, Owner::Shareable { mapping, file }))
    }

    /// The bytes of a vector. Its spare capacity is kept, but is not part of the memory.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let (ptr, len, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        Self::new(ptr, len, Owner::Vec { capacity })
    }

    /// The bytes of a boxed slice.
    pub fn from_boxed(bytes: Box<[u8]>) -> Self {
        let len = bytes.len();
        Self::new(Box::into_raw(bytes).cast(), len, Owner::Boxed)
    }

    /// Bytes that are borrowed for ever.
    pub fn from_static(bytes: &'static mut [u8]) -> Self {
        Self::new(bytes.as_mut_ptr(), bytes.len(), Owner::Static)
    }

    /// Bytes that other owners may access too, as the atomics they are.
    pub fn from_shared(bytes: Arc<[AtomicU8]>) -> Self {
        let (ptr, len) = (bytes.as_ptr(), bytes.len());
        Self::new(ptr.cast_mut().cast(), len, Owner::Shared(bytes))
    }

    /// The bytes of a writable mapping, of a file for example.
    pub fn from_mmap(mut map: MmapMut) -> Self {
        let (ptr, len) = (map.as_mut_ptr(), map.len());
        Self::new(ptr, len, Owner::Mmap(map))
    }

    /// `len` bytes at `ptr`, kept by `owner`.
    ///
    /// Registration checks that the pages are mapped, and reports what is empty or wraps, but cannot check more.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped, the bytes must stay mapped, readable and writable from any thread. (Making them
    /// inaccessible, with `mprotect` for example, kills the process at the next access.) During that time, every access
    /// to them that is not ordered against the engine's must be atomic and of single bytes, be made by
    /// [`copy()`](crate::copy::copy), or come from outside the program; no reference to them may be in use.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self::new(ptr.as_ptr(), len, Owner::Raw(owner))
    }

    /// As [`Memory::from_raw`], for pointers of foreign origin that may be null, which registration then reports.
    ///
    /// # Safety
    ///
    /// As for [`Memory::from_raw`], unless `ptr` is null.
    pub unsafe fn from_raw_ptr(ptr: *mut u8, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self::new(ptr, len, Owner::Raw(owner))
    }

    /// `len` bytes of a device's memory, which the CPU does not touch, at `address` of this process's address space as the
    /// device's vendor defines it, kept by `owner`.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped, the addresses must be this process's allocation on that device, and those of nothing else;
    /// what the device's [exporter](crate::Export) exports for a range of them must be the bytes of that range. During that
    /// time nothing may rely on the bytes: devices that it is registered with, and peers, read and write them at any moment.
    pub unsafe fn from_device(
        address: u64,
        len: usize,
        device: DeviceMemory,
        owner: Box<dyn Send + Sync>,
    ) -> Self {
        // What does not fit is no address of this process; it is refused as memory at the null address is.
        let address = usize::try_from(address).unwrap_or(0);
        Self::new(std::ptr::without_provenance_mut(address), len, Owner::Device { device, owner })
    }

    /// Which device it is on; none if it is the host's.
    pub fn device(&self) -> Option<&DeviceMemory> {
        match &*self.owner {
            Owner::Device { device, .. } => Some(device),
            _ => None,
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; then it cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.ptr.addr() as u64
    }

    /// The addresses it covers; an error if it is empty, or a raw range that is null or wraps.
    pub fn range(&self) -> Result<AddressRange, RangeError> {
        AddressRange::new(self.address(), self.len as u64)
    }

    /// The bytes, unless somebody else may write them too (shared and raw memory, memory of a device, and shareable memory
    /// that a process with the right to write has been given).
    pub fn bytes(&self) -> Option<&[u8]> {
        if !self.is_exclusive() {
            return None;
        }
        // SAFETY: the pointer came from an owner of `len` initialised bytes, who is inside us and exclusive; the borrow
        // of `self` keeps everybody from moving it into a region.
        Some(unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    /// The bytes to write, unless somebody else may write them too, as for [`Memory::bytes`].
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_exclusive() {
            return None;
        }
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) })
    }

    fn is_exclusive(&self) -> bool {
        match &*self.owner {
            Owner::Shared(_) | Owner::Raw(_) | Owner::Device { .. } => false,
            Owner::Shareable { file, .. } => !file.is_written_by_others(),
            _ => true,
        }
    }

    /// The file it lies in, if it is shareable.
    pub(crate) fn shared_file(&self) -> Option<&SharedFile> {
        match &*self.owner {
            Owner::Shareable { file, .. } => Some(file),
            _ => None,
        }
    }

    pub(crate) fn base(&self) -> Base {
        Base(self.ptr)
    }

    /// Whether all pages are mapped. Only raw memory can fail this.
    pub(crate) fn is_mapped(&self) -> bool {
        !matches!(*self.owner, Owner::Raw(_)) || probe::is_mapped(self.ptr, self.len)
    }

    /// Takes the owner out; the caller disposes of the memory.
    fn into_parts(self) -> (*mut u8, usize, Owner) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the owner is taken only here.
        let owner = unsafe { ManuallyDrop::take(&mut this.owner) };
        (this.ptr, this.len, owner)
    }

    /// The vector it was made from, or itself.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self.into_parts() {
            // SAFETY: these are the parts of the vector that `from_vec` took apart, given back once.
            (ptr, len, Owner::Vec { capacity }) => Ok(unsafe { Vec::from_raw_parts(ptr, len, capacity) }),
            (ptr, len, owner) => Err(Self::new(ptr, len, owner)),
        }
    }

    /// The boxed slice it was made from, or itself.
    pub fn into_boxed(self) -> Result<Box<[u8]>, Self> {
        match self.into_parts() {
            // SAFETY: this is the pointer that `from_boxed` got from a box of this length, given back once.
            (ptr, len, Owner::Boxed) => Ok(unsafe { Box::from_raw(slice(ptr, len)) }),
            (ptr, len, owner) => Err(Self::new(ptr, len, owner)),
        }
    }

    /// The static bytes it was made from, or itself.
    pub fn into_static(self) -> Result<&'static mut [u8], Self> {
        match self.into_parts() {
            // SAFETY: `from_static` got an exclusive reference to these bytes and nobody has used it since.
            (ptr, len, Owner::Static) => Ok(unsafe { &mut *slice(ptr, len) }),
            (ptr, len, owner) => Err(Self::new(ptr, len, owner)),
        }
    }

    /// The shared bytes it was made from, or itself.
    pub fn into_shared(self) -> Result<Arc<[AtomicU8]>, Self> {
        match self.into_parts() {
            (_, _, Owner::Shared(bytes)) => Ok(bytes),
            (ptr, len, owner) => Err(Self::new(ptr, len, owner)),
        }
    }

    /// The mapping it was made from, or itself.
    pub fn into_mmap(self) -> Result<MmapMut, Self> {
        match self.into_parts() {
            (_, _, Owner::Mmap(map)) => Ok(map),
            (ptr, len, owner) => Err(Self::new(ptr, len, owner)),
        }
    }
}

fn slice(ptr: *mut u8, len: usize) -> *mut [u8] {
    std::ptr::slice_from_raw_parts_mut(ptr, len)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the drop of `self`, and `into_parts` does not run it.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        match owner {
            Owner::Vec { capacity } => {
                // SAFETY: these are the parts of the vector that `from_vec` took apart, given back once.
                drop(unsafe { Vec::from_raw_parts(self.ptr, self.len, capacity) });
            }
            Owner::Boxed => {
                // SAFETY: this is the pointer that `from_boxed` got from a box of this length, given back once.
                drop(unsafe { Box::from_raw(slice(self.ptr, self.len)) });
            }
            Owner::Static
            | Owner::Anonymous(_)
            | Owner::Shareable { .. }
            | Owner::Mmap(_)
            | Owner::Shared(_)
            | Owner::Raw(_)
            | Owner::Device { .. } => {}
        }
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_vec(bytes)
    }
}

impl From<Box<[u8]>> for Memory {
    fn from(bytes: Box<[u8]>) -> Self {
        Self::from_boxed(bytes)
    }
}

impl From<Arc<[AtomicU8]>> for Memory {
    fn from(bytes: Arc<[AtomicU8]>) -> Self {
        Self::from_shared(bytes)
    }
}

impl From<MmapMut> for Memory {
    fn from(map: MmapMut) -> Self {
        Self::from_mmap(map)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match *self.owner {
            Owner::Vec { .. } => "vec",
            Owner::Boxed => "boxed",
            Owner::Static => "static",
            Owner::Anonymous(_) => "allocated",
            Owner::Shareable { .. } => "shareable",
            Owner::Mmap(_) => "mmap",
            Owner::Shared(_) => "shared",
            Owner::Raw(_) => "raw",
            Owner::Device { .. } => "device",
        };
        // Never the bytes: they may be large, and secret.
        f.debug_struct("Memory")
            .field("address", &self.ptr)
            .field("len", &self.len)
            .field("origin", &origin)
            .finish()
    }
}

#[cfg(test)]
mod tests;
