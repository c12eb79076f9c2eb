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
use crate::process::{Fault, Parts};

/// Bytes copied under one mark: what a withdrawal or a cancellation waits for at most.
pub(super) const PIECE: usize = 1 << 20;
/// Slices copied under one mark at most.
const TOGETHER: usize = Parts::MAX;
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

/// How many slices from the front on can be copied under one mark: one at least, more while they are small, of one buffer
/// and of one direction.
pub(super) fn together(slices: &[Slice]) -> usize {
    let Some(first) = slices.first() else { return 0 };
    let mut bytes = 0;
    let fits = |slice: &&Slice| {
        bytes += slice.local.len();
        slice.op == first.op && slice.generation == first.generation && bytes <= PIECE as u64
    };
    slices.iter().take(TOGETHER).take_while(fits).count().max(1)
}

/// Copies slices that go [`together`]: how many from the front on are done, and if not all, perhaps why the next one is not.
pub(super) fn run_all(
    common: &Common,
    attached: &Attached,
    slices: &[Slice],
    limits: Limits<'_>,
) -> (usize, Option<Stop>) {
    let mut wrong = None;
    let whole = slices.iter().take_while(|slice| match check(attached, slice) {
        Ok(_) => true,
        Err(stop) => {
            wrong = Some(stop);
            false
        }
    });
    let checked = &slices[..whole.count()];
    let done = match checked {
        [] => Ok(0),
        [slice] => run(common, attached, slice, limits, &mut || {}).map(|_| 1),
        slices => marked(common, attached, limits, &mut || {}, || several(common, attached, slices, limits)),
    };
    match done {
        Ok(done) if done == checked.len() => (done, wrong),
        Ok(done) => (done, None),
        Err(stop) => (0, Some(stop)),
    }
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
    marked(common, attached, limits, between, || {
        // A checked slice has a length that fits.
        let len = usize::try_from(slice.local.len()).unwrap_or(usize::MAX);
        let part = PIECE.min(len - done);
        piece(common, attached, slice, done, part, limits.cold).map(|()| part)
    })
}

/// Calls `copy` under a mark.
fn marked<T>(
    common: &Common,
    attached: &Attached,
    limits: Limits<'_>,
    between: &mut dyn FnMut(),
    copy: impl FnOnce() -> Result<T, Stop>,
) -> Result<T, Stop> {
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
        match hold::mark(&ties.page, place, attached.buffer) {
            Ok(_mark) => return copy(),
            Err(Barred::Busy) => {}
            Err(Barred::Revoked) => {
                return Err(stop(FailureKind::BufferGone, "the peer has withdrawn the buffer", false));
            }
            Err(Barred::Closed) => {
                return Err(stop(FailureKind::ConnectionLost, "the peer has ended the connection", false));
            }
        }
        drop(copying);
        tries += 1;
        if tries < PATIENCE { thread::yield_now() } else { thread::sleep(Duration::from_micros(50)) }
    }
}

/// Copies several whole slices, which are a piece together, under the caller's mark; how many.
fn several(
    common: &Common,
    attached: &Attached,
    slices: &[Slice],
    limits: Limits<'_>,
) -> Result<usize, Stop> {
    let (None, Ok(process)) = (attached.mapping(), &attached.ties.process) else {
        for (done, slice) in slices.iter().enumerate() {
            let len = usize::try_from(slice.local.len()).unwrap_or(usize::MAX);
            match piece(common, attached, slice, 0, len, limits.cold) {
                Ok(()) => {}
                Err(stop) if done == 0 => return Err(stop),
                // It is found again, as the first.
                Err(_) => return Ok(done),
            }
        }
        return Ok(slices.len());
    };
    let mut parts = Parts::new();
    for slice in slices {
        parts.push(slice.local.as_ptr(), slice.remote.start(), slice.local.len());
    }
    // SAFETY: the bytes are inside the holds of the slices, whose memory the kernel may touch.
    let moved = unsafe { process.copy_parts(slices[0].op, &mut parts) }.map_err(fault)?;
    let mut left = moved as u64;
    let whole = slices.iter().take_while(|slice| match left.checked_sub(slice.local.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    let done = whole.count();
    add(&common.counters.process_bytes, slices[..done].iter().map(|slice| slice.local.len()).sum());
    if done > 0 {
        return Ok(done);
    }
    // The first one does not go at once. Alone it is moved to its end, or says why not.
    let len = usize::try_from(slices[0].local.len()).unwrap_or(usize::MAX);
    piece(common, attached, &slices[0], 0, len, limits.cold).map(|()| 1)
}

fn fault(fault: Fault) -> Stop {
    match fault {
        Fault::Ended => stop(FailureKind::ConnectionLost, "the peer's process has ended", true),
        Fault::Refused(error) => {
            let cause = format!("the kernel does not move the bytes between the processes: {error}");
            stop(FailureKind::Unsupported, cause, true)
        }
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
    unsafe { process.copy(slice.op, local, address, part) }.map_err(fault)?;
    add(&common.counters.process_bytes, part as u64);
    Ok(())
}
