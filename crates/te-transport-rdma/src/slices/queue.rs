//! The send queue of one queue pair: what may be posted, what is signalled, and what a completion means.

use std::collections::VecDeque;

use te_transport::Op;

use super::{Draft, Slots, Status, WorkId, WorkRequest};

/// How a send queue is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Work requests that the queue pair takes at a time. Default 256.
    pub depth: u32,
    /// At most this many work requests in a row are not signalled. Default 16; no more than a quarter of the depth.
    pub signal_every: u32,
    /// WRITEs of at most this many bytes are copied into the request. Default 64.
    pub max_inline: u32,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { depth: 256, signal_every: 16, max_inline: 64 }
    }
}

/// Entries that a completion queue needs so that it cannot overrun: when queue pairs break, everything posted on them is
/// reported, whether signalled or not.
#[must_use]
pub fn completion_entries(queue_pairs: u32, settings: &QueueSettings) -> u32 {
    queue_pairs.saturating_mul(settings.depth)
}

/// What becomes of a post list that the device did not take as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// The owners of the requests it did not take, in order: they never began.
    pub owners: Vec<T>,
    /// Whether the requests before them have none that is signalled behind them. They complete in silence, so the
    /// endpoint has to be flushed to learn of them.
    pub must_flush: bool,
}

/// What is posted on one queue pair, in order. Belongs to one endpoint and goes with it.
#[derive(Clone, Debug)]
pub struct SendQueue<T> {
    settings: QueueSettings,
    slots: Slots<(T, bool)>,
    /// In the order of posting, which is the order of completion.
    posted: VecDeque<WorkId>,
    unsignalled: u32,
    stale: u64,
}

impl<T> SendQueue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(settings: QueueSettings) -> Self {
        Self { settings, slots: Slots::default(), posted: VecDeque::new(), unsignalled: 0, stale: 0 }
    }

    /// As [`new`](Self::new), with identifiers that begin with `first`; see [`Slots::starting_at`].
    #[must_use]
    pub fn starting_at(settings: QueueSettings, first: u32) -> Self {
        Self { slots: Slots::starting_at(first), ..Self::new(settings) }
    }

    /// Whom the outcomes are for of what is posted.
    pub fn owners(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|(owner, _)| owner)
    }

    /// How many more work requests can be posted.
    #[must_use]
    pub fn room(&self) -> usize {
        (self.settings.depth as usize).saturating_sub(self.posted.len())
    }

    /// Posted work requests without an outcome.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Completions that named nothing that is under way, since the queue exists.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Makes work requests of as many drafts as there is room for, at most `most`, and appends them to `list`, which is then to be posted
    /// as one. The last one is signalled; returns how many there are.
    pub fn post(
        &mut self,
        drafts: &mut VecDeque<Draft<T>>,
        most: usize,
        list: &mut Vec<WorkRequest>,
    ) -> usize {
        let count = drafts.len().min(self.room()).min(most);
        let every = self.settings.signal_every.min(self.settings.depth / 4).max(1);
        for (left, draft) in (0..count).rev().zip(drafts.drain(..count)) {
            let Draft { op, piece, local_key, remote_key, owner } = draft;
            self.unsignalled += 1;
            let signalled = left == 0 || self.unsignalled >= every;
            if signalled {
                self.unsignalled = 0;
            }
            // There are never more than the depth, which is a 32-bit number.
            let Ok(id) = self.slots.insert((owner, signalled)) else { continue };
            self.posted.push_back(id);
            let inline = op == Op::Write && piece.local.len() <= self.settings.max_inline.into();
            list.push(WorkRequest { id, op, piece, local_key, remote_key, signalled, inline });
        }
        count
    }

    /// The device has taken all of the last list but the last `count` requests. Where it does not say how many it took,
    /// it may have taken all of them: then the endpoint has to be flushed, and this must not be called.
    pub fn refused(&mut self, count: usize) -> Refused<T> {
        let from = self.posted.len().saturating_sub(count);
        let ids: Vec<_> = self.posted.drain(from..).collect();
        let owners = ids.into_iter().filter_map(|id| self.slots.take(id)).map(|(owner, _)| owner).collect();
        let silent = |id: &&WorkId| self.slots.peek(**id).is_some_and(|(_, signalled)| !signalled);
        let tail = self.posted.iter().rev().take_while(silent).count();
        self.unsignalled = u32::try_from(tail).unwrap_or(u32::MAX);
        Refused { owners, must_flush: tail > 0 }
    }

    /// A completion. Requests complete in order, and one that fails is always reported: so those posted before this one
    /// are done. Appends the outcomes and returns how many there are; an identifier of nothing that is under way gives
    /// none and is counted.
    pub fn complete(&mut self, id: WorkId, status: Status, outcomes: &mut Vec<(T, Status)>) -> usize {
        let at = match self.slots.contains(id) {
            true => self.posted.iter().position(|posted| *posted == id),
            false => None,
        };
        self.stale += u64::from(at.is_none());
        let before = outcomes.len();
        for done in self.posted.drain(..at.map_or(0, |at| at + 1)) {
            let status = if done == id { status } else { Status::Done };
            outcomes.extend(self.slots.take(done).map(|(owner, _)| (owner, status)));
        }
        outcomes.len() - before
    }

    /// The queue pair is destroyed: what is left has no outcome of the device. Appends it and returns how much it is.
    pub fn forfeit(&mut self, outcomes: &mut Vec<(T, Status)>) -> usize {
        let before = outcomes.len();
        for id in self.posted.drain(..) {
            outcomes.extend(self.slots.take(id).map(|(owner, _)| (owner, Status::Forfeited)));
        }
        self.unsignalled = 0;
        outcomes.len() - before
    }
}
