//! What the control task takes up of a batch: next attempts, fences, descriptors to be fetched anew, and time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_transport::{AttemptId, CancelReason, Failure, FailureKind};

use super::flight::{Departure, MovedFlight};
use super::moving::{Effects, Loose, Moves, Place, Renewal, finish};
use super::state::BatchState;
use crate::machines::attempt::{AttemptEvent, Attempts};
use crate::segment::RemoteRange;

/// What the control task is to do for a batch, beside submitting.
#[derive(Default)]
pub(super) struct Errands {
    pub(super) fence: Vec<Loose>,
    pub(super) renew: Vec<(usize, RemoteRange)>,
}

impl BatchState {
    /// Does the work of the control task for this batch. When to do so again because of time, if at all.
    pub(super) fn work(&self, now: Instant) -> (Vec<Departure>, Errands, Option<Instant>) {
        let (mut effects, mut departures, mut errands) = (Effects::default(), Vec::new(), Errands::default());
        let wakes = {
            let mut moves = self.moves.lock();
            if moves.tick_at.is_some_and(|at| now >= at) {
                self.tick(&mut moves, now, &mut effects);
            }
            while let Some(request) = moves.todo.pop() {
                self.take_up(&mut moves, request, now, &mut departures, &mut errands, &mut effects);
            }
            moves.tick_at
        };
        // What the steps asked for has been taken up already.
        effects.wake = false;
        self.settle(effects);
        (departures, errands, wakes)
    }

    fn tick(&self, moves: &mut Moves, now: Instant, effects: &mut Effects) {
        let moving: Vec<usize> = moves.requests.keys().copied().collect();
        moves.tick_at = None;
        for request in moving {
            let Some(moving) = moves.requests.get_mut(&request) else { continue };
            if moving.end.is_some() || !moving.share.is_judged() {
                continue;
            }
            let mut quiet = Duration::ZERO;
            if let Place::Moved(flight) = &moving.place
                && let Some(flight) = flight.upgrade()
            {
                let heard = flight.heard();
                quiet = now.saturating_duration_since(heard);
                let _ = moving.machine.on(heard, AttemptEvent::Heard { attempt: moving.attempt });
            }
            let before = effects.stop.len();
            self.step(moves, request, now, AttemptEvent::Tick, effects);
            if let Some(moving) = moves.requests.get_mut(&request).filter(|_| effects.stop.len() > before) {
                moving.note = Some(format!("no progress for {:.1} s", quiet.as_secs_f64()));
            }
        }
    }

    fn take_up(
        &self,
        moves: &mut Moves,
        request: usize,
        now: Instant,
        departures: &mut Vec<Departure>,
        errands: &mut Errands,
        effects: &mut Effects,
    ) {
        let (Some(moving), Some(info)) = (moves.requests.get_mut(&request), self.plan.requests.get(request))
        else {
            return;
        };
        let todo = std::mem::take(&mut moving.todo);
        let number = self.plan.numbers.saturating_add(request as u64);
        let id = |attempt: u32| AttemptId { request: number, attempt: moving.base.saturating_add(attempt) };
        if let Some(attempt) = todo.fence {
            errands.fence.push(Loose { request, attempt, id: id(attempt) });
        }
        if todo.renew {
            errands.renew.push((request, moving.remote.clone()));
        }
        if !todo.submit {
            return;
        }
        let (attempt, path) = (moving.attempt, moving.path);
        let refused = match (moving.routes.get(path), info.local.hold()) {
            _ if moving.stop => Failure::new(FailureKind::Cancelled, "stopped before it began"),
            (Some(route), Ok(local)) => {
                departures.push(Departure {
                    request,
                    attempt,
                    id: id(attempt),
                    op: info.op,
                    local,
                    remote: moving.remote.clone(),
                    route: route.clone(),
                    care: moving.routes.care(path, info.op, self.plan.options.attempts.allow_late_duplicate),
                });
                return;
            }
            (_, Err(refusal)) => Failure::new(FailureKind::LocalMemory, refusal.to_string()),
            (None, _) => Failure::new(FailureKind::Unsupported, "there is no such path"),
        };
        let (kind, effect) = (refused.kind(), refused.effect());
        moving.last = Some(refused.on_path(moving.label()));
        self.step(moves, request, now, AttemptEvent::Failed { attempt, kind, effect }, effects);
    }

    /// A flight is about to be submitted: its requests are on it.
    pub(super) fn board(&self, flight: &Arc<MovedFlight>) {
        let stop = {
            let mut moves = self.moves.lock();
            let mut stop = moves.cancelled;
            for (request, attempt) in flight.members() {
                if let Some(moving) = moves.requests.get_mut(&request).filter(|m| m.attempt == attempt) {
                    moving.place = Place::Moved(Arc::downgrade(flight));
                    if moving.stop {
                        stop = stop.or(Some(CancelReason::Expired));
                    }
                }
            }
            stop
        };
        if let Some(reason) = stop {
            flight.scope().cancel(reason);
        }
    }

    /// The peer's descriptor was fetched anew: with the range in it if that has changed, the request is planned again.
    pub(super) fn renewed(&self, request: usize, fresh: Option<RemoteRange>) {
        let Some(info) = self.plan.requests.get(request) else { return };
        let replanned = fresh.and_then(|remote| {
            let source = (info.local.location(), info.local.registered());
            let (index, selection) = (remote.buffer_index(), &self.plan.options.selection);
            let routes = remote.prepared().routes(&self.plan.core, info.op, index, source, selection).ok()?;
            Some((remote.clone(), routes.ordered(selection)))
        });
        let mut effects = Effects::default();
        {
            let (now, mut moves) = (Instant::now(), self.moves.lock());
            let cancelled = moves.cancelled.is_some();
            let Some(moving) = moves.requests.get_mut(&request) else { return };
            let Renewal::Asked(outcome) = std::mem::replace(&mut moving.renewal, Renewal::Used) else {
                return;
            };
            match replanned.filter(|_| !cancelled && now < self.plan.deadline) {
                None => finish(moving, outcome, &mut effects),
                Some((remote, routes)) => {
                    let policy = self.policy(&routes, remote.len());
                    let (paths, deadline) = (routes.fencing().clone(), self.plan.deadline);
                    moving.machine = Attempts::new(now, info.op, paths, deadline, policy);
                    moving.base = moving.base.saturating_add(moving.attempt);
                    (moving.remote, moving.routes) = (remote, routes);
                    self.step(&mut moves, request, now, AttemptEvent::Start, &mut effects);
                }
            }
        }
        self.settle(effects);
    }
}
