//! One endpoint, from its queue pairs' creation to their destruction.

use std::time::Instant;

use te_segment::Generation;
use thiserror::Error;

use super::{Action, Closed, Exchange, PeerSet, ReadyAck, Refusal, Timeouts, Verdict};

/// Work was to be posted where none may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("endpoint {generation} is not ready: no work may be posted")]
pub struct NotReady {
    /// Which endpoint.
    pub generation: Generation,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State<P> {
    Fresh,
    Opening,
    Linking { peer: P, ack: ReadyAck, asked: Option<Exchange> },
    Waiting { peer: P, until: Instant },
    Confirming { peer: P, left: u8 },
    Ready { peer: P },
    Draining { until: Instant },
    Destroying { again: Option<Instant> },
    Gone,
}

/// One set of queue pairs toward one NIC of a peer. It belongs to a [`Line`](super::Line), which tells it what happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint<P> {
    generation: Generation,
    state: State<P>,
    outstanding: u32,
    timeouts: Timeouts,
}

impl<P: PeerSet> Endpoint<P> {
    pub(super) fn new(generation: Generation, timeouts: Timeouts) -> Self {
        Self { generation, state: State::Fresh, outstanding: 0, timeouts }
    }

    /// Which endpoint of the line it is; later ones have larger numbers.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether work may be posted: the peer's queue pairs are known to be joined to these.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Posted work requests that have not completed.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The peer's queue pairs it is joined to, or is being joined to.
    #[must_use]
    pub fn peer(&self) -> Option<&P> {
        match &self.state {
            State::Linking { peer, .. }
            | State::Waiting { peer, .. }
            | State::Confirming { peer, .. }
            | State::Ready { peer } => Some(peer),
            _ => None,
        }
    }

    /// Notes work that is about to be posted. Each of it is reported by exactly one completion, or is forfeited.
    ///
    /// # Errors
    ///
    /// If the endpoint is not ready. Nothing is noted then.
    pub fn post(&mut self, count: u32) -> Result<(), NotReady> {
        let sum = self.outstanding.checked_add(count).filter(|_| self.is_ready());
        self.outstanding = sum.ok_or(NotReady { generation: self.generation })?;
        Ok(())
    }

    pub(super) fn is_linking(&self) -> bool {
        matches!(self.state, State::Linking { .. })
    }

