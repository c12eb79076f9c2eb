//! A submission under way: slices, each of pieces that end one by one, on whatever rail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use te_memory::Hold;
use te_segment::{Generation, MemoryKey};
use te_transport::{
    Abort, AbortGuard, CancelReason, CancelScope, CompletionToken, Failure, FailureKind, Op, RemoteEffect,
    stopped,
};

use super::peer::Peer;
use crate::slices::Piece;

/// The slices of one submission that are under way. It ends with its last slice.
pub(crate) struct Job {
    peer: Arc<Peer>,
    deadline: Instant,
    scope: CancelScope,
    slices: Box<[Work]>,
    left: AtomicUsize,
    /// Told when the scope is cancelled, for as long as something is under way.
    guard: Mutex<Option<AbortGuard>>,
}

/// One slice. What does not change is beside what does.
pub(crate) struct Work {
    /// Direction.
    pub(crate) op: Op,
    /// Which registration here.
    pub(crate) local: Generation,
    /// Which of the peer's buffers, by its position in the descriptor.
    pub(crate) buffer: usize,
    state: Mutex<State>,
}

struct State {
    /// Pieces without an end.
    left: u32,
    /// Bytes that have arrived.
    bytes: u64,
    failure: Option<Failure>,
    effect: RemoteEffect,
    ends: Option<(CompletionToken, Hold)>,
}

impl Work {
    /// A slice of so many pieces, at least one. The hold is kept until the last of them has ended.
    pub(crate) fn new(op: Op, buffer: usize, pieces: u32, token: CompletionToken, local: Hold) -> Self {
        let state = State {
            left: pieces,
            bytes: 0,
            failure: None,
            effect: RemoteEffect::None,
            ends: Some((token, local)),
        };
        let local = state.ends.as_ref().map_or(Generation::new(0), |(_, hold)| hold.generation());
        Self { op, local, buffer, state: Mutex::new(state) }
    }
}

/// A piece of a slice, wherever it waits or is posted. It ends exactly once, by [`Part::done`] or [`Part::failed`].
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) job: Arc<Job>,
    pub(crate) slice: u32,
    pub(crate) piece: Piece,
    pub(crate) local_key: MemoryKey,
    pub(crate) remote_key: MemoryKey,
    /// How often it has been tried in vain; 0 only if it was never posted.
    pub(crate) tries: u8,
    /// How often the rail that it waited for did not come about.
    pub(crate) diverted: u8,
}

impl Job {
    /// Nothing of it is under way yet.
    pub(crate) fn new(
        peer: Arc<Peer>,
        deadline: Instant,
        scope: CancelScope,
        slices: Vec<Work>,
    ) -> Arc<Self> {
        let left = AtomicUsize::new(slices.len());
        let slices = slices.into_boxed_slice();
        Arc::new(Self { peer, deadline, scope, slices, left, guard: Mutex::new(None) })
    }

    /// Has it told of a cancellation. To be called before anything of it is under way.
    pub(crate) fn watch(self: &Arc<Self>) {
        let guard = self.scope.attach(self.clone());
        *self.guard.lock() = Some(guard);
    }

    /// Towards whom.
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Whether all of it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Whether it is to go no further, and why: the reason, or none for the deadline.
    pub(crate) fn stopped(&self, now: Instant) -> Option<Option<CancelReason>> {
        match self.scope.cancelled() {
            Some(reason) => Some(Some(reason)),
            None => (now >= self.deadline).then_some(None),
        }
    }

    /// A piece has ended. With the last one the slice ends, since only then can nothing touch its memory any more.
    fn end(&self, slice: u32, outcome: Result<u64, Failure>) {
        let Some(work) = self.slices.get(slice as usize) else { return };
        let mut state = work.state.lock();
        match outcome {
            Ok(bytes) => state.bytes += bytes,
            Err(failure) => {
                state.effect = state.effect.max(failure.effect());
                state.failure.get_or_insert(failure);
            }
        }
        state.left = state.left.saturating_sub(1);
        if state.left > 0 {
            return;
        }
        let Some((token, hold)) = state.ends.take() else { return };
        let (bytes, effect, failure) = (state.bytes, state.effect, state.failure.take());
        drop(state);
        drop(hold);
        // Before the token, so that whoever is told finds nothing of it under way.
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        let guard = if last { self.guard.lock().take() } else { None };
        drop(guard);
        self.peer.ended(failure.as_ref());
        match failure {
            None => token.done(bytes),
            Some(failure) => {
                let effect = match (work.op, bytes) {
                    (Op::Read, _) => RemoteEffect::None,
                    (Op::Write, 0) => effect,
                    (Op::Write, _) => effect.max(RemoteEffect::MayHaveApplied),
                };
                token.fail(failure.with_effect(effect));
            }
        }
    }
}

impl Abort for Job {
    fn abort(&self) {
        self.peer.review();
    }
}

impl Part {
    /// The slice it is of.
    pub(crate) fn work(&self) -> Option<&Work> {
        self.job.slices.get(self.slice as usize)
    }

    /// Its direction.
    pub(crate) fn op(&self) -> Op {
        self.work().map_or(Op::Read, |work| work.op)
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.piece.local.len()
    }

    /// It was posted and has come back. That counts as a try only if the rail has failed, not if it stood behind a request that
    /// was refused or given up, of which there may be any number: it has until its deadline then.
    pub(crate) fn came_back(&mut self, failed: bool) {
        self.diverted = 0;
        self.tries = if failed { self.tries.saturating_add(1) } else { self.tries.max(1) };
    }

    /// What it may have done to the peer's memory, if nothing of it is under way any more.
    pub(crate) fn effect(&self) -> RemoteEffect {
        if self.tries > 0 { RemoteEffect::MayHaveApplied } else { RemoteEffect::None }
    }

    /// Its bytes are at their destination.
    pub(crate) fn done(self) {
        self.job.end(self.slice, Ok(self.len()));
    }

    /// It has ended otherwise, and nothing local touches its memory any more.
    pub(crate) fn failed(self, failure: Failure) {
        let failure = failure.on_path(self.job.peer.label().clone());
        self.job.end(self.slice, Err(failure));
    }

    /// It was stopped, and may have an effect if it was posted before.
    pub(crate) fn stop(self, reason: Option<CancelReason>, effect: RemoteEffect) {
        let (kind, cause) = stopped(reason);
        let effect = if self.op() == Op::Write { effect } else { RemoteEffect::None };
        self.failed(Failure::new(kind, cause).with_effect(effect));
    }

    /// As [`failed`](Self::failed), in words.
    pub(crate) fn fail(self, kind: FailureKind, cause: impl Into<Arc<str>>, effect: RemoteEffect) {
        let effect = if self.op() == Op::Write { effect } else { RemoteEffect::None };
        self.failed(Failure::new(kind, cause).with_effect(effect));
    }
}
