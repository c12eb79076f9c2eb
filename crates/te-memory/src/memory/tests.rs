use std::sync::atomic::Ordering;

use super::*;
use crate::testing::watched;

#[test]
fn vector_comes_back_with_its_contents_and_capacity() {
    let mut bytes = Vec::with_capacity(100);
    bytes.extend_from_slice(b"vector");
    let (address, capacity) = (bytes.as_ptr(), bytes.capacity());
    let memory = Memory::from_vec(bytes);
    assert_eq!(memory.address(), address.addr() as u64);
    let bytes = memory.into_vec().unwrap();
    assert_eq!((bytes.as_slice(), bytes.as_ptr(), bytes.capacity()), (&b"vector"[..], address, capacity));
}

#[test]
fn boxed_slice_comes_back() {
    let memory = Memory::from_boxed(Box::from(*b"boxed"));
    assert_eq!(&*memory.into_boxed().unwrap(), b"boxed");
}

#[test]
fn static_bytes_come_back() {
    let memory = Memory::from_static(Box::leak(Box::from(*b"static")));
    let bytes = memory.into_static().unwrap();
    assert_eq!(bytes, b"static");
    // SAFETY: this is the box that was leaked above.
    drop(unsafe { Box::from_raw(bytes) });
}

#[test]
fn shared_bytes_come_back() {
    let bytes: Arc<[AtomicU8]> = [1, 2, 3].map(AtomicU8::new).into();
    let memory = Memory::from_shared(Arc::clone(&bytes));
    assert_eq!(Arc::strong_count(&bytes), 2);
    assert!(Arc::ptr_eq(&memory.into_shared().unwrap(), &bytes));
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
#[cfg(not(miri))]
fn mapping_comes_back() {
    let map = MmapMut::map_anon(5000).unwrap();
    let address = map.as_ptr();
    let map = Memory::from_mmap(map).into_mmap().unwrap();
    assert_eq!((map.as_ptr(), map.len()), (address, 5000));
}

#[test]
fn memory_of_another_origin_comes_back_unchanged() {
    let memory = Memory::from_vec(vec![1, 2, 3]);
    let memory = memory.into_boxed().unwrap_err();
    let memory = memory.into_static().unwrap_err();
    let memory = memory.into_shared().unwrap_err();
    let memory = memory.into_mmap().unwrap_err();
    assert_eq!(memory.into_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn exclusive_memory_can_be_written_in_place() {
    let mut memory = Memory::from_boxed(Box::new([0; 4]));
    memory.bytes_mut().unwrap()[2] = 5;
    assert_eq!(memory.bytes(), Some(&[0, 0, 5, 0][..]));
}

#[test]
fn memory_that_others_reach_gives_no_slices() {
    let mut shared = Memory::from_shared(Arc::new([AtomicU8::new(0)]));
    assert!(shared.bytes().is_none() && shared.bytes_mut().is_none());
    let (mut raw, _) = watched(8);
    assert!(raw.bytes().is_none() && raw.bytes_mut().is_none());
}

#[test]
fn raw_memory_is_freed_by_dropping_its_owner_once() {
    let (memory, freed) = watched(8);
    assert!(!freed.load(Ordering::SeqCst));
    drop(memory);
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn empty_memory_has_no_range() {
    let memory = Memory::from_vec(Vec::new());
    assert!(memory.is_empty());
    assert!(matches!(memory.range(), Err(RangeError::Empty { .. })));
}

#[test]
fn debug_output_does_not_show_the_bytes() {
    let text = format!("{:?}", Memory::from_vec(b"secret".to_vec()));
    assert!(!text.contains("115") && text.contains("len: 6"), "{text}");
}

/// The system's allocator of pages, which Miri does not have in full.
#[cfg(not(miri))]
mod allocated {
    use super::*;

    /// Whether this process can read the byte, asked of the kernel instead of trying.
    fn is_readable(address: u64) -> bool {
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(usize::try_from(address).unwrap()),
            iov_len: 1,
        };
        // SAFETY: no arguments, no effects.
        let pid = unsafe { libc::getpid() };
        // SAFETY: the kernel writes at most one byte, to `byte`, and only reads the other address, if it can.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        read == 1
    }

    #[test]
    fn memory_is_zeroed_and_starts_at_a_page() {
        for len in [1, 4095, 4096, 4097, 3 << 20] {
            let memory = Memory::allocate(len).unwrap();
            assert_eq!(memory.len(), len);
            assert_eq!(memory.address() % page_size() as u64, 0);
            assert!(memory.bytes().unwrap().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn guard_pages_surround_a_length_that_is_not_whole_pages() {
        let page = page_size() as u64;
        for pages in [2, 1024] {
            let len = pages * page - page + 1;
            let memory = Memory::allocate(usize::try_from(len).unwrap()).unwrap();
            let start = memory.address();
            assert!(is_readable(start) && is_readable(start + len - 1));
            assert!(!is_readable(start - 1), "{pages} pages: guard in front");
            assert!(is_readable(start + pages * page - 1), "{pages} pages: rest of the last page");
            assert!(!is_readable(start + pages * page), "{pages} pages: guard behind");
        }
    }

    #[test]
    fn large_memory_is_aligned_for_huge_pages() {
        for _ in 0..4 {
            let memory = Memory::allocate((2 << 20) + 1).unwrap();
            assert_eq!(memory.address() % (2 << 20), 0);
        }
    }

    #[test]
    fn memory_is_faulted_in() {
        let memory = Memory::allocate(10 * page_size()).unwrap();
        let start = usize::try_from(memory.address()).unwrap();
        let mut resident = [0_u8; 10];
        let ptr = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the kernel writes one byte for each of the ten pages.
        let rc = unsafe { libc::mincore(ptr, 10 * page_size(), resident.as_mut_ptr()) };
        assert_eq!((rc, resident), (0, [1; 10]));
    }

    #[test]
    fn impossible_lengths_are_errors() {
        assert!(matches!(Memory::allocate(0), Err(MemoryError::Empty)));
        for len in [usize::MAX, usize::MAX - 4096, isize::MAX.unsigned_abs()] {
            assert!(matches!(Memory::allocate(len), Err(MemoryError::TooLarge { .. })), "{len:#x}");
        }
        assert!(matches!(Memory::allocate(1 << 60), Err(MemoryError::Map { .. })));
    }
}
