//! Many WRITEs of one initiator to one target over a bad network, with freezes and restarts of both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use te_testkit::{Mishap, Post, Process, Ran, Sim, Weather};
use te_transport::{FailureKind, Fencing, Op, RemoteEffect};

use super::super::attempt::{AttemptAction, AttemptEvent, AttemptOutcome, AttemptPolicy, Attempts};
use super::super::fence::{AttemptId, FenceLedger, FenceStart};
use super::{all_seeds, some_seed};

const REQUESTS: u64 = 20;
const LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
enum Message {
    Data { life: u32, id: AttemptId },
    Applied { id: AttemptId },
    Refused { id: AttemptId },
    Fence { id: AttemptId },
    FenceAck { id: AttemptId },
}

#[derive(Debug)]
struct Request {
    machine: Attempts,
    attempt: u32,
    open: Option<u32>,
    fencing: Option<(u32, Instant)>,
    deadline: Instant,
    end: Option<(Instant, AttemptOutcome)>,
}

/// Submits requests and keeps what became of them, over its restarts too: that is the test's memory.
#[derive(Debug, Default)]
struct Initiator {
    requests: BTreeMap<u64, Request>,
    /// The first request of this life.
    first: u64,
    next: u64,
    submit_at: Option<Instant>,
    /// Requests whose deadline passed while this process stood still.
    frozen: Vec<u64>,
    flawed: bool,
    wrong: Option<String>,
}

#[derive(Debug)]
struct Target {
    ledger: FenceLedger,
    /// When the last byte of an attempt is written, and whether it is to be stopped.
    applying: BTreeMap<AttemptId, (Instant, bool)>,
    /// A stream carries no repetitions: the simulator's are dropped here.
    seen: BTreeSet<AttemptId>,
    /// What was written, when.
    writes: Vec<(AttemptId, Instant)>,
    life: u32,
}

#[derive(Debug)]
enum Node {
    Initiator(Initiator),
    Target(Target),
}

const TARGET: usize = 1;
const INITIATOR: usize = 0;

impl Initiator {
    fn on(&mut self, number: u64, event: AttemptEvent, post: &mut Post<'_, Message>) {
        let now = post.now();
        let Some(request) = self.requests.get_mut(&number) else { return };
        let mut more = Vec::new();
        for action in request.machine.on(now, event) {
            match action {
                AttemptAction::Submit { attempt, .. } => {
                    (request.attempt, request.open, request.fencing) = (attempt, Some(attempt), None);
                    post.send(TARGET, Message::Data { life: 0, id: AttemptId { request: number, attempt } });
                }
                AttemptAction::FenceLocal { attempt } => {
                    request.open = None;
                    let (kind, effect) = (FailureKind::Cancelled, RemoteEffect::MayStillApply);
                    more.push(AttemptEvent::Failed { attempt, kind, effect });
                }
                AttemptAction::FenceTarget { attempt } => {
                    request.fencing = Some((attempt, now));
                    if self.flawed {
                        more.push(AttemptEvent::Fenced { attempt });
                    }
                }
                AttemptAction::Finish(outcome) => {
                    if request.end.replace((now, outcome)).is_some() {
                        self.wrong = Some(format!("request {number} ends twice"));
                    }
                    let late = now.saturating_duration_since(request.deadline);
                    if !late.is_zero() && !self.frozen.contains(&number) {
                        self.wrong = Some(format!("request {number} is over {late:?} after its deadline"));
                    }
                }
            }
        }
        for event in more {
            self.on(number, event, post);
        }
    }

    fn submit(&mut self, post: &mut Post<'_, Message>) {
        let deadline = post.now() + LIMIT;
        let policy = AttemptPolicy {
            silence: Duration::from_millis(400),
            fence_wait: Duration::from_millis(300),
            ..AttemptPolicy::default()
        };
        let machine = Attempts::new(post.now(), Op::Write, [Fencing::Target; 3].into(), deadline, policy);
        let request = Request { machine, attempt: 0, open: None, fencing: None, deadline, end: None };
        self.requests.insert(self.next, request);
        self.next += 1;
        self.on(self.next - 1, AttemptEvent::Start, post);
    }

