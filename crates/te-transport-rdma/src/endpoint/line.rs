//! The place of the endpoints toward one NIC of a peer.

use std::time::Instant;

use te_segment::Generation;

use super::{
    Action, Closed, Endpoint, Exchange, NotReady, PeerSet, ReadyAck, Refusal, Timeouts, Turn, Verdict,
};

/// Endpoints of one line that may be under destruction at a time; while there are as many, no fresh one is made.
const MAX_RETIRING: usize = 8;

/// Requests of the peer that may wait while queue pairs are being joined.
const MAX_DEFERRED: usize = 64;

/// What happened. Those that name a generation are dropped when that endpoint is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event<P> {
    /// An endpoint is wanted.
    Want,
    /// The peer opens. What is meant for another life of this side has been refused before.
    PeerOpens(Exchange, P, ReadyAck),
    /// The peer sends the ready-ack for an endpoint of it. What is meant for another life of this side has been refused
    /// before. The generation is that of the endpoint here that it confirms, where the peer says so.
    PeerConfirms(Exchange, P, Option<Generation>),
    /// Our open was answered: with the peer's side, or not in time or with a refusal.
    Opened(Generation, Result<(P, ReadyAck), Closed>),
    /// Our ready-ack was answered, likewise.
    Confirmed(Generation, Result<(), Closed>),
    /// The queue pairs are joined (true), or could not be created or joined.
    Link(Generation, bool),
    /// This many posted work requests have completed, in whatever way.
    Completed(Generation, u32),
    /// Work on the endpoint failed, or the device reported that it is broken.
    Broken(Generation),
    /// The queue pairs are destroyed (true), or could not be and still exist.
    Destroyed(Generation, bool),
    /// The endpoint in service, if there is one, is to go.
    Close(Closed),
    /// Time has passed.
    Tick,
}

/// Something to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step<P> {
    /// For which endpoint; none where a request is refused without one.
    pub endpoint: Option<Generation>,
    /// What.
    pub action: Action<P>,
}

/// At most one endpoint in service toward one NIC of a peer, and those that are being destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line<P> {
    next: Generation,
    current: Option<Endpoint<P>>,
    retiring: Vec<Endpoint<P>>,
    /// The latest queue pairs that the peer has opened with.
    latest: Option<P>,
    deferred: Vec<Event<P>>,
    shut: bool,
    turn: Turn,
    /// Until when the other side is left to open, and whether an endpoint was wanted meanwhile.
    gives_way: Option<Instant>,
    wanted: bool,
    timeouts: Timeouts,
}

impl<P: PeerSet> Line<P> {
    /// A line without endpoints whose first one will be `first`. Lines that follow each other toward one NIC of a peer
    /// go on counting, so that the peer can tell their endpoints apart.
    #[must_use]
    pub fn new(first: Generation, turn: Turn, timeouts: Timeouts) -> Self {
        Self {
            next: first,
            current: None,
            retiring: Vec::new(),
            latest: None,
            deferred: Vec::new(),
            shut: false,
            turn,
            gives_way: None,
            wanted: false,
            timeouts,
        }
    }

    /// The endpoint in service.
    #[must_use]
    pub fn current(&self) -> Option<&Endpoint<P>> {
        self.current.as_ref()
    }

