//! A seeded simulator: processes that exchange messages over a bad network on a virtual clock.
//!
//! Everything that happens follows from the seed: delays, losses, duplicates, partitions, frozen and restarted
//! processes. The faults end at three quarters of the time, so that whatever can recover has the time to. A failed run
//! names its seed; the same seed with the same processes is the same run.
//!
//! ```
//! use te_testkit::{Post, Process, Sim, Weather};
//!
//! struct Gossip(u32);
//! impl Process for Gossip {
//!     type Message = u32;
//!     fn start(&mut self, post: &mut Post<'_, u32>) {
//!         post.send(1 - post.me(), 1);
//!     }
//!     fn receive(&mut self, from: usize, hops: u32, post: &mut Post<'_, u32>) {
//!         self.0 = hops;
//!         if hops < 20 {
//!             post.send(from, hops + 1);
//!         }
//!     }
//! }
//! let mut sim = Sim::new(7, Weather::calm(), vec![Gossip(0), Gossip(0)]);
//! sim.run(|_, _| Ok(())).unwrap();
//! assert!(sim.processes()[0].0 > 10);
//! ```

mod weather;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use weather::Weather;
use weather::{Fault, Faults};

/// More events than this in one run are a process that never comes to rest.
const EVENTS: usize = 200_000;
/// So many last events are told of a failed run.
const TOLD: usize = 40;

/// One simulated process.
pub trait Process {
    /// What processes send to each other.
    type Message: Clone + Debug;

    /// A life begins: at the start of the run, and after each restart. What a real process would lose is to be
    /// forgotten here.
    fn start(&mut self, _post: &mut Post<'_, Self::Message>) {}

    /// A message arrives.
    fn receive(&mut self, from: usize, message: Self::Message, post: &mut Post<'_, Self::Message>);

    /// When [`Process::wake`] is due; asked again after each event of this process.
    fn wake_at(&self) -> Option<Instant> {
        None
    }

    /// The time has come.
    fn wake(&mut self, _post: &mut Post<'_, Self::Message>) {}
}

/// What a process can do while it handles an event.
#[derive(Debug)]
pub struct Post<'a, M> {
    now: Instant,
    me: usize,
    life: u32,
    chance: &'a mut StdRng,
    outgoing: Vec<(usize, M)>,
}

impl<M> Post<'_, M> {
    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The number of this process.
    #[must_use]
    pub fn me(&self) -> usize {
        self.me
    }

    /// Which life of this process it is, from 0.
    #[must_use]
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Sends a message. It may be late, lost or doubled.
    pub fn send(&mut self, to: usize, message: M) {
        self.outgoing.push((to, message));
    }

    /// A random number below `bound`, or 0.
    pub fn random(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.chance.random_range(0..bound) }
    }
}

#[derive(Clone, Debug)]
enum Event<M> {
    Message { from: usize, to: usize, message: M },
    Fault(Fault),
}

/// A line of the log, put into words only when somebody reads it.
#[derive(Clone, Debug)]
enum Line<M> {
    Arrives { from: usize, to: usize, message: M },
    Lost { from: usize, to: usize, message: M },
    Wakes(usize),
    Restarts(usize),
}

