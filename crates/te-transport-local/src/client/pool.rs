//! Threads that copy in the background for one peer, started when there is work and ended when there is none for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_transport::{Abort, AbortGuard, CancelScope, Slice};

use super::peer::Peer;
use super::rounds::{Part, Rounds, Turn};
use super::transfer::{Limits, PIECE};
use crate::group::Tie;

/// An idle thread ends after this.
const IDLE: Duration = Duration::from_secs(5);
/// How often a busy thread looks for queued work whose time is over.
const SWEEP: Duration = Duration::from_millis(20);

/// What the slices of one submission have in common.
pub(super) struct Batch {
    pub(super) scope: CancelScope,
    pub(super) deadline: Instant,
    pub(super) tie: Arc<Tie>,
    /// Wakes the threads when the submission is cancelled.
    pub(super) _guard: AbortGuard,
}

impl Batch {
    pub(super) fn limits(&self) -> Limits<'_> {
        Limits { scope: &self.scope, deadline: self.deadline }
    }
}

struct Queue {
    rounds: Rounds<Batch, Slice>,
    running: usize,
    idle: usize,
    closed: bool,
    /// No path leads here any more: threads without work need not wait for more.
    left: bool,
}

/// The queue of one peer.
pub(super) struct Pool {
    queue: Mutex<Queue>,
    ready: Condvar,
    bell: Arc<Bell>,
}

/// Rung when something was cancelled.
#[derive(Default)]
struct Bell(AtomicBool);

impl Abort for Bell {
    fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        let queue = Queue { rounds: Rounds::new(PIECE), running: 0, idle: 0, closed: false, left: false };
        Self { queue: Mutex::new(queue), ready: Condvar::new(), bell: Arc::default() }
    }

    /// What wakes the threads when a submission is cancelled. They look before the next piece.
    pub(super) fn hook(&self) -> Arc<dyn Abort> {
        self.bell.clone()
    }

    /// Queues slices. They come back if the pool is closed, or if no thread can be had.
    pub(super) fn push(
        &self,
        peer: &Arc<Peer>,
        batch: Arc<Batch>,
        slices: Vec<Slice>,
    ) -> Result<(), Vec<Slice>> {
        let most = peer.common().threads_per_peer;
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(slices);
        }
        let mut missing = slices.len().min(most).saturating_sub(queue.idle);
        while missing > 0 && queue.running < most {
            let working = peer.clone();
            let spawned = peer.common().threads.spawn("copy", move || working.pool().work(&working));
            if spawned.is_err() {
                break;
            }
            queue.running += 1;
            missing -= 1;
        }
        if queue.running == 0 {
            return Err(slices);
        }
        let part = |slice: Slice| Part { len: slice.local.len(), slice, done: 0 };
        queue.rounds.push(batch, slices.into_iter().map(part));
        drop(queue);
        self.ready.notify_all();
        Ok(())
    }

    /// Takes no more work; what is queued ends as its limits say.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_all();
    }

    /// Says whether paths lead here.
    pub(super) fn set_left(&self, left: bool) {
        self.queue.lock().left = left;
        self.ready.notify_all();
    }

    fn take(&self) -> Option<Turn<Batch, Slice>> {
        let mut queue = self.queue.lock();
        let mut waited = false;
        loop {
            if let Some(turn) = queue.rounds.next() {
                return Some(turn);
            }
            if queue.closed || queue.left || waited {
                queue.running -= 1;
                return None;
            }
            queue.idle += 1;
            waited = self.ready.wait_for(&mut queue, IDLE).timed_out();
            queue.idle -= 1;
        }
    }

    fn work(&self, peer: &Peer) {
        let mut swept = Instant::now();
        while let Some(Turn { batch, parts }) = self.take() {
            for Part { slice, len, done } in parts {
                if self.bell.0.swap(false, Ordering::AcqRel) || swept.elapsed() >= SWEEP {
                    self.sweep(peer);
                    swept = Instant::now();
                }
                if let Some((slice, done)) = peer.step(slice, done, &batch.tie, batch.limits()) {
                    // Only the last of a turn can be unfinished: with more than a piece left it has filled the turn.
                    self.queue.lock().rounds.resume(batch.clone(), Part { slice, len, done });
                    self.ready.notify_one();
                }
            }
        }
    }

    /// Resolves what is queued and need not be done any more.
    fn sweep(&self, peer: &Peer) {
        let over = self.queue.lock().rounds.take_over(|batch| batch.limits().over(peer.common()));
        for ((kind, cause), parts) in over {
            for Part { slice, done, .. } in parts {
                peer.fail(slice, kind, cause, done > 0);
            }
        }
    }
}
