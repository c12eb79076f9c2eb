//! The engine's control task for attempts: it looks after flights that may have to be given up, and makes the next
//! attempts of requests. It sleeps while there is nothing of the kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::state::BatchState;
use crate::lane::Lanes;

/// See the module. One per engine.
pub(crate) struct Mover {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Notify,
    /// When the task looks again, in nanoseconds from `origin`.
    next: AtomicU64,
    origin: Instant,
    lanes: Lanes,
}

#[derive(Default)]
struct Queue {
    /// Batches with something to do.
    pushed: Vec<Arc<BatchState>>,
    /// Batches that time alone can change.
    active: Vec<Arc<BatchState>>,
    stopped: bool,
}

impl Mover {
    /// Starts the task.
    pub(crate) fn start(runtime: &Handle) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Notify::new(),
            next: AtomicU64::new(u64::MAX),
            origin: Instant::now(),
            lanes: Lanes::default(),
        });
        runtime.spawn(run(shared.clone()));
        Self { shared }
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.shared.lanes
    }

    /// A flight has been registered that must be looked at by then.
    pub(crate) fn expect(&self, due: Instant) {
        // The flight is in its lane already: the task sees it there, or we see that the task sleeps too long.
        if self.shared.nanos(due) < self.shared.next.load(Ordering::SeqCst) {
            self.shared.wake.notify_one();
        }
    }

    /// Has the work of a batch done; false when the engine is stopping.
    pub(crate) fn push(&self, batch: Arc<BatchState>) -> bool {
        {
            let mut queue = self.shared.queue.lock();
            if queue.stopped {
                return false;
            }
            queue.pushed.push(batch);
        }
        self.shared.wake.notify_one();
        true
    }

    /// Ends the task. Requests between two attempts fail; those under way end with their transports.
    pub(crate) fn stop(&self) {
        let left = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            let mut left = std::mem::take(&mut queue.pushed);
            left.append(&mut queue.active);
            left
        };
        self.shared.wake.notify_one();
        for batch in left {
            batch.abandon();
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX - 1)
    }

    /// Does what there is to do for batches and says when to look again; `None` when the engine is stopping.
    fn round(&self, now: Instant) -> Option<Option<Instant>> {
        let mut batches = {
            let mut queue = self.queue.lock();
            if queue.stopped {
                return None;
            }
            let mut batches = std::mem::take(&mut queue.active);
            batches.append(&mut queue.pushed);
            batches
        };
        batches.sort_by_key(Arc::as_ptr);
        batches.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut next: Option<Instant> = None;
        batches.retain(|batch| {
            let wakes = batch.advance(now);
            next = next.into_iter().chain(wakes).min();
            wakes.is_some()
        });
        let mut queue = self.queue.lock();
        if queue.stopped {
            drop(queue);
            for batch in batches {
                batch.abandon();
            }
            return None;
        }
        queue.active.append(&mut batches);
        Some(next)
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        // Whoever registers a flight from here on wakes the task.
        shared.next.store(u64::MAX, Ordering::SeqCst);
        let now = Instant::now();
        let Some(wakes) = shared.round(now) else { return };
        let (overdue, looks) = shared.lanes.look(now);
        for flight in overdue {
            flight.batch.overdue(flight.flight, flight.heard, now);
        }
        let next = wakes.into_iter().chain(looks).min();
        shared.next.store(next.map_or(u64::MAX, |next| shared.nanos(next)), Ordering::SeqCst);
        match next {
            // Late or woken, it is time to look again.
            Some(next) => drop(tokio::time::timeout_at(next.into(), shared.wake.notified()).await),
            None => shared.wake.notified().await,
        }
    }
}
