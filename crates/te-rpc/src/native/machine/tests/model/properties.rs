//! What holds for two ends, and that a flaw in either is found.

use super::*;

impl Model for Connections {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        let link = |dial: &Dial| Link {
            dial: *dial,
            ends: [End::Nothing, End::Nothing],
            flying: Default::default(),
            cut: false,
            silent: false,
        };
        let world = |dials: &Vec<Dial>| World {
            now: origin(),
            lives: [1, 1],
            faults: self.faults,
            links: dials.iter().map(link).collect(),
            wrong: None,
        };
        self.dials.iter().map(world).collect()
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, link) in world.links.iter().enumerate() {
            if matches!(link.ends[0], End::Nothing) {
                steps.push(Step::Dial(number));
            } else {
                self.steps_of(world, number, &mut steps);
            }
        }
        if world.faults > 0 {
            steps.extend([Step::Restart(0), Step::Restart(1)]);
        }
        if !self.calm && self.flaw != Flaw::NoClock && world.links.iter().any(Link::waits) {
            steps.push(Step::Tick);
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        let now = world.now;
        match *step {
            Step::Dial(link) => self.dial(world, link),
            Step::Deliver { link, to } => self.feed(world, link, to, |live, frames| {
                if let Some(frame) = frames.pop_front() {
                    live.machine.receive(now, frame);
                }
            }),
            Step::Ended { link, at } => self.feed(world, link, at, |live, _| {
                live.machine.end(CloseReason::Lost { error: None });
            }),
            Step::Decide { link, welcome } => {
                let target = world.links[link].dial.target();
                self.feed(world, link, target, |live, _| {
                    live.knocked = false;
                    live.machine.decide(now, welcome.then_some(()).ok_or(RefuseReason::Busy));
                });
            }
            Step::Ask { link, by } => {
                let dial = world.links[link].dial;
                self.feed(world, link, by, |live, _| {
                    let means = dial.means.filter(|_| dial.by == by).or(live.peer).unwrap_or(0);
                    live.asks -= 1;
                    let known = DescriptorVersion::new(u64::from(means));
                    if let Ok(id) = live.machine.request(Request::Interest { known }, now + seconds(3)) {
                        live.sent.push((id, means, 0));
                    }
                });
            }
            Step::Answer { link, by } => self.feed(world, link, by, |live, _| {
                let version = DescriptorVersion::new(u64::from(live.life));
                live.machine.answer(live.asked.remove(0), Answer::Interest { version });
            }),
            Step::Tick => {
                let wakes = world.links.iter().flat_map(Link::lives).filter_map(|(_, l)| l.machine.wake_at());
                world.now = wakes.min().unwrap_or(now).max(now);
                let now = world.now;
                for (link, at) in (0..world.links.len()).flat_map(|link| [(link, 0), (link, 1)]) {
                    self.feed(world, link, at, |live, _| live.machine.tick(now));
                }
            }
            fault => self.fault(world, fault),
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        if let Some(wrong) = &world.wrong {
            return Err(wrong.clone());
        }
        for link in &world.links {
            if link.flying.iter().any(|frames| frames.len() > FLYING) {
                return Err("too many frames under way".to_owned());
            }
            let mut versions = Vec::new();
            for (engine, live) in link.lives() {
                let Some((peer, version)) = live.machine.peer() else { continue };
                versions.push(version);
                // A target that is too old for its opener finds out when the opener says so.
                let [one, other] = link.dial.versions.map(|(_, newest)| newest);
                if version != one.min(other)
                    || (engine == link.dial.by && link.dial.common() != Some(version))
                {
                    return Err(format!("{} speaks version {version}", NAMES[engine]));
                }
                let meant = link.dial.by != engine
                    || link.dial.means.is_none_or(|life| *peer == id(1 - engine, life));
                let there = match &link.ends[1 - engine] {
                    End::Live(other) => *peer == id(1 - engine, other.life),
                    _ => true,
                };
                if !meant || !there || peer.name != NAMES[1 - engine] {
                    return Err(format!("{} is connected to {peer:?}", NAMES[engine]));
                }
            }
            if versions.first() != versions.last() {
                return Err("the ends speak different versions".to_owned());
            }
        }
        Ok(())
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        for link in &world.links {
            let open = link.lives().filter(|(_, live)| live.machine.peer().is_some()).count();
            let over = link.ends.iter().filter(|end| matches!(end, End::Over)).count();
            if (open, over) != (2, 0) && (open, over) != (0, 2) {
                return Err(format!("of two ends {open} are open and {over} over"));
            }
            let dial = link.dial;
            let fits = dial.name == NAMES[dial.target()] && dial.means.is_none_or(|life| life == 1);
            if self.calm && (open == 2) != (fits && dial.common().is_some()) {
                return Err(format!("{open} ends of {dial:?} are open"));
            }
            for (_, live) in link.lives() {
                if !live.asked.is_empty() || live.sent.iter().any(|(_, _, ends)| *ends != 1) {
                    return Err("a request has no end".to_owned());
                }
            }
        }
        Ok(())
    }
}

