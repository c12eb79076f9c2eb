//! The target's side of a fence: which attempts of one sender life may still touch memory.
//!
//! Data connections ask [`FenceLedger::admit`] before an attempt may apply anything and report its end; the control
//! connection brings fences. A fence is acknowledged when the attempts it names are refused from now on *and* those that
//! had been admitted have ended: after the acknowledgement nothing of them is applied. An attempt may run in parts, each
//! admitted and ended by itself; it has ended with the last of them.
//!
//! The memory is bounded: when too many requests are fenced, the lowest request ids are refused as a whole. Ids grow
//! within a sender's life, so that is refusing very old requests, which costs them a failure and nothing else.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use te_transport::AttemptId;

/// What a fence leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FenceStart {
    /// Nothing is running: acknowledge.
    Acknowledge,
    /// These are running: stop them; [`FenceLedger::ended`] says when to acknowledge.
    Stop(Vec<AttemptId>),
    /// Too many fences wait already: close the connection, the sender will repeat it.
    Busy,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    id: u64,
    running: BTreeSet<AttemptId>,
}

/// Admission of attempts, for one sender life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FenceLedger {
    limit: usize,
    /// Requests below are refused.
    floor: u64,
    /// The highest attempt of a request that is refused.
    fenced: BTreeMap<u64, u32>,
    /// Parts of each attempt that run, by attempt. A list that keeps its memory: few run at a time, and most of them begin
    /// at its end.
    running: Vec<(AttemptId, u32)>,
    waiting: Vec<Waiting>,
}

impl FenceLedger {
    /// An empty ledger that remembers the fences of `limit` requests and lets as many fences wait.
    pub(crate) fn new(limit: usize) -> Self {
        let (fenced, running) = (BTreeMap::new(), Vec::new());
        Self { limit: limit.max(1), floor: 0, fenced, running, waiting: Vec::new() }
    }

    /// Whether the attempt, or one more part of it, may touch memory. If so, its end must be reported.
    pub(crate) fn admit(&mut self, id: AttemptId) -> bool {
        let refused = id.request < self.floor
            || self.fenced.get(&id.request).is_some_and(|attempt| id.attempt <= *attempt);
        if !refused {
            match self.find(id) {
                Ok(place) => self.running[place].1 = self.running[place].1.saturating_add(1),
                Err(place) => self.running.insert(place, (id, 1)),
            }
        }
        !refused
    }

    /// The attempt, or one part of it, touches nothing any more. Returns the fences that can be acknowledged now.
    pub(crate) fn ended(&mut self, id: AttemptId) -> Vec<u64> {
        let Ok(place) = self.find(id) else { return Vec::new() };
        let parts = &mut self.running[place].1;
        *parts -= 1;
        if *parts > 0 {
            return Vec::new();
        }
        self.running.remove(place);
        let mut answered = Vec::new();
        self.waiting.retain_mut(|waiting| {
            waiting.running.remove(&id);
            if waiting.running.is_empty() {
                answered.push(waiting.id);
            }
            !waiting.running.is_empty()
        });
        answered
    }

    /// Refuses these attempts and older ones of their requests from now on. `fence` is the id to acknowledge; a
    /// repeated fence has its own.
    pub(crate) fn fence(&mut self, fence: u64, attempts: &[AttemptId]) -> FenceStart {
        let mut newest: BTreeMap<u64, u32> = BTreeMap::new();
        for id in attempts {
            let attempt = newest.entry(id.request).or_insert(id.attempt);
            *attempt = (*attempt).max(id.attempt);
        }
        for (request, attempt) in newest.range(self.floor..) {
            let highest = self.fenced.entry(*request).or_insert(*attempt);
            *highest = (*highest).max(*attempt);
        }
        while self.fenced.len() > self.limit {
            if let Some((request, _)) = self.fenced.pop_first() {
                self.floor = request.saturating_add(1);
            }
        }
        let named = |id: &AttemptId| newest.get(&id.request).is_some_and(|attempt| id.attempt <= *attempt);
        let running: BTreeSet<_> = self.running.iter().map(|(id, _)| *id).filter(named).collect();
        if running.is_empty() {
            return FenceStart::Acknowledge;
        }
        if self.waiting.len() >= self.limit {
            return FenceStart::Busy;
        }
        let stop = running.iter().copied().collect();
        self.waiting.push(Waiting { id: fence, running });
        FenceStart::Stop(stop)
    }