impl<M: Debug> fmt::Display for Line<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrives { from, to, message } => write!(f, "{from} -> {to} {message:?}"),
            Self::Lost { from, to, message } => write!(f, "{from} -x {to} {message:?}"),
            Self::Wakes(process) => write!(f, "{process} wakes"),
            Self::Restarts(process) => write!(f, "{process} restarts"),
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ran {
    /// Messages that arrived.
    pub delivered: usize,
    /// Messages that were lost, doubled copies included.
    pub lost: usize,
    /// Wake-ups.
    pub wakes: usize,
    /// Lives that ended in a restart.
    pub restarts: usize,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mishap {
    /// The seed that repeats it.
    pub seed: u64,
    /// The virtual time since the start.
    pub at: Duration,
    /// What is wrong.
    pub why: String,
    /// The last events, oldest first.
    pub log: Vec<String>,
}

impl fmt::Display for Mishap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} after {:?}; repeat it with TE_SEED={}", self.why, self.at, self.seed)?;
        for line in &self.log {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// One simulated run.
#[derive(Debug)]
pub struct Sim<P: Process> {
    seed: u64,
    weather: Weather,
    processes: Vec<P>,
    lives: Vec<u32>,
    faults: Faults,
    chance: StdRng,
    origin: Instant,
    now: Duration,
    /// By time, then in the order of sending.
    queue: BTreeMap<(Duration, u64), Event<P::Message>>,
    sequence: u64,
    log: VecDeque<(Duration, Line<P::Message>)>,
    ran: Ran,
}

impl<P: Process> Sim<P> {
    /// A run of these processes. The seed decides everything else.
    #[must_use]
    pub fn new(seed: u64, weather: Weather, processes: Vec<P>) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let faults = Faults::draw(&weather, processes.len(), &mut chance);
        let mut sim = Self {
            seed,
            weather,
            lives: vec![0; processes.len()],
            processes,
            chance,
            origin: Instant::now(),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            sequence: 0,
            log: VecDeque::new(),
            ran: Ran::default(),
            faults: Faults::default(),
        };
        for (at, fault) in &faults.restarts {
            sim.enqueue(*at, Event::Fault(*fault));
        }
        sim.faults = faults;
        sim
    }

    /// The processes, for checks after the run.
    #[must_use]
    pub fn processes(&self) -> &[P] {
        &self.processes
    }

    /// Runs to the end of the time. `check` sees the processes after each event.
    ///
    /// # Errors
    ///
    /// What `check` found first, or that a process never comes to rest.
    pub fn run(&mut self, check: impl Fn(&[P], Instant) -> Result<(), String>) -> Result<Ran, Mishap> {
        for process in 0..self.processes.len() {
            self.with(process, Process::start);
        }
        for _ in 0..EVENTS {
            let Some(at) = self.next().filter(|at| *at <= self.weather.length) else { return Ok(self.ran) };
            self.now = self.now.max(at);
            self.step();
            check(&self.processes, self.origin + self.now).map_err(|why| self.mishap(why))?;
        }
        Err(self.mishap(format!("not at rest after {EVENTS} events")))
    }

    /// A failure found after the run, told like one found during it.
    #[must_use]
    pub fn mishap(&self, why: impl Into<String>) -> Mishap {
        let log = self.log.iter().map(|(at, line)| format!("{:>12.6} s  {line}", at.as_secs_f64())).collect();
        Mishap { seed: self.seed, at: self.now, why: why.into(), log }
    }

    fn next(&self) -> Option<Duration> {
        let arrival = self.queue.first_key_value().map(|((at, _), _)| *at);
        let wake = (0..self.processes.len()).filter_map(|process| self.wake_of(process)).min();
        arrival.into_iter().chain(wake).min()
    }

    fn wake_of(&self, process: usize) -> Option<Duration> {
        let at = self.processes[process].wake_at()?.saturating_duration_since(self.origin).max(self.now);
        Some(self.faults.thaws(process, at))
    }

    fn step(&mut self) {
        let due = self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= self.now);
        if let Some((_, event)) = due.then(|| self.queue.pop_first()).flatten() {
            return self.handle(event);
        }
        let sleeper = (0..self.processes.len()).find(|p| self.wake_of(*p).is_some_and(|at| at <= self.now));
        if let Some(process) = sleeper {
            self.ran.wakes += 1;
            self.tell(Line::Wakes(process));
            self.with(process, Process::wake);
        }
    }

    fn handle(&mut self, event: Event<P::Message>) {
        match event {
            Event::Message { to, .. } if self.faults.thaws(to, self.now) > self.now => {
                self.enqueue(self.faults.thaws(to, self.now), event);
            }
            Event::Message { from, to, message } => {
                self.ran.delivered += 1;
                self.tell(Line::Arrives { from, to, message: message.clone() });
                self.with(to, |process, post| process.receive(from, message, post));
            }
            Event::Fault(Fault::Restart(process)) => {
                self.ran.restarts += 1;
                self.lives[process] += 1;
                self.tell(Line::Restarts(process));
                // What was on its way to the old life dies with it.
                self.queue.retain(|_, event| !matches!(event, Event::Message { to, .. } if *to == process));
                self.with(process, Process::start);
            }
        }
    }

    fn with(&mut self, process: usize, act: impl FnOnce(&mut P, &mut Post<'_, P::Message>)) {
        let now = self.origin + self.now;
        let life = self.lives[process];
        let mut post = Post { now, me: process, life, chance: &mut self.chance, outgoing: Vec::new() };
        act(&mut self.processes[process], &mut post);
        for (to, message) in post.outgoing {
            self.send(process, to, message);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: P::Message) {
        let bad = self.now < self.weather.fair_from();
        let copies = if bad && self.chance.random_bool(self.weather.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let lost = (bad && self.chance.random_bool(self.weather.loss))
                || self.faults.parts(from, to, self.now)
                || to >= self.processes.len();
            if lost {
                self.ran.lost += 1;
                self.tell(Line::Lost { from, to, message: message.clone() });
                continue;
            }
            let delay = self.weather.draw_delay(&mut self.chance);
            self.enqueue(self.now + delay, Event::Message { from, to, message: message.clone() });
        }
    }

    fn enqueue(&mut self, at: Duration, event: Event<P::Message>) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn tell(&mut self, line: Line<P::Message>) {
        if self.log.len() == TOLD {
            self.log.pop_front();
        }
        self.log.push_back((self.now, line));
    }
}
