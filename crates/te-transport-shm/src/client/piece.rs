//! How the bytes of a piece move, under a mark that somebody else has set.

use te_memory::copy::{self as bytes, copy_around_caches, same};
use te_transport::{Comparing, FailureKind, Op, Slice};

use super::Common;
use super::line::Attached;
use super::transfer::{Stop, stop};
use crate::counters::add;
use crate::process::{Fault, Parts, Process};

/// Bytes of another process that are compared at a time, on the stack.
const CHUNK: usize = 16 << 10;

/// Copies `part` bytes of a checked slice from `done` on.
pub(super) fn copy(
    common: &Common,
    attached: &Attached,
    slice: &Slice,
    done: usize,
    part: usize,
    cold: bool,
) -> Result<(), Stop> {
    let local = start(slice)?.wrapping_add(done);
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
        let routine = if cold && apart { copy_around_caches } else { bytes::copy };
        // SAFETY: the local bytes are inside the hold of the slice, the remote ones inside the mapping, which is writable if
        // they are written; both live during the call. Who else accesses the local ones does so as the memory of a hold
        // allows; the remote ones are accessed by this routine, or by other processes.
        unsafe { routine(to, from, part) };
        add(&common.counters.mapped_bytes, part as u64);
        // SAFETY: as above.
        if common.comparing.is_due() && !unsafe { same(local, remote, part) } {
            return Err(stop(FailureKind::Damaged, Comparing::DAMAGED, true));
        }
        return Ok(());
    }
    let process = match &attached.ties.process {
        Ok(process) => process,
        Err(why) => return Err(stop(FailureKind::Unsupported, why.clone(), false)),
    };
    let address = attached.range.start() + offset;
    // SAFETY: the bytes are inside the hold of the slice, whose memory the kernel may touch.
    unsafe { process.copy(slice.op, local, address, part) }.map_err(failed)?;
    add(&common.counters.process_bytes, part as u64);
    compare(common, attached, process, slice, done, part)
}

/// Copies whole slices of one buffer that are a piece together: how many from the front on are done, and if not all, perhaps
/// why the next one is not.
pub(super) fn several(
    common: &Common,
    attached: &Attached,
    slices: &[Slice],
    cold: bool,
) -> (usize, Option<Stop>) {
    if attached.mapping().is_none()
        && let Ok(process) = &attached.ties.process
    {
        let (done, stopped) = at_once(common, attached, process, slices);
        let (None, Some(next)) = (&stopped, slices.get(done)) else { return (done, stopped) };
        // The call ended inside of this one. Alone it is moved to its end, or says why not; some of it may be there already.
        return match copy(common, attached, next, 0, len(next), cold) {
            Ok(()) => (done + 1, None),
            Err(stop) => (done, Some(Stop { begun: true, ..stop })),
        };
    }
    for (done, slice) in slices.iter().enumerate() {
        if let Err(stop) = copy(common, attached, slice, 0, len(slice), cold) {
            return (done, Some(stop));
        }
    }
    (slices.len(), None)
}

/// As [`several`], with one call of the kernel.
fn at_once(
    common: &Common,
    attached: &Attached,
    process: &Process,
    slices: &[Slice],
) -> (usize, Option<Stop>) {
    let Some(first) = slices.first() else { return (0, None) };
    let mut parts = Parts::new();
    for slice in slices {
        match start(slice) {
            Ok(start) => parts.push(start, slice.remote.start(), slice.local.len()),
            Err(stop) => return (0, Some(stop)),
        }
    }
    // SAFETY: the bytes are inside the holds of the slices, whose memory the kernel may touch.
    let mut left = match unsafe { process.copy_parts(first.op, &mut parts) } {
        Ok(moved) => moved as u64,
        Err(fault) => return (0, Some(failed(fault))),
    };
    for (done, slice) in slices.iter().enumerate() {
        let Some(rest) = left.checked_sub(slice.local.len()) else { return (done, None) };
        left = rest;
        add(&common.counters.process_bytes, slice.local.len());
        if let Err(stop) = compare(common, attached, process, slice, 0, len(slice)) {
            return (done, Some(stop));
        }
    }
    (slices.len(), None)
}

/// The first local byte of a slice, which is memory of the host.
fn start(slice: &Slice) -> Result<*mut u8, Stop> {
    let on_device = || stop(FailureKind::LocalMemory, "the local range is memory of a device", false);
    slice.local.as_ptr().ok_or_else(on_device)
}

/// The length of a checked slice, which fits.
fn len(slice: &Slice) -> usize {
    usize::try_from(slice.local.len()).unwrap_or(usize::MAX)
}

/// Compares bytes that the kernel has moved, if it is their turn. What may not be read is not read to compare it either.
fn compare(
    common: &Common,
    attached: &Attached,
    process: &Process,
    slice: &Slice,
    done: usize,
    part: usize,
) -> Result<(), Stop> {
    if !attached.permits(Op::Read) || !common.comparing.is_due() {
        return Ok(());
    }
    let (local, remote) = (start(slice)?.wrapping_add(done), slice.remote.start() + done as u64);
    // SAFETY: the bytes are inside the hold of the slice, and only read.
    if unsafe { fits(process, local, remote, part) }.map_err(failed)? {
        Ok(())
    } else {
        Err(stop(FailureKind::Damaged, Comparing::DAMAGED, true))
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
        if !unsafe { same(local.wrapping_add(at), theirs.as_ptr(), part) } {
            return Ok(false);
        }
        at += part;
    }
    Ok(true)
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