    pub(super) fn is_in_service(&self) -> bool {
        !matches!(self.state, State::Draining { .. } | State::Destroying { .. } | State::Gone)
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until, .. } | State::Draining { until } => Some(until),
            State::Destroying { again } => again,
            _ => None,
        }
    }

    pub(super) fn open(&mut self) -> Vec<Action<P>> {
        match self.state {
            State::Fresh => {
                self.state = State::Opening;
                vec![Action::Open]
            }
            _ => vec![],
        }
    }

    /// The peer opens. Whoever calls has made sure that a peer we are joined to is this one.
    pub(super) fn asked(&mut self, exchange: Exchange, peer: P, ack: ReadyAck) -> Vec<Action<P>> {
        match &self.state {
            State::Fresh | State::Opening => {
                self.state = State::Linking { peer: peer.clone(), ack, asked: Some(exchange) };
                vec![Action::Link(peer)]
            }
            State::Waiting { peer: known, .. }
            | State::Confirming { peer: known, .. }
            | State::Ready { peer: known }
                if *known == peer =>
            {
                vec![Action::Answer(exchange, Verdict::Accept)]
            }
            _ => vec![Action::Answer(exchange, Verdict::Refuse(Refusal::Stale))],
        }
    }

    /// The peer confirms that its queue pairs are joined to ours.
    pub(super) fn peer_confirms(
        &mut self,
        exchange: Exchange,
        peer: &P,
        meant: Option<Generation>,
    ) -> Vec<Action<P>> {
        if meant.is_some_and(|meant| meant != self.generation) {
            return vec![Action::Answer(exchange, Verdict::Refuse(Refusal::Stale))];
        }
        let confirmed = Action::Answer(exchange, Verdict::Confirmed);
        match &self.state {
            State::Waiting { peer: known, .. } | State::Confirming { peer: known, .. } if known == peer => {
                self.state = State::Ready { peer: peer.clone() };
                vec![confirmed, Action::Ready]
            }
            State::Ready { peer: known } if known == peer => vec![confirmed],
            _ => vec![Action::Answer(exchange, Verdict::Refuse(Refusal::Stale))],
        }
    }

    /// Our open was answered; `None` if it was not, or was refused, as `otherwise` says.
    pub(super) fn opened(
        &mut self,
        now: Instant,
        answer: Option<(P, ReadyAck)>,
        otherwise: Closed,
    ) -> Vec<Action<P>> {
        match (&self.state, answer) {
            (State::Opening, Some((peer, ack))) => {
                self.state = State::Linking { peer: peer.clone(), ack, asked: None };
                vec![Action::Link(peer)]
            }
            (State::Opening, None) => self.close(now, otherwise),
            // Both have opened: the peer's open came first, and the answer to ours says the same again.
            (State::Waiting { peer, .. }, Some((same, ReadyAck::Expected))) if *peer == same => {
                self.confirm(same)
            }
            (
                State::Waiting { peer, .. } | State::Confirming { peer, .. } | State::Ready { peer },
                Some((other, _)),
            ) if *peer != other && !peer.is_later_than(&other) => self.close(now, Closed::Replaced),
            _ => vec![],
        }
    }

    /// Our ready-ack was answered.
    pub(super) fn confirmed(&mut self, now: Instant, answer: Result<(), Closed>) -> Vec<Action<P>> {
        let State::Confirming { peer, left } = &self.state else { return vec![] };
        let (peer, left) = (peer.clone(), *left);
        match answer {
            Ok(()) => {
                self.state = State::Ready { peer };
                vec![Action::Ready]
            }
            Err(Closed::NoAnswer) if left > 0 => {
                self.state = State::Confirming { peer, left: left - 1 };
                vec![Action::Confirm]
            }
            Err(why) => self.close(now, why),
        }
    }

    /// The queue pairs are joined to the peer's, or cannot be.
    pub(super) fn linked(&mut self, now: Instant, ok: bool) -> Vec<Action<P>> {
        let State::Linking { peer, ack, asked } = &self.state else {
            // They could not even be created.
            return if ok || !self.is_in_service() { vec![] } else { self.close(now, Closed::LinkFailed) };
        };
        let (peer, ack, asked) = (peer.clone(), *ack, *asked);
        if !ok {
            let refusal = |exchange| Action::Answer(exchange, Verdict::Refuse(Refusal::LinkFailed));
            let mut actions: Vec<_> = asked.map(refusal).into_iter().collect();
            actions.extend(self.close(now, Closed::LinkFailed));
            return actions;
        }
        let mut actions: Vec<_> =
            asked.map(|exchange| Action::Answer(exchange, Verdict::Accept)).into_iter().collect();
        match (ack, asked) {
            (ReadyAck::Unknown, _) => {
                self.state = State::Ready { peer };
                actions.push(Action::Ready);
            }
            (ReadyAck::Expected, Some(_)) => {
                self.state = State::Waiting { peer, until: crate::after(now, self.timeouts.ready_ack) };
            }
            (ReadyAck::Expected, None) => actions.extend(self.confirm(peer)),
        }
        actions
    }

    fn confirm(&mut self, peer: P) -> Vec<Action<P>> {
        self.state = State::Confirming { peer, left: self.timeouts.confirms.saturating_sub(1) };
        vec![Action::Confirm]
    }

    /// Posted work has completed, in whatever way.
    pub(super) fn completed(&mut self, count: u32) -> Vec<Action<P>> {
        self.outstanding = self.outstanding.saturating_sub(count);
        if self.outstanding == 0 && matches!(self.state, State::Draining { .. }) {
            return self.destroy();
        }
        vec![]
    }

    /// Takes it out of service, for good.
    pub(super) fn close(&mut self, now: Instant, why: Closed) -> Vec<Action<P>> {
        if !self.is_in_service() {
            return vec![];
        }
        let mut actions = vec![Action::Closed(why)];
        if self.outstanding > 0 {
            self.state = State::Draining { until: crate::after(now, self.timeouts.drain) };
            actions.push(Action::Flush);
        } else {
            actions.extend(self.destroy());
        }
        actions
    }

    fn destroy(&mut self) -> Vec<Action<P>> {
        self.state = State::Destroying { again: None };
        vec![Action::Destroy]
    }

    /// The queue pairs are destroyed, or could not be.
    pub(super) fn destroyed(&mut self, now: Instant, ok: bool) -> Vec<Action<P>> {
        if !matches!(self.state, State::Destroying { .. }) {
            return vec![];
        }
        if !ok {
            self.state = State::Destroying { again: Some(crate::after(now, self.timeouts.destroy)) };
            return vec![];
        }
        self.state = State::Gone;
        match std::mem::take(&mut self.outstanding) {
            0 => vec![],
            left => vec![Action::Forfeit(left)],
        }
    }

    pub(super) fn tick(&mut self, now: Instant) -> Vec<Action<P>> {
        if self.wake_at().is_none_or(|at| now < at) {
            return vec![];
        }
        match self.state {
            State::Waiting { .. } => self.close(now, Closed::NotConfirmed),
            _ => self.destroy(),
        }
    }
}
