//! Endpoints as state machines over (now, event): no I/O, no clock, no device in here.
//!
//! An [`Endpoint`] is one set of queue pairs toward one NIC of a peer, from their creation to their destruction. It never
//! comes back: what broke is flushed, drained and destroyed, and a fresh one takes its place. A [`Line`] is that place: it
//! has at most one endpoint in service and those that are being destroyed, opens, answers, and keeps out what is stale.
//!
//! Whoever runs a line holds it while an event is handled, carries out the [`Step`]s in their order, and reports each
//! outcome as an event. The model beside this file runs two lines against each other through every order of events, with
//! loss, delay, duplication and a restart.
//!
//! ```text
//!          open                 accepted              linked              answered, or the peer confirms
//! (fresh) ------> Opening ----------------> Linking ---------> Confirming ------+
//!    |                                        ^   |                             +--> Ready
//!    +------------ the peer opens ------------+   +----------> Waiting ---------+
//!                                                 linked              the peer confirms
//! any, on failure --> Draining --> Destroying --> Gone
//! ```

mod line;
mod machine;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use te_segment::{Generation, Incarnation};

pub use line::{Event, Line, Step};
pub use machine::{Endpoint, NotReady};

use crate::wire::{NicPath, Offer};

/// The queue pairs of a peer's endpoint. Equal ones are the same endpoint.
pub trait PeerSet: Clone + Eq + fmt::Debug {
    /// Whether it is known that these are of a later endpoint than `other`.
    fn is_later_than(&self, other: &Self) -> bool;
}

/// Queue pairs as a handshake names them, bound to the peer's life where the peer says which it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSet {
    queue_pairs: Vec<u32>,
    of: Option<(Incarnation, Generation)>,
}

impl RemoteSet {
    /// Queue pairs of a peer that does not say which life and endpoint they are of.
    #[must_use]
    pub fn of_numbers(queue_pairs: Vec<u32>) -> Self {
        Self { queue_pairs, of: None }
    }

    /// Which of its owner's endpoints this is, where the owner says so.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.of.map(|(_, generation)| generation)
    }
}

impl From<&Offer> for RemoteSet {
    fn from(offer: &Offer) -> Self {
        let of = offer.terms.as_ref().map(|terms| (terms.incarnation, terms.generation));
        Self { queue_pairs: offer.queue_pairs.clone(), of }
    }
}

impl PeerSet for RemoteSet {
    fn is_later_than(&self, other: &Self) -> bool {
        match (self.of, other.of) {
            (Some((life, generation)), Some((other_life, other_generation))) => {
                life == other_life && generation > other_generation
            }
            _ => false,
        }
    }
}

/// How the peer takes part in the ready-ack phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadyAck {
    /// It does not know of it: both sides may post once they are linked.
    Unknown,
    /// It will confirm, or waits to be confirmed.
    Expected,
}

/// A request of a peer that waits for its answer; whoever runs the line chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Exchange(pub u64);

/// What a request of a peer is answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Linked: the own side is stated.
    Accept,
    /// The ready-ack is in order.
    Confirmed,
    /// Refused, and nothing has changed.
    Refuse(Refusal),
}

/// Why a request of a peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// It is of an endpoint that has been replaced since, or confirms one that is not linked here.
    Stale,
    /// Too many endpoints toward this peer are still being destroyed, or too many requests wait. Trying again helps.
    Busy,
    /// The queue pairs could not be joined to the peer's.
    LinkFailed,
    /// The transport is shutting down.
    Shutdown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stale => "these queue pairs have been replaced: open with fresh ones",
            Self::Busy => "earlier endpoints of this peer are still being destroyed: try again",
            Self::LinkFailed => "the queue pairs could not be joined",
            Self::Shutdown => "the transport is shutting down",
        })
    }
}

/// Why an endpoint went out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Closed {
    /// The peer did not answer an open or a confirm.
    NoAnswer,
    /// The peer refused.
    Refused,
    /// The ready-ack did not come.
    NotConfirmed,
    /// The queue pairs could not be created, or joined to the peer's.
    LinkFailed,
    /// The peer has opened another endpoint.
    Replaced,
    /// Work failed, or the device reported an error.
    Broken,
    /// Room was needed for another endpoint.
    Evicted,
    /// Work on it was given up, and had to be flushed.
    Interrupted,
    /// This life of the peer was cut off.
    Fenced,
    /// The transport is shutting down.
    Shutdown,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "the peer did not answer",
            Self::Refused => "the peer refused",
            Self::NotConfirmed => "the peer did not confirm that it is ready",
            Self::LinkFailed => "the queue pairs could not be joined",
            Self::Replaced => "the peer has opened another endpoint",
            Self::Broken => "work on the queue pairs failed",
            Self::Interrupted => "work on it was given up",
            Self::Evicted => "room was needed for another endpoint",
            Self::Fenced => "the peer was cut off",
            Self::Shutdown => "the transport is shutting down",
        })
    }
}

/// What is to be done about one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<P> {
    /// Create its queue pairs. On failure the steps after it for the same endpoint are left out, and
    /// [`Event::Link`] with `false` is reported.
    Create,
    /// Send the open. Answered by exactly one [`Event::Opened`], at the latest when the exchange's time is over.
    Open,
    /// Send the ready-ack. Answered by exactly one [`Event::Confirmed`], likewise.
    Confirm,
    /// Join the queue pairs to the peer's, up to ready-to-send. Answered by one [`Event::Link`].
    Link(P),
    /// Answer a request of the peer.
    Answer(Exchange, Verdict),
    /// Work may be posted from now on.
    Ready,
    /// Out of service: what is not posted goes elsewhere.
    Closed(Closed),
    /// Move the queue pairs to the error state, so that posted work is flushed.
    Flush,
    /// Destroy the queue pairs. Answered by one [`Event::Destroyed`].
    Destroy,
    /// The queue pairs are gone and this many posted work requests have not completed: nothing touches their memory any
    /// more, and they fail.
    Forfeit(u32),
}

/// Times of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// How long the passive side waits for the ready-ack. Default 10 s, as the reference engine.
    pub ready_ack: Duration,
    /// How long flushed work may take to complete before the queue pairs are destroyed under it. Default 5 s.
    pub drain: Duration,
    /// Pause before queue pairs that could not be destroyed are tried again. Default 1 s.
    pub destroy: Duration,
    /// How often a ready-ack is sent at most. Default 3.
    pub confirms: u8,
    /// How long the side that gives way leaves the next open to the other, after two opens have crossed so that neither
    /// fits. Default 1 s.
    pub give_way: Duration,
}

/// Who opens first after two opens have crossed so that neither fits. Without it two engines that open at the same pace
/// could replace each other's endpoints for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// This side, at once.
    Leads,
    /// The other side; this one after [`Timeouts::give_way`].
    GivesWay,
}

impl Turn {
    /// The turn of the side at `ours`: the smaller path leads, and both sides know both paths.
    #[must_use]
    pub fn of(ours: &NicPath, theirs: &NicPath) -> Self {
        if ours <= theirs { Self::Leads } else { Self::GivesWay }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            ready_ack: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            destroy: Duration::from_secs(1),
            confirms: 3,
            give_way: Duration::from_secs(1),
        }
    }
}
