//! The initiator's units of work: a slice, or a stripe of one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::turns;
use crate::digest;
use parking_lot::Mutex;
use te_memory::Hold;
use te_segment::Generation;
use te_transport::{AbortGuard, AttemptId, CancelScope, CompletionToken, Failure, Op, RemoteEffect, Slice};

/// Longest unit that is sent in a list. A larger one is worth a request of its own.
const LISTABLE: u64 = 32 << 10;

/// One request on the wire: a slice or a stripe of one. Dropped unresolved it reports a failure, as tokens do.
pub(crate) struct Unit {
    source: Source,
    /// Where it begins in the hold.
    offset: u64,
    len: u64,
    remote: u64,
    /// The registration of the remote buffer that is meant.
    pub(crate) generation: Option<Generation>,
    pub(crate) attempt: AttemptId,
    /// Whether it has been moved to a fresh connection once.
    pub(crate) retried: bool,
    /// Whether it must not be sent in a list: one that it was in has been refused.
    pub(crate) alone: bool,
    /// Set when it is sent: whether it is the first of its list, or not in one.
    pub(crate) leads: bool,
    /// Set when it is sent: whether it carries a digest.
    pub(crate) digest: bool,
}

enum Source {
    Whole { hold: Hold, token: CompletionToken },
    Stripe(Arc<Striped>),
}

/// A slice cut into stripes. It completes when the last of them has ended.
struct Striped {
    op: Op,
    len: u64,
    failed: AtomicBool,
    state: Mutex<StripedState>,
}

struct StripedState {
    /// Until the last stripe has ended.
    hold: Option<Hold>,
    left: usize,
    /// Whether a stripe is done, and so remote bytes may be changed.
    done: bool,
    failure: Option<Failure>,
    token: Option<CompletionToken>,
}

impl Unit {
    /// A slice of its own. The caller has checked that both sides have the same length, and that it is memory of the host.
    pub(crate) fn whole(slice: Slice) -> Self {
        let (len, remote) = (slice.remote.len(), slice.remote.start());
        let (generation, attempt) = (slice.generation, slice.attempt);
        let source = Source::Whole { hold: slice.local, token: slice.token };
        Self {
            source,
            offset: 0,
            len,
            remote,
            generation,
            attempt,
            retried: false,
            alone: false,
            leads: true,
            digest: false,
        }
    }

    /// Cuts a slice into `count` stripes whose borders are multiples of 64 KiB from its start.
    pub(crate) fn stripes(slice: Slice, count: u64) -> impl Iterator<Item = Self> {
        const GRAIN: u64 = 64 << 10;
        let (len, remote) = (slice.remote.len(), slice.remote.start());
        let (generation, attempt) = (slice.generation, slice.attempt);
        let size = len.div_ceil(count.max(1)).next_multiple_of(GRAIN);
        let count = len.div_ceil(size);
        let state = StripedState {
            hold: Some(slice.local),
            left: usize::try_from(count).unwrap_or(usize::MAX),
            done: false,
            failure: None,
            token: Some(slice.token),
        };
        let failed = AtomicBool::new(false);
        let striped = Arc::new(Striped { op: slice.op, len, failed, state: Mutex::new(state) });
        (0..count).map(move |index| {
            let offset = index * size;
            Self {
                source: Source::Stripe(striped.clone()),
                offset,
                len: size.min(len - offset),
                remote: remote + offset,
                generation,
                attempt,
                retried: false,
                alone: false,
                leads: true,
                digest: false,
            }
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is one of those that are sent in lists.
    pub(crate) fn is_listable(&self) -> bool {
        let whole = matches!(self.source, Source::Whole { .. });
        whole && !self.alone && self.generation.is_some() && self.len <= LISTABLE
    }

    /// The digest of its bytes as they are now.
    pub(crate) fn compute_digest(&self) -> Option<u64> {
        digest::of(self.len, |at, bytes| {
            let at = self.offset + at;
            match &self.source {
                Source::Whole { hold, .. } => hold.read_at(at, bytes).is_ok(),
                Source::Stripe(striped) => {
                    let state = striped.state.lock();
                    state.hold.as_ref().is_some_and(|hold| hold.read_at(at, bytes).is_ok())
                }
            }
        })
    }

    /// Start address at the peer.
    pub(crate) fn remote(&self) -> u64 {
        self.remote
    }

    /// The first local byte, valid for the length of the unit while the unit lives.
    pub(crate) fn start(&self) -> *mut u8 {
        let start = match &self.source {
            Source::Whole { hold, .. } => hold.as_ptr(),
            // The hold is there: this stripe has not ended.
            Source::Stripe(striped) => striped.state.lock().hold.as_ref().and_then(Hold::as_ptr),
        };
        // It is memory of the host; the kernel refuses null.
        let start = start.unwrap_or(std::ptr::null_mut());
        // The offset is within the hold, so it fits.
        start.wrapping_add(usize::try_from(self.offset).unwrap_or(0))
    }

    /// Whether another stripe of the same slice has failed, so that this one need not start.
    pub(crate) fn is_void(&self) -> bool {
        match &self.source {
            Source::Whole { .. } => false,
            Source::Stripe(striped) => striped.failed.load(Ordering::Acquire),
        }
    }

    /// Reports that all its bytes are applied at the destination.
    pub(crate) fn done(self) {
        match self.source {
            Source::Whole { hold, token } => {
                // Nothing touches the memory any more; whoever is told may withdraw it at once.
                drop(hold);
                token.done(self.len);
            }
            Source::Stripe(striped) => striped.end(None),
        }
    }

    /// Reports a failure. Nothing local may touch the memory any more.
    pub(crate) fn fail(self, failure: Failure) {
        match self.source {
            Source::Whole { hold, token } => {
                drop(hold);
                token.fail(failure);
            }
            Source::Stripe(striped) => striped.end(Some(failure)),
        }
    }
}

impl Striped {
    fn end(&self, failure: Option<Failure>) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        match failure {
            None => state.done = true,
            Some(failure) => {
                self.failed.store(true, Ordering::Release);
                // The first cause stays, with the worst effect.
                let kept = state.failure.take();
                let effect = kept.as_ref().map_or(RemoteEffect::None, Failure::effect).max(failure.effect());
                state.failure = Some(kept.unwrap_or(failure).with_effect(effect));
            }
        }
        if state.left > 0 {
            return;
        }
        let (hold, token) = (state.hold.take(), state.token.take());
        let (failure, done) = (state.failure.take(), state.done);
        drop(state);
        drop(hold);
        let Some(token) = token else { return };
        match failure {
            None => token.done(self.len),
            Some(failure) if done && self.op == Op::Write => {
                let effect = failure.effect().max(RemoteEffect::MayHaveApplied);
                token.fail(failure.with_effect(effect));
            }
            Some(failure) => token.fail(failure),
        }
    }
}

/// The queued part of a submission.
pub(crate) struct Job {
    /// Order of arrival.
    pub(crate) seq: u64,
    pub(crate) reads: VecDeque<Unit>,
    pub(crate) writes: VecDeque<Unit>,
    pub(crate) deadline: Instant,
    pub(crate) scope: CancelScope,
    /// Wakes the queue's threads when the scope is cancelled.
    pub(crate) guard: Option<AbortGuard>,
    /// Connections that work on it.
    pub(crate) leases: usize,
}

impl Job {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reads.iter().chain(&self.writes).map(Unit::len).sum()
    }

    /// Whether it must not be started any more.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now || self.scope.cancelled().is_some()
    }

