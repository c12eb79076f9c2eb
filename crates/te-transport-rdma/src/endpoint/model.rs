//! Two lines against each other, through every order of events: messages that are lost, late and doubled, exchanges that
//! are given up, work that fails, endpoints that are evicted, and one side that starts again.

mod properties;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Instant;

use te_segment::Generation;
use te_testkit::{Model, Move, Wire};

use super::*;

/// The time at which everything happens but timeouts, which happen when they are due.
static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The queue pairs of an endpoint of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Set {
    side: usize,
    life: u8,
    generation: u64,
    /// Whether it says of which life and endpoint it is, as te engines do.
    told: bool,
}

impl PeerSet for Set {
    fn is_later_than(&self, other: &Self) -> bool {
        self.told && self.life == other.life && self.generation > other.generation
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Body {
    Open,
    /// For which queue pairs of the receiver, where it says so.
    Confirm(Option<Set>),
    /// The answer to an open.
    Opened(Option<(Set, ReadyAck)>),
    /// The answer to a ready-ack.
    Confirmed(bool),
}

/// A message of one exchange, which is named by the one who asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    asker: Set,
    body: Body,
}

impl Message {
    fn is_request(&self) -> bool {
        matches!(self.body, Body::Open | Body::Confirm(_))
    }

    fn receiver(&self) -> usize {
        if self.is_request() { 1 - self.asker.side } else { self.asker.side }
    }
}

/// Queue pairs as the device has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Device {
    linked: Option<Set>,
    flushed: bool,
    work: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    line: Line<Set>,
    life: u8,
    devices: BTreeMap<u64, Device>,
    /// Exchanges of ours without an outcome: endpoint, and whether it is the ready-ack.
    asking: BTreeSet<(u64, bool)>,
    /// Joining that the device has not finished.
    joining: Option<(u64, Set)>,
    /// How much work it may still post.
    left: u8,
    /// Posted work without a terminal event.
    owed: u8,
    /// Work of queue pairs that were destroyed under it.
    forsaken: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    sides: [Side; 2],
    wire: Wire<Message>,
    /// Sets that are joined, or once were: ours, the peer's.
    joined: BTreeSet<(Set, Set)>,
    restarted: bool,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Act {
    Net(Move),
    Want(usize),
    Joined(usize),
    NotJoined(usize),
    GiveUp(usize, u64, bool),
    Timeout(usize),
    Post(usize),
    Complete(usize, u64),
    Evict(usize),
    Restart(usize),
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    faults: u8,
    /// How much work each side posts at most.
    work: u8,
    /// Which sides want an endpoint of themselves.
    wants: [bool; 2],
    /// Whether requests say of which life and endpoint they are.
    told: bool,
    /// Whether the sides know the ready-ack.
    ack: bool,
    /// Whether nobody may post before the peer is ready, which cannot be had without the ready-ack.
    strict: bool,
    /// Whether joining takes time, in which other things happen.
    slow: bool,
    flaw: Flaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Work is posted as soon as the own queue pairs are joined.
    PostsEarly,
    /// Work whose queue pairs are destroyed under it gets no outcome.
    ForgetsWork,
    /// Destroying is never carried out.
    Leaks,
    /// Both sides open at once after their opens have crossed.
    NobodyGivesWay,
}

fn generation(number: u64) -> Generation {
    Generation::new(number)
}

impl Pair {
    fn set(&self, side: usize, life: u8, generation: u64) -> Set {
        Set { side, life, generation, told: self.told }
    }

    fn line(&self, side: usize) -> Line<Set> {
        let leads = side == 0 || self.flaw == Flaw::NobodyGivesWay;
        let turn = if leads { Turn::Leads } else { Turn::GivesWay };
        Line::new(generation(1), turn, Timeouts { confirms: 2, ..Timeouts::default() })
    }

    fn ack(&self) -> ReadyAck {
        if self.ack { ReadyAck::Expected } else { ReadyAck::Unknown }
    }

    fn tell(&self, state: &mut State, side: usize, now: Instant, event: Event<Set>) {
        let steps = state.sides[side].line.handle(now, event);
        for Step { endpoint, action } in steps {
            self.carry_out(state, side, endpoint.map(Generation::value), action);
        }
    }

