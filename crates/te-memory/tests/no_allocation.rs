//! The paths that every slice and every remote request take allocate nothing. Alone in its process, because it counts
//! the allocations of the thread that runs it with an allocator of its own.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use te_memory::{Memory, RegionTable, RemoteOp, copy_between};
use te_segment::{Access, Location};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: counts and leaves the rest to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn holds_lookups_and_copies_allocate_nothing() {
    let table = RegionTable::default();
    let mut region =
        table.reserve(Memory::from_vec(vec![0; 4096]), Access::REMOTE, Location::Any).unwrap().commit();
    for _ in 0..100 {
        region =
            table.reserve(Memory::from_vec(vec![0; 4096]), Access::REMOTE, Location::Any).unwrap().commit();
    }
    let start = region.range().start();
    let mut bytes = [0; 64];

    let before = ALLOCATIONS.get();
    assert!(before > 100, "the allocator counts");
    for _ in 0..100 {
        let hold = region.hold(0, 2048).unwrap();
        let part = hold.slice(100, 64).unwrap();
        let remote = table.remote(start + 2048, 64, RemoteOp::Write).unwrap();
        copy_between(&remote, &part).unwrap();
        remote.read_at(0, &mut bytes).unwrap();
        region.write_at(7, &bytes).unwrap();
        assert!(table.remote(start, u64::MAX, RemoteOp::Write).is_err());
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