    pub(crate) fn into_units(self) -> impl Iterator<Item = Unit> {
        self.writes.into_iter().chain(self.reads)
    }

    /// All of it as up to two trains.
    pub(crate) fn into_trains(self) -> impl Iterator<Item = Train> {
        let Self { reads, writes, deadline, scope, .. } = self;
        let parts =
            [(Op::Write, writes), (Op::Read, reads)].into_iter().filter(|(_, units)| !units.is_empty());
        parts.map(move |(op, units)| Train {
            op,
            units,
            deadline,
            scope: scope.clone(),
            job: None,
            taken: 0,
            one_at_a_time: false,
        })
    }

    /// A train of its first units, which the executor refills from the queue.
    pub(crate) fn train(&mut self) -> Train {
        let op = if self.writes.is_empty() { Op::Read } else { Op::Write };
        let mut train = Train {
            op,
            units: VecDeque::new(),
            deadline: self.deadline,
            scope: self.scope.clone(),
            job: Some(self.seq),
            taken: 0,
            one_at_a_time: false,
        };
        self.refill(&mut train);
        train
    }

    /// Moves a grab of units to `train`: at least one, and more while they are small.
    pub(crate) fn refill(&mut self, train: &mut Train) {
        const GRAB_UNITS: usize = 64;
        const GRAB_BYTES: u64 = 1 << 20;
        let queue = match train.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
        };
        let mut bytes = 0;
        for _ in 0..GRAB_UNITS {
            if bytes >= GRAB_BYTES {
                break;
            }
            let Some(unit) = queue.pop_front() else { break };
            bytes += unit.len();
            train.taken += unit.len() + turns::REQUEST;
            train.units.push_back(unit);
        }
    }
}

/// Units of one batch and one direction, executed on one connection: a train never mixes batches, so that cutting its
/// connection hurts nobody else, nor directions, so that the two ends never both wait for the other to read.
pub(crate) struct Train {
    pub(crate) op: Op,
    /// Not sent yet.
    pub(crate) units: VecDeque<Unit>,
    pub(crate) deadline: Instant,
    pub(crate) scope: CancelScope,
    /// Where to get more.
    pub(crate) job: Option<u64>,
    /// What it has taken of its batch so far, in bytes, with so many more for each unit.
    pub(crate) taken: u64,
    /// Set after a refusal, which costs the connection: what is pipelined behind the next one would be sent twice.
    pub(crate) one_at_a_time: bool,
}