    fn carry_out(&self, state: &mut State, side: usize, endpoint: Option<u64>, action: Action<Set>) {
        let of = endpoint.unwrap_or(0);
        let own = self.set(side, state.sides[side].life, of);
        match action {
            Action::Create => {
                state.sides[side].devices.insert(of, Device::default());
            }
            Action::Open => {
                state.sides[side].asking.insert((of, false));
                state.wire.send(Message { asker: own, body: Body::Open });
            }
            Action::Confirm => {
                state.sides[side].asking.insert((of, true));
                let peer = state.sides[side].line.current().and_then(|endpoint| endpoint.peer().copied());
                let meant = peer.filter(|_| self.told);
                state.wire.send(Message { asker: own, body: Body::Confirm(meant) });
            }
            Action::Link(peer) => {
                state.sides[side].joining = Some((of, peer));
                if !self.slow {
                    self.join(state, side);
                }
            }
            Action::Answer(exchange, verdict) => self.answer(state, side, own, exchange, &verdict),
            Action::Ready | Action::Closed(_) => {}
            Action::Flush => {
                let device = state.sides[side].devices.get_mut(&of);
                match device {
                    Some(device) => device.flushed = true,
                    None => state.broken = Some("flushed what does not exist"),
                }
            }
            Action::Destroy => {
                if self.flaw == Flaw::Leaks {
                    return;
                }
                match state.sides[side].devices.remove(&of) {
                    Some(device) => state.sides[side].forsaken += device.work,
                    None => state.broken = Some("destroyed twice"),
                }
                self.tell(state, side, *NOW, Event::Destroyed(generation(of), true));
            }
            Action::Forfeit(count) => {
                let count = u8::try_from(count).unwrap();
                let us = &mut state.sides[side];
                if us.forsaken != count {
                    state.broken = Some("forfeited other work than was forsaken");
                } else if self.flaw != Flaw::ForgetsWork {
                    (us.forsaken, us.owed) = (0, us.owed - count);
                }
            }
        }
    }

    fn join(&self, state: &mut State, side: usize) {
        let Some((of, peer)) = state.sides[side].joining.take() else { return };
        let own = self.set(side, state.sides[side].life, of);
        if let Some(device) = state.sides[side].devices.get_mut(&of) {
            device.linked = Some(peer);
            state.joined.insert((own, peer));
        }
        self.tell(state, side, *NOW, Event::Link(generation(of), true));
    }

    /// The device cannot join them.
    fn fail_to_join(&self, state: &mut State, side: usize) {
        if let Some((of, _)) = state.sides[side].joining.take() {
            self.tell(state, side, *NOW, Event::Link(generation(of), false));
        }
    }

    fn answer(&self, state: &mut State, side: usize, own: Set, exchange: Exchange, verdict: &Verdict) {
        let asker = unpack(exchange, 1 - side, self.told);
        let body = match (exchange.0 & 1 == 1, verdict) {
            (false, Verdict::Accept) => Body::Opened(Some((own, self.ack()))),
            (false, _) => Body::Opened(None),
            (true, verdict) => Body::Confirmed(*verdict == Verdict::Confirmed),
        };
        // A connection to a life that has ended is gone.
        if asker.life == state.sides[asker.side].life {
            state.wire.send(Message { asker, body });
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let to = message.receiver();
        let of = message.asker.generation;
        let event = match message.body {
            Body::Open => Event::PeerOpens(pack(message.asker, false), message.asker, self.ack()),
            Body::Confirm(Some(meant)) if meant.life != state.sides[to].life => {
                let refused = Verdict::Refuse(Refusal::Stale);
                self.answer(state, to, message.asker, pack(message.asker, true), &refused);
                return;
            }
            Body::Confirm(meant) => {
                let meant = meant.map(|meant| generation(meant.generation));
                Event::PeerConfirms(pack(message.asker, true), message.asker, meant)
            }
            Body::Opened(answer) => {
                state.sides[to].asking.remove(&(of, false));
                Event::Opened(generation(of), answer.ok_or(Closed::Refused))
            }
            Body::Confirmed(ok) => {
                state.sides[to].asking.remove(&(of, true));
                Event::Confirmed(generation(of), if ok { Ok(()) } else { Err(Closed::Refused) })
            }
        };
        self.tell(state, to, *NOW, event);
    }

    /// Whether work on these queue pairs reaches the peer's.
    fn reaches(&self, state: &State, side: usize, of: u64) -> bool {
        let own = self.set(side, state.sides[side].life, of);
        let Some(peer) = state.sides[side].devices.get(&of).and_then(|device| device.linked) else {
            return false;
        };
        let there = &state.sides[peer.side];
        let device = there.devices.get(&peer.generation).filter(|_| there.life == peer.life);
        device.is_some_and(|device| device.linked == Some(own) && !device.flushed)
    }

    fn complete(&self, state: &mut State, side: usize, of: u64) {
        let fine = self.reaches(state, side, of);
        let Some(device) = state.sides[side].devices.get_mut(&of) else { return };
        let flushed = device.flushed;
        device.work -= 1;
        state.sides[side].owed -= 1;
        if !fine && !flushed {
            self.tell(state, side, *NOW, Event::Broken(generation(of)));
        }
        self.tell(state, side, *NOW, Event::Completed(generation(of), 1));
    }

    fn restart(&self, state: &mut State, side: usize) {
        let old = &mut state.sides[side];
        // What was posted ends with the process.
        old.owed = 0;
        old.life += 1;
        old.line = self.line(side);
        old.devices.clear();
        old.asking.clear();
        old.joining = None;
        state.restarted = true;
        state.wire.forget(|message| !message.is_request() && message.asker.side == side);
    }
}

/// The name of an exchange as a number: life, endpoint, step.
fn pack(asker: Set, confirms: bool) -> Exchange {
    Exchange(u64::from(asker.life) << 32 | asker.generation << 1 | u64::from(confirms))
}

fn unpack(exchange: Exchange, side: usize, told: bool) -> Set {
    let life = u8::try_from(exchange.0 >> 32).unwrap();
    Set { side, life, generation: (exchange.0 & 0xffff_ffff) >> 1, told }
}
