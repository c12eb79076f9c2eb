//! The control page of a connection: memory that both processes map, made by the target.
//!
//! ```text
//!  byte 0    magic, 2 words
//!       8    number of slots, number of buffers
//!      16    nonce of the target, 4 words
//!      32    nonce of the initiator, 4 words
//!      64    closed: 1 revokes every buffer
//!     128    slots, one in 64 bytes: 0 or number of the buffer that is being copied, plus 1
//!       …    revoked, one word for each buffer: 1 once it is withdrawn
//! ```
//!
//! Words are 32 bits in the byte order of the host. Whatever the other side writes here, this side only ever reads numbers
//! from it: counts are checked once, against the size of the file, and kept on this side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::hold::Words;
use crate::sync::{AtomicU32, Ordering};

/// `teshm`, and the version of the layout.
const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"tesh"), u32::from_le_bytes([b'm', 0, 0, 1])];
const COUNTS: usize = 2;
const TARGET_NONCE: usize = 4;
const INITIATOR_NONCE: usize = 8;
const CLOSED: usize = 16;
const SLOTS: usize = 32;
/// Words from slot to slot: each has a cache line of its own.
const STRIDE: usize = 16;
const WORD: usize = size_of::<u32>();

/// Slots of a page that this side makes: copies of one connection at a time.
pub(crate) const SLOT_COUNT: u32 = 128;
/// Slots and buffers of a page that this side accepts at most.
const LIMIT: u32 = 1 << 20;

/// A number that travels over the socket and through the page, so that both sides know that they share it.
pub(crate) type Nonce = [u8; 16];

/// A mapped control page.
pub(crate) struct ControlPage {
    words: NonNull<AtomicU32>,
    bytes: usize,
    slots: usize,
    buffers: u32,
}

// SAFETY: the mapping holds atomics and numbers, and belongs to this value alone.
unsafe impl Send for ControlPage {}
// SAFETY: see above; all access goes through the atomics.
unsafe impl Sync for ControlPage {}

fn size_of_page(slots: u32, buffers: u32) -> usize {
    (SLOTS + slots as usize * STRIDE + buffers as usize) * WORD
}

impl ControlPage {
    /// Makes a page with a nonce in it, and the file to be passed to the initiator.
    pub(crate) fn create(buffers: u32, nonce: &Nonce) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("te-control", flags)?;
        rustix::fs::ftruncate(&file, size_of_page(SLOT_COUNT, buffers) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let page = Self::map(file.as_fd(), SLOT_COUNT, buffers)?;
        for (at, word) in MAGIC.into_iter().chain([SLOT_COUNT, buffers]).enumerate() {
            page.word(at).store(word, Ordering::Relaxed);
        }
        page.put_nonce(TARGET_NONCE, nonce);
        Ok((page, file))
    }

    /// Maps the page that a target has passed, if it is one and cannot become shorter.
    pub(crate) fn open(file: BorrowedFd<'_>, slots: u32, buffers: u32) -> Result<Self, String> {
        if !(1..=LIMIT).contains(&slots) || !(1..=LIMIT).contains(&buffers) {
            return Err(format!("a control page with {slots} slots and {buffers} buffers"));
        }
        check_file(file, size_of_page(slots, buffers) as u64)?;
        let page = Self::map(file, slots, buffers).map_err(|error| format!("mapping it failed: {error}"))?;
        let found = [0, 1, COUNTS, COUNTS + 1].map(|at| page.word(at).load(Ordering::Acquire));
        if found != [MAGIC[0], MAGIC[1], slots, buffers] {
            return Err("it is no control page of this version".to_owned());
        }
        Ok(page)
    }

    fn map(file: BorrowedFd<'_>, slots: u32, buffers: u32) -> io::Result<Self> {
        let bytes = size_of_page(slots, buffers);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists. The file is sealed, so
        // that it stays as long as it is.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let words = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { words, bytes, slots: slots as usize, buffers })
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // Callers stay inside; a mistake would be a wrong word and not a wrong address.
        let index = index.min(self.bytes / WORD - 1);
        // SAFETY: inside the mapping, by the line above.
        let word = unsafe { self.words.add(index) };
        // SAFETY: mapped and aligned for as long as `self` lives, and accessed as an atomic by both sides.
        unsafe { word.as_ref() }
    }

    /// How many buffers can be told apart.
    pub(crate) fn buffers(&self) -> u32 {
        self.buffers
    }

    fn put_nonce(&self, at: usize, nonce: &Nonce) {
        for (index, part) in nonce.as_chunks::<WORD>().0.iter().enumerate() {
            self.word(at + index).store(u32::from_ne_bytes(*part), Ordering::Release);
        }
    }

