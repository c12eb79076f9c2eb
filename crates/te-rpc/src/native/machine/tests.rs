//! The machine, in both roles, without sockets and without waiting.

use te_segment::{DescriptorVersion, Incarnation};

use super::*;
use crate::native::Versions;

mod model;
mod property;
mod requests;

fn peer(bits: u128, name: &str) -> PeerId {
    PeerId { incarnation: Incarnation::from_bits(bits), name: name.to_owned() }
}

fn opener_id() -> PeerId {
    peer(1, "opener")
}

fn target_id() -> PeerId {
    peer(2, "target")
}

fn expecting(bits: u128) -> Expectation {
    Expectation { incarnation: Some(Incarnation::from_bits(bits)), name: None }
}

fn speaking(oldest: u16, newest: u16) -> NativeLimits {
    NativeLimits { versions: Versions { oldest, newest }, ..NativeLimits::default() }
}

fn outputs(machine: &mut ControlMachine) -> Vec<Output> {
    std::iter::from_fn(|| machine.poll()).collect()
}

/// Both ends of a connection that loses nothing.
struct Pair {
    now: Instant,
    opener: ControlMachine,
    target: ControlMachine,
}

impl Pair {
    fn new(expects: Expectation, opener: NativeLimits, target: NativeLimits) -> Self {
        let now = Instant::now();
        let opener = ControlMachine::open(opener_id(), expects, opener, now);
        Self { now, opener, target: ControlMachine::accept(target_id(), target, now) }
    }

    fn open() -> Self {
        let mut pair = Self::new(Expectation::default(), NativeLimits::default(), NativeLimits::default());
        pair.run(Ok(()));
        assert!(pair.opener.peer().is_some() && pair.target.peer().is_some());
        pair
    }

    /// Delivers everything; gives what else each side wants.
    fn run(&mut self, verdict: Result<(), RefuseReason>) -> (Vec<Output>, Vec<Output>) {
        let mut rest = (Vec::new(), Vec::new());
        loop {
            let mut busy = false;
            for output in outputs(&mut self.opener) {
                busy = true;
                match output {
                    Output::Send(frame) => self.target.receive(self.now, frame),
                    other => rest.0.push(other),
                }
            }
            for output in outputs(&mut self.target) {
                busy = true;
                match output {
                    Output::Send(frame) => self.opener.receive(self.now, frame),
                    other => {
                        if let Output::Knock(_) = other {
                            self.target.decide(self.now, verdict.clone());
                        }
                        rest.1.push(other);
                    }
                }
            }
            if !busy {
                return rest;
            }
        }
    }

    fn ask(&mut self, request: Request) -> RequestId {
        let deadline = self.now + Duration::from_secs(3);
        self.opener.request(request, deadline).expect("an open connection")
    }
}

fn interest() -> Request {
    Request::Interest { known: DescriptorVersion::new(4) }
}

fn interest_answer() -> Answer {
    Answer::Interest { version: DescriptorVersion::new(5) }
}

/// The only frame that is sent, before the end.
fn last_frame(outputs: &[Output]) -> &ControlFrame {
    let [Output::Send(frame), Output::Closed(_)] = outputs else { panic!("{outputs:?}") };
    frame
}

fn reason(outputs: &[Output]) -> &CloseReason {
    let Some(Output::Closed(reason)) = outputs.last() else { panic!("{outputs:?}") };
    reason
}

fn assert_violation(outputs: &[Output], violation: &Violation) {
    assert!(matches!(last_frame(outputs), ControlFrame::Goodbye { .. }), "{outputs:?}");
    assert_eq!(reason(outputs), &CloseReason::Violation(violation.clone()));
}

#[test]
fn a_handshake_tells_each_side_who_the_other_is() {
    let mut pair = Pair::new(expecting(2), NativeLimits::default(), NativeLimits::default());
    let (opener, target) = pair.run(Ok(()));
    assert_eq!(opener, [Output::Opened(target_id())]);
    assert_eq!(target, [Output::Knock(opener_id()), Output::Opened(opener_id())]);
}

#[test]
fn neighbouring_versions_meet_at_the_older_one() {
    for (opener, target, agreed) in [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((1, 2), (2, 3), 2)] {
        let mut pair =
            Pair::new(Expectation::default(), speaking(opener.0, opener.1), speaking(target.0, target.1));
        pair.run(Ok(()));
        let versions = [&pair.opener, &pair.target].map(|machine| machine.peer().map(|(_, version)| version));
        assert_eq!(versions, [Some(agreed); 2], "{opener:?} {target:?}");
    }
}

