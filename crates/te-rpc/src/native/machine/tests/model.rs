//! Both ends of connections against each other, exhaustively: every order of frames, decisions, requests, restarts, cuts,
//! silences and time.
//!
//! A connection is a stream, so nothing on it is doubled or overtaken: what can be lost is the connection. What a
//! restart repeats is a dial, and that reaches a machine of the new life.

use std::{collections::VecDeque, sync::OnceLock};

use te_testkit::{Explored, Finding, Model, explore};

use super::*;

mod properties;

/// Far more states than any of the models has.
const STATES: usize = 3_000_000;
/// Frames under way on one connection.
const FLYING: usize = 6;
const NAMES: [&str; 2] = ["a", "b"];

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The target does not look whom the opener means. The opener does, so this is no fault yet.
    BlindTarget,
    /// Nobody looks whom the opener means.
    Blind,
    /// The target welcomes in its oldest version and speaks another.
    OtherVersion,
    /// Nobody calls `tick`.
    NoClock,
}

/// One connection that will be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Dial {
    by: usize,
    /// The life of the peer that is meant; none: whichever answers.
    means: Option<u8>,
    name: &'static str,
    /// Of both engines.
    versions: [(u16, u16); 2],
}

impl Dial {
    fn target(self) -> usize {
        1 - self.by
    }

    /// The version both speak, if there is one.
    fn common(self) -> Option<u16> {
        let [one, other] = self.versions;
        let newest = one.1.min(other.1);
        (newest >= one.0 && newest >= other.0).then_some(newest)
    }
}

struct Connections {
    flaw: Flaw,
    /// What each start opens.
    dials: Vec<Vec<Dial>>,
    faults: u8,
    /// Requests of the opener and of the target.
    asks: [u8; 2],
    /// Nothing is refused, closed or late, unless it has to be.
    calm: bool,
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: Instant,
    lives: [u8; 2],
    faults: u8,
    links: Vec<Link>,
    wrong: Option<String>,
}

#[derive(Clone, Debug, Hash)]
struct Link {
    dial: Dial,
    ends: [End; 2],
    /// Frames to the engine of this number.
    flying: [VecDeque<ControlFrame>; 2],
    /// The stream broke, and whoever looks is told.
    cut: bool,
    /// Nothing comes through, and nobody is told.
    silent: bool,
}

#[derive(Clone, Debug, Hash)]
#[expect(clippy::large_enum_variant, reason = "almost every end is a live one")]
enum End {
    /// Not dialled yet.
    Nothing,
    Live(Live),
    /// Closed, or its engine is gone.
    Over,
}

#[derive(Clone, Debug, Hash)]
struct Live {
    life: u8,
    machine: ControlMachine,
    knocked: bool,
    /// The life of the peer.
    peer: Option<u8>,
    asks: u8,
    /// Requests of ours, with the life that is meant and how often they ended.
    sent: Vec<(RequestId, u8, u8)>,
    /// Requests of the peer to answer.
    asked: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Dial(usize),
    Deliver {
        link: usize,
        to: usize,
    },
    /// The end of the stream is seen.
    Ended {
        link: usize,
        at: usize,
    },
    Decide {
        link: usize,
        welcome: bool,
    },
    Ask {
        link: usize,
        by: usize,
    },
    Answer {
        link: usize,
        by: usize,
    },
    /// The application closes.
    Close {
        link: usize,
        by: usize,
    },
    Cut(usize),
    Silence(usize),
    Restart(usize),
    /// Time passes until something is due.
    Tick,
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn id(engine: usize, life: u8) -> PeerId {
    peer(engine as u128 * 10 + u128::from(life), NAMES[engine])
}

fn limits((oldest, newest): (u16, u16)) -> NativeLimits {
    NativeLimits { handshake: seconds(2), idle: seconds(4), silent: seconds(1), ..speaking(oldest, newest) }
}

impl Live {
    fn new(life: u8, asks: u8, machine: ControlMachine) -> Self {
        Self { life, machine, knocked: false, peer: None, asks, sent: Vec::new(), asked: Vec::new() }
    }

    fn ended(&mut self, id: RequestId) -> Option<u8> {
        let (_, meant, ends) = self.sent.iter_mut().find(|(sent, ..)| *sent == id)?;
        *ends += 1;
        Some(*meant)
    }
}

impl Link {
    fn live(&mut self, engine: usize) -> Option<&mut Live> {
        match &mut self.ends[engine] {
            End::Live(live) => Some(live),
            _ => None,
        }
    }

    fn lives(&self) -> impl Iterator<Item = (usize, &Live)> {
        self.ends.iter().enumerate().filter_map(|(engine, end)| match end {
            End::Live(live) => Some((engine, live)),
            _ => None,
        })
    }

    fn over(&mut self, engine: usize) {
        self.ends[engine] = End::Over;
        self.flying[engine].clear();
    }

    /// Whether an end waits for something that only time can bring.
    fn waits(&self) -> bool {
        self.lives().any(|(_, l)| self.silent || l.machine.peer().is_none() || l.machine.pending() > 0)
    }
}

impl Connections {
    fn dial(&self, world: &mut World, number: usize) {
        let (now, lives) = (world.now, world.lives);
        let link = &mut world.links[number];
        let Dial { by, means, name, versions } = link.dial;
        let target = 1 - by;
        let expects = Expectation {
            incarnation: means.map(|life| id(target, life).incarnation),
            name: Some(name.to_owned()),
        };
        let expects = if self.flaw == Flaw::Blind { Expectation::default() } else { expects };
        let opener = ControlMachine::open(id(by, lives[by]), expects, limits(versions[by]), now);
        let taker = ControlMachine::accept(id(target, lives[target]), limits(versions[target]), now);
        link.ends[by] = End::Live(Live::new(lives[by], self.asks[0], opener));
        link.ends[target] = End::Live(Live::new(lives[target], self.asks[1], taker));
        self.settle(world, number, by);
    }

