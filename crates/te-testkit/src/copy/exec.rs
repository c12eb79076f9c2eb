//! Executing one slice.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use te_memory::{Hold, Refusal, RegionState, RemoteOp, copy_between};
use te_segment::AddressRange;
use te_transport::{CancelReason, Failure, FailureKind, Op, Outcome, RemoteEffect};

use super::Flaw;
use super::path::Job;

/// How long a request sleeps before it looks again whether its link passes bytes. A fake may poll.
const LOOK: Duration = Duration::from_millis(1);

/// How long flawed copies come too late.
const LATE: Duration = Duration::from_millis(60);

/// Slices above this are the ones that some flaws damage.
const LARGE: u64 = 64 << 10;

pub(super) fn cancelled(reason: CancelReason) -> Failure {
    let kind = match reason {
        CancelReason::Expired => FailureKind::TimedOut,
        CancelReason::Shutdown => FailureKind::Shutdown,
        CancelReason::Withdrawn => FailureKind::LocalMemory,
        _ => FailureKind::Cancelled,
    };
    Failure::new(kind, "the batch was cancelled")
}

/// Executes the slice and reports its outcome. `meanwhile` is called now and then.
pub(super) fn execute(job: Job, meanwhile: impl Fn()) {
    meanwhile();
    if job.line.near.config.has(Flaw::DoneBeforeApplied) {
        return done_before_applied(job);
    }
    let outcome = match run(&job, &meanwhile) {
        Ok(()) => Outcome::Done(job.slice.local.len()),
        Err(failure) => Outcome::Failed(failure),
    };
    let stopped = matches!(&outcome, Outcome::Failed(failure) if matches!(failure.kind(), FailureKind::Cancelled | FailureKind::TimedOut));
    if stopped && job.line.near.config.has(Flaw::CopiesAfterFailure) {
        let (op, remote) = (job.slice.op, job.slice.remote);
        if let (Ok(local), Ok(far)) =
            (job.slice.local.slice(0, job.slice.local.len()), serve(&job, op, remote))
        {
            thread::spawn(move || {
                thread::sleep(LATE);
                let (to, from) = ends(op, &local, &far);
                let _ = copy_between(to, from);
            });
        }
    }
    job.resolve(outcome);
}

fn done_before_applied(job: Job) {
    let (op, len) = (job.slice.op, job.slice.local.len());
    match (job.slice.local.slice(0, len), serve(&job, op, job.slice.remote)) {
        (Ok(local), Ok(far)) => {
            job.resolve(Outcome::Done(len));
            thread::sleep(LATE);
            let (to, from) = ends(op, &local, &far);
            let _ = copy_between(to, from);
        }
        (_, Err(refused)) => job.resolve(Outcome::Failed(refused)),
        (Err(refusal), _) => job.resolve(Outcome::Failed(local_refusal(refusal))),
    }
}

fn ends<'a>(op: Op, local: &'a Hold, far: &'a Hold) -> (&'a Hold, &'a Hold) {
    match op {
        Op::Read => (local, far),
        Op::Write => (far, local),
    }
}

fn local_refusal(refusal: Refusal) -> Failure {
    Failure::new(FailureKind::LocalMemory, refusal.to_string())
}

fn run(job: &Job, meanwhile: &impl Fn()) -> Result<(), Failure> {
    let config = &job.line.near.config;
    let has = |flaw| config.has(flaw);
    let op = if has(Flaw::SwapsDirection) { swapped(job.slice.op) } else { job.slice.op };
    let local = &job.slice.local;
    let able = if op == Op::Read { config.capabilities.read } else { config.capabilities.write };
    if (!able || local.len() > config.capabilities.max_slice) && !has(Flaw::IgnoresLimits) {
        return Err(Failure::new(FailureKind::Unsupported, format!("no {op} of {} bytes", local.len())));
    }
    if local.len() != job.slice.remote.len() {
        return Err(Failure::new(FailureKind::LocalMemory, "local and remote length differ"));
    }
    if has(Flaw::DiesOfRefusal) && job.line.refused.load(Ordering::Relaxed) > 0 {
        return Err(Failure::new(FailureKind::ConnectionLost, "the path broke earlier"));
    }
    // One cut ends the requests that were begun before it, and those only.
    let cuts = if has(Flaw::NeverRecovers) { job.line.first_cuts } else { job.line.wire.cuts() };
    pass(job, cuts, meanwhile)?;
    let _serving = job.line.port.serve();
    if _serving.is_none() && !has(Flaw::IgnoresPeerDeath) {
        return Err(Failure::new(FailureKind::Unreachable, "the peer's port is closed"));
    }
    let far = match serve(job, op, job.slice.remote) {
        Err(_) if has(Flaw::ServesAnything) => return Ok(()),
        served => served?,
    };
    copy(job, op, &far, cuts, meanwhile)?;
    if has(Flaw::Overruns) {
        overrun(job, op, &far);
    }
    if has(Flaw::LeaksRemoteHold) {
        std::mem::forget(far);
    }
    Ok(())
}

