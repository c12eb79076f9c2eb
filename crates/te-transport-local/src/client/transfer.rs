//! Copying one slice, piece by piece.

use std::borrow::Cow;
use std::time::Instant;

use te_memory::{RemoteOp, copy_between, same_bytes};
use te_transport::{CancelReason, CancelScope, Comparing, FailureKind, Op, Slice, stopped};

use super::Common;
use crate::counters::add;
use crate::error::refused;
use crate::group::Tie;

/// Bytes copied in one step: what a withdrawal, a cancellation or the next batch waits for at most.
pub const PIECE: u64 = 1 << 20;
/// Bytes of one slice at most. Whoever watches for silence sees slices end; this one takes far less than a second.
pub(crate) const MAX_SLICE: u64 = 256 << 20;

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
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) kind: FailureKind,
    pub(crate) cause: Cow<'static, str>,
    /// Whether bytes may have been moved.
    pub(crate) begun: bool,
}

/// Copies the piece that begins `done` bytes into the slice; how many bytes are done then.
pub(crate) fn step(
    common: &Common,
    tie: &Tie,
    slice: &Slice,
    done: u64,
    limits: Limits<'_>,
) -> Result<u64, Stop> {
    let stop =
        |(kind, cause): (FailureKind, &'static str)| Stop { kind, cause: cause.into(), begun: done > 0 };
    if let Some(why) = limits.over(common) {
        return Err(stop(why));
    }
    let (len, Some(generation)) = (slice.local.len(), slice.generation) else {
        return Err(stop((FailureKind::Unsupported, "a copy needs the generation of the buffer")));
    };
    if len != slice.remote.len() {
        return Err(stop((FailureKind::LocalMemory, "local and remote length differ")));
    }
    if len > MAX_SLICE {
        return Err(stop((FailureKind::Unsupported, "the slice is larger than the transport takes")));
    }
    let op = match slice.op {
        Op::Read => RemoteOp::Read,
        Op::Write => RemoteOp::Write,
    };
    let part = PIECE.min(len - done);
    // The first look-up is of the whole range: nothing is moved of a request that is not permitted as a whole. Later ones
    // are made anew, so that no hold outlives a piece.
    let wanted = if done == 0 { len } else { part };
    let turned_away = |refusal| {
        add(&common.counters.refused, 1);
        stop(refused(refusal))
    };
    let range = slice.remote.slice(done, wanted);
    let range =
        range.map_err(|_| stop((FailureKind::Rejected, "the range wraps around the address space")))?;
    let Some((_copying, held)) = tie.enter(range, op, generation) else {
        return Err(stop((FailureKind::ConnectionLost, "the peer has ended the copies of this engine")));
    };
    let mut far = held.map_err(turned_away)?;
    if wanted > part {
        far = far.slice(0, part).map_err(turned_away)?;
    }
    let near = (part < len)
        .then(|| slice.local.slice(done, part))
        .transpose()
        .map_err(|_| stop((FailureKind::LocalMemory, "the local buffer cannot be held once more")))?;
    let near = near.as_ref().unwrap_or(&slice.local);
    let (to, from) = match slice.op {
        Op::Read => (near, &far),
        Op::Write => (&far, near),
    };
    copy_between(to, from).map_err(|error| Stop {
        kind: FailureKind::LocalMemory,
        cause: error.to_string().into(),
        begun: done > 0,
    })?;
    add(&common.counters.copied_bytes, part);
    if common.comparing.is_due() && !same_bytes(to, from) {
        return Err(Stop { kind: FailureKind::Damaged, cause: Comparing::DAMAGED.into(), begun: true });
    }
    Ok(done + part)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use te_memory::{Memory, Region, RegionTable};
    use te_segment::{Access, Incarnation, Location};
    use te_transport::{AttemptId, Compare, Comparing, CompletionSink, CompletionToken, Outcome, Threads};

    use super::*;
    use crate::group::{LocalGroup, Member};

    struct Ignore;

    impl CompletionSink for Ignore {
        fn complete(&self, _index: u32, _outcome: Outcome) {}
    }

    /// One slice of three pieces, of which the first has been copied.
    struct Midway {
        common: Common,
        member: Arc<Member>,
        tie: Arc<Tie>,
        remote: Region,
        slice: Slice,
        scope: CancelScope,
        deadline: Instant,
    }

    const LEN: u64 = 3 * PIECE;

    fn region(regions: &RegionTable) -> Region {
        let memory = Memory::from_vec(vec![0; usize::try_from(LEN).unwrap()]);
        regions.reserve(memory, Access::REMOTE, Location::Any).unwrap().commit()
    }

    impl Midway {
        fn new() -> Self {
            let (near, far) = (RegionTable::default(), RegionTable::default());
            let (local, remote) = (region(&near), region(&far));
            local.fill(1).unwrap();
            let member = LocalGroup::new().join(Incarnation::from_bits(2), far).unwrap();
            let common = Common {
                incarnation: Incarnation::from_bits(1),
                threads_per_peer: 1,
                comparing: Comparing::new(Compare::Always),
                counters: Arc::default(),
                threads: Arc::new(Threads::new("te-test")),
                closing: AtomicBool::new(false),
            };
            let slice = Slice {
                op: Op::Write,
                local: local.hold(0, LEN).unwrap(),
                remote: remote.range(),
                generation: Some(remote.generation()),
                attempt: AttemptId { request: 1, attempt: 1 },
                token: CompletionToken::new(Arc::new(Ignore), 0),
            };
            let (scope, deadline) = (CancelScope::new(), Instant::now() + Duration::from_secs(600));
            let tie = member.tie(common.incarnation).unwrap();
            let midway = Self { common, member, tie, remote, slice, scope, deadline };
            assert_eq!(midway.step(0).unwrap(), PIECE);
            midway
        }

        fn step(&self, done: u64) -> Result<u64, Stop> {
            let limits = Limits { scope: &self.scope, deadline: self.deadline };
            step(&self.common, &self.tie, &self.slice, done, limits)
        }

        /// The second piece is not copied, for this reason.
        fn stops(&self, kind: FailureKind) {
            let stop = self.step(PIECE).unwrap_err();
            assert_eq!((stop.kind, stop.begun), (kind, true), "{}", stop.cause);
            let mut found = vec![0; usize::try_from(LEN).unwrap()];
            // Refused for a buffer that is withdrawn; its memory is looked at below then.
            if self.remote.read_at(0, &mut found).is_ok() {
                let (first, rest) = found.split_at(usize::try_from(PIECE).unwrap());
                assert!(first.iter().all(|byte| *byte == 1) && rest.iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn a_slice_is_done_piece_by_piece_and_nothing_is_held_between() {
        let midway = Midway::new();
        assert_eq!(midway.remote.holds().remote, 0);
        assert_eq!(midway.step(PIECE).unwrap(), 2 * PIECE);
        assert_eq!(midway.step(2 * PIECE).unwrap(), LEN);
        assert_eq!(midway.common.counters.snapshot().copied_bytes, LEN);
    }

    #[test]
    fn a_cancelled_or_late_slice_stops_midway() {
        let midway = Midway::new();
        midway.scope.cancel(CancelReason::Cancelled);
        midway.stops(FailureKind::Cancelled);
        let mut midway = Midway::new();
        midway.deadline = Instant::now();
        midway.stops(FailureKind::TimedOut);
        let midway = Midway::new();
        midway.common.closing.store(true, Ordering::SeqCst);
        midway.stops(FailureKind::Shutdown);
    }

    #[test]
    fn a_withdrawn_buffer_is_left_midway_and_can_be_released_at_once() {
        let midway = Midway::new();
        midway.remote.block();
        midway.stops(FailureKind::BufferGone);
        let memory = midway.remote.release().unwrap();
        let (first, rest) = memory.bytes().unwrap().split_at(usize::try_from(PIECE).unwrap());
        assert!(first.iter().all(|byte| *byte == 1) && rest.iter().all(|byte| *byte == 0));
        midway.stops(FailureKind::BufferGone);
    }

    #[test]
    fn a_member_that_cuts_off_or_leaves_is_left_midway() {
        let midway = Midway::new();
        midway.member.cut(Some(Incarnation::from_bits(1)), Instant::now()).unwrap();
        midway.stops(FailureKind::ConnectionLost);
        let midway = Midway::new();
        midway.member.close();
        midway.stops(FailureKind::ConnectionLost);
    }
}