    fn nonce(&self, at: usize) -> Nonce {
        let mut nonce = Nonce::default();
        for (index, part) in nonce.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
            *part = self.word(at + index).load(Ordering::Acquire).to_ne_bytes();
        }
        nonce
    }

    /// What the target has put in.
    pub(crate) fn target_nonce(&self) -> Nonce {
        self.nonce(TARGET_NONCE)
    }

    /// What the initiator has put in.
    pub(crate) fn initiator_nonce(&self) -> Nonce {
        self.nonce(INITIATOR_NONCE)
    }

    /// The initiator puts its own in.
    pub(crate) fn answer(&self, nonce: &Nonce) {
        self.put_nonce(INITIATOR_NONCE, nonce);
    }
}

impl Words for ControlPage {
    fn slots(&self) -> usize {
        self.slots
    }

    fn slot(&self, index: usize) -> &AtomicU32 {
        self.word(SLOTS + index.min(self.slots - 1) * STRIDE)
    }

    fn revoked(&self, buffer: u32) -> &AtomicU32 {
        self.word(SLOTS + self.slots * STRIDE + buffer.min(self.buffers - 1) as usize)
    }

    fn closed(&self) -> &AtomicU32 {
        self.word(CLOSED)
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and ends here; references to its words borrow `self`.
        let result = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "unmapping our own mapping failed: {result:?}");
    }
}

/// Names the file system of huge pages, whose files can lose pages that cannot be had again.
const HUGE_PAGES: u64 = 0x9584_58f6;

/// Refuses a file that could become shorter than it must be, or lose pages: touching those kills the process.
pub(crate) fn check_file(file: BorrowedFd<'_>, least: u64) -> Result<(), String> {
    let seals = rustix::fs::fcntl_get_seals(file)
        .map_err(|error| format!("it is no file in memory whose size can be sealed: {error}"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("its size is not sealed".to_owned());
    }
    match rustix::fs::fstatfs(file) {
        Ok(system) if u64::try_from(system.f_type).ok() != Some(HUGE_PAGES) => {}
        Ok(_) => return Err("it lies in the pool of huge pages".to_owned()),
        Err(error) => return Err(format!("its file system is unknown: {error}")),
    }
    let size = rustix::fs::fstat(file).map_err(|error| format!("its size is unknown: {error}"))?.st_size;
    match u64::try_from(size) {
        Ok(size) if size >= least => Ok(()),
        _ => Err(format!("it has {size} bytes, and {least} are needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold;

    #[test]
    fn both_sides_see_the_same_words() {
        let (target, file) = ControlPage::create(10, &[7; 16]).unwrap();
        let initiator = ControlPage::open(file.as_fd(), SLOT_COUNT, 10).unwrap();
        assert_eq!(initiator.target_nonce(), [7; 16]);
        initiator.answer(&[9; 16]);
        assert_eq!(target.initiator_nonce(), [9; 16]);
        let mark = hold::mark(&initiator, 5, 3).unwrap();
        assert_eq!((hold::copying(&target, Some(3)), hold::copying(&target, Some(4))), (1, 0));
        hold::revoke(&target, 3);
        drop(mark);
        assert_eq!(hold::copying(&target, None), 0);
        assert!(matches!(hold::mark(&initiator, 0, 3), Err(hold::Barred::Revoked)));
        hold::close(&target);
        assert!(matches!(hold::mark(&initiator, 0, 4), Err(hold::Barred::Closed)));
    }

    #[test]
    fn words_of_different_meaning_do_not_overlap() {
        let (page, _file) = ControlPage::create(9, &[1; 16]).unwrap();
        let mut addresses: Vec<_> = (0..page.slots()).map(|at| ptr::from_ref(page.slot(at)).addr()).collect();
        addresses.extend((0..9).map(|buffer| ptr::from_ref(page.revoked(buffer)).addr()));
        addresses.push(ptr::from_ref(page.closed()).addr());
        let count = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), count);
    }

    #[test]
    fn pages_that_lie_or_can_shrink_are_refused() {
        let (_page, file) = ControlPage::create(10, &[0; 16]).unwrap();
        for (slots, buffers) in [(0, 10), (SLOT_COUNT, 0), (u32::MAX, 1), (SLOT_COUNT, u32::MAX), (4096, 9)] {
            assert!(ControlPage::open(file.as_fd(), slots, buffers).is_err(), "{slots} {buffers}");
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
        let error = ControlPage::open(unsealed.as_fd(), SLOT_COUNT, 10).err().unwrap();
        assert_eq!(error, "its size is not sealed");
        let (reader, _writer) = io::pipe().unwrap();
        assert!(ControlPage::open(reader.as_fd(), SLOT_COUNT, 10).is_err());
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
        let error = ControlPage::open(unsealed.as_fd(), SLOT_COUNT, 10).err().unwrap();
        assert_eq!(error, "it is no control page of this version");
    }
}
