//! Requests that go on after their first attempt: one machine for each, made when it is needed.
//!
//! Machines change under the batch's lock, wherever an event comes from. What they ask for is done by the control task
//! (submitting, fencing at the target), or after the lock is released (stopping a flight, ending the batch).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use te_transport::{
    AttemptId, CancelReason, CancelScope, Failure, FailureKind, Opened, PathLabel, RemoteEffect, Share,
};

use super::flight::{Judged, MovedFlight, judge};
use super::report::{AttemptReport, RequestReport};
use super::state::{BatchState, RequestInfo};
use crate::machines::attempt::{AttemptAction, AttemptEvent, AttemptOutcome, AttemptPolicy, Attempts};
use crate::prepared::Routes;
use crate::segment::RemoteRange;

/// The requests of a batch that go on.
#[derive(Default)]
pub(super) struct Moves {
    pub(super) cancelled: Option<CancelReason>,
    pub(super) requests: HashMap<usize, Moving>,
    /// Requests with something for the control task to do.
    pub(super) todo: Vec<usize>,
    /// When time alone changes something.
    pub(super) tick_at: Option<Instant>,
}

pub(super) struct Moving {
    pub(super) machine: Attempts,
    pub(super) routes: Arc<Routes>,
    pub(super) remote: RemoteRange,
    /// Attempts that were made with an earlier descriptor.
    pub(super) base: u32,
    /// The present attempt, as the machine counts, and the path it is on.
    pub(super) attempt: u32,
    pub(super) path: usize,
    pub(super) place: Place,
    /// The present attempt is to be stopped as soon as it is under way.
    pub(super) stop: bool,
    pub(super) share: Share,
    /// How the last attempt failed, and those before it.
    pub(super) last: Option<Failure>,
    pub(super) earlier: Vec<Failure>,
    /// How far the attempts came that failed.
    pub(super) tried: Vec<AttemptReport>,
    /// Most bytes an attempt applied.
    pub(super) applied: u64,
    /// Why the present attempt was stopped.
    pub(super) note: Option<String>,
    pub(super) todo: Todo,
    pub(super) renewal: Renewal,
    pub(super) end: Option<AttemptOutcome>,
}

pub(super) enum Place {
    First,
    Moved(Weak<MovedFlight>),
    Nowhere,
}

#[derive(Default)]
pub(super) struct Todo {
    pub(super) submit: bool,
    pub(super) fence: Option<u32>,
    pub(super) renew: bool,
}

/// Planning anew with a changed descriptor: once at most.
#[derive(PartialEq, Eq)]
pub(super) enum Renewal {
    Unused,
    /// How the request ends if nothing has changed.
    Asked(AttemptOutcome),
    Used,
}

/// An attempt whose target is to be fenced.
#[derive(Clone, Copy)]
pub(super) struct Loose {
    pub(super) request: usize,
    pub(super) attempt: u32,
    pub(super) id: AttemptId,
}

/// What is left to do once the lock is released.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) stop: Vec<CancelScope>,
    pub(super) wake: bool,
    pub(super) over: usize,
    pub(super) failed: bool,
}

impl Moving {
    pub(super) fn label(&self) -> Arc<PathLabel> {
        self.routes.get(self.path).unwrap_or_else(|| self.routes.first()).lane.label().clone()
    }

    /// Takes in how the present attempt ended, of which something was last heard then.
    fn ended(&mut self, judged: Judged, heard: Instant) -> AttemptEvent {
        let attempt = self.attempt;
        if judged.failure.is_some() {
            self.tried.push(AttemptReport::new(self.label(), &judged, heard.elapsed()));
        }
        self.applied = self.applied.max(judged.bytes);
        self.place = Place::Nowhere;
        let note = self.note.take();
        let Some(failure) = judged.failure else {
            return AttemptEvent::Done { attempt, bytes: judged.bytes };
        };
        let (kind, effect) = (failure.kind(), failure.effect());
        let failure = match note {
            Some(note) => Failure::new(FailureKind::TimedOut, note).with_effect(effect),
            None => failure,
        };
        self.last = Some(failure.on_path(self.label()));
        AttemptEvent::Failed { attempt, kind, effect }
    }

    /// The end of the request in words.
    fn failure(&self, kind: FailureKind, effect: RemoteEffect, attempts: u32) -> Failure {
        let cause = match &self.last {
            Some(last) if attempts == 1 && last.kind() == kind => return last.clone().with_effect(effect),
            Some(last) => last.cause(),
            None => "nothing more can be tried",
        };
        let text = if self.earlier.is_empty() {
            cause.to_owned()
        } else {
            let earlier = self.earlier.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("after {attempts} attempts: {cause}; before that: {earlier}")
        };
        Failure::new(kind, text).with_effect(effect).on_path(self.label())
    }
}

