//! Memory of devices, which NICs reach and the CPU does not: files stand for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::state::State;

/// Memory of a device at addresses that nothing of this process has.
pub(super) struct DeviceMemory {
    pub(super) start: u64,
    pub(super) len: u64,
    /// Its bytes.
    pub(super) file: OwnedFd,
    /// Whether NICs register it by its addresses.
    pub(super) by_address: bool,
}

/// A part of a file in this process, as long as a registration has it.
pub(super) struct Mapping {
    base: usize,
    len: usize,
    /// Where the part begins.
    pub(super) start: usize,
}

impl Mapping {
    /// Maps `len` bytes from `offset` on, which the file must have.
    pub(super) fn new(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, i32> {
        // SAFETY: all zeros is one of its values.
        let mut known: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: there is room for what is written.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut known) } != 0 {
            return Err(libc::EBADF);
        }
        let size = u64::try_from(known.st_size).unwrap_or(0);
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(libc::EINVAL);
        }
        let before = usize::try_from(offset % 4096).map_err(|_| libc::EINVAL)?;
        let from = libc::off_t::try_from(offset - before as u64).map_err(|_| libc::EINVAL)?;
        let (both, whole) = (libc::PROT_READ | libc::PROT_WRITE, len + before);
        // SAFETY: a new mapping, wherever there is room for it.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), whole, both, libc::MAP_SHARED, file.as_raw_fd(), from) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        let base = base.expose_provenance();
        Ok(Self { base, len: whole, start: base + before })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and no registration leads to it any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.base), self.len) };
    }
}

impl State {
    /// What registering these addresses leads to: a mapping for memory of a device that NICs reach so, none for memory of the
    /// host.
    pub(super) fn behind(&self, address: u64, len: usize) -> Result<Option<Mapping>, i32> {
        let end = address.saturating_add(len as u64);
        let Some(device) =
            self.devices.iter().find(|device| address < device.start + device.len && device.start < end)
        else {
            return Ok(None);
        };
        if !device.by_address || address < device.start || end > device.start + device.len {
            return Err(libc::EFAULT);
        }
        Mapping::new(device.file.as_fd(), address - device.start, len).map(Some)
    }
}
