//! Attempts after the first: slices of requests that moved, on their way over one path together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use te_memory::Hold;
use te_transport::{
    AttemptId, CancelScope, CompletionSink, CompletionToken, Failure, FailureKind, Op, Outcome, RemoteEffect,
    Slice, Submission, SubmitMode,
};

use super::state::BatchState;
use crate::machines::circuit::Ticket;
use crate::prepared::{Care, Route};
use crate::segment::RemoteRange;

/// How an attempt ended, from the outcomes of its slices.
pub(super) struct Judged {
    /// Bytes that were handed to the path.
    pub(super) given: u64,
    /// Bytes that were applied.
    pub(super) bytes: u64,
    /// Bytes that may have been sent and are not known to be applied; of a READ nobody knows.
    pub(super) posted: Option<u64>,
    /// The first failure, if any, with what all of them may have done.
    pub(super) failure: Option<Failure>,
}

/// Judges an attempt of `len` bytes in slices of at most `max_slice`, which have all ended; `None` while one has not.
pub(super) fn judge(op: Op, slots: &[OnceLock<Outcome>], len: u64, max_slice: u64) -> Option<Judged> {
    let mut judged = Judged { given: len, bytes: 0, posted: (op == Op::Write).then_some(0), failure: None };
    let (mut effect, mut left) = (RemoteEffect::None, len);
    for slot in slots {
        let slice = left.min(max_slice);
        left -= slice;
        match slot.get()? {
            Outcome::Done(bytes) => judged.bytes += bytes,
            Outcome::Failed(failure) => {
                effect = effect.max(failure.effect());
                if let Some(posted) =
                    judged.posted.as_mut().filter(|_| failure.effect() != RemoteEffect::None)
                {
                    *posted += slice;
                }
                judged.failure.get_or_insert_with(|| failure.clone());
            }
            _ => {}
        }
    }
    if op == Op::Write && judged.bytes > 0 {
        effect = effect.max(RemoteEffect::MayHaveApplied);
    }
    judged.failure = judged.failure.map(|failure| failure.with_effect(effect));
    Some(judged)
}

/// One request's next attempt, ready to go.
pub(super) struct Departure {
    pub(super) request: usize,
    /// The number by which the machine of the request knows it.
    pub(super) attempt: u32,
    pub(super) id: AttemptId,
    pub(super) op: Op,
    pub(super) local: Hold,
    pub(super) remote: RemoteRange,
    pub(super) route: Route,
    pub(super) care: Care,
}

struct Member {
    request: usize,
    attempt: u32,
    len: u64,
    slices_end: usize,
    unresolved: AtomicUsize,
}

/// Attempts that go over one path together: one submission, stopped as a whole.
pub(super) struct MovedFlight {
    batch: Arc<BatchState>,
    route: Route,
    scope: CancelScope,
    ticket: Ticket,
    began: Instant,
    members: Vec<Member>,
    outcomes: Box<[OnceLock<Outcome>]>,
    heard: Mutex<Instant>,
    succeeded: AtomicBool,
}

/// A flight that is not submitted yet.
pub(super) struct Ready {
    pub(super) flight: Arc<MovedFlight>,
    departures: Vec<Departure>,
}

impl MovedFlight {
    /// Groups departures into flights.
    pub(super) fn group(batch: &Arc<BatchState>, departures: Vec<Departure>, now: Instant) -> Vec<Ready> {
        let mut groups: Vec<Vec<Departure>> = Vec::new();
        for departure in departures {
            let joins = |group: &&mut Vec<Departure>| {
                group.first().is_some_and(|first| {
                    Arc::ptr_eq(&first.route.path, &departure.route.path) && first.care == departure.care
                })
            };
            match groups.iter_mut().find(joins) {
                Some(group) => group.push(departure),
                None => groups.push(vec![departure]),
            }
        }
        groups.into_iter().filter_map(|group| Self::prepare(batch, group, now)).collect()
    }

