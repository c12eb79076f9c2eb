//! Submitting, and the workers.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;
use te_transport::{FailureKind, Submission, SubmitMode};

use super::lease::Lease;
use super::peer::{Peer, State, WORKER_IDLE};
use super::unit::Job;

/// A caller shares its batch with workers when each gets at least this much: below, waking them costs more.
const SHARE_BYTES: u64 = 2 << 20;

impl Peer {
    /// Executes a submission, or queues it. Nothing is refused for being much.
    pub(crate) fn submit(&self, submission: Submission, mode: SubmitMode) {
        let mut job = self.accept(submission);
        if job.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.refuses() || job.is_over(now) {
            let (kind, cause) = self.reason(&job.scope);
            return self.fail_job(job, kind, cause);
        }
        let parallel = self.common.parallel;
        let share = usize::try_from(job.bytes() / SHARE_BYTES).unwrap_or(usize::MAX).min(job.len());
        let executors = share.clamp(1, parallel);
        if mode == SubmitMode::CallerRuns
            && let Some(mut lease) = self.lease_now(now)
        {
            // Counted, so that a shutdown waits for the caller to let go of the connection.
            let _running = self.common.threads.caller();
            if executors == 1 {
                for train in job.into_trains() {
                    lease.drive(train);
                }
            } else {
                self.guard(&mut job);
                let seq = self.enqueue(job, false, executors - 1);
                // Takes trains like a worker does, of this batch only, and leaves the rest to workers when others are due.
                while let Some(train) = self.next_train_of(seq) {
                    lease.drive(train);
                }
            }
            return;
        }
        self.guard(&mut job);
        self.enqueue(job, false, executors);
    }

    /// Lets a cancellation of the batch wake the queue.
    fn guard(&self, job: &mut Job) {
        job.guard = self.own().map(|own| job.scope.attach(own));
    }

    /// A connection for the caller, if one is free and nobody waits for it.
    fn lease_now(&self, now: Instant) -> Option<Lease> {
        let own = self.own()?;
        let mut state = self.state.lock();
        let nobody_waits = state.jobs.iter().all(|job| job.leases > 0);
        let free = nobody_waits && state.has_slot(self.config().connections_per_peer, now);
        free.then(|| Lease::take(own, &mut state))
    }

    fn next_train_of(&self, seq: u64) -> Option<super::unit::Train> {
        let limit = self.config().connections_per_peer;
        // Out of the lock before what is finished is dropped.
        let next = self.state.lock().next_train_of(seq, limit, Instant::now());
        let (train, finished) = next?;
        drop(finished);
        Some(train)
    }

    /// Queues a job and wakes or starts up to `executors` workers for it. Returns its number.
    pub(super) fn enqueue(&self, mut job: Job, first: bool, executors: usize) -> u64 {
        let mut state = self.state.lock();
        if self.refuses() {
            // Closed meanwhile, and the queue is swept already.
            drop(state);
            let (kind, cause) = self.reason(&job.scope);
            self.fail_job(job, kind, cause);
            return 0;
        }
        state.next_seq += 1;
        let seq = state.next_seq;
        job.seq = seq;
        if first {
            state.jobs.push_front(job);
        } else {
            state.jobs.push_back(job);
        }
        self.staff(state, executors);
        seq
    }

    /// Wakes waiting workers and starts missing ones. Consumes the lock: threads are started without it.
    fn staff(&self, mut state: MutexGuard<'_, State>, wanted: usize) {
        // One more than connections, so that one always waits with the queue.
        let limit = self.config().connections_per_peer + 1;
        let missing = wanted.max(1).saturating_sub(state.waiting).min(limit.saturating_sub(state.workers));
        state.workers += missing;
        state.waiting += missing;
        drop(state);
        for _ in 0..wanted.max(1) {
            self.wake.notify_one();
        }
        for started in 0..missing {
            let spawned = match self.own() {
                Some(own) => self.common.threads.spawn("connect", move || own.work()),
                None => return,
            };
            if let Err(error) = spawned {
                let mut state = self.state.lock();
                state.workers -= missing - started;
                state.waiting -= missing - started;
                let stranded =
                    if state.workers == 0 { std::mem::take(&mut state.jobs) } else { Default::default() };
                drop(state);
                let text = format!("cannot start a thread: {error}");
                for job in stranded {
                    self.fail_job(job, FailureKind::Unreachable, &text);
                }
                return;
            }
        }
    }

    /// A worker's life. It starts as a waiting one.
    fn work(self: Arc<Self>) {
        while let Some((mut lease, train)) = self.next_work() {
            lease.drive(train);
            drop(lease);
            self.state.lock().waiting += 1;
        }
    }

    /// Waits for a train and a connection for it. `None` ends the worker, which is off the books then.
    fn next_work(self: &Arc<Self>) -> Option<(Lease, super::unit::Train)> {
        let limit = self.config().connections_per_peer;
        let end = Instant::now() + WORKER_IDLE;
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let over = state.take_over(now);
            if !over.is_empty() {
                MutexGuard::unlocked(&mut state, || {
                    for job in over {
                        let (kind, cause) = self.reason(&job.scope);
                        self.fail_job(job, kind, cause);
                    }
                });
                continue;
            }
            if state.has_slot(limit, now)
                && let Some((train, finished)) = state.next_train()
            {
                let lease = Lease::take(self.clone(), &mut state);
                state.waiting -= 1;
                if !state.jobs.is_empty() && state.waiting == 0 {
                    // Somebody has to wait with the rest.
                    self.staff(state, 1);
                } else {
                    drop(state);
                }
                drop(finished);
                return Some((lease, train));
            }
            let idle = state.jobs.is_empty();
            if self.is_closed() || (idle && (now >= end || state.paths == 0)) {
                state.workers -= 1;
                state.waiting -= 1;
                return None;
            }
            let until = match (state.earliest_deadline(), state.barred) {
                (Some(deadline), Some(barred)) if barred > now => deadline.min(barred),
                (Some(deadline), _) => deadline,
                (None, _) => end,
            };
            self.wake.wait_until(&mut state, until);
        }
    }
}