    /// Endpoints whose queue pairs exist.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.retiring.len() + usize::from(self.current.is_some())
    }

    /// The number that the next endpoint will have.
    #[must_use]
    pub fn next_generation(&self) -> Generation {
        self.next
    }

    /// Posted work requests of all of them that have not completed.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.retiring.iter().chain(&self.current).map(|endpoint| u64::from(endpoint.outstanding())).sum()
    }

    /// Whether an endpoint is wanted, and the other side is left to open it for a while.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.wanted
    }

    /// When [`Event::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let opens = self.gives_way.filter(|_| self.wanted);
        self.retiring.iter().chain(&self.current).filter_map(Endpoint::wake_at).chain(opens).min()
    }

    /// Notes work that is about to be posted on the endpoint in service; returns which one that is.
    ///
    /// # Errors
    ///
    /// If there is none that is ready.
    pub fn post(&mut self, count: u32) -> Result<Generation, NotReady> {
        let next = self.next;
        let endpoint = self.current.as_mut().ok_or(NotReady { generation: next })?;
        endpoint.post(count)?;
        Ok(endpoint.generation())
    }

    /// Takes in what happened and says what is to be done. An event that makes no sense now changes nothing.
    pub fn handle(&mut self, now: Instant, event: Event<P>) -> Vec<Step<P>> {
        let mut steps = Vec::new();
        self.take(now, event, &mut steps);
        while !self.is_linking() && !self.deferred.is_empty() {
            let event = self.deferred.remove(0);
            self.take(now, event, &mut steps);
        }
        steps
    }

    fn is_linking(&self) -> bool {
        self.current.as_ref().is_some_and(Endpoint::is_linking)
    }

    fn take(&mut self, now: Instant, event: Event<P>, steps: &mut Vec<Step<P>>) {
        if self.must_wait(&event) {
            self.defer(event, steps);
            return;
        }
        match event {
            Event::Want => self.want(now, steps),
            Event::PeerOpens(exchange, peer, ack) => self.peer_opens(now, exchange, peer, ack, steps),
            Event::PeerConfirms(exchange, peer, meant) => match &mut self.current {
                Some(endpoint) => {
                    let actions = endpoint.peer_confirms(exchange, &peer, meant);
                    let generation = endpoint.generation();
                    push(steps, generation, actions);
                }
                None => steps.push(refuse(exchange, Refusal::Stale)),
            },
            Event::Opened(generation, answer) => {
                self.with(generation, steps, |endpoint| match answer {
                    Ok(peer) => endpoint.opened(now, Some(peer), Closed::NoAnswer),
                    Err(why) => endpoint.opened(now, None, why),
                });
                let replaced = |step: &Step<P>| step.action == Action::Closed(Closed::Replaced);
                if self.turn == Turn::GivesWay && steps.iter().any(replaced) {
                    self.gives_way = Some(crate::after(now, self.timeouts.give_way));
                }
                let joined = self.current.as_ref().and_then(Endpoint::peer);
                let later =
                    joined.filter(|peer| self.latest.as_ref().is_none_or(|known| !known.is_later_than(peer)));
                if let Some(later) = later.cloned() {
                    self.latest = Some(later);
                }
            }
            Event::Confirmed(generation, answer) => {
                self.with(generation, steps, |endpoint| endpoint.confirmed(now, answer));
            }
            Event::Link(generation, ok) => {
                self.with(generation, steps, |endpoint| endpoint.linked(now, ok));
            }
            Event::Completed(generation, count) => {
                self.with(generation, steps, |endpoint| endpoint.completed(count));
            }
            Event::Broken(generation) => {
                self.with(generation, steps, |endpoint| endpoint.close(now, Closed::Broken));
            }
            Event::Destroyed(generation, ok) => {
                self.with(generation, steps, |endpoint| endpoint.destroyed(now, ok));
            }
            Event::Close(why) => {
                self.shut |= why == Closed::Shutdown;
                self.retire(now, why, steps);
            }
            Event::Tick => {
                let due: Vec<_> =
                    self.retiring.iter().chain(&self.current).map(Endpoint::generation).collect();
                for generation in due {
                    self.with(generation, steps, |endpoint| endpoint.tick(now));
                }
                if self.wanted {
                    self.want(now, steps);
                }
            }
        }
    }

    /// While queue pairs are being joined, everything else about that endpoint waits.
    fn must_wait(&self, event: &Event<P>) -> bool {
        let Some(current) = self.current.as_ref().filter(|endpoint| endpoint.is_linking()) else {
            return false;
        };
        match event {
            Event::Link(..) | Event::Want | Event::Tick => false,
            Event::PeerOpens(..) | Event::PeerConfirms(..) | Event::Close(_) => true,
            Event::Opened(generation, _)
            | Event::Confirmed(generation, _)
            | Event::Completed(generation, _)
            | Event::Broken(generation)
            | Event::Destroyed(generation, _) => *generation == current.generation(),
        }
    }

    fn defer(&mut self, event: Event<P>, steps: &mut Vec<Step<P>>) {
        match event {
            Event::PeerOpens(exchange, ..) | Event::PeerConfirms(exchange, ..)
                if self.deferred.len() >= MAX_DEFERRED =>
            {
                steps.push(refuse(exchange, Refusal::Busy));
            }
            event if self.deferred.contains(&event) => {}
            event => self.deferred.push(event),
        }
    }

    fn want(&mut self, now: Instant, steps: &mut Vec<Step<P>>) {
        self.wanted = self.current.is_none();
        if !self.wanted || self.gives_way.is_some_and(|until| now < until) {
            return;
        }
        (self.wanted, self.gives_way) = (false, None);
        if let Ok(endpoint) = self.create(steps) {
            let (generation, actions) = (endpoint.generation(), endpoint.open());
            push(steps, generation, actions);
        }
    }

    fn peer_opens(
        &mut self,
        now: Instant,
        exchange: Exchange,
        peer: P,
        ack: ReadyAck,
        steps: &mut Vec<Step<P>>,
    ) {
        let known = self.current.as_ref().and_then(Endpoint::peer);
        let is_known = known == Some(&peer);
        // Queue pairs that were joined to ours of before cannot be joined to others: a ready-ack of a reference engine
        // does not say for which it is.
        let is_used = !is_known && self.latest.as_ref() == Some(&peer);
        if is_used || self.latest.as_ref().is_some_and(|latest| latest.is_later_than(&peer)) {
            steps.push(refuse(exchange, Refusal::Stale));
            return;
        }
        let other = known.is_some() && !is_known;
        self.latest = Some(peer.clone());
        if other {
            self.retire(now, Closed::Replaced, steps);
        }
        let endpoint = match &mut self.current {
            Some(endpoint) => endpoint,
            None => match self.create(steps) {
                Ok(endpoint) => endpoint,
                Err(refusal) => {
                    steps.push(refuse(exchange, refusal));
                    return;
                }
            },
        };
        let (generation, actions) = (endpoint.generation(), endpoint.asked(exchange, peer, ack));
        push(steps, generation, actions);
    }

    /// A fresh endpoint in service, where there is none.
    fn create(&mut self, steps: &mut Vec<Step<P>>) -> Result<&mut Endpoint<P>, Refusal> {
        if self.shut {
            return Err(Refusal::Shutdown);
        }
        let after = self.next.next().filter(|_| self.retiring.len() < MAX_RETIRING).ok_or(Refusal::Busy)?;
        let generation = std::mem::replace(&mut self.next, after);
        push(steps, generation, vec![Action::Create]);
        Ok(self.current.insert(Endpoint::new(generation, self.timeouts)))
    }

    fn retire(&mut self, now: Instant, why: Closed, steps: &mut Vec<Step<P>>) {
        let Some(generation) = self.current.as_ref().map(Endpoint::generation) else { return };
        self.with(generation, steps, |endpoint| endpoint.close(now, why));
    }

    /// Tells one endpoint something, and sorts it where it then belongs.
    fn with(
        &mut self,
        generation: Generation,
        steps: &mut Vec<Step<P>>,
        tell: impl FnOnce(&mut Endpoint<P>) -> Vec<Action<P>>,
    ) {
        let mut all = self.retiring.iter_mut().chain(&mut self.current);
        let Some(endpoint) = all.find(|endpoint| endpoint.generation() == generation) else { return };
        push(steps, generation, tell(endpoint));
        if let Some(closed) = self.current.take_if(|endpoint| !endpoint.is_in_service()) {
            self.retiring.push(closed);
        }
        self.retiring.retain(|endpoint| !endpoint.is_gone());
    }
}

fn push<P>(steps: &mut Vec<Step<P>>, generation: Generation, actions: Vec<Action<P>>) {
    steps.extend(actions.into_iter().map(|action| Step { endpoint: Some(generation), action }));
}

fn refuse<P>(exchange: Exchange, refusal: Refusal) -> Step<P> {
    Step { endpoint: None, action: Action::Answer(exchange, Verdict::Refuse(refusal)) }
}