    fn prepare(batch: &Arc<BatchState>, departures: Vec<Departure>, now: Instant) -> Option<Ready> {
        let route = departures.first()?.route.clone();
        let mut slices = 0_usize;
        let members = departures
            .iter()
            .map(|departure| {
                let count = departure.remote.len().div_ceil(route.max_slice.max(1));
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                slices = slices.saturating_add(count);
                Member {
                    request: departure.request,
                    attempt: departure.attempt,
                    len: departure.remote.len(),
                    slices_end: slices,
                    unresolved: AtomicUsize::new(count),
                }
            })
            .collect();
        let flight = Self {
            batch: batch.clone(),
            ticket: route.lane.ticket(now),
            route,
            scope: CancelScope::new(),
            began: now,
            members,
            outcomes: std::iter::repeat_with(OnceLock::new).take(slices).collect(),
            heard: Mutex::new(now),
            succeeded: AtomicBool::new(false),
        };
        Some(Ready { flight: Arc::new(flight), departures })
    }

    pub(super) fn scope(&self) -> &CancelScope {
        &self.scope
    }

    /// When a slice of it was last done.
    pub(super) fn heard(&self) -> Instant {
        *self.heard.lock()
    }

    /// Which requests are on it, and as which attempt.
    pub(super) fn members(&self) -> impl Iterator<Item = (usize, u32)> {
        self.members.iter().map(|member| (member.request, member.attempt))
    }
}

impl Ready {
    /// Hands the slices to the path. Never waits for a peer.
    pub(super) fn submit(self) {
        let Self { flight, departures } = self;
        let sink: Arc<dyn CompletionSink> = flight.clone();
        let mut slices = Vec::with_capacity(flight.outcomes.len());
        let mut index = 0_u32;
        for Departure { id, op, local, remote, .. } in departures {
            let (generation, range) = (remote.buffer().generation(), remote.range());
            let mut offset = 0;
            while offset < range.len() {
                let len = flight.route.max_slice.max(1).min(range.len() - offset);
                let token = CompletionToken::new(sink.clone(), index);
                index = index.saturating_add(1);
                match (local.slice(offset, len), range.slice(offset, len)) {
                    (Ok(local), Ok(remote)) => {
                        slices.push(Slice { op, local, remote, generation, attempt: id, token });
                    }
                    // Cutting inside checked bounds cannot fail; should it ever, the request fails, not the process.
                    _ => token.fail(Failure::new(FailureKind::LocalMemory, "the slice cannot be cut")),
                }
                offset += len;
            }
        }
        drop(sink);
        let (deadline, scope) = (flight.batch.deadline(), flight.scope.clone());
        flight.route.path.submit(Submission { slices, deadline, scope }, SubmitMode::Background);
    }
}

impl CompletionSink for MovedFlight {
    fn complete(&self, index: u32, outcome: Outcome) {
        let slice = index as usize;
        let at = self.members.partition_point(|member| member.slices_end <= slice);
        let (Some(member), Some(slot)) = (self.members.get(at), self.outcomes.get(slice)) else { return };
        match &outcome {
            Outcome::Failed(failure) => {
                let Some(info) = self.batch.plan.requests.get(member.request) else { return };
                self.batch.blame(info, &self.route.lane, self.ticket, self.began, failure);
            }
            _ => {
                *self.heard.lock() = Instant::now();
                if self.route.lane.is_troubled() && !self.succeeded.swap(true, Ordering::Relaxed) {
                    self.route.lane.succeeded(self.ticket);
                }
            }
        }
        // A token is consumed by its one use, so no slot is set twice.
        if slot.set(outcome).is_err() || member.unresolved.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let first = at.checked_sub(1).and_then(|before| self.members.get(before)).map_or(0, |m| m.slices_end);
        let op = self.batch.plan.requests.get(member.request).map_or(Op::Write, |info| info.op);
        let slots = self.outcomes.get(first..member.slices_end).unwrap_or_default();
        if let Some(judged) = judge(op, slots, member.len, self.route.max_slice.max(1)) {
            self.batch.attempt_ended(member.request, member.attempt, judged, self.heard());
        }
    }
}
