//! Questions to the system about pages.

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Whether every page of the range is mapped, readable or not.
///
/// Uses `msync(MS_ASYNC)`, which on Linux does nothing but walk the list of mappings: the cost is that of the number of
/// mappings in the range, not of its pages, and nothing is faulted in or written back early.
pub(super) fn is_mapped(ptr: *mut u8, len: usize) -> bool {
    let below = ptr.addr() % page_size();
    let Some(len) = len.checked_add(below) else { return false };
    let start = ptr.wrapping_sub(below);
    // SAFETY: MS_ASYNC changes no memory, and any range is allowed: what is not mapped is the error that we ask for.
    let result = unsafe { rustix::mm::msync(start.cast(), len, rustix::mm::MsyncFlags::ASYNC) };
    result != Err(rustix::io::Errno::NOMEM)
}
