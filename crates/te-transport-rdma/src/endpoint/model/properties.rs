//! What holds of two lines whatever happens.

use te_testkit::{Explored, Finding, explore};

use super::*;

/// Far more states than any of the models has.
const STATES: usize = 200_000;

impl Model for Pair {
    type State = State;
    type Step = Act;

    fn starts(&self) -> Vec<State> {
        let side = |side| Side {
            line: self.line(side),
            life: 1,
            devices: BTreeMap::new(),
            asking: BTreeSet::new(),
            joining: None,
            left: self.work,
            owed: 0,
            forsaken: 0,
        };
        vec![State {
            sides: [side(0), side(1)],
            wire: Wire::new(5, self.faults),
            joined: BTreeSet::new(),
            restarted: false,
            broken: None,
        }]
    }

    fn steps(&self, state: &State) -> Vec<Act> {
        let mut acts: Vec<_> = state.wire.moves().into_iter().map(Act::Net).collect();
        // What goes on by itself.
        for (at, side) in state.sides.iter().enumerate() {
            acts.extend(side.joining.map(|_| Act::Joined(at)));
            if self.wants[at] && side.line.current().is_none() && !side.line.gives_way() {
                acts.push(Act::Want(at));
            }
            let busy = side.devices.iter().filter(|(_, device)| device.work > 0);
            acts.extend(busy.map(|(of, _)| Act::Complete(at, *of)));
            let lost = side.asking.iter().filter(|(of, _)| !self.is_under_way(state, at, *of));
            acts.extend(lost.map(|(of, confirms)| Act::GiveUp(at, *of, *confirms)));
        }
        let idle = acts.is_empty();
        let may_fail = state.wire.may_fail();
        for (at, side) in state.sides.iter().enumerate() {
            if side.line.wake_at().is_some() && (idle || may_fail) {
                acts.push(Act::Timeout(at));
            }
            let ready = match self.flaw {
                Flaw::PostsEarly => side.devices.values().any(|device| device.linked.is_some()),
                _ => side.line.current().is_some_and(Endpoint::is_ready),
            };
            // Where nothing arrives any more, it takes work to notice.
            let current = side.line.current().map_or(0, |endpoint| endpoint.generation().value());
            if ready && (side.left > 0 || idle && !self.reaches(state, at, current)) {
                acts.push(Act::Post(at));
            }
            if may_fail {
                let late = side.asking.iter().filter(|(of, _)| self.is_under_way(state, at, *of));
                acts.extend(late.map(|(of, confirms)| Act::GiveUp(at, *of, *confirms)));
                acts.extend(side.line.current().map(|_| Act::Evict(at)));
                acts.extend(side.joining.map(|_| Act::NotJoined(at)));
                acts.extend((!state.restarted).then_some(Act::Restart(at)));
            }
        }
        acts
    }

    fn apply(&self, state: &mut State, act: &Act) {
        match *act {
            Act::Net(step) => {
                if let Some(message) = state.wire.make(step) {
                    self.deliver(state, message);
                }
            }
            Act::Want(side) => self.tell(state, side, *NOW, Event::Want),
            Act::Joined(side) => self.join(state, side),
            Act::NotJoined(side) => {
                state.wire.spend();
                self.fail_to_join(state, side);
            }
            Act::GiveUp(side, of, confirms) => {
                if self.is_under_way(state, side, of) {
                    state.wire.spend();
                }
                state.sides[side].asking.remove(&(of, confirms));
                let of = generation(of);
                let event = match confirms {
                    true => Event::Confirmed(of, Err(Closed::NoAnswer)),
                    false => Event::Opened(of, Err(Closed::NoAnswer)),
                };
                self.tell(state, side, *NOW, event);
            }
            Act::Timeout(side) => {
                let wire = state.wire.clone();
                state.wire = Wire::new(0, 0);
                let idle = wire.flying().is_empty() && self.steps(state).iter().all(Act::waits);
                state.wire = wire;
                if !idle {
                    state.wire.spend();
                }
                let due = state.sides[side].line.wake_at().unwrap_or(*NOW);
                self.tell(state, side, due, Event::Tick);
            }
            Act::Post(side) => self.post(state, side),
            Act::Complete(side, of) => self.complete(state, side, of),
            Act::Evict(side) => {
                state.wire.spend();
                self.tell(state, side, *NOW, Event::Close(Closed::Evicted));
            }
            Act::Restart(side) => {
                state.wire.spend();
                self.restart(state, side);
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(broken) = state.broken {
            return Err(broken.into());
        }
        for side in &state.sides {
            if side.devices.len() != side.line.endpoints() {
                return Err("queue pairs leaked".into());
            }
            let under_way: u8 = side.devices.values().map(|device| device.work).sum();
            if side.owed != under_way || side.forsaken != 0 {
                return Err("work ended other than once".into());
            }
            if side.line.outstanding() != u64::from(under_way) {
                return Err("work is counted wrongly".into());
            }
        }
        Ok(())
    }

    fn at_end(&self, state: &State) -> Result<(), String> {
        for (at, side) in state.sides.iter().enumerate() {
            let Some(current) = side.line.current().filter(|endpoint| endpoint.is_ready()) else {
                return Err("ended without an endpoint that is ready".into());
            };
            if !self.reaches(state, at, current.generation().value()) {
                return Err("ended with an endpoint that reaches nothing".into());
            }
            if side.line.endpoints() != 1 {
                return Err("ended with more than one endpoint".into());
            }
            if side.owed != 0 {
                return Err("ended with work under way".into());
            }
        }
        Ok(())
    }
}

impl Act {
    /// Whether it happens only where nothing else does.
    fn waits(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Post(_))
    }
}

impl Pair {
    /// Whether the outcome of an exchange is on its way, or is being worked out.
    fn is_under_way(&self, state: &State, side: usize, of: u64) -> bool {
        let asker = self.set(side, state.sides[side].life, of);
        state.sides[1 - side].joining.is_some()
            || state.wire.flying().iter().any(|message| message.asker == asker)
    }