    /// Whoever stands still cannot keep a deadline.
    fn look_at_clock(&mut self, now: Instant) {
        let slept: Vec<_> =
            self.live().filter(|(_, r)| now > r.deadline).map(|(number, _)| *number).collect();
        self.frozen.extend(slept);
    }

    fn live(&self) -> impl Iterator<Item = (&u64, &Request)> {
        self.requests.range(self.first..).filter(|(_, request)| request.end.is_none())
    }
}

impl Target {
    fn end(&mut self, id: AttemptId, post: &mut Post<'_, Message>) {
        self.applying.remove(&id);
        for request in self.ledger.ended(id) {
            // The fence is named by its request; the attempt is what the initiator waits for.
            let attempt = u32::try_from(request & 0xffff).unwrap_or(0);
            post.send(INITIATOR, Message::FenceAck { id: AttemptId { request: request >> 16, attempt } });
        }
    }
}

impl Process for Node {
    type Message = Message;

    fn start(&mut self, post: &mut Post<'_, Message>) {
        match self {
            Self::Initiator(node) => {
                node.first = node.next;
                node.submit_at = Some(post.now());
            }
            Self::Target(node) => {
                (node.life, node.ledger) = (post.life(), FenceLedger::new(8));
                node.applying.clear();
            }
        }
    }