    /// What a flawed engine sends instead.
    fn altered(&self, frame: ControlFrame, dial: Dial) -> ControlFrame {
        match (self.flaw, frame) {
            (Flaw::BlindTarget, ControlFrame::Hello { version, from, name, .. }) => {
                ControlFrame::Hello { version, from, name, expects: None, expects_name: None }
            }
            (Flaw::OtherVersion, ControlFrame::Welcome { incarnation, name, .. }) => {
                ControlFrame::Welcome { version: dial.versions[dial.target()].0, incarnation, name }
            }
            (_, frame) => frame,
        }
    }

    /// Does what the machine wants.
    fn settle(&self, world: &mut World, number: usize, at: usize) {
        let link = &mut world.links[number];
        let dial = link.dial;
        let mut closed = false;
        let mut wrong = None;
        while let Some(output) = link.live(at).and_then(|live| live.machine.poll()) {
            if closed {
                wrong = Some("something comes after the end of a connection");
            }
            if let Output::Send(frame) = output {
                let heard = !link.cut && !link.silent && matches!(link.ends[1 - at], End::Live(_));
                if heard {
                    link.flying[1 - at].push_back(self.altered(frame, dial));
                }
                continue;
            }
            let Some(live) = link.live(at) else { continue };
            let fault = match output {
                Output::Knock(_) => std::mem::replace(&mut live.knocked, true).then_some("two knocks"),
                Output::Opened(PeerId { incarnation, .. }) => {
                    let life = (incarnation.bits() % 10) as u8;
                    live.peer.replace(life).map(|_| "opened twice")
                }
                Output::Asked(id, Request::Interest { known }) => {
                    live.asked.push(id);
                    let meant = known.value() == u64::from(live.life);
                    (!meant || live.peer.is_none()).then_some("asked of another life than the one meant")
                }
                Output::Answered(id, Answer::Interest { version }) => match live.ended(id) {
                    Some(meant) if u64::from(meant) == version.value() => None,
                    _ => Some("answered by another life than the one meant"),
                },
                Output::Expired(id) => live.ended(id).is_none().then_some("nothing of ours expires"),
                Output::Closed(_) => {
                    closed = true;
                    // Whoever waits for an answer on a connection that is over gets none.
                    live.sent.iter_mut().filter(|(_, _, ends)| *ends == 0).for_each(|sent| sent.2 += 1);
                    let kept = live.machine.pending() + live.machine.serving();
                    (kept > 0).then_some("something is kept after the end")
                }
                _ => Some("an answer of another kind"),
            };
            wrong = wrong.or(fault);
            if live.sent.iter().any(|(_, _, ends)| *ends > 1) {
                wrong = wrong.or(Some("a request ends twice"));
            }
        }
        if closed {
            link.over(at);
        }
        if let Some(wrong) = wrong {
            world.wrong.get_or_insert_with(|| wrong.to_owned());
        }
    }

    /// Feeds a machine, then does what it wants.
    fn feed(
        &self,
        world: &mut World,
        link: usize,
        at: usize,
        what: impl FnOnce(&mut Live, &mut VecDeque<ControlFrame>),
    ) {
        let place = &mut world.links[link];
        if let End::Live(live) = &mut place.ends[at] {
            what(live, &mut place.flying[at]);
        }
        self.settle(world, link, at);
    }

    fn fault(&self, world: &mut World, step: Step) {
        world.faults -= 1;
        match step {
            Step::Close { link, by } => self.feed(world, link, by, |live, _| live.machine.close("done")),
            Step::Cut(number) | Step::Silence(number) => {
                let link = &mut world.links[number];
                link.flying = Default::default();
                if matches!(step, Step::Cut(_)) { link.cut = true } else { link.silent = true }
            }
            Step::Restart(engine) => {
                world.lives[engine] += 1;
                for link in world.links.iter_mut().filter(|link| matches!(link.ends[engine], End::Live(_))) {
                    link.over(engine);
                }
            }
            _ => {}
        }
    }

    fn steps_of(&self, world: &World, number: usize, steps: &mut Vec<Step>) {
        let link = &world.links[number];
        for (engine, live) in link.lives() {
            let frames = &link.flying[engine];
            if !frames.is_empty() && live.machine.wants_input() {
                steps.push(Step::Deliver { link: number, to: engine });
            }
            let over = link.cut || matches!(link.ends[1 - engine], End::Over);
            if frames.is_empty() && over && !link.silent {
                steps.push(Step::Ended { link: number, at: engine });
            }
            if live.knocked {
                steps.push(Step::Decide { link: number, welcome: true });
                if !self.calm {
                    steps.push(Step::Decide { link: number, welcome: false });
                }
            }
            if live.machine.peer().is_some() && live.asks > 0 {
                steps.push(Step::Ask { link: number, by: engine });
            }
            if !live.asked.is_empty() {
                steps.push(Step::Answer { link: number, by: engine });
            }
            if world.faults > 0 {
                steps.push(Step::Close { link: number, by: engine });
            }
        }
        let open = matches!(link.ends, [End::Live(_), End::Live(_)]);
        if open && world.faults > 0 && !link.cut && !link.silent {
            steps.extend([Step::Cut(number), Step::Silence(number)]);
        }
    }
}