const SAME: [(u16, u16); 2] = [(1, 1), (1, 1)];

fn dial(by: usize, means: Option<u8>) -> Dial {
    Dial { by, means, name: NAMES[1 - by], versions: SAME }
}

/// One connection, in every pair of these versions and with every expectation.
fn every_dial<const N: usize>(ranges: [(u16, u16); N]) -> Vec<Vec<Dial>> {
    let pairs = ranges.iter().flat_map(|one| ranges.map(|other| [*one, other]));
    let expectations = [(None, NAMES[1]), (Some(1), NAMES[1]), (Some(2), NAMES[1]), (None, "c")];
    pairs
        .flat_map(|versions| expectations.map(|(means, name)| vec![Dial { by: 0, means, name, versions }]))
        .collect()
}

fn model(dials: Vec<Vec<Dial>>, faults: u8) -> Connections {
    Connections { flaw: Flaw::None, dials, faults, asks: [1, 1], calm: false }
}

fn holds(model: &Connections) -> Explored {
    match explore(model, STATES) {
        Ok(seen) => {
            println!("{seen:?}");
            seen
        }
        Err(finding) => panic!("{finding}"),
    }
}

fn fails(model: &Connections) -> String {
    match explore(model, STATES) {
        Err(Finding::Violation { why, .. }) => why,
        other => panic!("the flaw is not found: {other:?}"),
    }
}

#[test]
fn without_faults_ends_open_exactly_if_versions_overlap_and_the_peer_is_the_one_that_was_meant() {
    let seen =
        holds(&Connections { calm: true, ..model(every_dial([(1, 1), (1, 2), (2, 2), (2, 3), (1, 3)]), 0) });
    assert!(seen.ends >= 100, "{seen:?}");
}

/// META-02: one connection, any versions and expectations, one fault.
#[test]
fn both_ends_agree_or_both_end_whatever_happens_once() {
    let seen = holds(&model(every_dial([(1, 1), (1, 2), (2, 3)]), 1));
    assert!(seen.states > 1_000, "{seen:?}");
}

/// META-02: one connection, two faults, each end asks.
#[test]
fn both_ends_agree_or_both_end_whatever_happens_twice() {
    let dials = [None, Some(1), Some(2)].map(|means| vec![dial(0, means)]);
    let seen = holds(&model(dials.into(), 2));
    assert!(seen.states > 1_000, "{seen:?}");
}

/// META-02: both open a connection to each other at once, and either may begin another life meanwhile.
#[test]
fn connections_opened_from_both_sides_at_once_do_not_disturb_each_other() {
    let dials = vec![vec![dial(0, Some(1)), dial(1, Some(1))]];
    let seen = holds(&Connections { asks: [1, 0], ..model(dials, 1) });
    assert!(seen.states > 1_000, "{seen:?}");
}

/// META-02: a connection to the first life of a peer, and one to the second.
#[test]
fn requests_to_two_lives_of_a_peer_reach_the_life_they_mean() {
    let dials = vec![vec![dial(0, Some(1)), dial(0, Some(2))]];
    let seen = holds(&Connections { asks: [1, 0], ..model(dials, 1) });
    assert!(seen.states > 1_000, "{seen:?}");
}

#[test]
fn an_opener_finds_out_by_itself_that_it_has_reached_another_life() {
    holds(&Connections { flaw: Flaw::BlindTarget, ..model(every_dial([(1, 1), (1, 2)]), 0) });
}

/// META-02
#[test]
fn ends_that_do_not_look_whom_they_meet_are_found() {
    let why = fails(&Connections { flaw: Flaw::Blind, ..model(vec![vec![dial(0, Some(1))]], 1) });
    assert!(why.contains("is connected to") || why.contains("another life"), "{why}");
}

#[test]
fn a_welcome_in_another_version_than_is_spoken_is_found() {
    let dials = vec![vec![Dial { versions: [(1, 2), (1, 2)], ..dial(0, None) }]];
    let why = fails(&Connections { flaw: Flaw::OtherVersion, ..model(dials, 0) });
    assert!(why.contains("version"), "{why}");
}

#[test]
fn an_end_without_a_clock_is_found() {
    let why = fails(&Connections { flaw: Flaw::NoClock, ..model(vec![vec![dial(0, None)]], 1) });
    assert!(why.contains("of two ends"), "{why}");
}
