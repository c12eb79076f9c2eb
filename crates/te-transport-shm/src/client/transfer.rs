//! Executing slices: piece by piece, each under a mark in the control page.

use std::borrow::Cow;
use std::thread;
use std::time::{Duration, Instant};

use te_memory::copy;
use te_transport::{CancelReason, CancelScope, FailureKind, Op, Slice, stopped};

use super::Common;
use super::line::Attached;
use crate::counters::add;
use crate::hold::{self, Barred};
use crate::process::Fault;

/// Bytes copied under one mark: what a withdrawal or a cancellation waits for at most.
pub(super) const PIECE: usize = 1 << 20;
/// Bytes of one slice at most. Whoever watches for silence sees slices end; this one takes far less than a second.
pub(crate) const MAX_SLICE: u64 = 256 << 20;
/// A thread that finds all slots taken looks again so often before it pauses.
const PATIENCE: u32 = 64;

/// When to stop, and how to go on until then.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) scope: &'a CancelScope,
    pub(crate) deadline: Instant,
    /// Whether there is more to copy than the caches would hold.
    pub(crate) cold: bool,
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
    let len = check(attached, slice)?;
    let mut done = 0;
    while done < len {
        done += step(common, attached, slice, done, limits, between)
            .map_err(|stop| Stop { begun: stop.begun || done > 0, ..stop })?;
    }
    Ok(slice.local.len())
}

/// The length of a slice that may be executed.
pub(super) fn check(attached: &Attached, slice: &Slice) -> Result<usize, Stop> {
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
    usize::try_from(slice.local.len()).map_err(|_| outside())
}

/// Copies the piece of a checked slice that begins at `done`; how many bytes that were. An error speaks of this piece only.
pub(super) fn step(
    common: &Common,
    attached: &Attached,
    slice: &Slice,
    done: usize,
    limits: Limits<'_>,
    between: &mut dyn FnMut(),
) -> Result<usize, Stop> {
    let (ties, place) = (&*attached.ties, place());
    let mut tries = 0;
    loop {
        if let Some((kind, cause)) = limits.over(common) {
            return Err(stop(kind, cause, false));
        }
        between();
        let Some(copying) = ties.enter() else {
            return Err(stop(FailureKind::ConnectionLost, "the peer's socket has closed", false));
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
                return Err(stop(FailureKind::BufferGone, "the peer has withdrawn the buffer", false));
            }
            Err(Barred::Closed) => {
                return Err(stop(FailureKind::ConnectionLost, "the peer has ended the connection", false));
            }
        };
        // A checked slice has a length that fits.
        let len = usize::try_from(slice.local.len()).unwrap_or(usize::MAX);
        let part = PIECE.min(len - done);
        piece(common, attached, slice, done, part, limits.cold)?;
        drop(mark);
        drop(copying);
        return Ok(part);
    }
}

/// Copies `part` bytes from `done` on, under the caller's mark.
fn piece(
    common: &Common,
    attached: &Attached,
    slice: &Slice,
    done: usize,
    part: usize,
    cold: bool,
) -> Result<(), Stop> {
    let local = slice.local.as_ptr().wrapping_add(done);
    let offset = slice.remote.start() - attached.range.start() + done as u64;
    if let Some(mapping) = attached.mapping() {
        let Some(remote) = mapping.part(offset, part, slice.op == Op::Write) else {
            return Err(stop(FailureKind::Rejected, "the range is not inside the mapping", false));
        };
        let (to, from) = match slice.op {
            Op::Read => (local, remote),
            Op::Write => (remote, local),
        };
        // What is local may be a part of what is mapped, where a process is its own peer.
        let apart = to.addr().abs_diff(from.addr()) >= part;
        let routine = if cold && apart { copy::copy_around_caches } else { copy::copy };
        // SAFETY: the local bytes are inside the hold of the slice, the remote ones inside the mapping, which is writable if
        // they are written; both live during the call. Who else accesses the local ones does so as the memory of a hold
        // allows; the remote ones are accessed by this routine, or by other processes.
        unsafe { routine(to, from, part) };
        add(&common.counters.mapped_bytes, part as u64);
        return Ok(());
    }
    let process = match &attached.ties.process {
        Ok(process) => process,
        Err(why) => return Err(stop(FailureKind::Unsupported, why.clone(), false)),
    };
    let address = attached.range.start() + offset;
    // SAFETY: the bytes are inside the hold of the slice, whose memory the kernel may touch.
    match unsafe { process.copy(slice.op, local, address, part) } {
        Ok(()) => {
            add(&common.counters.process_bytes, part as u64);
            Ok(())
        }
        Err(Fault::Ended) => Err(stop(FailureKind::ConnectionLost, "the peer's process has ended", true)),
        Err(Fault::Refused(error)) => {
            let cause = format!("the kernel does not move the bytes between the processes: {error}");
            Err(stop(FailureKind::Unsupported, cause, true))
        }
    }
}
