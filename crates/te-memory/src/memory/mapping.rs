//! A mapping with guard pages, anonymous or of a file.

use std::{io, os::fd::BorrowedFd, ptr};

use rustix::{
    io::Errno,
    mm::{MapFlags, MprotectFlags, ProtFlags},
};

use super::page_size;
use crate::error::MemoryError;

/// From this length on, data is aligned to it, so that huge pages can back it.
const HUGE: usize = 2 << 20;

/// A reservation of address space whose middle is accessible:
///
/// ```text
/// | inaccessible, at least a page | data, whole pages | inaccessible, at least a page |
/// ```
pub(super) struct Mapping {
    base: *mut u8,
    total: usize,
    data: *mut u8,
}

impl Mapping {
    /// Maps `len` zeroed bytes, rounded up to pages, and faults them in.
    pub(super) fn new(len: usize) -> Result<Self, MemoryError> {
        let (mapping, rounded) = Self::reserve(len)?;
        // SAFETY: these pages are inside the mapping just made, of which nobody else knows.
        unsafe {
            rustix::mm::mprotect(mapping.data.cast(), rounded, MprotectFlags::READ | MprotectFlags::WRITE)
        }
        .map_err(|errno| MemoryError::Map { len, source: errno.into() })?;
        mapping.populate(rounded).map_err(|source| MemoryError::Populate { len, source })?;
        Ok(mapping)
    }

    /// Maps the first `len` bytes of a file, rounded up to pages, shared with whoever else maps it, and faults them in. The file is at least that long and never becomes shorter.
    pub(super) fn of_file(file: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let (mapping, rounded) = Self::reserve(len)?;
        // SAFETY: these pages are inside the mapping just made, of which nobody else knows; they are replaced by the
        // file's.
        unsafe {
            rustix::mm::mmap(
                mapping.data.cast(),
                rounded,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )
        }
        .map_err(|errno| MemoryError::Map { len, source: errno.into() })?;
        mapping.populate(rounded).map_err(|source| MemoryError::Populate { len, source })?;
        Ok(mapping)
    }

    /// Reserves addresses for `len` bytes, rounded up to pages; that length is returned too.
    fn reserve(len: usize) -> Result<(Self, usize), MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let page = page_size();
        let align = if len >= HUGE { HUGE } else { page };
        let too_large = MemoryError::TooLarge { len };
        let Some(rounded) = len.checked_next_multiple_of(page) else { return Err(too_large) };
        // One `align` for the guard and alignment in front, one page behind.
        let total = rounded.checked_add(align).and_then(|n| n.checked_add(page));
        let Some(total) = total.filter(|n| isize::try_from(*n).is_ok()) else { return Err(too_large) };

        // SAFETY: a new private mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), total, ProtFlags::empty(), MapFlags::PRIVATE)
        }
        .map_err(|errno| MemoryError::Map { len, source: errno.into() })?
        .cast::<u8>();
        // The first multiple of `align` that leaves a page in front. The base is a multiple of the page size, so this is
        // at most `align` behind it.
        let front = (base.addr() + page).next_multiple_of(align) - base.addr();
        Ok((Self { base, total, data: base.wrapping_add(front) }, rounded))
    }

    pub(super) fn data(&self) -> *mut u8 {
        self.data
    }

    fn populate(&self, len: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::Advice;
            if len >= HUGE {
                // Only a hint: a kernel without huge pages refuses it, and that is fine.
                // SAFETY: the advice changes how our own pages are backed, not what they contain.
                let _ = unsafe { rustix::mm::madvise(self.data.cast(), len, Advice::LinuxHugepage) };
            }
            loop {
                // SAFETY: faulting our own pages in changes nothing that anybody sees.
                match unsafe { rustix::mm::madvise(self.data.cast(), len, Advice::LinuxPopulateWrite) } {
                    Ok(()) => return Ok(()),
                    Err(Errno::INTR) => {}
                    // Kernels before 5.14 do not know it.
                    Err(Errno::INVAL | Errno::NOSYS) => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        for offset in (0..len).step_by(page_size()) {
            // SAFETY: the page is ours and writable, and nobody else knows of it yet.
            unsafe { self.data.wrapping_add(offset).write_volatile(0) };
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and ends here; whoever used its data has given it up.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.total) };
        debug_assert!(result.is_ok(), "unmapping our own mapping failed: {result:?}");
    }
}
