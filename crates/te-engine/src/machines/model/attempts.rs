//! One request against everything that its paths and its target can report.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use te_testkit::Model;
use te_transport::{FailureKind, Fencing, Op, RemoteEffect};

use super::super::attempt::{AttemptAction, AttemptEvent, AttemptOutcome, AttemptPolicy, Attempts};
use super::{fails, holds};

const TICK: Duration = Duration::from_millis(100);
const DEADLINE: u32 = 10;

/// One instant for all models of a process: states with it compare.
pub(super) fn time(ticks: u32) -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now) + TICK * ticks
}

pub(super) fn policy(allow_late_duplicate: bool) -> AttemptPolicy {
    AttemptPolicy { silence: TICK * 2, fence_wait: TICK * 2, reserve: TICK, allow_late_duplicate }
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The next attempt begins without the target's word.
    MoveUnfenced,
    /// The deadline is not looked at.
    NoClock,
    /// The outcome of an attempt is reported before it has ended locally.
    NotQuiescent,
}

struct AnyPath {
    op: Op,
    paths: Arc<[Fencing]>,
    late: bool,
    flaw: Flaw,
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: u32,
    request: Attempts,
    /// The attempt whose memory a transport may touch.
    running: Option<u32>,
    stopping: bool,
    /// A fence is under way for this attempt.
    fencing: Option<u32>,
    /// The last attempt may still apply, and the target has not said otherwise.
    loose: bool,
    submitted: Vec<usize>,
    cancelled: bool,
    end: Option<(u32, AttemptOutcome)>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick,
    Event(AttemptEvent),
}

const ENDINGS: [(FailureKind, RemoteEffect); 5] = [
    (FailureKind::Unreachable, RemoteEffect::None),
    (FailureKind::Rejected, RemoteEffect::None),
    (FailureKind::ConnectionLost, RemoteEffect::MayHaveApplied),
    (FailureKind::ConnectionLost, RemoteEffect::MayStillApply),
    (FailureKind::Cancelled, RemoteEffect::MayStillApply),
];

impl AnyPath {
    fn act(&self, world: &mut World, event: AttemptEvent) {
        let now = time(world.now);
        let actions: Vec<_> = world.request.on(now, event).collect();
        for action in actions {
            let after_end = world.end.is_some() && !matches!(action, AttemptAction::FenceTarget { .. });
            if after_end {
                world.wrong = Some("something is done after the end");
            }
            match action {
                AttemptAction::Submit { path, .. } if world.submitted.contains(&path) => {
                    world.wrong = Some("a path is tried twice");
                }
                AttemptAction::Submit { attempt, path } => {
                    if world.running.replace(attempt).is_some() {
                        world.wrong = Some("two attempts at a time");
                    }
                    if world.loose && !self.late {
                        world.wrong = Some("moved although the last attempt may still apply");
                    }
                    world.submitted.push(path);
                }
                AttemptAction::FenceLocal { .. } => {
                    world.stopping = true;
                    if self.flaw == Flaw::NotQuiescent
                        && let Some(attempt) = world.running
                    {
                        let (kind, effect) = (FailureKind::Cancelled, RemoteEffect::None);
                        self.act(world, AttemptEvent::Failed { attempt, kind, effect });
                    }
                }
                AttemptAction::FenceTarget { .. } if self.op == Op::Read => {
                    world.wrong = Some("a read needs no fence at the target");
                }
                AttemptAction::FenceTarget { attempt } => {
                    world.fencing = Some(attempt);
                    if self.flaw == Flaw::MoveUnfenced {
                        self.act(world, AttemptEvent::Fenced { attempt });
                    }
                }
                AttemptAction::Finish(outcome) => {
                    if world.end.is_some() {
                        world.wrong = Some("two ends");
                    }
                    world.end = Some((world.now, outcome));
                    if world.running.is_some() {
                        world.wrong = Some("over while a transport can touch the memory");
                    }
                }
            }
        }
    }
}

