//! Lists of requests, posted with one doorbell.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::ptr;

use crate::error::errno_text;
use crate::ffi::*;

/// A range of registered memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Where it begins.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The key of the registration that covers it.
    pub lkey: u32,
}

/// Where a range of a peer's registered memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The address, as the peer knows it.
    pub address: u64,
    /// The key of the registration that covers it.
    pub rkey: u32,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Local ranges, one after the other, into the peer's memory.
    Write(Remote),
    /// As [`Self::Write`], and completes one of the peer's receives with this number.
    WriteImmediate(Remote, u32),
    /// The peer's memory into local ranges, one after the other.
    Read(Remote),
    /// Local ranges into one of the peer's receives.
    Send,
}

/// When a request begins and how it tells that it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// It makes a completion. One that does not is known to have succeeded by a later one of its queue pair that has; one
    /// that fails makes a completion anyway.
    pub signalled: bool,
    /// It begins after the READs before it have ended.
    pub fenced: bool,
    /// It makes a *solicited* completion at the peer, if it makes one there.
    pub solicited: bool,
}

impl Flags {
    /// Makes a completion.
    pub const SIGNALLED: Self = Self { signalled: true, fenced: false, solicited: false };

    const fn bits(self) -> c_uint {
        let mut bits = 0;
        if self.signalled {
            bits |= IBV_SEND_SIGNALED;
        }
        if self.fenced {
            bits |= IBV_SEND_FENCE;
        }
        if self.solicited {
            bits |= IBV_SEND_SOLICITED;
        }
        bits
    }
}

/// Requests to be posted together, in order. Meant to be filled, posted, cleared and filled again: it keeps its memory.
#[derive(Default)]
pub struct WorkList {
    requests: Vec<ibv_send_wr>,
    ranges: Vec<ibv_sge>,
}

// SAFETY: its pointers are into itself, are made when it is posted and are not used after.
unsafe impl Send for WorkList {}
// SAFETY: as above; they are made through an exclusive reference only.
unsafe impl Sync for WorkList {}

impl WorkList {
    /// With room for so many requests of one range each.
    #[must_use]
    pub fn with_capacity(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), ranges: Vec::with_capacity(requests) }
    }

    /// Adds a request. `id` is for the caller to know its completion by.
    pub fn push(&mut self, id: u64, verb: Verb, local: &[Local], flags: Flags) {
        let (opcode, remote, immediate) = match verb {
            Verb::Write(remote) => (IBV_WR_RDMA_WRITE, Some(remote), 0),
            Verb::WriteImmediate(remote, number) => (IBV_WR_RDMA_WRITE_WITH_IMM, Some(remote), number),
            Verb::Read(remote) => (IBV_WR_RDMA_READ, Some(remote), 0),
            Verb::Send => (IBV_WR_SEND, None, 0),
        };
        let remote = remote.unwrap_or(Remote { address: 0, rkey: 0 });
        self.ranges.extend(local.iter().map(range));
        self.requests.push(ibv_send_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: c_int::try_from(local.len()).unwrap_or(c_int::MAX),
            opcode,
            send_flags: flags.bits(),
            imm_data: immediate.to_be(),
            rdma: ibv_send_rdma { remote_addr: remote.address, rkey: remote.rkey, unused: [0; 2] },
            remote_srqn: 0,
            bind_mw: [0; 6],
        });
    }

    /// Adds a WRITE or a SEND whose bytes are copied into the request when it is posted: the device does not read them
    /// later, and their key is not looked at. At most as many bytes as [`QueuePair::inline`](crate::QueuePair::inline).
    ///
    /// # Safety
    ///
    /// The local ranges must be mapped and readable until the list has been posted or cleared.
    pub unsafe fn push_inline(&mut self, id: u64, verb: Verb, local: &[Local], flags: Flags) {
        self.push(id, verb, local, flags);
        if let Some(request) = self.requests.last_mut() {
            request.send_flags |= IBV_SEND_INLINE;
        }
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.ranges.clear();
    }

    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The library's list of the requests, valid until this one changes or moves; null if there is none.
    pub(crate) fn link(&mut self) -> *mut ibv_send_wr {
        let (count, base) = (self.requests.len(), self.requests.as_mut_ptr());
        let mut ranges = self.ranges.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = ranges;
            ranges = ranges.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
            request.next = if index + 1 < count { base.wrapping_add(index + 1) } else { ptr::null_mut() };
        }
        if count == 0 { ptr::null_mut() } else { base }
    }
}

impl fmt::Debug for WorkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkList").field("len", &self.len()).finish_non_exhaustive()
    }
}

fn range(local: &Local) -> ibv_sge {
    ibv_sge { addr: local.address, length: local.len, lkey: local.lkey }
}

/// Receives to be posted together: room for the peer's SENDs, and for the numbers that come with its WRITEs.
#[derive(Default)]
pub struct ReceiveList {
    requests: Vec<ibv_recv_wr>,
    ranges: Vec<ibv_sge>,
}

// SAFETY: as for `WorkList`.
unsafe impl Send for ReceiveList {}
// SAFETY: as for `WorkList`.
unsafe impl Sync for ReceiveList {}

impl ReceiveList {
    /// Adds a receive. `id` is for the caller to know its completion by.
    pub fn push(&mut self, id: u64, local: &[Local]) {
        self.ranges.extend(local.iter().map(range));
        self.requests.push(ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: c_int::try_from(local.len()).unwrap_or(c_int::MAX),
        });
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.ranges.clear();
    }

    /// How many receives there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no receive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn link(&mut self) -> *mut ibv_recv_wr {
        let (count, base) = (self.requests.len(), self.requests.as_mut_ptr());
        let mut ranges = self.ranges.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = ranges;
            ranges = ranges.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
            request.next = if index + 1 < count { base.wrapping_add(index + 1) } else { ptr::null_mut() };
        }
        if count == 0 { ptr::null_mut() } else { base }
    }
}

impl fmt::Debug for ReceiveList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveList").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A list was not posted, or not all of it. The first `accepted` requests are under way and will complete like any others;
/// the rest was not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The device and the queue pair.
    pub on: String,
    /// How many requests were accepted.
    pub accepted: usize,
    /// How many there were.
    pub requests: usize,
    /// The system's number for the reason.
    pub errno: i32,
}

impl Refusal {
    /// Whether the rest may be accepted when some of what is under way has completed.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::EAGAIN)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, accepted, requests, errno } = self;
        write!(f, "{on} accepted {accepted} of {requests} requests: {}", errno_text(*errno))?;
        if self.is_full() {
            f.write_str("; its queue is full until requests complete")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// The place of the refused request in its list, which is how many before it were accepted.
pub(crate) fn position<T>(base: *const T, bad: *const T, len: usize) -> usize {
    let distance = bad.addr().wrapping_sub(base.addr()) / size_of::<T>();
    // A library that names no request of the list has not begun any.
    if distance < len { distance } else { 0 }
}
