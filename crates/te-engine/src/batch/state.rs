//! The state of a batch: a monotone function of the outcomes of its slices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_memory::ForkMark;
use te_segment::AddressRange;
use te_select::Policy;
use te_transport::{
    CancelReason, CancelScope, CompletionSink, Failure, FailureKind, Op, Outcome, SliceEnd, Tally,
};

use super::moving::Moves;
use super::report::NotifyOutcome;
use crate::buffer::LocalSlice;
use crate::core::Core;
use crate::lane::{Lane, Watch};
use crate::machines::attempt::AttemptPolicy;
use crate::machines::circuit::Ticket;
use crate::machines::delivery::Tidings;
use crate::notify::Notice;
use crate::peers::Uses;
use crate::prepared::{Care, Route, Routes};
use crate::process::{InProcess, OfProcess};
use crate::segment::RemoteRange;

/// How far a batch is. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchStatus {
    /// Some slices are not resolved, or the notification is under way.
    Running {
        /// Slices resolved.
        resolved: usize,
        /// All slices.
        total: usize,
    },
    /// Every byte is applied at its destination.
    Completed,
    /// At least one request did not complete.
    Failed,
}

/// A request of a batch, and how it begins.
pub(crate) struct RequestInfo {
    pub(crate) op: Op,
    pub(crate) local: LocalSlice,
    pub(crate) remote: RemoteRange,
    /// The paths it may take, in order. The first attempt is on the first.
    pub(crate) routes: Arc<Routes>,
    /// The flight of the first attempt.
    pub(crate) flight: usize,
    /// Its slices are consecutive; this is one past the last.
    pub(crate) slices_end: usize,
}

/// First attempts that go over one path together: one submission, stopped as a whole.
pub(crate) struct Flight {
    lane: Arc<Lane>,
    scope: CancelScope,
    ticket: Ticket,
    care: Care,
    /// Length of the longest slice.
    largest: u64,
    succeeded: AtomicBool,
    /// Its number in the lane, once it is entered there.
    watched: OnceLock<usize>,
    /// When something was last heard of it, once it is over.
    heard: OnceLock<Instant>,
}

impl Flight {
    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn new(route: &Route, care: Care, largest: u64, now: Instant) -> Self {
        Self {
            ticket: route.lane.ticket(now),
            lane: route.lane.clone(),
            scope: CancelScope::new(),
            care,
            largest,
            succeeded: AtomicBool::new(false),
            watched: OnceLock::new(),
            heard: OnceLock::new(),
        }
    }
}

/// A batch as it is planned.
pub(crate) struct BatchPlan {
    pub(crate) core: InProcess<Core>,
    pub(crate) requests: Vec<RequestInfo>,
    pub(crate) flights: Vec<Flight>,
    /// Number of the first request; those of the others follow.
    pub(crate) numbers: u64,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) options: Options,
    pub(crate) notice: Option<Notice>,
    pub(crate) uses: Uses,
}

/// What the caller and the configuration say of attempts.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) selection: Policy,
    pub(crate) attempts: AttemptPolicy,
    /// Whether a refused request is planned anew, once, when the same life describes itself otherwise.
    pub(crate) retry_changed: bool,
}

impl Options {
    /// How long an attempt may be without progress whose slices have so many bytes: one that is under way makes none that
    /// can be seen.
    pub(crate) fn silence(&self, slice: u64) -> Duration {
        self.attempts.silence.saturating_add(Duration::from_millis(slice / SLOWEST_PER_MS))
    }
}

/// Bytes in a millisecond that even a slow path moves: about 64 MiB/s.
const SLOWEST_PER_MS: u64 = 64 << 10;

pub(crate) struct BatchState {
    pub(super) plan: BatchPlan,
    outcomes: Box<[OnceLock<Outcome>]>,
    pub(super) tally: Tally,
    done: AtomicBool,
    /// Some path is being tried again after failures, and is to be told of success.
    probing: bool,
    /// The local buffer whose withdrawal cut the batch off.
    pub(super) withdrawn: OnceLock<AddressRange>,
    pub(super) moves: Mutex<Moves>,
    notice: Mutex<Option<Notice>>,
    /// What of the peers' memory is used until the last slice is resolved.
    uses: Mutex<Uses>,
    end: Mutex<End>,
    ended: Condvar,
    /// For what outlives the call that completes the last slice.
    this: Weak<Self>,
}

#[derive(Default)]
struct End {
    waker: Option<Waker>,
    at: Option<Instant>,
    notify: Option<NotifyOutcome>,
}

