//! A way to one port: a queue, and one thread that executes it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_segment::Incarnation;
use te_transport::{
    CancelScope, Failure, FailureKind, Fencing, Outcome, Path, PathHealth, PathLabel, RemoteEffect, Slice,
    Submission, SubmitMode,
};

use super::port::{Port, Route, Wire};
use super::{Flaw, Near};

/// What a slice is executed with.
pub(super) struct Line {
    pub(super) near: Arc<Near>,
    pub(super) port: Arc<Port>,
    pub(super) wire: Arc<Wire>,
    // The life that the descriptor speaks of.
    pub(super) pinned: Option<Incarnation>,
    pub(super) label: Arc<PathLabel>,
    // Number of cuts after which a path with the flaw to die stays dead.
    pub(super) first_cuts: u64,
    pub(super) in_flight: AtomicUsize,
    pub(super) refused: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

/// One slice to execute, with what its batch says.
pub(super) struct Job {
    pub(super) line: Arc<Line>,
    pub(super) slice: Slice,
    pub(super) scope: CancelScope,
    pub(super) deadline: Instant,
    pub(super) last: bool,
}

impl Job {
    /// Why it should not be executed any more.
    pub(super) fn expired(&self) -> Option<Failure> {
        let ignores = |flaw| self.line.near.config.has(flaw);
        let cancelled = self.scope.cancelled().filter(|_| !ignores(Flaw::IgnoresCancel));
        if let Some(reason) = cancelled {
            return Some(super::exec::cancelled(reason));
        }
        let late = self.deadline <= Instant::now() && !ignores(Flaw::IgnoresDeadline);
        late.then(|| Failure::new(FailureKind::TimedOut, "the deadline passed"))
    }

    /// Reports the outcome; the hold on the local memory ends after that.
    pub(super) fn resolve(self, outcome: Outcome) {
        let Self { line, slice, last, .. } = self;
        let Slice { local, token, .. } = slice;
        let has = |flaw| line.near.config.has(flaw);
        let outcome = match outcome {
            Outcome::Failed(failure) => {
                *line.last_failure.lock() = Some(failure.to_string());
                let failure =
                    if has(Flaw::OmitsPath) { failure } else { failure.on_path(line.label.clone()) };
                let denied = has(Flaw::DeniesEffect);
                Outcome::Failed(if denied { failure.with_effect(RemoteEffect::None) } else { failure })
            }
            outcome => {
                *line.last_failure.lock() = None;
                outcome
            }
        };
        match outcome {
            _ if has(Flaw::DropsToken) && last => drop(token),
            _ if has(Flaw::LosesSlice) && last => std::mem::forget(token),
            Outcome::Done(bytes) if has(Flaw::MiscountsBytes) => token.done(bytes.saturating_sub(1)),
            outcome => token.resolve(outcome),
        }
        if has(Flaw::LeaksLocalHold) {
            std::mem::forget(local);
        }
        if !has(Flaw::MiscountsInFlight) {
            line.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        line.near.resolved();
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Jobs for one thread.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    fn start() -> Arc<Self> {
        let queue = Arc::new(Self::default());
        let worker = queue.clone();
        thread::spawn(move || {
            while let Some(job) = worker.next() {
                super::exec::execute(job, || worker.sweep());
            }
        });
        queue
    }

    fn push(&self, jobs: Vec<Job>) {
        self.waiting.lock().jobs.extend(jobs);
        self.changed.notify_one();
    }

    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// Resolves what waits and need not be executed any more.
    fn sweep(&self) {
        let mut waiting = self.waiting.lock();
        let ended = |job: &Job| {
            let queued = !job.line.near.config.has(Flaw::IgnoresQueuedCancel);
            job.expired().filter(|_| queued).or_else(|| job.line.gone())
        };
        if waiting.jobs.iter().all(|job| ended(job).is_none()) {
            return;
        }
        let (over, rest): (VecDeque<_>, VecDeque<_>) =
            waiting.jobs.drain(..).map(|job| (ended(&job), job)).partition(|(failure, _)| failure.is_some());
        waiting.jobs = rest.into_iter().map(|(_, job)| job).collect();
        drop(waiting);
        for (failure, job) in over {
            if let Some(failure) = failure {
                job.resolve(Outcome::Failed(failure));
            }
        }
    }
}

impl Line {
    /// Why nothing can be executed any more.
    pub(super) fn gone(&self) -> Option<Failure> {
        if self.near.is_closing() && !self.near.config.has(Flaw::AbandonsAtShutdown) {
            return Some(Failure::new(FailureKind::Shutdown, "the transport is shutting down"));
        }
        let closed = self.port.is_closed() && !self.near.config.has(Flaw::IgnoresPeerDeath);
        closed.then(|| Failure::new(FailureKind::Unreachable, "the peer's port is closed"))
    }
}

pub(super) struct CopyPath {
    line: Arc<Line>,
    queue: Arc<Queue>,
    owns_queue: bool,
}

impl CopyPath {
    pub(super) fn new(
        near: Arc<Near>,
        route: Route,
        pinned: Option<Incarnation>,
        shared: Option<Arc<Queue>>,
    ) -> Self {
        let label = PathLabel::new(near.config.kind.clone(), format!("port {}", route.number));
        let first_cuts = route.wire.cuts();
        let line = Line {
            near,
            port: route.port,
            wire: route.wire,
            pinned,
            label: Arc::new(label),
            first_cuts,
            in_flight: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            last_failure: Mutex::default(),
        };
        let owns_queue = shared.is_none() && !line.near.config.has(Flaw::SharesWorker);
        Self { line: Arc::new(line), queue: shared.unwrap_or_else(Queue::start), owns_queue }
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }
}

impl Path for CopyPath {
    fn label(&self) -> &Arc<PathLabel> {
        &self.line.label
    }

    fn submit(&self, submission: Submission, mode: SubmitMode) {
        let Submission { slices, deadline, scope } = submission;
        let count = slices.len();
        if !self.line.near.accept(count) {
            for slice in slices {
                let failure = Failure::new(FailureKind::Shutdown, "the transport is shut down");
                slice.token.fail(failure.on_path(self.line.label.clone()));
            }
            return;
        }
        self.line.in_flight.fetch_add(count, Ordering::Relaxed);
        let job = |(at, slice)| {
            let (line, scope) = (self.line.clone(), scope.clone());
            Job { line, slice, scope, deadline, last: at + 1 == count }
        };
        let jobs: Vec<_> = slices.into_iter().enumerate().map(job).collect();
        if mode == SubmitMode::CallerRuns || self.line.near.config.has(Flaw::BlocksInSubmit) {
            for job in jobs {
                super::exec::execute(job, || {});
            }
        } else {
            self.queue.push(jobs);
        }
    }

    fn fencing(&self) -> Fencing {
        self.line.near.config.capabilities.fencing
    }

    fn health(&self) -> PathHealth {
        PathHealth {
            connections: usize::from(!self.line.port.is_closed()),
            in_flight: self.line.in_flight.load(Ordering::Relaxed),
            last_failure: self.line.last_failure.lock().clone(),
        }
    }
}

impl Drop for CopyPath {
    fn drop(&mut self) {
        if self.owns_queue {
            // What is queued is still executed, then the thread ends.
            self.queue.waiting.lock().closed = true;
            self.queue.changed.notify_all();
        }
    }
}
