//! One native connection as a state machine, without any I/O and without a clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use super::{
    close::{CloseReason, Violation},
    codec::ControlReject,
    frame::{ControlFrame, PeerId, RefuseReason, RequestId},
    limits::NativeLimits,
    request::{Answer, Request, Shape, Sorted, sort},
};

mod output;

pub use output::{Expectation, NotSent, Output};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Opened by the peer, which owes its hello.
    AwaitHello {
        until: Instant,
    },
    /// The application decides on the peer.
    Deciding {
        peer: PeerId,
        version: u16,
        until: Instant,
    },
    /// Opened by us; the peer owes its welcome.
    AwaitWelcome {
        expects: Expectation,
        until: Instant,
    },
    Open {
        peer: PeerId,
        version: u16,
    },
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    shape: Shape,
    deadline: Instant,
}

/// One connection, in either role: handshake, keep-alive, requests with deadlines.
///
/// Feed it what happens ([`receive`](Self::receive), [`tick`](Self::tick), …) and do what [`poll`](Self::poll) gives,
/// in that order. Guarantees, for any sequence of inputs:
///
/// * Every request that was sent ends at most once: answered, expired, or cut by [`Output::Closed`].
/// * Every request of the peer is asked of the application once and answered at most once. Requests whose id does not
///   count up are duplicates and dropped.
/// * [`Output::Closed`] comes once and nothing comes after it.
/// * What it holds is bounded by [`NativeLimits::max_pending`] in each direction, as long as the caller does not feed
///   it when [`wants_input`](Self::wants_input) says no.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ControlMachine {
    local: PeerId,
    limits: NativeLimits,
    state: State,
    next_id: u64,
    pending: BTreeMap<RequestId, Pending>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    serving: BTreeMap<RequestId, Shape>,
    /// The highest id the peer has used.
    peer_id: u64,
    heard: Instant,
    probed: Option<Instant>,
    outputs: VecDeque<Output>,
}

impl ControlMachine {
    /// The side that opened the connection.
    pub fn open(local: PeerId, expects: Expectation, limits: NativeLimits, now: Instant) -> Self {
        let hello = ControlFrame::Hello {
            version: limits.versions.newest,
            from: local.incarnation,
            name: local.name.clone(),
            expects: expects.incarnation,
            expects_name: expects.name.clone(),
        };
        let until = later(now, limits.handshake);
        let mut machine = Self::new(local, limits, State::AwaitWelcome { expects, until }, now);
        machine.outputs.push_back(Output::Send(hello));
        machine
    }

    /// The side that took the connection.
    pub fn accept(local: PeerId, limits: NativeLimits, now: Instant) -> Self {
        let until = later(now, limits.handshake);
        Self::new(local, limits, State::AwaitHello { until }, now)
    }