impl Model for AnyPath {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        let request = Attempts::new(time(0), self.op, self.paths.clone(), time(DEADLINE), policy(self.late));
        let mut world = World {
            now: 0,
            request,
            running: None,
            stopping: false,
            fencing: None,
            loose: false,
            submitted: Vec::new(),
            cancelled: false,
            end: None,
            wrong: None,
        };
        self.act(&mut world, AttemptEvent::Start);
        vec![world]
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        if world.end.is_some() {
            return Vec::new();
        }
        let mut steps = Vec::new();
        // A transport stops at once when it is told to; everything else may take any time.
        if !world.stopping && world.now < DEADLINE + 2 {
            steps.push(Step::Tick);
        }
        if let Some(attempt) = world.running {
            steps.push(Step::Event(AttemptEvent::Done { attempt, bytes: 7 }));
            // Where all is done locally nothing applies later.
            let immediate = world.submitted.last().and_then(|path| self.paths.get(*path));
            let ends = ENDINGS.into_iter().filter(|(_, effect)| {
                immediate != Some(&Fencing::Immediate) || *effect != RemoteEffect::MayStillApply
            });
            steps.extend(
                ends.map(|(kind, effect)| Step::Event(AttemptEvent::Failed { attempt, kind, effect })),
            );
            if !world.stopping {
                steps.push(Step::Event(AttemptEvent::Heard { attempt }));
            }
        }
        if let Some(attempt) = world.fencing {
            steps.push(Step::Event(AttemptEvent::Fenced { attempt }));
            steps.push(Step::Event(AttemptEvent::Unfenceable { attempt }));
        }
        if !world.cancelled {
            steps.push(Step::Event(AttemptEvent::Cancel));
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        let event = match *step {
            Step::Tick => {
                world.now += 1;
                if self.flaw == Flaw::NoClock {
                    return;
                }
                AttemptEvent::Tick
            }
            Step::Event(event) => event,
        };
        match event {
            AttemptEvent::Done { .. } => (world.running, world.stopping) = (None, false),
            AttemptEvent::Failed { effect, .. } => {
                (world.running, world.stopping) = (None, false);
                world.loose = self.op == Op::Write && effect == RemoteEffect::MayStillApply;
            }
            AttemptEvent::Fenced { .. } => (world.fencing, world.loose) = (None, false),
            AttemptEvent::Unfenceable { .. } => world.fencing = None,
            AttemptEvent::Cancel => world.cancelled = true,
            _ => {}
        }
        self.act(world, event);
    }

    fn check(&self, world: &World) -> Result<(), String> {
        if let Some(wrong) = world.wrong {
            return Err(wrong.into());
        }
        let late = |at: u32| at > DEADLINE;
        match world.end {
            None if late(world.now) && world.running.is_none() => Err("not over at the deadline".into()),
            None if late(world.now) && !world.stopping => Err("not stopped at the deadline".into()),
            Some((_, AttemptOutcome::Done { bytes, late_duplicate, .. })) => {
                let honest = bytes == 7 && (!late_duplicate || self.late);
                if honest { Ok(()) } else { Err("wrong success".into()) }
            }
            Some((_, AttemptOutcome::Failed { effect, .. })) => {
                let read = self.op == Op::Read && effect != RemoteEffect::None;
                let hidden = world.loose && effect != RemoteEffect::MayStillApply;
                if read || hidden { Err(format!("the effect is not {effect}")) } else { Ok(()) }
            }
            None => Ok(()),
        }
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        if world.end.is_some() { Ok(()) } else { Err("never over".into()) }
    }
}

fn request(op: Op, paths: &[Fencing], late: bool, flaw: Flaw) -> AnyPath {
    AnyPath { op, paths: paths.into(), late, flaw }
}

/// FO-02, FO-07, FO-08, FO-12
#[test]
fn every_request_ends_once_by_its_deadline_and_moves_only_when_it_may() {
    use Fencing::{Immediate, LocalOnly, Target};
    for op in [Op::Read, Op::Write] {
        for late in [false, true] {
            for paths in [
                &[][..],
                &[Target],
                &[LocalOnly],
                &[Target, Target],
                &[Target, LocalOnly],
                &[LocalOnly, Target, Target],
                &[Immediate],
                &[Immediate, Target],
                &[Immediate, LocalOnly],
            ] {
                let seen = holds(&request(op, paths, late, Flaw::None));
                assert!(paths.is_empty() || seen.ends > 3, "{op} {paths:?}: {seen:?}");
            }
        }
    }
}

/// FO-07
#[test]
fn moving_without_the_targets_word_is_found() {
    let why = fails(&request(Op::Write, &[Fencing::Target; 2], false, Flaw::MoveUnfenced));
    assert!(why.contains("may still apply"), "{why}");
}

/// FO-12
#[test]
fn a_deadline_nobody_looks_at_is_found() {
    let why = fails(&request(Op::Read, &[Fencing::LocalOnly], false, Flaw::NoClock));
    assert!(why.contains("not stopped at the deadline"), "{why}");
}

/// FO-02
#[test]
fn an_end_before_the_transport_is_quiet_is_found() {
    let why = fails(&request(Op::Read, &[Fencing::LocalOnly], false, Flaw::NotQuiescent));
    assert!(why.contains("can touch the memory"), "{why}");
}