impl OfProcess for BatchState {
    fn mark(&self) -> &ForkMark {
        self.plan.core.mark()
    }
}

impl BatchState {
    pub(crate) fn new(mut plan: BatchPlan) -> Arc<Self> {
        let slices = plan.requests.last().map_or(0, |request| request.slices_end);
        let (notice, uses) = (Mutex::new(plan.notice.take()), Mutex::new(std::mem::take(&mut plan.uses)));
        Arc::new_cyclic(|this| Self {
            outcomes: std::iter::repeat_with(OnceLock::new).take(slices).collect(),
            tally: Tally::new(slices),
            done: AtomicBool::new(false),
            probing: plan.flights.iter().any(|flight| flight.lane.is_troubled()),
            withdrawn: OnceLock::new(),
            moves: Mutex::default(),
            notice,
            uses,
            end: Mutex::new(End::default()),
            ended: Condvar::new(),
            this: this.clone(),
            plan,
        })
    }

    pub(crate) fn scope(&self, flight: usize) -> CancelScope {
        self.plan.flights.get(flight).map_or_else(CancelScope::new, |flight| flight.scope.clone())
    }

    /// Enters the flights in their lanes: those that could be given up while they are under way are looked after, and a
    /// withdrawal finds all of them.
    pub(crate) fn watch(&self) {
        let BatchPlan { started, deadline, ref options, .. } = self.plan;
        for (number, flight) in self.plan.flights.iter().enumerate() {
            let Care { leaves, guarded } = flight.care;
            let watch = Watch {
                batch: self.this.clone(),
                flight: number,
                started,
                look: options.silence(flight.largest) / 4,
                silence: leaves.then(|| options.silence(flight.largest)),
                cutoff: guarded.then(|| options.attempts.cutoff(started, deadline)),
            };
            let due = watch.due();
            // A flight is registered once, before it is submitted.
            let _ = flight.watched.set(flight.lane.watch(watch));
            self.plan.core.mover().expect(due);
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.plan.deadline
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> BatchStatus {
        if !self.is_done() {
            let total = self.outcomes.len();
            return BatchStatus::Running { resolved: total - self.tally.left(), total };
        }
        if self.tally.has_failed() { BatchStatus::Failed } else { BatchStatus::Completed }
    }

    pub(crate) fn wait(&self) {
        if self.is_done() {
            return;
        }
        let mut end = self.end.lock();
        while !self.is_done() {
            self.ended.wait(&mut end);
        }
    }

    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut end = self.end.lock();
        while !self.is_done() {
            if self.ended.wait_until(&mut end, deadline).timed_out() {
                return self.is_done();
            }
        }
        true
    }

    pub(crate) fn poll_done(&self, context: &Context<'_>) -> bool {
        if self.is_done() {
            return true;
        }
        let mut end = self.end.lock();
        if self.is_done() {
            return true;
        }
        match &mut end.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        false
    }

    /// All slices are resolved: notify if there is something to notify of, then end.
    fn settled(&self) {
        self.count_ended();
        for flight in &self.plan.flights {
            if let Some(heard) = flight.watched.get().and_then(|slot| flight.lane.unwatch(*slot)) {
                // Once: the batch is settled once.
                let _ = flight.heard.set(heard);
            }
        }
        let notice = self.notice.lock().take();
        let complete = !self.tally.has_failed();
        let uses = std::mem::take(&mut *self.uses.lock());
        if complete {
            uses.succeeded();
        }
        drop(uses);
        let tidings = notice.as_ref().and_then(|notice| notice.tidings(complete));
        match (notice, tidings, self.this.upgrade()) {
            (Some(notice), Some(Tidings::Success), Some(this)) => {
                let deadline = self.plan.deadline;
                notice.send_in_background(deadline, move |outcome| this.finish(Some(outcome)));
            }
            (Some(notice), Some(Tidings::Failure), _) => {
                notice.send_failure();
                self.finish(Some(NotifyOutcome::Underway));
            }
            _ => self.finish(None),
        }
    }

    fn finish(&self, notify: Option<NotifyOutcome>) {
        let waker = {
            let mut end = self.end.lock();
            end.at = Some(Instant::now());
            if matches!(notify, Some(NotifyOutcome::Failed(_))) {
                self.tally.fail();
            }
            end.notify = notify;
            self.done.store(true, Ordering::Release);
            self.ended.notify_all();
            end.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// When it ended, from its submission, and what became of the notification.
    pub(super) fn ending(&self) -> (Duration, Option<NotifyOutcome>) {
        let (end, started) = (self.end.lock(), self.plan.started);
        (end.at.map_or_else(|| started.elapsed(), |at| at - started), end.notify.clone())
    }

    pub(super) fn has_failed(&self) -> bool {
        self.tally.has_failed()
    }

    /// The slots of the slices of a request's first attempt.
    pub(super) fn slots(&self, request: usize) -> &[OnceLock<Outcome>] {
        let requests = &self.plan.requests;
        let first =
            request.checked_sub(1).and_then(|before| requests.get(before)).map_or(0, |r| r.slices_end);
        let end = requests.get(request).map_or(first, |request| request.slices_end);
        self.outcomes.get(first..end).unwrap_or_default()
    }

    /// How many slices of a flight have ended.
    pub(crate) fn resolved_in(&self, flight: usize) -> usize {
        let of_flight = self.plan.requests.iter().enumerate().filter(|(_, info)| info.flight == flight);
        of_flight.flat_map(|(request, _)| self.slots(request)).filter(|slot| slot.get().is_some()).count()
    }

    /// When something was last heard of a flight, as far as it was looked for; its beginning if nothing was.
    pub(super) fn heard_in(&self, flight: usize) -> Instant {
        let Some(flight) = self.plan.flights.get(flight) else { return self.plan.started };
        let under_way = || flight.watched.get().and_then(|slot| flight.lane.heard(*slot));
        flight.heard.get().copied().or_else(under_way).unwrap_or(self.plan.started)
    }

    /// When the batch ended, or now.
    pub(super) fn ended_at(&self) -> Instant {
        self.end.lock().at.unwrap_or_else(Instant::now)
    }

    fn request_of(&self, slice: usize) -> usize {
        self.plan.requests.partition_point(|request| request.slices_end <= slice)
    }

    pub(super) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// Tells the flights' executors to stop.
    pub(super) fn stop_flights(&self, reason: CancelReason) {
        for flight in &self.plan.flights {
            flight.scope.cancel(reason);
        }
    }

    /// So many requests that went on after their first attempt are over.
    pub(super) fn requests_over(&self, count: usize, failed: bool) {
        if self.tally.requests_over(count, failed) {
            self.settled();
        }
    }

    fn slice_done(&self, slice: usize) {
        if self.probing {
            let flight = self.plan.requests.get(self.request_of(slice)).map(|info| info.flight);
            if let Some(flight) = flight.and_then(|flight| self.plan.flights.get(flight))
                && !flight.succeeded.swap(true, Ordering::Relaxed)
            {
                flight.lane.succeeded(flight.ticket);
            }
        }
        self.slice_ended(slice, self.tally.slice_done());
    }

    fn slice_ended(&self, slice: usize, end: SliceEnd) {
        if end.review {
            self.review(self.request_of(slice));
        }
        if end.last {
            self.settled();
        }
    }

    fn slice_failed(&self, slice: usize, failure: &Failure) {
        let request = self.request_of(slice);
        let Some(info) = self.plan.requests.get(request) else { return };
        if let Some(flight) = self.plan.flights.get(info.flight) {
            self.blame(info, &flight.lane, flight.ticket, self.plan.started, failure);
        }
        self.slice_ended(slice, self.tally.slice_failed(self.open(request)));
    }

    /// Tells the circuit of the path, and has the segment looked at again where a stale descriptor explains the failure.
    pub(super) fn blame(
        &self,
        info: &RequestInfo,
        lane: &Lane,
        ticket: Ticket,
        began: Instant,
        failure: &Failure,
    ) {
        let kind = failure.kind();
        // A deadline that was too short for the work says nothing of the path.
        let blamed = kind != FailureKind::TimedOut || began.elapsed() >= self.plan.options.attempts.silence;
        lane.failed(ticket, kind, blamed);
        info.remote.segment().data_failed(kind);
        let stale = matches!(
            kind,
            FailureKind::Unreachable
                | FailureKind::ConnectionLost
                | FailureKind::Rejected
                | FailureKind::Protocol
        );
        if stale {
            info.remote.segment().doubt(failure.cause());
        }
    }
}

impl CompletionSink for BatchState {
    fn complete(&self, index: u32, outcome: Outcome) {
        let slice = index as usize;
        let failure = match &outcome {
            Outcome::Failed(failure) => Some(failure.clone()),
            _ => None,
        };
        // A token is consumed by its one use, so no slot is set twice.
        if self.outcomes.get(slice).is_none_or(|slot| slot.set(outcome).is_err()) {
            return;
        }
        match failure {
            None => self.slice_done(slice),
            Some(failure) => self.slice_failed(slice, &failure),
        }
    }
}
