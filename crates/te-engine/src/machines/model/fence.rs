//! Initiator and target of a WRITE: no attempt takes effect after the request is over or a newer attempt has begun.

use std::collections::BTreeSet;

use te_testkit::{Model, Move, Wire};
use te_transport::{FailureKind, Fencing, Op, RemoteEffect};

use super::super::attempt::{AttemptAction, AttemptEvent, AttemptOutcome, Attempts};
use super::super::fence::{AttemptId, FenceLedger, FenceStart};
use super::attempts::{policy, time};
use super::{fails, holds};

const DEADLINE: u32 = 8;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The target acknowledges a fence and remembers nothing.
    Forgets,
    /// The target acknowledges while an older attempt is still applied.
    AcknowledgesEarly,
    /// The initiator takes a lost connection for the end of what it carried.
    TrustsTheCut,
}

struct Fenced {
    flaw: Flaw,
    late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    /// The request and its bytes, on a connection of this attempt.
    Data(u32),
    Applied(u32),
    /// The target's life is another one than the connection was made for.
    Refused(u32),
    Fence(u32),
    FenceAck(u32),
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: u32,
    request: Attempts,
    /// The connection of this attempt is open at the initiator.
    open: Option<u32>,
    stopping: bool,
    fencing: Option<u32>,
    newest: u32,
    end: Option<(u32, AttemptOutcome)>,
    ends: u8,
    wire: Wire<Message>,
    ledger: FenceLedger,
    restarted: bool,
    applying: BTreeSet<u32>,
    stopped: BTreeSet<u32>,
    /// Attempts that were applied in the target's first life.
    applied: BTreeSet<u32>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick,
    Wire(Move),
    /// The connection breaks at the initiator.
    Break,
    /// The transport has stopped what it was told to.
    Stopped,
    Refence,
    /// The target writes to its memory; more may follow.
    Touch(u32),
    /// The target writes the rest and answers.
    Apply(u32),
    /// The target stops an attempt as a fence demands.
    Abandon(u32),
    RestartTarget,
}

fn id(attempt: u32) -> AttemptId {
    AttemptId { request: 1, attempt }
}

impl Fenced {
    fn initiator(&self, world: &mut World, event: AttemptEvent) {
        let actions: Vec<_> = world.request.on(time(world.now), event).collect();
        for action in actions {
            match action {
                AttemptAction::Submit { attempt, .. } => {
                    (world.open, world.newest, world.fencing) = (Some(attempt), attempt, None);
                    world.wire.send(Message::Data(attempt));
                }
                AttemptAction::FenceLocal { .. } => world.stopping = true,
                AttemptAction::FenceTarget { attempt } => {
                    world.fencing = Some(attempt);
                    world.wire.send(Message::Fence(attempt));
                }
                AttemptAction::Finish(outcome) => {
                    world.end = Some((world.now, outcome));
                    world.ends += 1;
                    world.fencing = None;
                }
            }
        }
    }

    fn close(&self, world: &mut World, kind: FailureKind) {
        let Some(attempt) = world.open.take() else { return };
        world.stopping = false;
        let effect = match self.flaw {
            Flaw::TrustsTheCut => RemoteEffect::MayHaveApplied,
            _ => RemoteEffect::MayStillApply,
        };
        self.initiator(world, AttemptEvent::Failed { attempt, kind, effect });
    }

    fn target(&self, world: &mut World, message: Message) {
        match message {
            Message::Data(attempt) if world.restarted => world.wire.send(Message::Refused(attempt)),
            Message::Data(attempt) if world.ledger.admit(id(attempt)) => {
                world.applying.insert(attempt);
            }
            Message::Fence(attempt) => {
                let mut forgotten = world.ledger.clone();
                let ledger = if self.flaw == Flaw::Forgets { &mut forgotten } else { &mut world.ledger };
                match ledger.fence(u64::from(attempt), &[id(attempt)]) {
                    FenceStart::Acknowledge => world.wire.send(Message::FenceAck(attempt)),
                    FenceStart::Stop(running) => {
                        world.stopped.extend(running.iter().map(|id| id.attempt));
                        if self.flaw == Flaw::AcknowledgesEarly {
                            world.wire.send(Message::FenceAck(attempt));
                        }
                    }
                    FenceStart::Busy => {}
                }
            }
            _ => {}
        }
    }

    fn touch(&self, world: &mut World, attempt: u32) {
        world.applied.insert(attempt);
        let may_be_late = match world.end {
            Some((_, AttemptOutcome::Done { late_duplicate, .. })) => late_duplicate,
            Some((_, AttemptOutcome::Failed { effect, .. })) => effect == RemoteEffect::MayStillApply,
            None => true,
        };
        if !may_be_late {
            world.wrong = Some("written after the end of the request");
        }
        if attempt < world.newest && !self.late {
            world.wrong = Some("written by an old attempt after a newer one began");
        }
    }

    fn ended(&self, world: &mut World, attempt: u32) {
        world.applying.remove(&attempt);
        world.stopped.remove(&attempt);
        for fence in world.ledger.ended(id(attempt)) {
            world.wire.send(Message::FenceAck(u32::try_from(fence).unwrap()));
        }
    }
}

