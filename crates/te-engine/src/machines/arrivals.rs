//! The receiver of notifications: each is taken once per life of ours, in each sender's order, or the sender is told to
//! try again; and whoever expects some learns of success, failure or the end of the time (N-04, N-07).

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use te_segment::Incarnation;

use super::delivery::Tidings;

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Note {
    /// The sender's name.
    pub(crate) name: String,
    /// The message; expectations are for a message.
    pub(crate) message: String,
    /// What became of the batch.
    pub(crate) tidings: Tidings,
}

/// What becomes of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arrival {
    /// It is news: acknowledge.
    Taken,
    /// It came before, or one after it did: acknowledge again.
    Duplicate,
    /// There is no room: say so, the sender tries again.
    Full,
}

/// How an expectation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expected {
    /// All came.
    Success,
    /// One of the batches failed.
    Failure,
    /// The time is over.
    TimedOut {
        /// Successes that came until then; they are used up.
        arrived: u32,
    },
}

/// The name of an expectation. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExpectationId(u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Expectation {
    id: ExpectationId,
    message: String,
    missing: u32,
    arrived: u32,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sender {
    last: u64,
    connected: bool,
    /// When it was last heard of, as a count of arrivals.
    heard: u64,
}

/// Limits of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ArrivalLimits {
    /// Notifications that wait to be taken. Default 4,096.
    pub(crate) queue: usize,
    /// Sender lives that are remembered. Of those beyond, the one without connection that was silent longest is forgotten;
    /// if all are connected, newcomers are refused. Default 16,384.
    pub(crate) senders: usize,
    /// Expectations at a time. Default 4,096.
    pub(crate) expectations: usize,
}

impl Default for ArrivalLimits {
    fn default() -> Self {
        Self { queue: 4_096, senders: 16_384, expectations: 4_096 }
    }
}

/// Everything received and not yet taken by the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arrivals {
    limits: ArrivalLimits,
    senders: BTreeMap<Incarnation, Sender>,
    queue: VecDeque<Note>,
    /// Oldest first: that one is served first.
    expectations: Vec<Expectation>,
    ended: Vec<(ExpectationId, Expected)>,
    next: u64,
    count: u64,
}

impl Arrivals {
    /// Nothing came yet.
    pub(crate) fn new(limits: ArrivalLimits) -> Self {
        Self {
            limits,
            senders: BTreeMap::new(),
            queue: VecDeque::new(),
            expectations: Vec::new(),
            ended: Vec::new(),
            next: 0,
            count: 0,
        }
    }

    /// A sender is connected; what it sends is remembered at least while it is.
    pub(crate) fn connected(&mut self, sender: Incarnation) {
        if let Some(sender) = self.senders.get_mut(&sender) {
            sender.connected = true;
        }
    }

    /// A sender's connection is gone. Its life may go on: what it repeats is still a repetition.
    pub(crate) fn disconnected(&mut self, sender: Incarnation) {
        if let Some(sender) = self.senders.get_mut(&sender) {
            sender.connected = false;
        }
    }

    /// A notification arrived.
    pub(crate) fn offer(&mut self, sender: Incarnation, number: u64, note: Note) -> Arrival {
        if self.senders.get(&sender).is_some_and(|sender| number <= sender.last) {
            return Arrival::Duplicate;
        }
        let expected = self.expectations.iter().any(|expectation| expectation.message == note.message);
        let room = expected || self.queue.len() < self.limits.queue;
        if !room || !self.make_room_for(sender) {
            return Arrival::Full;
        }
        self.count += 1;
        self.senders.insert(sender, Sender { last: number, connected: true, heard: self.count });
        if !self.serve(&note) {
            self.queue.push_back(note);
        }
        Arrival::Taken
    }

    /// A notification of a peer that has no numbers: taken if there is room.
    pub(crate) fn offer_unnumbered(&mut self, note: Note) -> Arrival {
        if self.serve(&note) {
            return Arrival::Taken;
        }
        if self.queue.len() >= self.limits.queue {
            return Arrival::Full;
        }
        self.queue.push_back(note);
        Arrival::Taken
    }

    /// How many wait to be taken.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The oldest notification that nobody expected.
    pub(crate) fn take(&mut self) -> Option<Note> {
        self.queue.pop_front()
    }

    /// Expects `count` batches with this message. Those that wait count, in their order. `None`: too many expectations.
    pub(crate) fn expect(
        &mut self,
        now: Instant,
        message: String,
        count: u32,
        deadline: Instant,
    ) -> Option<ExpectationId> {
        if self.expectations.len() >= self.limits.expectations {
            return None;
        }
        let id = ExpectationId(self.next);
        self.next += 1;
        if count == 0 {
            self.ended.push((id, Expected::Success));
            return Some(id);
        }
        let mut waiting = std::mem::take(&mut self.queue);
        self.expectations.push(Expectation { id, message, missing: count, arrived: 0, deadline });
        // No older expectation wants any of these, or it would have had them.
        waiting.retain(|note| !self.serve(note));
        self.queue = waiting;
        self.tick(now);
        Some(id)
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget(&mut self, id: ExpectationId) {
        self.expectations.retain(|expectation| expectation.id != id);
        self.ended.retain(|(ended, _)| *ended != id);
    }

    /// When [`Arrivals::tick`] is due.
    #[cfg(test)]
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.expectations.iter().map(|expectation| expectation.deadline).min()
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        let ended = &mut self.ended;
        self.expectations.retain(|expectation| {
            let late = now >= expectation.deadline;
            if late {
                ended.push((expectation.id, Expected::TimedOut { arrived: expectation.arrived }));
            }
            !late
        });
    }

    /// Expectations that ended since the last call.
    pub(crate) fn ended(&mut self) -> Vec<(ExpectationId, Expected)> {
        std::mem::take(&mut self.ended)
    }

    /// Gives it to the oldest expectation of its message, if there is one.
    fn serve(&mut self, note: &Note) -> bool {
        let Some(place) = self.expectations.iter().position(|e| e.message == note.message) else {
            return false;
        };
        let expectation = &mut self.expectations[place];
        let end = match note.tidings {
            Tidings::Failure => Some(Expected::Failure),
            Tidings::Success => {
                expectation.arrived += 1;
                expectation.missing -= 1;
                (expectation.missing == 0).then_some(Expected::Success)
            }
        };
        if let Some(end) = end {
            self.ended.push((expectation.id, end));
            self.expectations.remove(place);
        }
        true
    }

    fn make_room_for(&mut self, sender: Incarnation) -> bool {
        if self.senders.contains_key(&sender) || self.senders.len() < self.limits.senders {
            return true;
        }
        let silent = self.senders.iter().filter(|(_, s)| !s.connected).min_by_key(|(_, s)| s.heard);
        let Some(silent) = silent.map(|(sender, _)| *sender) else { return false };
        self.senders.remove(&silent);
        true
    }
}

#[cfg(test)]
mod tests;
