//! Faulting in memory that somebody else allocated.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Base, Memory, page_size};
use crate::copy;
use crate::error::MemoryError;

/// One thread faults so many bytes in at a time.
const PIECE: usize = 64 << 20;
/// More threads than this only get into each other's way in the kernel.
const THREADS: usize = 64;

impl Memory {
    /// Faults all pages in, so that neither a driver nor a request waits for the kernel later: pieces of 64 MiB in
    /// ascending order, with `threads` threads (at least 1, at most 64). The contents stay as they are, whoever writes
    /// them meanwhile.
    ///
    /// `progress` gets the bytes that are done and those of all after every piece; it is called by one thread at a time.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Populate`] when the system cannot back a page, for example for want of memory; null and empty memory
    /// is refused as such by registration and is nothing here. Pages that were done stay done.
    pub fn prefault(
        &self,
        threads: usize,
        progress: impl Fn(usize, usize) + Sync,
    ) -> Result<(), MemoryError> {
        let len = self.len();
        if self.range().is_err() {
            return Ok(());
        }
        if !self.is_mapped() {
            return Err(MemoryError::Populate { len, source: rustix::io::Errno::NOMEM.into() });
        }
        let (base, next) = (Base(self.ptr), AtomicUsize::new(0));
        let state: Mutex<(usize, Option<io::Error>)> = Mutex::new((0, None));
        let work = || loop {
            let offset = next.fetch_add(PIECE, Ordering::Relaxed);
            if offset >= len || state.lock().1.is_some() {
                return;
            }
            let piece = PIECE.min(len - offset);
            let populated = populate(base.at(offset as u64), piece);
            let mut state = state.lock();
            match populated {
                Ok(()) => {
                    state.0 += piece;
                    progress(state.0, len);
                }
                Err(error) => {
                    state.1.get_or_insert(error);
                }
            }
        };
        let threads = threads.clamp(1, THREADS).min(len.div_ceil(PIECE));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without it the others do the work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        match state.into_inner().1 {
            Some(source) => Err(MemoryError::Populate { len, source }),
            None => Ok(()),
        }
    }
}

/// Faults the pages of `len` bytes at `start`, which are mapped.
fn populate(start: *mut u8, len: usize) -> io::Result<()> {
    let page = page_size();
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        use rustix::mm::{Advice, madvise};
        // The borders of memory from a vector lie inside of pages, whose other bytes belong to neighbours.
        let below = start.addr() % page;
        let (first, whole) = (start.wrapping_sub(below), len + below);
        loop {
            // SAFETY: the pages are mapped, as every byte of memory is, and faulting them in changes nothing that anybody
            // sees.
            match unsafe { madvise(first.cast(), whole, Advice::LinuxPopulateWrite) } {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // Kernels before 5.14 do not know it.
                Err(Errno::INVAL | Errno::NOSYS) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    // Reading maps what is there; writing the byte back could undo somebody else's write.
    let mut byte = 0_u8;
    for offset in (0..len).step_by(page) {
        // SAFETY: the byte is inside the memory, which is mapped while we borrow it; racing accesses to it are of the
        // allowed kinds, by the invariant of `Memory`.
        unsafe { copy::copy(&raw mut byte, start.wrapping_add(offset), 1) };
    }
    Ok(())
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    /// MR-19: pre-touching tells how far it is and changes nothing.
    #[test]
    fn prefault_tells_how_far_it_is_and_keeps_the_contents() {
        // Zeroed memory of this size is not there before it is touched.
        let mut bytes = vec![0_u8; (PIECE * 3) + 100];
        bytes[PIECE] = 7;
        let memory = Memory::from_vec(bytes);
        let (len, seen) = (memory.len(), Mutex::new(Vec::new()));
        memory.prefault(4, |done, all| seen.lock().push((done, all))).unwrap();
        let seen = seen.into_inner();
        assert_eq!((seen.len(), seen.last()), (4, Some(&(len, len))));
        assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0), "{seen:?}");
        let pages: Vec<u64> = (0..len as u64).step_by(PIECE / 4).map(|at| memory.address() + at).collect();
        if let Some(nodes) = crate::numa::nodes_of(&pages) {
            assert!(nodes.iter().all(Option::is_some), "{nodes:?}");
        }
        let bytes = memory.into_vec().unwrap();
        assert_eq!((bytes[PIECE], bytes.iter().filter(|byte| **byte != 0).count()), (7, 1));
    }

    #[test]
    fn prefault_of_less_than_a_page_and_of_nothing_is_fine() {
        for len in [0, 1, 5000] {
            let told = AtomicUsize::new(0);
            let memory = Memory::from_vec(vec![3_u8; len]);
            let count = |_, _| {
                told.fetch_add(1, Ordering::Relaxed);
            };
            memory.prefault(0, count).unwrap();
            assert_eq!(told.into_inner(), usize::from(len > 0));
            assert!(memory.into_vec().unwrap().iter().all(|byte| *byte == 3));
        }
    }

    /// What cannot be backed is an error: a page of a file behind its end.
    #[test]
    fn prefault_of_what_cannot_be_backed_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(page_size() as u64 * 2).unwrap();
        // SAFETY: nobody else has the file; pages behind its end are not touched by anybody but the kernel.
        let map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        file.set_len(1).unwrap();
        let memory = Memory::from_mmap(map);
        let failed = memory.prefault(1, |_, _| {});
        assert!(matches!(failed, Err(MemoryError::Populate { .. })), "{failed:?}");
    }
}
