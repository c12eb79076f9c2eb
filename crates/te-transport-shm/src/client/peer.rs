//! One life of a peer, as initiator.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use parking_lot::{Condvar, Mutex, RwLock};
use te_segment::TransportKind;
use te_transport::{Abort, FailureKind, PathHealth, PathLabel, Slice, Submission, SubmitMode};

use super::bulk::{self, Bulk};
use super::keeper;
use super::line::{Attached, Line};
use super::pool::{Group, Job, Pool, Waker, Work};
use super::transfer::{self, Limits, Stop};
use super::{Common, Proof};
use crate::error::{effect, failure};
use crate::offer::Offer;
use crate::socket::Bell;

/// Submissions of so many bytes are copied around the caches, which would keep little of them.
const COLD: u64 = 4 << 20;

/// A slice whose buffer is not attached yet.
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) slice: Slice,
    pub(super) group: Arc<Group>,
    /// Connections that were lost while it waited.
    pub(super) lost: u32,
}

impl Waiting {
    /// The registration it means; looked at when it was submitted.
    pub(super) fn generation(&self) -> u64 {
        self.slice.generation.map_or(0, te_segment::Generation::value)
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) waiting: Vec<Waiting>,
    next: u64,
    /// A thread looks after the connection.
    pub(super) keeper: bool,
    /// Attempts to connect that failed.
    pub(super) failed: u64,
    pub(super) why: String,
    pub(super) closed: bool,
}

pub(super) struct Peer {
    common: Arc<Common>,
    offer: Offer,
    label: Arc<PathLabel>,
    line: RwLock<Option<Arc<Line>>>,
    state: Mutex<State>,
    changed: Condvar,
    bell: Bell,
    waker: Arc<Waker>,
    pool: Pool,
    /// Paths that lead here.
    users: AtomicUsize,
    in_flight: AtomicUsize,
    last_failure: Mutex<Option<String>>,
}

impl Peer {
    pub(super) fn new(common: Arc<Common>, offer: Offer) -> io::Result<Arc<Self>> {
        let short: String = offer.socket.chars().take(11).collect();
        let bell = Bell::new()?;
        Ok(Arc::new(Self {
            common,
            label: Arc::new(PathLabel::new(TransportKind::SHM, short)),
            offer,
            line: RwLock::new(None),
            state: Mutex::default(),
            changed: Condvar::new(),
            waker: Arc::new(Waker::new(bell.clone())),
            bell,
            pool: Pool::default(),
            users: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            last_failure: Mutex::default(),
        }))
    }

    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    pub(super) fn offer(&self) -> &Offer {
        &self.offer
    }