    /// Nobody waits for this acknowledgement any more. What is refused stays refused.
    pub(crate) fn forget(&mut self, fence: u64) {
        self.waiting.retain(|waiting| waiting.id != fence);
    }

    /// Whether a part of this attempt, or of an older one of its request, runs.
    pub(crate) fn runs(&self, id: AttemptId) -> bool {
        let oldest = AttemptId { attempt: 0, ..id };
        let at = self.find(oldest).unwrap_or_else(|place| place);
        self.running.get(at).is_some_and(|(running, _)| *running <= id)
    }

    fn find(&self, id: AttemptId) -> Result<usize, usize> {
        self.running.binary_search_by_key(&id, |(running, _)| *running)
    }

    /// Whether there is nothing to remember: nothing runs and nothing is refused.
    pub(crate) fn is_blank(&self) -> bool {
        self.running.is_empty() && self.fenced.is_empty() && self.floor == 0
    }

    /// Whether nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(request: u64, attempt: u32) -> AttemptId {
        AttemptId { request, attempt }
    }

    /// FO-07
    #[test]
    fn a_fenced_attempt_is_refused_and_a_newer_one_is_not() {
        let mut ledger = FenceLedger::new(8);
        assert_eq!(ledger.fence(1, &[id(5, 2)]), FenceStart::Acknowledge);
        assert!(!ledger.admit(id(5, 1)) && !ledger.admit(id(5, 2)));
        assert!(ledger.admit(id(5, 3)) && ledger.admit(id(6, 1)));
    }

    /// FO-07
    #[test]
    fn a_fence_is_acknowledged_when_the_last_running_attempt_has_ended() {
        let mut ledger = FenceLedger::new(8);
        assert!(ledger.admit(id(5, 1)) && ledger.admit(id(6, 1)) && ledger.admit(id(7, 1)));
        let stop = FenceStart::Stop(vec![id(5, 1), id(6, 1)]);
        assert_eq!(ledger.fence(9, &[id(5, 1), id(6, 4)]), stop);
        assert!(ledger.ended(id(5, 1)).is_empty());
        assert!(ledger.ended(id(7, 1)).is_empty());
        assert_eq!(ledger.ended(id(6, 1)), [9]);
    }

    #[test]
    fn an_older_fence_does_not_open_what_a_newer_one_closed() {
        let mut ledger = FenceLedger::new(8);
        ledger.fence(1, &[id(5, 3)]);
        ledger.fence(2, &[id(5, 1)]);
        assert!(!ledger.admit(id(5, 3)));
    }

    /// FO-07
    #[test]
    fn an_attempt_has_ended_when_all_its_parts_have() {
        let mut ledger = FenceLedger::new(8);
        assert!(ledger.admit(id(1, 1)) && ledger.admit(id(1, 1)) && ledger.admit(id(1, 2)));
        assert!(ledger.ended(id(1, 1)).is_empty());
        assert_eq!(ledger.fence(7, &[id(1, 1)]), FenceStart::Stop(vec![id(1, 1)]));
        assert!(!ledger.admit(id(1, 1)), "no part begins after the fence");
        assert!(ledger.runs(id(1, 1)));
        assert_eq!(ledger.ended(id(1, 1)), [7]);
        assert!(ledger.ended(id(1, 1)).is_empty(), "an end too many changes nothing");
        assert!(!ledger.runs(id(1, 1)) && ledger.runs(id(1, 2)) && !ledger.is_blank());
    }

    #[test]
    fn what_is_forgotten_for_want_of_room_stays_refused() {
        let mut ledger = FenceLedger::new(4);
        for request in 0..100 {
            ledger.fence(request, &[id(request, 1)]);
            assert!(ledger.fenced.len() <= 4);
        }
        assert!((0..100).all(|request| !ledger.admit(id(request, 1))));
        assert!(ledger.admit(id(99, 2)) && ledger.admit(id(100, 1)));
    }

    #[test]
    fn too_many_waiting_fences_are_turned_away() {
        let mut ledger = FenceLedger::new(2);
        assert!(ledger.admit(id(1, 1)));
        for fence in 0..2 {
            assert!(matches!(ledger.fence(fence, &[id(1, 1)]), FenceStart::Stop(_)));
        }
        assert_eq!(ledger.fence(2, &[id(1, 1)]), FenceStart::Busy);
        ledger.forget(0);
        assert!(matches!(ledger.fence(3, &[id(1, 1)]), FenceStart::Stop(_)));
        assert_eq!(ledger.ended(id(1, 1)), [1, 3]);
    }
}