impl BatchState {
    /// Whether a request can do anything but fail when its first attempt does.
    pub(super) fn acts(&self, info: &RequestInfo) -> bool {
        let te_peer = || info.remote.prepared().descriptor.incarnation().is_some();
        self.plan.deadline > self.plan.started
            && (info.routes.can_act(info.op) || (self.plan.options.retry_changed && te_peer()))
    }

    pub(super) fn policy(&self, routes: &Routes, len: u64) -> AttemptPolicy {
        let options = &self.plan.options;
        AttemptPolicy { silence: options.silence(len.min(routes.first().max_slice)), ..options.attempts }
    }

    /// The machine of a request whose first attempt is under way.
    pub(super) fn follow<'a>(
        &self,
        moves: &'a mut Moves,
        request: usize,
        info: &RequestInfo,
    ) -> &'a mut Moving {
        let cancelled = moves.cancelled.is_some();
        moves.requests.entry(request).or_insert_with(|| {
            let (started, deadline) = (self.plan.started, self.plan.deadline);
            let policy = self.policy(&info.routes, info.remote.len());
            let mut machine =
                Attempts::new(started, info.op, info.routes.fencing().clone(), deadline, policy);
            // The first attempt was made long ago, and a cancelled batch has stopped it already.
            let _ = machine.on(started, AttemptEvent::Start);
            if cancelled {
                let _ = machine.on(started, AttemptEvent::Cancel);
            }
            Moving::new(machine, info)
        })
    }

    /// A slice of a request failed: whether the request may go on.
    pub(super) fn open(&self, request: usize) -> Opened {
        let Some(info) = self.plan.requests.get(request).filter(|info| self.acts(info)) else {
            return Opened::Final;
        };
        let mut moves = self.moves.lock();
        let moving = self.follow(&mut moves, request, info);
        moving.share.open()
    }

    /// Judges the first attempt of a request if all of its slices have ended.
    pub(super) fn review(&self, request: usize) {
        let Some(info) = self.plan.requests.get(request) else { return };
        let mut effects = Effects::default();
        {
            let mut moves = self.moves.lock();
            let Some(moving) = moves.requests.get_mut(&request) else { return };
            let (len, max_slice) = (info.remote.len(), info.routes.first().max_slice);
            let end = || judge(info.op, self.slots(request), len, max_slice);
            let Some(judged) = moving.share.judge(end) else { return };
            let event = moving.ended(judged, self.heard_in(info.flight));
            self.step(&mut moves, request, Instant::now(), event, &mut effects);
        }
        self.settle(effects);
    }

    /// A later attempt ended.
    pub(super) fn attempt_ended(&self, request: usize, attempt: u32, judged: Judged, heard: Instant) {
        let mut effects = Effects::default();
        {
            let mut moves = self.moves.lock();
            let Some(moving) = moves.requests.get_mut(&request).filter(|moving| moving.attempt == attempt)
            else {
                return;
            };
            let event = moving.ended(judged, heard);
            self.step(&mut moves, request, Instant::now(), event, &mut effects);
        }
        self.settle(effects);
    }

    /// A target answered a fence, or never will.
    pub(super) fn event(&self, request: usize, event: AttemptEvent) {
        let mut effects = Effects::default();
        self.step(&mut self.moves.lock(), request, Instant::now(), event, &mut effects);
        self.settle(effects);
    }

    /// Whether an attempt still waits for its fence.
    pub(super) fn is_loose(&self, loose: &Loose) -> bool {
        let moves = self.moves.lock();
        let waits = |moving: &Moving| moving.attempt == loose.attempt && moving.machine.awaits_fence();
        moves.requests.get(&loose.request).is_some_and(waits)
    }

    /// Tells a machine, and notes what it asks for.
    pub(super) fn step(
        &self,
        moves: &mut Moves,
        request: usize,
        now: Instant,
        event: AttemptEvent,
        effects: &mut Effects,
    ) {
        let Moves { requests, todo, tick_at, cancelled } = moves;
        let Some(moving) = requests.get_mut(&request) else { return };
        let Some(info) = self.plan.requests.get(request) else { return };
        for action in moving.machine.on(now, event) {
            match action {
                AttemptAction::Submit { attempt, path } => {
                    moving.earlier.extend(moving.last.take());
                    (moving.attempt, moving.path, moving.place) = (attempt, path, Place::Nowhere);
                    (moving.stop, moving.todo.submit) = (false, true);
                    todo.push(request);
                    effects.wake = true;
                }
                AttemptAction::FenceLocal { .. } => match &moving.place {
                    Place::First => effects.stop.push(self.scope(info.flight)),
                    Place::Moved(flight) => {
                        effects.stop.extend(flight.upgrade().map(|flight| flight.scope().clone()));
                    }
                    Place::Nowhere => moving.stop = true,
                },
                AttemptAction::FenceTarget { attempt } => {
                    moving.todo.fence = Some(attempt);
                    todo.push(request);
                    effects.wake = true;
                }
                AttemptAction::Finish(outcome) => {
                    let renews = self.plan.options.retry_changed
                        && moving.renewal == Renewal::Unused
                        && cancelled.is_none()
                        && now < self.plan.deadline
                        && is_stale(&outcome)
                        && moving.remote.prepared().descriptor.incarnation().is_some();
                    if renews {
                        moving.renewal = Renewal::Asked(outcome);
                        moving.todo.renew = true;
                        todo.push(request);
                        effects.wake = true;
                    } else {
                        finish(moving, outcome, effects);
                    }
                }
            }
        }
        // First attempts are looked after by their lanes.
        let wakes = moving.machine.wake_at().filter(|_| moving.share.is_judged());
        *tick_at = (*tick_at).into_iter().chain(wakes).min();
    }

    pub(super) fn settle(&self, effects: Effects) {
        if !effects.stop.is_empty() {
            let reason = self.moves.lock().cancelled.unwrap_or(CancelReason::Expired);
            for scope in effects.stop {
                scope.cancel(reason);
            }
        }
        let pushed = !effects.wake || self.this().is_none_or(|this| self.plan.core.mover().push(this));
        self.requests_over(effects.over, effects.failed);
        if !pushed {
            self.abandon();
        }
    }

    /// Reports a request that went on after its first attempt; false if this one did not.
    pub(super) fn report_moved(&self, request: usize, report: &mut RequestReport) -> bool {
        let moves = self.moves.lock();
        let Some(moving) = moves.requests.get(&request).filter(|m| m.share.is_counted() || m.end.is_some())
        else {
            return false;
        };
        report.path = moving.label();
        report.earlier.clone_from(&moving.earlier);
        report.tried.clone_from(&moving.tried);
        match moving.end {
            Some(AttemptOutcome::Done { bytes, attempts, late_duplicate }) => {
                report.bytes = bytes;
                report.attempts = moving.base.saturating_add(attempts);
                report.late_duplicate = late_duplicate;
            }
            Some(AttemptOutcome::Failed { kind, effect, attempts, .. }) => {
                let attempts = moving.base.saturating_add(attempts);
                report.bytes = moving.applied;
                report.attempts = attempts;
                report.failure = Some(moving.failure(kind, effect, attempts));
            }
            None => report.attempts = moving.base.saturating_add(moving.attempt),
        }
        true
    }

    /// How long an answer to a fence is awaited.
    pub(super) fn fence_deadline(&self, now: Instant) -> Instant {
        // After the deadline nobody waits for the answer: it is a last favour to the memory of the target.
        let favour = self.plan.options.attempts.fence_wait.max(Duration::from_millis(100));
        if now < self.plan.deadline { self.plan.deadline } else { crate::machines::after(now, favour) }
    }
}

impl Moving {
    fn new(machine: Attempts, info: &RequestInfo) -> Self {
        Self {
            machine,
            routes: info.routes.clone(),
            remote: info.remote.clone(),
            base: 0,
            attempt: 1,
            path: 0,
            place: Place::First,
            stop: false,
            share: Share::default(),
            last: None,
            earlier: Vec::new(),
            tried: Vec::new(),
            applied: 0,
            note: None,
            todo: Todo::default(),
            renewal: Renewal::Unused,
            end: None,
        }
    }
}

pub(super) fn finish(moving: &mut Moving, outcome: AttemptOutcome, effects: &mut Effects) {
    let failed = matches!(outcome, AttemptOutcome::Failed { .. });
    effects.over += moving.share.finish(failed);
    effects.failed |= failed;
    moving.end = Some(outcome);
}

/// Whether a changed descriptor may explain the end of a request, and nothing of it can still be applied.
fn is_stale(outcome: &AttemptOutcome) -> bool {
    matches!(
        outcome,
        AttemptOutcome::Failed { kind: FailureKind::Rejected, effect, .. }
            if *effect != RemoteEffect::MayStillApply
    )
}