    fn receive(&mut self, _from: usize, message: Message, post: &mut Post<'_, Message>) {
        if let Self::Initiator(node) = self {
            node.look_at_clock(post.now());
        }
        match (self, message) {
            (Self::Target(node), Message::Data { life, id }) => {
                if !node.seen.insert(id) {
                    return;
                }
                if life != node.life {
                    post.send(INITIATOR, Message::Refused { id });
                } else if node.ledger.admit(id) {
                    let takes = Duration::from_millis(post.random(600));
                    node.applying.insert(id, (post.now() + takes, false));
                }
            }
            (Self::Target(node), Message::Fence { id }) => {
                let name = id.request << 16 | u64::from(id.attempt);
                match node.ledger.fence(name, &[id]) {
                    FenceStart::Acknowledge => post.send(INITIATOR, Message::FenceAck { id }),
                    FenceStart::Stop(running) => {
                        for id in running {
                            if let Some(applying) = node.applying.get_mut(&id) {
                                *applying = (post.now(), true);
                            }
                        }
                    }
                    FenceStart::Busy => {}
                }
            }
            (Self::Initiator(node), Message::Applied { id }) if id.request >= node.first => {
                let open = node.requests.get_mut(&id.request).is_some_and(|r| r.open == Some(id.attempt));
                if open {
                    node.on(id.request, AttemptEvent::Done { attempt: id.attempt, bytes: 1 }, post);
                }
            }
            (Self::Initiator(node), Message::Refused { id }) if id.request >= node.first => {
                let open = node.requests.get_mut(&id.request).is_some_and(|r| r.open == Some(id.attempt));
                let (kind, effect) = (FailureKind::Rejected, RemoteEffect::None);
                if open {
                    node.on(id.request, AttemptEvent::Failed { attempt: id.attempt, kind, effect }, post);
                }
            }
            (Self::Initiator(node), Message::FenceAck { id }) if id.request >= node.first => {
                node.on(id.request, AttemptEvent::Fenced { attempt: id.attempt }, post);
            }
            _ => {}
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        match self {
            Self::Initiator(node) => {
                let machines = node.live().filter_map(|(_, r)| r.machine.wake_at());
                let fences = node.live().filter_map(|(_, r)| r.fencing.map(|(_, at)| at));
                machines.chain(fences).chain(node.submit_at).min()
            }
            Self::Target(node) => node.applying.values().map(|(at, _)| *at).min(),
        }
    }

    fn wake(&mut self, post: &mut Post<'_, Message>) {
        let now = post.now();
        match self {
            Self::Initiator(node) => {
                node.look_at_clock(now);
                if node.submit_at.is_some_and(|at| now >= at) {
                    node.submit_at = None;
                    if node.next < REQUESTS {
                        node.submit(post);
                        node.submit_at = Some(now + Duration::from_millis(post.random(800)));
                    }
                }
                let live: Vec<_> = node.live().map(|(number, _)| *number).collect();
                for number in live {
                    node.on(number, AttemptEvent::Tick, post);
                    let Some(request) = node.requests.get_mut(&number) else { continue };
                    if let Some((attempt, at)) = request.fencing.filter(|(_, at)| now >= *at) {
                        request.fencing = Some((attempt, at + Duration::from_millis(150)));
                        post.send(TARGET, Message::Fence { id: AttemptId { request: number, attempt } });
                    }
                }
            }
            Self::Target(node) => {
                let due: Vec<_> =
                    node.applying.iter().filter(|(_, a)| now >= a.0).map(|(id, a)| (*id, a.1)).collect();
                for (id, stopped) in due {
                    if !stopped {
                        node.writes.push((id, now));
                        post.send(INITIATOR, Message::Applied { id });
                    }
                    node.end(id, post);
                }
            }
        }
    }
}

fn check(nodes: &[Node]) -> Result<(), String> {
    let [Node::Initiator(initiator), Node::Target(target)] = nodes else { return Ok(()) };
    if let Some(wrong) = &initiator.wrong {
        return Err(wrong.clone());
    }
    let Some((id, at)) = target.writes.last() else { return Ok(()) };
    let Some(request) = initiator.requests.get(&id.request).filter(|_| id.request >= initiator.first) else {
        return Ok(());
    };
    let allowed = match request.end {
        Some((_, AttemptOutcome::Failed { effect: RemoteEffect::MayStillApply, .. })) | None => true,
        Some((over, _)) => *at <= over,
    };
    if !allowed {
        return Err(format!("{id:?} is written after the end of its request"));
    }
    let newer =
        target.writes.iter().any(|(other, _)| other.request == id.request && other.attempt > id.attempt);
    if newer { Err(format!("{id:?} is written after a newer attempt")) } else { Ok(()) }
}

fn sim(seed: u64, weather: Weather, flawed: bool) -> Sim<Node> {
    let target = Target {
        ledger: FenceLedger::new(8),
        applying: BTreeMap::new(),
        seen: BTreeSet::new(),
        writes: Vec::new(),
        life: 0,
    };
    let nodes = vec![Node::Initiator(Initiator { flawed, ..Initiator::default() }), Node::Target(target)];
    Sim::new(seed, weather, nodes)
}

fn run(seed: u64, flawed: bool) -> Result<Ran, Mishap> {
    let weather = Weather::stormy().lasting(Duration::from_secs(30));
    let mut sim = sim(seed, weather, flawed);
    let ran = sim.run(|nodes, _| check(nodes))?;
    let Node::Initiator(initiator) = &sim.processes()[0] else { return Ok(ran) };
    if let Some((number, _)) = initiator.live().next() {
        return Err(sim.mishap(format!("request {number} is never over")));
    }
    let done = |r: &Request| matches!(r.end, Some((_, AttemptOutcome::Done { .. })));
    let claimed = initiator.requests.iter().filter(|(_, r)| done(r)).map(|(number, _)| *number);
    let Node::Target(target) = &sim.processes()[1] else { return Ok(ran) };
    for number in claimed {
        if !target.writes.iter().any(|(id, _)| id.request == number) {
            return Err(sim.mishap(format!("request {number} is done and was never written")));
        }
    }
    Ok(ran)
}

/// FO-01, FO-02, FO-07
#[test]
fn in_any_weather_nothing_is_written_after_its_request_is_over() {
    let delivered = all_seeds("in_any_weather_nothing_is_written", |seed| run(seed, false));
    assert!(delivered > 20, "{delivered}");
}

/// FO-07
#[test]
fn some_weather_finds_an_initiator_that_does_not_wait_for_the_fence() {
    let why = some_seed(|seed| run(seed, true));
    assert!(why.contains("is written after"), "{why}");
}

#[test]
fn in_calm_weather_every_request_is_done() {
    let mut sim = sim(1, Weather::calm(), false);
    sim.run(|nodes, _| check(nodes)).unwrap();
    let Node::Initiator(initiator) = &sim.processes()[INITIATOR] else { panic!("the first one submits") };
    let ends: Vec<_> = initiator.requests.values().filter_map(|request| request.end).collect();
    assert_eq!(ends.len() as u64, REQUESTS);
    let done = |(_, outcome): &(Instant, AttemptOutcome)| matches!(outcome, AttemptOutcome::Done { .. });
    assert!(ends.iter().all(done), "{ends:?}");
}
