//! The system's allocator, with a count, for programs that report what they allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts allocations. It costs one atomic addition for each of them.
///
/// ```
/// use te_memory::CountingAllocator;
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let before = ALLOCATOR.allocations();
/// drop(Box::new([1_u8; 100]));
/// assert!(ALLOCATOR.allocations() > before);
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocations: AtomicU64,
}

impl CountingAllocator {
    /// Nothing is counted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0) }
    }

    /// Allocations so far, those that changed the size of an earlier one included.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed to the system's allocator as it comes; counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: the caller upholds what the system's allocator asks for, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
