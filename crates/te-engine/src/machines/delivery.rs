//! The sender of notifications to one life of a receiver: each is sent until it is acknowledged, in order (N-03, N-04).
//!
//! One notification is under way at a time; its number is larger than all before it. With that the receiver can tell a
//! repetition from news by the last number alone, whatever the network delays, loses or repeats. A notification belongs
//! to the receiver's life in which its data was applied: it is not carried over to the next one.
//!
//! A notification enters the queue when its batch is over, never before: that the data is applied first is the
//! caller's part, and [`notice`] is where it is decided.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::after;

/// What a notification says of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tidings {
    /// Every byte is applied.
    Success,
    /// Some request failed (N-07).
    Failure,
}

/// What is to be told of a batch that is over. `tell_failure`: the caller wants the receiver to know of a failure.
pub(crate) fn notice(all_applied: bool, tell_failure: bool) -> Option<Tidings> {
    match (all_applied, tell_failure) {
        (true, _) => Some(Tidings::Success),
        (false, true) => Some(Tidings::Failure),
        (false, false) => None,
    }
}

/// The queue is full; the caller waits or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull {
    pub(crate) limit: usize,
}

/// How a notification ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Delivery {
    /// The receiver took it, once.
    Delivered,
    /// Its deadline passed. `sent`: it may have been taken; it will not be taken later than the next one.
    Expired { sent: bool },
    /// The receiver's life is over. `sent`: it may have been taken in that life.
    ReceiverGone { sent: bool },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OutboxAction {
    /// Send the notification with this number, again or for the first time.
    Send { number: u64 },
    /// It is over.
    Finish { number: u64, outcome: Delivery },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Parcel<T> {
    number: u64,
    note: T,
    deadline: Instant,
    sent: bool,
}

/// How often things are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutboxSettings {
    /// Notifications that wait. Default 4,096.
    pub(crate) limit: usize,
    /// An answer that does not come within this is asked for again. Default 1 s.
    pub(crate) answer: Duration,
    /// A receiver whose queue is full is asked again after this. Default 20 ms.
    pub(crate) full: Duration,
}

impl Default for OutboxSettings {
    fn default() -> Self {
        Self { limit: 4_096, answer: Duration::from_secs(1), full: Duration::from_millis(20) }
    }
}

/// Notifications to one receiver life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outbox<T> {
    settings: OutboxSettings,
    last: u64,
    /// In the order of their numbers; only the first is ever sent.
    queue: VecDeque<Parcel<T>>,
    connected: bool,
    /// When the first is sent again.
    again: Option<Instant>,
    gone: bool,
}

type Actions = Vec<OutboxAction>;

impl<T> Outbox<T> {
    /// An empty queue, without a connection yet.
    #[cfg(test)]
    pub(crate) fn new(settings: OutboxSettings) -> Self {
        Self::continuing(settings, 0)
    }

    /// As `new`, with numbers above `last`: the highest that this receiver may have seen.
    pub(crate) fn continuing(settings: OutboxSettings, last: u64) -> Self {
        Self { settings, last, queue: VecDeque::new(), connected: false, again: None, gone: false }
    }

    /// The highest number that was used.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Takes a notification in. Returns its number and what follows.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        note: T,
        deadline: Instant,
    ) -> Result<(u64, Actions), QueueFull> {
        if self.queue.len() >= self.settings.limit {
            return Err(QueueFull { limit: self.settings.limit });
        }
        self.last += 1;
        self.queue.push_back(Parcel { number: self.last, note, deadline, sent: false });
        let mut actions = Vec::new();
        if self.gone {
            self.fail_all(&mut actions);
        } else if self.queue.len() == 1 {
            self.send_first(now, &mut actions);
        }
        Ok((self.last, actions))
    }

    /// The notification with this number, while it waits.
    pub(crate) fn note(&self, number: u64) -> Option<&T> {
        self.queue.iter().find(|parcel| parcel.number == number).map(|parcel| &parcel.note)
    }

    /// A connection to the receiver's life is there: what is not acknowledged is sent again.
    pub(crate) fn connected(&mut self, now: Instant) -> Actions {
        let mut actions = Vec::new();
        self.connected = true;
        self.send_first(now, &mut actions);
        actions
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.again = None;
    }

    /// The receiver's life is over: nothing is sent any more.
    pub(crate) fn receiver_gone(&mut self) -> Actions {
        let mut actions = Vec::new();
        self.gone = true;
        self.fail_all(&mut actions);
        actions
    }

    /// The receiver answered: `taken`, now or before; or its queue is full.
    pub(crate) fn answered(&mut self, now: Instant, number: u64, taken: bool) -> Actions {
        let mut actions = Vec::new();
        if self.queue.front().is_none_or(|first| first.number != number || !first.sent) {
            // Of one that is over.
            return actions;
        }
        if taken {
            self.queue.pop_front();
            actions.push(OutboxAction::Finish { number, outcome: Delivery::Delivered });
            self.send_first(now, &mut actions);
        } else if self.connected {
            self.again = Some(after(now, self.settings.full));
        }
        actions
    }

    /// When [`Outbox::tick`] is due.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let expires = self.queue.iter().map(|parcel| parcel.deadline).min();
        expires.into_iter().chain(self.again).min()
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Actions {
        let mut actions = Vec::new();
        let first = self.queue.front().map(|parcel| parcel.number);
        self.queue.retain(|parcel| {
            let late = now >= parcel.deadline;
            if late {
                let outcome = Delivery::Expired { sent: parcel.sent };
                actions.push(OutboxAction::Finish { number: parcel.number, outcome });
            }
            !late
        });
        let moved_up = self.queue.front().map(|parcel| parcel.number) != first;
        if moved_up || self.again.is_some_and(|at| now >= at) {
            self.send_first(now, &mut actions);
        }
        actions
    }

    fn send_first(&mut self, now: Instant, actions: &mut Actions) {
        self.again = None;
        if let Some(first) = self.queue.front_mut().filter(|_| self.connected) {
            first.sent = true;
            self.again = Some(after(now, self.settings.answer));
            actions.push(OutboxAction::Send { number: first.number });
        }
    }

    fn fail_all(&mut self, actions: &mut Actions) {
        self.again = None;
        let over = self.queue.drain(..).map(|parcel| OutboxAction::Finish {
            number: parcel.number,
            outcome: Delivery::ReceiverGone { sent: parcel.sent },
        });
        actions.extend(over);
    }
}

#[cfg(test)]
mod tests;