impl Model for Fenced {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        let paths = [Fencing::Target; 2].into();
        let request = Attempts::new(time(0), Op::Write, paths, time(DEADLINE), policy(self.late));
        let mut world = World {
            now: 0,
            request,
            open: None,
            stopping: false,
            fencing: None,
            newest: 0,
            end: None,
            ends: 0,
            wire: Wire::new(6, 1),
            ledger: FenceLedger::new(4),
            restarted: false,
            applying: BTreeSet::new(),
            stopped: BTreeSet::new(),
            applied: BTreeSet::new(),
            wrong: None,
        };
        self.initiator(&mut world, AttemptEvent::Start);
        vec![world]
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        // A stream does not repeat bytes; only what is sent again by somebody arrives twice.
        let stream =
            |place: usize| matches!(world.wire.flying()[place], Message::Data(_) | Message::Applied(_));
        let moves = world.wire.moves().into_iter();
        let moves = moves.filter(|step| !matches!(step, Move::Duplicate(place) if stream(*place)));
        let mut steps: Vec<_> = moves.map(Step::Wire).collect();
        steps
            .extend(world.applying.iter().flat_map(|attempt| [Step::Touch(*attempt), Step::Apply(*attempt)]));
        steps.extend(world.stopped.iter().map(|attempt| Step::Abandon(*attempt)));
        if world.stopping {
            steps.push(Step::Stopped);
        } else if world.end.is_none() && world.now < DEADLINE + 1 {
            steps.push(Step::Tick);
        }
        if world.open.is_some() && world.wire.may_fail() {
            steps.push(Step::Break);
        }
        let unanswered = |m: &Message| matches!(m, Message::Fence(_) | Message::FenceAck(_));
        let awaited = world.fencing.is_some() && world.end.is_none();
        if awaited && !world.wire.flying().iter().any(unanswered) && world.stopped.is_empty() {
            steps.push(Step::Refence);
        }
        if world.wire.may_fail() && !world.restarted {
            steps.push(Step::RestartTarget);
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Tick => {
                world.now += 1;
                self.initiator(world, AttemptEvent::Tick);
            }
            Step::Break => {
                world.wire.spend();
                self.close(world, FailureKind::ConnectionLost);
            }
            Step::Stopped => self.close(world, FailureKind::Cancelled),
            Step::Refence => world.wire.send(Message::Fence(world.newest)),
            Step::Touch(attempt) => self.touch(world, attempt),
            Step::Apply(attempt) => {
                self.touch(world, attempt);
                self.ended(world, attempt);
                world.wire.send(Message::Applied(attempt));
            }
            Step::Abandon(attempt) => self.ended(world, attempt),
            Step::RestartTarget => {
                world.wire.spend();
                world.wire.forget(|m| matches!(m, Message::Data(_) | Message::Fence(_)));
                (world.restarted, world.ledger) = (true, FenceLedger::new(4));
                world.applying.clear();
                world.stopped.clear();
            }
            Step::Wire(step) => match world.wire.make(step) {
                Some(Message::Applied(attempt)) if world.open == Some(attempt) => {
                    (world.open, world.stopping) = (None, false);
                    if !world.applied.contains(&attempt) {
                        world.wrong = Some("done, but not applied");
                    }
                    self.initiator(world, AttemptEvent::Done { attempt, bytes: 7 });
                }
                Some(Message::Refused(attempt)) if world.open == Some(attempt) => {
                    (world.open, world.stopping) = (None, false);
                    let (kind, effect) = (FailureKind::Rejected, RemoteEffect::None);
                    self.initiator(world, AttemptEvent::Failed { attempt, kind, effect });
                }
                // An answer on a connection that is closed.
                Some(Message::Applied(_) | Message::Refused(_)) | None => {}
                Some(Message::FenceAck(attempt)) => {
                    self.initiator(world, AttemptEvent::Fenced { attempt });
                }
                Some(message) => self.target(world, message),
            },
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        match (world.wrong, world.end) {
            (Some(wrong), _) => Err(wrong.into()),
            (None, Some((at, _))) if at > DEADLINE => Err("over after the deadline".into()),
            (None, Some(_)) if world.ends != 1 => Err("two ends".into()),
            (None, Some((_, AttemptOutcome::Done { bytes, .. }))) if bytes != 7 => Err("bytes".into()),
            (None, Some((_, AttemptOutcome::Failed { effect: RemoteEffect::None, .. })))
                if !world.applied.is_empty() =>
            {
                Err("written, but the caller is told otherwise".into())
            }
            _ => Ok(()),
        }
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        if world.end.is_some() { Ok(()) } else { Err("never over".into()) }
    }
}

/// FO-01, FO-07
#[test]
fn no_attempt_takes_effect_after_the_request_is_over() {
    let seen = holds(&Fenced { flaw: Flaw::None, late: false });
    assert!(seen.states > 1_000, "{seen:?}");
}

/// FO-07
#[test]
fn late_duplicates_happen_only_where_they_are_allowed_and_are_told() {
    holds(&Fenced { flaw: Flaw::None, late: true });
}

/// FO-07
#[test]
fn a_target_that_forgets_a_fence_is_found() {
    let why = fails(&Fenced { flaw: Flaw::Forgets, late: false });
    assert!(why.starts_with("written"), "{why}");
}

/// FO-07
#[test]
fn an_acknowledgement_before_the_old_attempt_has_ended_is_found() {
    let why = fails(&Fenced { flaw: Flaw::AcknowledgesEarly, late: false });
    assert!(why.starts_with("written"), "{why}");
}

/// FO-07
#[test]
fn taking_a_lost_connection_for_the_end_of_its_bytes_is_found() {
    let why = fails(&Fenced { flaw: Flaw::TrustsTheCut, late: false });
    assert!(why.starts_with("written"), "{why}");
}
