//! Executing slices: piece by piece, each under a mark in the control page.

use std::borrow::Cow;
use std::thread;
use std::time::{Duration, Instant};

use te_transport::{CancelReason, CancelScope, FailureKind, Slice, stopped};

use super::Common;
use super::line::Attached;
use super::piece;
use crate::hold::{self, Barred};
use crate::process::Parts;

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

pub(super) fn stop(kind: FailureKind, cause: impl Into<Cow<'static, str>>, begun: bool) -> Stop {
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
        [] => Ok((0, None)),
        [slice] => run(common, attached, slice, limits, &mut || {}).map(|_| (1, None)),
        slices => {
            let several = || Ok(piece::several(common, attached, slices, limits.cold));
            marked(common, attached, limits, &mut || {}, several)
        }
    };
    match done {
        Ok((done, None)) if done == checked.len() => (done, wrong),
        Ok(outcome) => outcome,
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
        piece::copy(common, attached, slice, done, part, limits.cold).map(|()| part)
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