    pub(super) fn label(&self) -> &Arc<PathLabel> {
        &self.label
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn state(&self) -> &Mutex<State> {
        &self.state
    }

    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// Whether it has to be remembered.
    pub(super) fn is_of_use(&self) -> bool {
        self.is_used() || self.state.lock().keeper
    }

    /// The connection has been made, or has ended.
    pub(super) fn set_line(&self, line: Option<Arc<Line>>) {
        *self.line.write() = line;
        // Under the lock, so that nobody misses it between looking and waiting.
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(super) fn mappings(&self) -> usize {
        self.line.read().as_ref().map_or(0, |line| line.mappings())
    }

    /// The connection, if there is one and the peer has not ended it.
    fn live(&self) -> Option<Arc<Line>> {
        let line = self.line.read().clone()?;
        if line.ties.socket.has_hung_up() {
            // What is submitted from now on is not done by a peer that is gone. The keeper finds out by itself.
            line.ties.lose();
            return None;
        }
        Some(line)
    }

    /// Waits until there is a connection, whose greeting is the proof.
    pub(super) fn prove(self: &Arc<Self>, deadline: Instant) -> Result<Proof, String> {
        let mut state = self.state.lock();
        let failed = state.failed;
        loop {
            if let Some(line) = self.line.read().as_ref() {
                let process = line.ties.process.as_ref().map(drop).map_err(Clone::clone);
                return Ok(Proof::Proven { pid: line.ties.pid, process });
            }
            if state.failed != failed {
                return Err(state.why.clone());
            }
            if Instant::now() >= deadline {
                return Err(format!("no answer at socket {}", self.label.detail()));
            }
            self.keep(&mut state)?;
            self.changed.wait_until(&mut state, deadline);
        }
    }

    /// Makes sure that a thread looks after the connection.
    fn keep(self: &Arc<Self>, state: &mut State) -> Result<(), String> {
        if state.closed {
            return Err("the transport is shutting down".to_owned());
        }
        if !state.keeper {
            let kept = self.clone();
            let spawned = self.common.threads.spawn("keep", move || keeper::run(&kept));
            spawned.map_err(|error| format!("no thread can be had: {error}"))?;
            state.keeper = true;
        }
        Ok(())
    }

    pub(super) fn submit(self: &Arc<Self>, submission: Submission, mode: SubmitMode) {
        let Submission { slices, deadline, scope } = submission;
        self.in_flight.fetch_add(slices.len(), Ordering::Relaxed);
        let bytes = slices.iter().map(|slice| slice.local.len()).sum();
        let limits = Limits { scope: &scope, deadline, cold: bytes >= COLD };
        // Counted before looking whether the transport is closing, which waits for callers after saying so.
        let caller = (mode == SubmitMode::CallerRuns).then(|| self.common.threads.caller());
        if let Some((kind, cause)) = limits.over(&self.common) {
            return slices.into_iter().for_each(|slice| self.fail(slice, kind, cause, false));
        }
        let threads = bulk::threads(bytes, self.common.cores).min(self.common.config.threads + 1);
        let line = self.live();
        let (mut ready, mut early) = (Vec::new(), Vec::new());
        let mut slices = slices.into_iter();
        while let Some(first) = slices.as_slice().first() {
            let attached = first.generation.map(|generation| line.as_ref()?.find(generation.value()));
            match attached {
                Some(Some(attached)) if caller.is_some() && threads < 2 => {
                    self.execute_some(&mut slices, &attached, limits);
                }
                Some(Some(attached)) => ready.extend(slices.next().map(|slice| (slice, attached))),
                Some(None) => early.extend(slices.next()),
                None => {
                    let cause = "shared memory needs the generation of the buffer";
                    if let Some(slice) = slices.next() {
                        self.fail(slice, FailureKind::Unsupported, cause, false);
                    }
                }
            }
        }
        if ready.is_empty() && early.is_empty() {
            return;
        }
        let cold = limits.cold;
        let guard = scope.attach(self.waker.clone() as Arc<dyn Abort>);
        let group = Arc::new(Group { scope, deadline, cold, _guard: guard });
        if !early.is_empty() {
            self.wait_with(early, &group);
        }
        if ready.is_empty() {
            return;
        }
        if threads < 2 {
            let job = |(slice, attached)| Work::Slice(Job { slice, attached, group: group.clone() });
            return self.push(ready.into_iter().map(job).collect());
        }
        let bulk = Arc::new(Bulk::new(ready, group, caller.is_some()));
        let helpers = threads - usize::from(caller.is_some());
        self.push((0..helpers).map(|_| Work::Help(bulk.clone())).collect());
        if caller.is_some() {
            bulk.work(self, &mut || {});
        }
    }

    /// Slices wait for their buffers.
    fn wait_with(self: &Arc<Self>, slices: Vec<Slice>, group: &Arc<Group>) {
        let mut state = self.state.lock();
        if let Err(cause) = self.keep(&mut state) {
            let kind = if state.closed { FailureKind::Shutdown } else { FailureKind::Unreachable };
            drop(state);
            return slices.into_iter().for_each(|slice| self.fail(slice, kind, cause.clone(), false));
        }
        for slice in slices {
            let id = state.next;
            state.next += 1;
            state.waiting.push(Waiting { id, slice, group: group.clone(), lost: 0 });
        }
        drop(state);
        self.bell.ring();
    }

    /// Has work done in the background.
    pub(super) fn push(self: &Arc<Self>, work: Vec<Work>) {
        let Err(refused) = self.pool.push(self, work) else { return };
        for work in refused {
            let (kind, cause) = if self.common.is_closing() {
                (FailureKind::Shutdown, "the transport is shutting down")
            } else {
                (FailureKind::Unsupported, "no thread can be had to copy in the background")
            };
            match work {
                Work::Slice(job) => self.fail(job.slice, kind, cause, false),
                Work::Help(bulk) => bulk.unhelped(self, kind, cause),
            }
        }
    }

    /// Copies one or more slices of one buffer on the calling thread and reports the outcomes.
    fn execute_some(&self, slices: &mut IntoIter<Slice>, attached: &Attached, limits: Limits<'_>) {
        let front = &slices.as_slice()[..transfer::together(slices.as_slice())];
        let (done, stopped) = transfer::run_all(&self.common, attached, front, limits);
        for slice in slices.take(done) {
            let bytes = slice.local.len();
            self.ended(slice, Ok(bytes));
        }
        if let Some(stop) = stopped
            && let Some(slice) = slices.next()
        {
            self.ended(slice, Err(stop));
        }
    }

    /// Copies a slice on the calling thread and reports the outcome.
    pub(super) fn execute(
        &self,
        slice: Slice,
        attached: &Attached,
        limits: Limits<'_>,
        between: &mut dyn FnMut(),
    ) {
        let outcome = transfer::run(&self.common, attached, &slice, limits, between);
        self.ended(slice, outcome);
    }

    /// Reports what became of a slice. Nothing touches its memory any more.
    pub(super) fn ended(&self, slice: Slice, outcome: Result<u64, Stop>) {
        match outcome {
            Ok(bytes) => {
                if self.last_failure.lock().take().is_some() {
                    tracing::debug!(target: "te::shm", path = %self.label, "works again");
                }
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
                let Slice { local, token, .. } = slice;
                // Whoever is told may withdraw the memory at once.
                drop(local);
                token.done(bytes);
            }
            Err(Stop { kind, cause, begun }) => {
                if kind == FailureKind::BufferGone
                    && let Some((line, generation)) = self.line.read().clone().zip(slice.generation)
                {
                    line.forget(generation.value());
                }
                self.fail(slice, kind, cause, begun);
            }
        }
    }

    /// Reports that a slice was not done. Nothing touches its memory any more.
    pub(super) fn fail(
        &self,
        slice: Slice,
        kind: FailureKind,
        cause: impl Into<Cow<'static, str>>,
        begun: bool,
    ) {
        let failed = failure(&self.label, kind, &*cause.into()).with_effect(effect(slice.op, begun));
        *self.last_failure.lock() = Some(failed.to_string());
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let Slice { local, token, .. } = slice;
        // Whoever is told may withdraw the memory at once.
        drop(local);
        token.fail(failed);
    }

    /// Resolves what waits and need not be done any more; when to look again.
    pub(super) fn sweep(&self) -> Option<Instant> {
        let (mut over, mut next) = (Vec::new(), None);
        {
            let mut state = self.state.lock();
            for waiting in std::mem::take(&mut state.waiting) {
                match waiting.group.limits().over(&self.common) {
                    Some(why) => over.push((waiting, why)),
                    None => {
                        next = next.into_iter().chain([waiting.group.deadline]).min();
                        state.waiting.push(waiting);
                    }
                }
            }
        }
        for (waiting, (kind, cause)) in over {
            self.fail(waiting.slice, kind, cause, false);
        }
        next
    }

    pub(super) fn health(&self) -> PathHealth {
        PathHealth {
            connections: usize::from(self.line.read().is_some()),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            last_failure: self.last_failure.lock().clone(),
        }
    }

    /// Begins nothing any more. The transport is closing already, so that what is under way stops.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.pool.close();
        self.bell.ring();
        self.changed.notify_all();
    }
}

/// How long a connection that nobody uses is kept.
pub(super) const LINGER: Duration = Duration::from_secs(5);
