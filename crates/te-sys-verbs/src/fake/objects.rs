//! What the functions give out pointers to. Each begins with the structure that the library would give out.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::state::Core;
use crate::ffi::*;

#[repr(C)]
pub(super) struct FakeDevice {
    pub(super) raw: ibv_device,
    pub(super) core: Arc<Core>,
    pub(super) nic: usize,
}

#[repr(C)]
pub(super) struct FakeContext {
    pub(super) raw: ibv_context,
    pub(super) core: Arc<Core>,
    pub(super) nic: usize,
    pub(super) id: u32,
    /// Where events are read; the other end is in the state.
    pub(super) events: OwnedFd,
}

#[repr(C)]
pub(super) struct FakeChannel {
    pub(super) raw: ibv_comp_channel,
    pub(super) id: u32,
    /// Where queues are read; the other end is in the state.
    pub(super) events: OwnedFd,
}

/// What a descriptor of events carries: the kind, and what it is about. 16 bytes are written at once or not at all.
pub(super) type Message = [u64; 2];

/// A pipe that never blocks the writer: the end to read, the end to write.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let read = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    // SAFETY: the descriptor is open. The reader's mode is the reader's business.
    unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    Ok((read, write))
}

/// Whether the message was written: not if the pipe is full, as a device loses events.
pub(super) fn tell(to: &OwnedFd, message: Message) -> bool {
    // SAFETY: the bytes are there.
    let written = unsafe { libc::write(to.as_raw_fd(), message.as_ptr().cast(), size_of::<Message>()) };
    usize::try_from(written) == Ok(size_of::<Message>())
}

/// The next message; none, with the reason in `errno`, if there is none.
pub(super) fn hear(from: &OwnedFd) -> Option<Message> {
    let mut message: Message = [0; 2];
    // SAFETY: there is room for so many bytes.
    let read = unsafe { libc::read(from.as_raw_fd(), message.as_mut_ptr().cast(), size_of::<Message>()) };
    (usize::try_from(read) == Ok(size_of::<Message>())).then_some(message)
}
