//! Which NUMA node a page lies on, asked of the kernel.

use te_segment::{AddressRange, Location};

/// The node of the page at `address`; none if the page is not there yet, does not exist, or the kernel does not say.
pub fn node_of(address: u64) -> Option<u32> {
    nodes_of(&[address])?.first().copied().flatten()
}

/// The node of the page at each address, in order. None as a whole if the kernel does not say.
///
/// Only asks; moves nothing and faults nothing in. Any addresses are fine.
#[cfg(target_os = "linux")]
pub fn nodes_of(addresses: &[u64]) -> Option<Vec<Option<u32>>> {
    let pages = addresses.iter().map(|address| usize::try_from(*address).ok()).collect::<Option<Vec<_>>>()?;
    let mut status: Vec<libc::c_int> = vec![-1; pages.len()];
    const THIS_PROCESS: libc::c_int = 0;
    const NO_FLAGS: libc::c_int = 0;
    // SAFETY: the kernel reads `pages.len()` words from the first array and writes as many to the second, which has
    // that length. Without target nodes it dereferences none of the addresses.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            THIS_PROCESS,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            NO_FLAGS,
        )
    };
    // Negative states are errors of single pages, such as "not present".
    (rc == 0).then(|| status.into_iter().map(|node| u32::try_from(node).ok()).collect())
}

/// The node of the page at each address; always none, for want of a system that says it.
#[cfg(not(target_os = "linux"))]
pub fn nodes_of(_addresses: &[u64]) -> Option<Vec<Option<u32>>> {
    None
}

/// How many pages [`location_of`] asks about at most.
pub const SAMPLES: u64 = 64;

/// The location of `range`, from a sample of at most [`SAMPLES`] pages at equal distances.
///
/// [`Location::Cpu`] if all of them lie on one node; none if they do not, if none is there yet, or if the kernel does not
/// say.
pub fn location_of(range: &AddressRange) -> Option<Location> {
    let step = (range.len() / SAMPLES).max(crate::memory::page_size() as u64);
    let addresses: Vec<u64> = (0..SAMPLES)
        .map_while(|i| i.checked_mul(step).filter(|offset| *offset < range.len()))
        .filter_map(|offset| range.start().checked_add(offset))
        .collect();
    let mut nodes = nodes_of(&addresses)?.into_iter().flatten();
    let first = nodes.next()?;
    nodes.all(|node| node == first).then(|| Location::cpu(first))
}

#[cfg(test)]
mod tests;
