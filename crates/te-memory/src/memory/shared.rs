//! Memory that lies in a file without a name, which other processes can map.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
};

use super::{mapping::Mapping, page_size};
use crate::error::MemoryError;

/// What other processes may do with shareable memory, for as long as it lives. The kernel enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They can map it to read only.
    ReadOnly,
    /// They can map it to read and write.
    ReadWrite,
}

/// The file behind shareable memory: anonymous, never shorter or longer than it is now.
#[derive(Clone, Debug)]
pub struct SharedFile {
    file: Arc<OwnedFd>,
    sharing: Sharing,
    size: u64,
    lent: Arc<AtomicBool>,
}

impl SharedFile {
    /// A file of `len` bytes, rounded up to pages, and our own mapping of it.
    ///
    /// From 2 MiB on the kernel is asked to back it with huge pages as it sees fit. The pool of huge pages that an
    /// administrator can set aside is not used: whoever maps such a file can be killed by one that punches holes in it.
    pub(super) fn create(len: usize, sharing: Sharing) -> Result<(Mapping, Self), MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let failed = |errno: Errno| MemoryError::File { len, source: io::Error::from(errno) };
        let size = len.checked_next_multiple_of(page_size()).filter(|size| i64::try_from(*size).is_ok());
        let Some(size) = size else { return Err(MemoryError::TooLarge { len }) };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("te", flags).map_err(failed)?;
        rustix::fs::ftruncate(&file, size as u64).map_err(failed)?;
        let mapping = Mapping::of_file(file.as_fd(), len)?;
        // After our own mapping, which may write whatever the file says from now on.
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if sharing == Sharing::ReadOnly {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        let lent = Arc::new(AtomicBool::new(false));
        Ok((mapping, Self { file: Arc::new(file), sharing, size: size as u64, lent }))
    }

    /// What others may do with it.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Its size in bytes. The memory begins at its first byte.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file, to be passed to another process.
    ///
    /// From now on nobody can say who writes memory that can be written through it: [`Memory::bytes`](crate::Memory::bytes)
    /// gives no reference to it any more.
    pub fn lend(&self) -> BorrowedFd<'_> {
        self.lent.store(true, Ordering::Release);
        self.file.as_fd()
    }

    /// Whether others may write the memory at any time.
    pub(super) fn is_written_by_others(&self) -> bool {
        self.sharing == Sharing::ReadWrite && self.lent.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;
    use rustix::fs::{fcntl_get_seals, ftruncate};

    use super::*;
    use crate::Memory;

    fn file_of(memory: &Memory) -> SharedFile {
        memory.shared_file().unwrap().clone()
    }

    #[test]
    fn others_see_the_same_bytes() {
        let mut memory = Memory::allocate_shareable(10_000, Sharing::ReadWrite).unwrap();
        memory.bytes_mut().unwrap().fill(7);
        let file = file_of(&memory);
        assert_eq!(file.size(), 12_288);
        // SAFETY: the file never becomes shorter, and nobody keeps a reference to its bytes meanwhile.
        let mut other = unsafe { MmapOptions::new().map_mut(&file.file) }.unwrap();
        assert!(other[..10_000].iter().all(|byte| *byte == 7));
        other[3] = 9;
        assert_eq!(memory.bytes().unwrap()[3], 9);
    }

    #[test]
    fn size_is_sealed_and_so_are_the_seals() {
        let memory = Memory::allocate_shareable(4096, Sharing::ReadWrite).unwrap();
        let file = file_of(&memory).file;
        assert_eq!(fcntl_get_seals(&file).unwrap(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        assert!(ftruncate(&file, 0).is_err());
        assert!(ftruncate(&file, 8192).is_err());
    }

    #[test]
    fn read_only_memory_cannot_be_mapped_to_write() {
        let mut memory = Memory::allocate_shareable(4096, Sharing::ReadOnly).unwrap();
        let file = file_of(&memory).file;
        // SAFETY: refused, so that there is nothing to be careful with.
        assert!(unsafe { MmapOptions::new().map_mut(&file) }.is_err());
        // SAFETY: the file never becomes shorter; what is written meanwhile is looked at after it.
        let other = unsafe { MmapOptions::new().map(&file) }.unwrap();
        memory.bytes_mut().unwrap()[0] = 5;
        assert_eq!(other[0], 5);
    }

    #[test]
    fn bytes_that_others_may_write_are_not_lent_as_references() {
        let mut memory = Memory::allocate_shareable(4096, Sharing::ReadWrite).unwrap();
        assert!(memory.bytes_mut().is_some());
        let _fd = file_of(&memory).lend();
        assert!(memory.bytes().is_none() && memory.bytes_mut().is_none());
        let read_only = Memory::allocate_shareable(4096, Sharing::ReadOnly).unwrap();
        let _fd = file_of(&read_only).lend();
        assert!(read_only.bytes().is_some());
    }

    #[test]
    fn impossible_lengths_are_errors() {
        let allocate = |len| Memory::allocate_shareable(len, Sharing::ReadWrite);
        assert!(matches!(allocate(0), Err(MemoryError::Empty)));
        assert!(matches!(allocate(usize::MAX), Err(MemoryError::TooLarge { .. })));
        assert!(allocate(1 << 60).is_err());
    }
}