fn copy(job: &Job, op: Op, far: &Hold, cuts: u64, meanwhile: &impl Fn()) -> Result<(), Failure> {
    let config = &job.line.near.config;
    let (local, chunk) = (&job.slice.local, NonZeroU64::new(config.chunk).unwrap_or(NonZeroU64::MIN));
    let large = local.len() > LARGE;
    let mut moved = 0;
    for piece in far.range().pieces(chunk) {
        let wait = pass(job, cuts, meanwhile).and_then(|()| withdrawn(far));
        wait.map_err(|failure| match op {
            Op::Write if moved > 0 => failure.with_effect(RemoteEffect::MayHaveApplied),
            _ => failure,
        })?;
        let mut len = piece.len();
        if large && config.has(Flaw::Truncates) && moved + len == local.len() {
            len -= 1;
        }
        let shifted = large && config.has(Flaw::ShuffleChunks) && moved >= len;
        let source = if shifted { moved - len } else { moved };
        let (local_at, far_at) = if op == Op::Read { (moved, source) } else { (source, moved) };
        moved += piece.len();
        if len == 0 {
            continue;
        }
        let (near, there) = (local.slice(local_at, len), far.slice(far_at, len));
        let near = near.map_err(local_refusal)?;
        let there = there.map_err(|refusal| Failure::new(FailureKind::Rejected, refusal.to_string()))?;
        let (to, from) = ends(op, &near, &there);
        copy_between(to, from).map_err(|error| Failure::new(FailureKind::Protocol, error.to_string()))?;
    }
    Ok(())
}

/// Waits until the link passes bytes, unless the slice ends before.
fn pass(job: &Job, cuts: u64, meanwhile: &impl Fn()) -> Result<(), Failure> {
    let line = &job.line;
    if !line.near.config.pace.is_zero() {
        thread::sleep(line.near.config.pace);
    }
    loop {
        if let Some(failure) = job.expired().or_else(|| line.gone()) {
            return Err(failure);
        }
        if line.wire.cuts() != cuts {
            return Err(Failure::new(FailureKind::ConnectionLost, "the link was cut"));
        }
        if !line.wire.is_stalled() {
            return Ok(());
        }
        meanwhile();
        thread::sleep(LOOK);
    }
}

/// Ends a request whose region is being withdrawn.
fn withdrawn(far: &Hold) -> Result<(), Failure> {
    match far.region().state() {
        RegionState::Reserved | RegionState::Active => Ok(()),
        _ => Err(Failure::new(FailureKind::Rejected, Refusal::Withdrawn.to_string())),
    }
}

fn swapped(op: Op) -> Op {
    match op {
        Op::Read => Op::Write,
        Op::Write => Op::Read,
    }
}

/// What the target does at the start of a request: checks it, and holds the range.
fn serve(job: &Job, op: Op, range: AddressRange) -> Result<Hold, Failure> {
    let line = &job.line;
    let has = |flaw| line.near.config.has(flaw);
    let refuse = |kind: FailureKind, cause: String| {
        line.refused.fetch_add(1, Ordering::Relaxed);
        Failure::new(if has(Flaw::MisnamesRefusal) { FailureKind::ConnectionLost } else { kind }, cause)
    };
    if line.pinned.is_some_and(|pinned| pinned != line.port.incarnation) && !has(Flaw::IgnoresIncarnation) {
        let cause = "the request is for another life of the peer".to_owned();
        return Err(refuse(FailureKind::StaleIncarnation, cause));
    }
    let remote_op = if op == Op::Read { RemoteOp::Read } else { RemoteOp::Write };
    let served = line.port.regions.remote(range.start(), range.len(), remote_op);
    let hold = served
        .or_else(|refusal| flawed(job, range, refusal))
        .map_err(|refusal| refuse(FailureKind::Rejected, refusal.to_string()))?;
    match job.slice.generation {
        Some(asked) if asked != hold.generation() && !has(Flaw::IgnoresGeneration) => {
            let cause = format!("generation {asked} is gone, this is {}", hold.generation());
            Err(refuse(FailureKind::BufferGone, cause))
        }
        _ => Ok(hold),
    }
}

/// What a flawed target serves all the same.
fn flawed(job: &Job, range: AddressRange, refusal: Refusal) -> Result<Hold, Refusal> {
    let line = &job.line;
    let has = |flaw| line.near.config.has(flaw);
    let regions = &line.port.regions;
    let first = AddressRange::new(range.start(), 1).ok().and_then(|first| regions.find(&first));
    match (refusal, first) {
        (Refusal::PermissionDenied, Some(region)) if has(Flaw::IgnoresAccess) => {
            region.hold(range.start() - region.range().start(), range.len())
        }
        (Refusal::OutsideAnyRegion, Some(region))
            if has(Flaw::ServesReserved) && region.range().contains_range(&range) =>
        {
            region.hold(range.start() - region.range().start(), range.len())
        }
        // The rest of the range is served from wherever it lies: here, like the clipped range, only its beginning.
        (Refusal::CrossesRegions, Some(region)) if has(Flaw::MergesRegions) => clipped(&region, range),
        (Refusal::OutsideAnyRegion, Some(region)) if has(Flaw::ClipsRange) => clipped(&region, range),
        _ => Err(refusal),
    }
}

fn clipped(region: &te_memory::Region, range: AddressRange) -> Result<Hold, Refusal> {
    let common = region.range().intersection(&range).ok_or(Refusal::OutsideAnyRegion)?;
    region.hold(common.start() - region.range().start(), common.len())
}

/// Copies the byte behind the range too, if the region has one.
fn overrun(job: &Job, op: Op, far: &Hold) {
    let behind = |hold: &Hold| {
        let region = hold.region().range();
        hold.region().hold(hold.range().end() - region.start(), 1)
    };
    if let (Ok(local), Ok(far)) = (behind(&job.slice.local), behind(far)) {
        let (to, from) = ends(op, &local, &far);
        let _ = copy_between(to, from);
    }
}