    fn new(local: PeerId, limits: NativeLimits, state: State, now: Instant) -> Self {
        Self {
            local,
            limits,
            state,
            next_id: 1,
            pending: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            serving: BTreeMap::new(),
            peer_id: 0,
            heard: now,
            probed: None,
            outputs: VecDeque::new(),
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The peer and the version that is spoken, once the handshake is over.
    pub fn peer(&self) -> Option<(&PeerId, u16)> {
        match &self.state {
            State::Open { peer, version } => Some((peer, *version)),
            _ => None,
        }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Requests of ours without an answer.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Requests of the peer without an answer.
    pub fn serving(&self) -> usize {
        self.serving.len()
    }

    /// Whether to read on: not while the application decides, and not while it has too much to answer.
    pub fn wants_input(&self) -> bool {
        match self.state {
            State::Deciding { .. } | State::Closed => false,
            _ => self.serving.len() < self.limits.max_pending,
        }
    }

    /// A frame came.
    pub fn receive(&mut self, now: Instant, frame: ControlFrame) {
        if self.is_closed() {
            return;
        }
        self.heard = now;
        self.probed = None;
        match (sort(frame), &self.state) {
            (Sorted::Goodbye(reason), _) => self.finish(CloseReason::Goodbye { reason }),
            (Sorted::Request(id, request), State::Open { .. }) => self.asked(id, request),
            (Sorted::Answer(id, answer), State::Open { .. }) => self.answered(id, answer),
            (Sorted::Handshake(frame), _) => self.handshake(frame),
            (Sorted::Request(..) | Sorted::Answer(..), _) => self.violated(Violation::OutOfPlace),
        }
    }

    /// Bytes came that are no frame.
    pub fn reject(&mut self, reject: ControlReject) {
        self.violated(Violation::Reject(reject));
    }

    fn handshake(&mut self, frame: ControlFrame) {
        match (&self.state, frame) {
            (
                State::AwaitHello { until },
                ControlFrame::Hello { version, from, name, expects, expects_name },
            ) => {
                let until = *until;
                let expects = Expectation { incarnation: expects, name: expects_name };
                let versions = self.limits.versions;
                let agreed = versions
                    .agree(version)
                    .ok_or(RefuseReason::Version { oldest: versions.oldest, newest: versions.newest });
                match (expects.mismatch(&self.local), agreed) {
                    (Some(reason), _) | (None, Err(reason)) => self.refuse(reason),
                    (None, Ok(version)) => {
                        let peer = PeerId { incarnation: from, name };
                        self.outputs.push_back(Output::Knock(peer.clone()));
                        self.state = State::Deciding { peer, version, until };
                    }
                }
            }
            (State::AwaitWelcome { expects, .. }, ControlFrame::Welcome { version, incarnation, name }) => {
                let peer = PeerId { incarnation, name };
                if !self.limits.versions.contains(version) {
                    return self.violated(Violation::Version { version });
                }
                // A peer should have refused then.
                if let Some(reason) = expects.mismatch(&peer) {
                    self.send(ControlFrame::goodbye("not the peer that was meant"));
                    return self.finish(CloseReason::Refused(reason));
                }
                self.opened(peer, version);
            }
            (State::AwaitWelcome { .. }, ControlFrame::Refuse { reason }) => {
                self.finish(CloseReason::Refused(reason));
            }
            _ => self.violated(Violation::OutOfPlace),
        }
    }

    /// The application's answer to [`Output::Knock`]; without one this does nothing.
    pub fn decide(&mut self, now: Instant, verdict: Result<(), RefuseReason>) {
        let State::Deciding { peer, version, .. } = &self.state else { return };
        let (peer, version) = (peer.clone(), *version);
        // The peer had no reason to say anything meanwhile.
        self.heard = now;
        match verdict {
            Ok(()) => {
                let PeerId { incarnation, name } = self.local.clone();
                self.send(ControlFrame::Welcome { version, incarnation, name });
                self.opened(peer, version);
            }
            Err(reason) => self.refuse(reason),
        }
    }

    /// Sends a request. Its end comes as [`Output::Answered`] or [`Output::Expired`], or the connection ends.
    pub fn request(&mut self, request: Request, deadline: Instant) -> Result<RequestId, NotSent> {
        if self.peer().is_none() {
            return Err(NotSent::NotOpen);
        }
        let limit = self.limits.max_pending;
        if self.pending.len() >= limit {
            return Err(NotSent::TooManyPending { limit });
        }
        let shape = request.shape();
        let id = RequestId::new(self.next_id);
        let frame = request.into_frame(id);
        frame.check()?;
        self.next_id += 1;
        self.pending.insert(id, Pending { shape, deadline });
        self.deadlines.insert((deadline, id));
        self.send(frame);
        Ok(id)
    }

    /// Answers a request of the peer. An answer that does not fit closes the connection, and one to a request that is
    /// answered already does nothing.
    pub fn answer(&mut self, id: RequestId, answer: Answer) {
        let Some(asked) = self.serving.remove(&id) else { return };
        let fits = asked == answer.shape();
        let frame = answer.into_frame(id);
        if fits && frame.check().is_ok() {
            self.send(frame);
        } else {
            self.close("a request was given a wrong answer");
        }
    }

    /// Says goodbye.
    pub fn close(&mut self, reason: &str) {
        if !self.is_closed() {
            self.send(ControlFrame::goodbye(reason));
            self.finish(CloseReason::Closed { reason: reason.to_owned() });
        }
    }

    /// The connection is gone, or nothing can be sent on it any more.
    pub fn end(&mut self, reason: CloseReason) {
        if !self.is_closed() {
            self.finish(reason);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.pending.remove(&id);
            self.outputs.push_back(Output::Expired(id));
        }
        if self.alarm().is_none_or(|at| now < at) {
            return;
        }
        match (&self.state, self.probed) {
            (State::Open { .. }, None) => {
                let id = RequestId::new(self.next_id);
                self.next_id += 1;
                self.probed = Some(now);
                self.send(ControlFrame::Probe { id });
            }
            (State::Open { .. }, Some(_)) => self.finish(CloseReason::Silent),
            (State::Closed, _) => {}
            (State::Deciding { .. }, _) => self.refuse(RefuseReason::Busy),
            (State::AwaitHello { .. } | State::AwaitWelcome { .. }, _) => {
                self.send(ControlFrame::goodbye("no handshake in time"));
                self.finish(CloseReason::NoHandshake);
            }
        }
    }

    /// When to call [`tick`](Self::tick) next; [`None`] if never.
    pub fn wake_at(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        deadline.into_iter().chain(self.alarm()).min()
    }

    /// When the handshake or the peer's silence has lasted too long.
    fn alarm(&self) -> Option<Instant> {
        match (&self.state, self.probed) {
            (State::Closed, _) => None,
            (State::Open { .. }, Some(probed)) => Some(later(probed, self.limits.silent)),
            (State::Open { .. }, None) => Some(later(self.heard, self.limits.idle)),
            (
                State::AwaitHello { until }
                | State::AwaitWelcome { until, .. }
                | State::Deciding { until, .. },
                _,
            ) => Some(*until),
        }
    }

    fn asked(&mut self, id: RequestId, request: Request) {
        if id.value() <= self.peer_id {
            return;
        }
        self.peer_id = id.value();
        if request == Request::Probe {
            return self.send(ControlFrame::ProbeAck { id });
        }
        self.serving.insert(id, request.shape());
        self.outputs.push_back(Output::Asked(id, request));
    }

    fn answered(&mut self, id: RequestId, answer: Answer) {
        match self.pending.get(&id) {
            Some(pending) if pending.shape == answer.shape() => {
                self.deadlines.remove(&(pending.deadline, id));
                self.pending.remove(&id);
                self.outputs.push_back(Output::Answered(id, answer));
            }
            Some(_) => self.violated(Violation::WrongAnswer { id }),
            // It came too late, or twice, or it answers the keep-alive.
            None if (1..self.next_id).contains(&id.value()) => {}
            None => self.violated(Violation::UnknownAnswer { id }),
        }
    }

    fn opened(&mut self, peer: PeerId, version: u16) {
        self.outputs.push_back(Output::Opened(peer.clone()));
        self.state = State::Open { peer, version };
    }

    fn refuse(&mut self, reason: RefuseReason) {
        self.send(ControlFrame::Refuse { reason: reason.clone() });
        self.finish(CloseReason::RefusedPeer(reason));
    }

    fn violated(&mut self, violation: Violation) {
        if !self.is_closed() {
            self.send(ControlFrame::goodbye(&violation.to_string()));
            self.finish(CloseReason::Violation(violation));
        }
    }

    fn send(&mut self, frame: ControlFrame) {
        self.outputs.push_back(Output::Send(frame));
    }

    fn finish(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.pending.clear();
        self.deadlines.clear();
        self.serving.clear();
        self.outputs.push_back(Output::Closed(reason));
    }
}

/// `start + span`, or an hour later if that does not fit the clock.
fn later(start: Instant, span: Duration) -> Instant {
    start.checked_add(span).unwrap_or_else(|| start + Duration::from_secs(3600))
}

#[cfg(test)]
mod tests;
