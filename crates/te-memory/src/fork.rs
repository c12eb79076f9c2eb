//! Telling a process from the children it forks.

use std::process;

/// The process that made it, as opposed to the children that this process forks. Threads are not carried over by `fork`,
/// while connections, device handles and shared mappings are: what rests on both must not be used, and not be taken down
/// either, in a child.
///
/// Asking costs one load where the kernel wipes a page at a fork (Linux from 4.14), else a system call.
#[derive(Debug)]
pub struct ForkMark {
    #[cfg(target_os = "linux")]
    page: Option<linux::Page>,
    process: u32,
}

impl ForkMark {
    /// Marks the calling process.
    #[must_use]
    pub fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            page: linux::Page::new(),
            process: process::id(),
        }
    }

    /// Whether this is a child, or a child of a child, of the process that made the mark. A child that shares its memory, as
    /// after `vfork`, counts as its parent until it execs.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(page) = &self.page {
            return page.is_wiped();
        }
        process::id() != self.process
    }

    /// The process that made it.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }
}

impl Default for ForkMark {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ptr::{self, NonNull};
    use std::sync::atomic::{AtomicU8, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags};

    /// A page that children see zeroed.
    #[derive(Debug)]
    pub(super) struct Page(NonNull<AtomicU8>);

    // SAFETY: the page is reached through an atomic only, and unmapped by its one owner.
    unsafe impl Send for Page {}
    // SAFETY: as above.
    unsafe impl Sync for Page {}

    impl Page {
        /// None where the kernel does not wipe pages.
        pub(super) fn new() -> Option<Self> {
            let len = crate::memory::page_size();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new private mapping at an address of the system's choice touches nothing that exists.
            let base =
                unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
            let page = Self(NonNull::new(base.ok()?.cast())?);
            // SAFETY: the advice is about our own page, and takes effect in children alone.
            unsafe { rustix::mm::madvise(page.0.as_ptr().cast(), len, Advice::LinuxWipeOnFork) }.ok()?;
            page.first().store(1, Ordering::Relaxed);
            Some(page)
        }

        fn first(&self) -> &AtomicU8 {
            // SAFETY: the page is zeroed or marked memory, aligned, and mapped for as long as `self` lives.
            unsafe { self.0.as_ref() }
        }

        #[inline]
        pub(super) fn is_wiped(&self) -> bool {
            self.first().load(Ordering::Relaxed) == 0
        }
    }

    impl Drop for Page {
        fn drop(&mut self) {
            let len = crate::memory::page_size();
            // SAFETY: the mapping is ours and ends here.
            let result = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), len) };
            debug_assert!(result.is_ok(), "unmapping our own page failed: {result:?}");
        }
    }
}
