//! Executing one slice: piece by piece, each under a mark in the control page.

use std::borrow::Cow;
use std::thread;
use std::time::{Duration, Instant};

use te_transport::{CancelReason, CancelScope, FailureKind, Op, Slice, stopped};

use super::Common;
use super::line::Attached;
use crate::counters::add;
use crate::hold::{self, Barred};
use crate::process::{Fault, Process};

/// Bytes copied under one mark: what a withdrawal or a cancellation waits for at most.
const PIECE: usize = 1 << 20;
/// Bytes of one slice at most. Whoever watches for silence sees slices end; this one takes far less than a second.
pub(crate) const MAX_SLICE: u64 = 256 << 20;
/// A thread that finds all slots taken looks again so often before it pauses.
const PATIENCE: u32 = 64;

/// Bytes of another process that are compared at a time, on the stack.
const CHUNK: usize = 16 << 10;

const DAMAGED: &str =
    "the bytes at the destination are not those of the source, or those have changed meanwhile";

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) scope: &'a CancelScope,
    pub(crate) deadline: Instant,
}

impl Limits<'_> {
    /// Why nothing more must be done, if so.
    pub(crate) fn over(&self, common: &Common) -> Option<(FailureKind, &'static str)> {
        if let Some(reason) = self.scope.cancelled() {
            return Some(stopped(Some(reason)));
        }
        if common.is_closing() {
            return Some(stopped(Some(CancelReason::Shutdown)));
        }
        (Instant::now() >= self.deadline).then(|| stopped(None))
    }
}

/// Why a slice was not done.
pub(crate) struct Stop {
    pub(crate) kind: FailureKind,
    pub(crate) cause: Cow<'static, str>,
    /// Whether bytes may have been moved.
    pub(crate) begun: bool,
}

fn stop(kind: FailureKind, cause: impl Into<Cow<'static, str>>, begun: bool) -> Stop {
    Stop { kind, cause: cause.into(), begun }
}

/// A number that differs from thread to thread: where its stack is.
fn place() -> usize {
    let here = 0_u8;
    (&raw const here).addr() >> 14
}

/// Copies all of the slice, or says why not. `between` is called before each piece.
pub(crate) fn run(
    common: &Common,
    attached: &Attached,
    slice: &Slice,
    limits: Limits<'_>,
    between: &mut dyn FnMut(),
) -> Result<u64, Stop> {
    let outside = || stop(FailureKind::Rejected, "the range is not inside the buffer", false);
    if !attached.range.contains_range(&slice.remote) || slice.remote.len() != slice.local.len() {
        return Err(outside());
    }
    if slice.local.len() > MAX_SLICE {
        return Err(stop(FailureKind::Unsupported, "the slice is larger than the transport takes", false));
    }
    if !attached.permits(slice.op) {
        return Err(stop(
            FailureKind::Rejected,
            format!("the buffer does not permit to {}", slice.op),
            false,
        ));
    }
    let len = usize::try_from(slice.local.len()).map_err(|_| outside())?;
    let (ties, place) = (&*attached.ties, place());
    let (mut done, mut tries) = (0, 0);
    while done < len {
        if let Some((kind, cause)) = limits.over(common) {
            return Err(stop(kind, cause, done > 0));
        }
        between();
        let Some(copying) = ties.enter() else {
            return Err(stop(FailureKind::ConnectionLost, "the peer's socket has closed", done > 0));
        };
        let mark = match hold::mark(&ties.page, place, attached.buffer) {
            Ok(mark) => mark,
            Err(Barred::Busy) => {
                drop(copying);
                tries += 1;
                if tries < PATIENCE {
                    thread::yield_now()
                } else {
                    thread::sleep(Duration::from_micros(50))
                }
                continue;
            }
            Err(Barred::Revoked) => {
                return Err(stop(FailureKind::BufferGone, "the peer has withdrawn the buffer", done > 0));
            }
            Err(Barred::Closed) => {
                return Err(stop(FailureKind::ConnectionLost, "the peer has ended the connection", done > 0));
            }
        };
        let part = PIECE.min(len - done);
        piece(common, attached, slice, done, part)?;
        drop(mark);
        drop(copying);
        done += part;
    }
    Ok(slice.local.len())
}

/// Copies `part` bytes from `done` on, under the caller's mark.
fn piece(common: &Common, attached: &Attached, slice: &Slice, done: usize, part: usize) -> Result<(), Stop> {
    let local = slice.local.as_ptr().wrapping_add(done);
    let offset = slice.remote.start() - attached.range.start() + done as u64;
    if let Some(mapping) = attached.mapping() {
        let Some(remote) = mapping.part(offset, part, slice.op == Op::Write) else {
            return Err(stop(FailureKind::Rejected, "the range is not inside the mapping", done > 0));
        };
        let (to, from) = match slice.op {
            Op::Read => (local, remote),
            Op::Write => (remote, local),
        };
        // SAFETY: the local bytes are inside the hold of the slice, the remote ones inside the mapping, which is writable if
        // they are written; both live during the call. Who else accesses the local ones does so as the memory of a hold
        // allows; the remote ones are accessed by this routine, or by other processes.
        unsafe { te_memory::copy::copy(to, from, part) };
        add(&common.counters.mapped_bytes, part as u64);
        // SAFETY: as above.
        if common.comparing.is_due() && !unsafe { te_memory::copy::same(local, remote, part) } {
            return Err(stop(FailureKind::Damaged, DAMAGED, true));
        }
        return Ok(());
    }
    let process = match &attached.ties.process {
        Ok(process) => process,
        Err(why) => return Err(stop(FailureKind::Unsupported, why.clone(), done > 0)),
    };
    let address = attached.range.start() + offset;
    // SAFETY: the bytes are inside the hold of the slice, whose memory the kernel may touch.
    match unsafe { process.copy(slice.op, local, address, part) } {
        Ok(()) => {
            add(&common.counters.process_bytes, part as u64);
        }
        Err(fault) => return Err(failed(fault)),
    }
    // What may not be read is not read to compare it either.
    if attached.permits(Op::Read) && common.comparing.is_due() {
        // SAFETY: as above; the local bytes are only read.
        if !unsafe { fits(process, local, address, part) }.map_err(failed)? {
            return Err(stop(FailureKind::Damaged, DAMAGED, true));
        }
    }
    Ok(())
}

fn failed(fault: Fault) -> Stop {
    match fault {
        Fault::Ended => stop(FailureKind::ConnectionLost, "the peer's process has ended", true),
        Fault::Refused(error) => {
            let cause = format!("the kernel does not move the bytes between the processes: {error}");
            stop(FailureKind::Unsupported, cause, true)
        }
    }
}

/// Whether `len` bytes here are those in the memory of a process.
///
/// # Safety
///
/// `local` must be good to read for `len` bytes.
unsafe fn fits(process: &Process, local: *const u8, remote: u64, len: usize) -> Result<bool, Fault> {
    let mut theirs = [0_u8; CHUNK];
    let mut at = 0;
    while at < len {
        let part = CHUNK.min(len - at);
        // SAFETY: the buffer is private and large enough.
        unsafe { process.copy(Op::Read, theirs.as_mut_ptr(), remote + at as u64, part) }?;
        // SAFETY: the caller vouches for `len` bytes; the buffer is private.
        if !unsafe { te_memory::copy::same(local.wrapping_add(at), theirs.as_ptr(), part) } {
            return Ok(false);
        }
        at += part;
    }
    Ok(true)
}
