//! Mappings of the buffers of peers.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use crate::page::check_file;

/// The mapped memory of a peer's buffer.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to this value alone; its bytes are only reached by the copy routine, which any thread may
// call.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file that a peer has passed, if it is that long and stays so.
    pub(crate) fn open(file: BorrowedFd<'_>, len: u64, writable: bool) -> Result<Self, String> {
        check_file(file, len)?;
        let len = usize::try_from(len).ok().filter(|len| *len > 0 && isize::try_from(*len).is_ok());
        let Some(len) = len else { return Err("its length does not fit the address space".to_owned()) };
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists. The file cannot become
        // shorter, so that every page of it stays.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) }
            .map_err(|error| format!("mapping {len} bytes of it failed: {error}"))?;
        let base = NonNull::new(base.cast()).ok_or("mapped at the null address")?;
        Ok(Self { base, len, writable })
    }

    /// The address of `len` bytes at `offset`; none if they are not inside, or are to be written and must not be.
    pub(crate) fn part(&self, offset: u64, len: usize, write: bool) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        (inside && (self.writable || !write)).then(|| self.base.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and ends here: whoever copies from or to it has a share of this value.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "unmapping our own mapping failed: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, SealFlags};
    use te_memory::{Memory, RegionTable, Sharing};
    use te_segment::{Access, Location};

    use super::*;

    #[test]
    fn files_that_can_become_shorter_or_are_too_short_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Mapping::open(file.as_fd(), 4096, true).is_err());
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(Mapping::open(file.as_fd(), 4097, true).is_err());
        assert!(Mapping::open(file.as_fd(), 0, true).is_err());
        let mapping = Mapping::open(file.as_fd(), 4096, true).unwrap();
        assert!(mapping.part(4095, 1, true).is_some());
        for (offset, len) in [(4096, 1), (1, 4096), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(mapping.part(offset, len, false).is_none(), "{offset} {len}");
        }
    }

    #[test]
    fn memory_to_read_is_not_mapped_to_write() {
        let memory = Memory::allocate_shareable(4096, Sharing::ReadOnly).unwrap();
        let table = RegionTable::new(1);
        let region = table.reserve(memory, Access::REMOTE_READ, Location::Any).unwrap().commit();
        let file = region.shared_file().unwrap();
        assert!(Mapping::open(file.lend(), 4096, true).is_err());
        let mapping = Mapping::open(file.lend(), 4096, false).unwrap();
        assert!(mapping.part(0, 4096, false).is_some() && mapping.part(0, 1, true).is_none());
    }
}