#[test]
fn a_peer_that_is_too_old_is_told_the_versions() {
    let mut pair = Pair::new(Expectation::default(), speaking(1, 1), speaking(2, 3));
    let (opener, _) = pair.run(Ok(()));
    let refused = RefuseReason::Version { oldest: 2, newest: 3 };
    assert_eq!(opener, [Output::Closed(CloseReason::Refused(refused))]);
}

#[test]
fn a_welcome_in_a_version_that_is_too_old_is_a_violation() {
    let mut pair = Pair::new(Expectation::default(), speaking(2, 3), speaking(1, 1));
    let (opener, _) = pair.run(Ok(()));
    assert_eq!(reason(&opener), &CloseReason::Violation(Violation::Version { version: 1 }));
}

#[test]
fn an_earlier_life_is_refused_with_the_present_one_and_without_asking() {
    let mut pair = Pair::new(expecting(77), NativeLimits::default(), NativeLimits::default());
    let (opener, target) = pair.run(Ok(()));
    let stale = RefuseReason::StaleIncarnation { now: target_id().incarnation };
    assert_eq!(opener, [Output::Closed(CloseReason::Refused(stale.clone()))]);
    assert_eq!(target, [Output::Closed(CloseReason::RefusedPeer(stale))]);
}

#[test]
fn another_name_is_refused() {
    let expects = Expectation { name: Some("somebody else".to_owned()), ..Expectation::default() };
    let mut pair = Pair::new(expects, NativeLimits::default(), NativeLimits::default());
    let (opener, _) = pair.run(Ok(()));
    assert_eq!(opener, [Output::Closed(CloseReason::Refused(RefuseReason::NameMismatch))]);
}

#[test]
fn a_welcome_from_another_life_is_not_believed() {
    let now = Instant::now();
    let mut opener = ControlMachine::open(opener_id(), expecting(77), NativeLimits::default(), now);
    outputs(&mut opener);
    let PeerId { incarnation, name } = target_id();
    opener.receive(now, ControlFrame::Welcome { version: 1, incarnation, name });
    let stale = RefuseReason::StaleIncarnation { now: incarnation };
    assert_eq!(reason(&outputs(&mut opener)), &CloseReason::Refused(stale));
}

#[test]
fn the_application_may_refuse() {
    let mut pair = Pair::new(Expectation::default(), NativeLimits::default(), NativeLimits::default());
    let (opener, _) = pair.run(Err(RefuseReason::Busy));
    assert_eq!(opener, [Output::Closed(CloseReason::Refused(RefuseReason::Busy))]);
}

#[test]
fn nothing_is_read_while_the_application_decides() {
    let now = Instant::now();
    let mut target = ControlMachine::accept(target_id(), NativeLimits::default(), now);
    let hello =
        outputs(&mut ControlMachine::open(opener_id(), Expectation::default(), NativeLimits::default(), now));
    let [Output::Send(hello)] = &hello[..] else { panic!("{hello:?}") };
    target.receive(now, hello.clone());
    assert!(!target.wants_input());
    target.decide(now, Ok(()));
    assert!(target.wants_input());
}

#[test]
fn a_request_before_the_handshake_is_a_violation() {
    let now = Instant::now();
    let mut target = ControlMachine::accept(target_id(), NativeLimits::default(), now);
    target.receive(now, ControlFrame::Probe { id: RequestId::new(1) });
    assert_violation(&outputs(&mut target), &Violation::OutOfPlace);
}

#[test]
fn a_second_hello_is_a_violation() {
    let mut pair = Pair::open();
    let PeerId { incarnation: from, name } = opener_id();
    let hello = ControlFrame::Hello { version: 1, from, name, expects: None, expects_name: None };
    pair.target.receive(pair.now, hello);
    assert_violation(&outputs(&mut pair.target), &Violation::OutOfPlace);
}

#[test]
fn a_handshake_that_takes_too_long_ends_in_either_role() {
    let mut pair = Pair::new(Expectation::default(), NativeLimits::default(), NativeLimits::default());
    outputs(&mut pair.opener);
    for machine in [&mut pair.opener, &mut pair.target] {
        let until = machine.wake_at().expect("a handshake has an end");
        assert_eq!(until, pair.now + NativeLimits::default().handshake);
        machine.tick(until - Duration::from_nanos(1));
        assert!(!machine.is_closed());
        machine.tick(until);
        assert_eq!(reason(&outputs(machine)), &CloseReason::NoHandshake);
    }
}
