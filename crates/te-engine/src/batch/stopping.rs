//! Giving up what is under way: silent flights, cancelled batches, withdrawn buffers, an engine that stops.

use std::time::Instant;

use te_memory::Region;
use te_transport::{CancelReason, Failure, FailureKind, RemoteEffect};

use super::moving::{Effects, Moves, Renewal, finish};
use super::state::BatchState;
use crate::machines::attempt::AttemptEvent;

impl BatchState {
    /// A flight has been silent for too long, or must be stopped for the deadline.
    pub(crate) fn overdue(&self, flight: usize, heard: Instant, now: Instant) {
        let mut effects = Effects::default();
        let mut stopped = Vec::new();
        let of_flight = || self.plan.requests.iter().enumerate().filter(|(_, info)| info.flight == flight);
        // Asked before the lock is taken: a path has locks of its own.
        let Some(health) = of_flight().next().map(|(_, info)| info.routes.first().path.health()) else {
            return;
        };
        let quiet = now.saturating_duration_since(heard).as_secs_f64();
        {
            let mut moves = self.moves.lock();
            for (request, info) in of_flight() {
                let slots = self.slots(request);
                let done = slots.iter().filter(|slot| slot.get().is_some()).count();
                if done == slots.len() || !self.acts(info) {
                    continue;
                }
                let moving = self.follow(&mut moves, request, info);
                if moving.share.is_judged() {
                    continue;
                }
                let _ = moving.machine.on(heard, AttemptEvent::Heard { attempt: moving.attempt });
                let before = effects.stop.len();
                self.step(&mut moves, request, now, AttemptEvent::Tick, &mut effects);
                if let Some(moving) = moves.requests.get_mut(&request).filter(|_| effects.stop.len() > before)
                {
                    moving.note = Some(format!(
                        "no progress for {quiet:.1} s, {done} of {} slices had ended; the path has {} \
                         connections and {} slices in flight",
                        slots.len(),
                        health.connections,
                        health.in_flight
                    ));
                }
                stopped.push(request);
            }
        }
        self.tally.mark_broken();
        for request in stopped {
            self.review(request);
        }
        self.settle(effects);
    }

    /// Stops everything that is under way, and what would follow.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let mut effects = Effects::default();
        {
            let mut moves = self.moves.lock();
            if moves.cancelled.is_some() {
                return;
            }
            moves.cancelled = Some(reason);
            let moving: Vec<usize> = moves.requests.keys().copied().collect();
            for request in moving {
                self.step(&mut moves, request, Instant::now(), AttemptEvent::Cancel, &mut effects);
            }
        }
        self.stop_flights(reason);
        self.settle(effects);
    }

    /// Whether a request of it uses this local buffer.
    pub(crate) fn uses_locally(&self, region: &Region) -> bool {
        self.plan.requests.iter().any(|info| info.local.is_of(region))
    }

    /// Stops everything because a local buffer is being withdrawn. What a path was given is stopped as a whole, so the
    /// batch is too: half of it would be of no use to a caller who waits for all.
    pub(crate) fn cut_off(&self, region: &Region) {
        // The first one is the reason that is told.
        let _ = self.withdrawn.set(region.range());
        self.cancel(CancelReason::Withdrawn);
    }

    /// The failure with the reason for which its batch was stopped, if it comes from that.
    pub(super) fn told_why(&self, failure: Failure) -> Failure {
        if !matches!(failure.kind(), FailureKind::Cancelled | FailureKind::LocalMemory) {
            return failure;
        }
        let told = match (self.moves.lock().cancelled, self.withdrawn.get()) {
            (Some(CancelReason::Withdrawn), Some(range)) => Failure::new(
                FailureKind::LocalMemory,
                format!("local buffer {range} is being withdrawn, and its requests had no more time to end"),
            ),
            (Some(CancelReason::Shutdown), _) => {
                Failure::new(FailureKind::Shutdown, "the engine is shutting down")
            }
            _ => return failure,
        };
        let told = told.with_effect(failure.effect());
        match failure.path() {
            Some(path) => told.on_path(path.clone()),
            None => told,
        }
    }

    /// Ends what is between two attempts: there is no control task any more.
    pub(crate) fn abandon(&self) {
        loop {
            let mut effects = Effects::default();
            {
                let mut moves = self.moves.lock();
                moves.todo.clear();
                let moving: Vec<usize> = moves.requests.keys().copied().collect();
                for request in moving {
                    self.give_up(&mut moves, request, &mut effects);
                }
            }
            let again = std::mem::take(&mut effects.wake);
            self.settle(effects);
            if !again {
                return;
            }
        }
    }

    fn give_up(&self, moves: &mut Moves, request: usize, effects: &mut Effects) {
        let Some(moving) = moves.requests.get_mut(&request).filter(|moving| moving.end.is_none()) else {
            return;
        };
        let (now, attempt, todo) = (Instant::now(), moving.attempt, std::mem::take(&mut moving.todo));
        if let Renewal::Asked(outcome) = moving.renewal {
            moving.renewal = Renewal::Used;
            return finish(moving, outcome, effects);
        }
        if todo.submit {
            let (kind, effect) = (FailureKind::Shutdown, RemoteEffect::None);
            moving.last = Some(Failure::new(kind, "the engine is shutting down").on_path(moving.label()));
            self.step(moves, request, now, AttemptEvent::Failed { attempt, kind, effect }, effects);
        } else {
            self.step(moves, request, now, AttemptEvent::Unfenceable { attempt }, effects);
        }
    }
}