    /// Posts, and looks whether the peer's queue pairs are, or were before they went, joined to these.
    fn post(&self, state: &mut State, side: usize) {
        let us = &mut state.sides[side];
        let early = self.flaw == Flaw::PostsEarly;
        let of = match us.line.post(1) {
            Ok(of) => of.value(),
            Err(_) if early => us.line.current().map_or(0, |endpoint| endpoint.generation().value()),
            Err(_) => return,
        };
        let own = Set { side, life: us.life, generation: of, told: self.told };
        let Some(device) = us.devices.get_mut(&of) else { return };
        device.work += 1;
        us.owed += 1;
        us.left = us.left.saturating_sub(1);
        let peer = device.linked;
        let lives = peer.is_some_and(|peer| state.sides[peer.side].life == peer.life);
        if self.strict && lives && !peer.is_some_and(|peer| state.joined.contains(&(peer, own))) {
            state.broken = Some("posted before the peer was ready");
        }
    }
}

fn holds(pair: &Pair) -> Explored {
    match explore(pair, STATES) {
        Ok(seen) => seen,
        Err(finding) => panic!("{pair:?}: {finding}"),
    }
}

fn fails(pair: &Pair) -> String {
    match explore(pair, STATES) {
        Err(Finding::Violation { why, .. }) => why,
        other => panic!("the flaw is not found: {other:?}"),
    }
}

const PAIR: Pair = Pair {
    faults: 1,
    work: 1,
    wants: [true, true],
    told: true,
    ack: true,
    strict: true,
    slow: false,
    flaw: Flaw::None,
};

/// RDMA-05, RDMA-07, EP-05: both open at the same moment, and anything that can go wrong does, once.
#[test]
fn both_sides_open_and_one_thing_goes_wrong() {
    let seen = holds(&PAIR);
    assert!(seen.states > 1_000 && seen.ends > 1, "{seen:?}");
}

#[test]
fn one_side_opens_and_two_things_go_wrong() {
    for wants in [[true, false], [false, true]] {
        let seen = holds(&Pair { wants, faults: 2, ..PAIR });
        assert!(seen.states > 1_000, "{seen:?}");
    }
}

#[test]
fn joining_takes_time() {
    for pair in [PAIR, Pair { wants: [true, false], ..PAIR }] {
        let seen = holds(&Pair { slow: true, ..pair });
        assert!(seen.states > 100, "{seen:?}");
    }
}

/// A reference engine does not say of which endpoint a request is.
#[test]
fn requests_do_not_say_whose_they_are() {
    let seen = holds(&Pair { told: false, ..PAIR });
    assert!(seen.states > 1_000, "{seen:?}");
}

/// RDMA-06: without the ready-ack the passive side posts early; with it nobody does, which every model here checks.
#[test]
fn without_the_ready_ack_work_is_posted_early() {
    assert_eq!(fails(&Pair { ack: false, ..PAIR }), "posted before the peer was ready");
    assert_eq!(fails(&Pair { flaw: Flaw::PostsEarly, ..PAIR }), "posted before the peer was ready");
    holds(&Pair { ack: false, strict: false, wants: [true, false], ..PAIR });
}

#[test]
fn flaws_are_found() {
    let drains = Pair { faults: 2, wants: [true, false], ..PAIR };
    assert_eq!(fails(&Pair { flaw: Flaw::ForgetsWork, ..drains }), "work ended other than once");
    let leaks = Pair { flaw: Flaw::Leaks, wants: [true, false], work: 0, ..PAIR };
    assert!(fails(&leaks).starts_with("ended with"));
}

/// Each replaces the other's endpoint, for ever: there is always another state.
#[test]
fn somebody_has_to_give_way() {
    let found = explore(&Pair { flaw: Flaw::NobodyGivesWay, work: 0, ..PAIR }, 15_000);
    assert_eq!(found, Err(Finding::TooManyStates { limit: 15_000 }));
}
