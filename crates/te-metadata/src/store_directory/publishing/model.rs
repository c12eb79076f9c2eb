//! Engines that want one name, exhaustively: an old holder that lives, is dead, falls silent or restarts, and two that
//! claim the name, over a store that compares and whose leases run out.
//!
//! Time is counted in ticks. A lease lasts [`LEASE`] of them. Whoever is not silent does between two ticks whatever it
//! has begun, and looks after its records; falling silent and dying are faults.

use te_segment::Incarnation;
use te_testkit::{Explored, Finding, Model, explore};

use super::super::claim::{Owner, sort};
use super::*;

mod properties;

const STATES: usize = 3_000_000;
/// The old holder, and two that claim its name.
const ENGINES: usize = 3;
const LEASE: u8 = 2;
const TICKS: u8 = 5;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The store says that it compares, and writes whatever it holds.
    Store,
    /// Silence is taken for death.
    Impatient,
    /// Holders do not look after their records.
    Careless,
    /// A holder whose place was overwritten gives its name up, although the record is its own.
    Timid,
}

/// How the old holder is at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Old {
    Alive,
    Dead,
    Silent,
    /// The next life is beginning at the place of the last.
    Restarted,
}

struct Names {
    flaw: Flaw,
    old: Old,
    leases: bool,
    claimants: usize,
    faults: u8,
}

/// One life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Life {
    engine: usize,
    life: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    by: Life,
    revision: u64,
    /// Ticks since it was written or renewed.
    age: u8,
}

#[derive(Clone, Debug, Hash)]
enum Role {
    /// Not begun.
    Idle,
    /// Reads both records one after the other: the place is read.
    Reads(Publishing, Option<Entry>),
    Publishes(Publishing, Action),
    /// Holds the name, with the revisions of what it wrote.
    Holds([u64; 2]),
    /// Knows that it does not hold it.
    Refused(Refusal),
    Dead,
}

#[derive(Clone, Debug, Hash)]
struct Engine {
    life: u8,
    role: Role,
    silent: bool,
    /// Was silent and has not looked after its records since.
    doubtful: bool,
    /// Records that are looked after since the last tick.
    kept: u8,
}

#[derive(Clone, Debug, Hash)]
struct World {
    ticks: u8,
    faults: u8,
    revision: u64,
    store: [Option<Entry>; 2],
    engines: Vec<Engine>,
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Begins to publish.
    Begin(usize),
    /// Does the next thing; `heard`: whoever is asked and can answer does.
    Act {
        engine: usize,
        heard: bool,
    },
    /// Looks after the next of its records.
    Keep(usize),
    Tick,
    FallSilent(usize),
    Wake(usize),
    Die(usize),
    /// The old holder dies and begins another life.
    Restart,
}

fn at(engine: usize) -> Endpoint {
    format!("10.0.0.{}:15000", engine + 1).parse().unwrap()
}

fn incarnation(Life { engine, life }: Life) -> Incarnation {
    Incarnation::from_bits(engine as u128 * 10 + u128::from(life))
}

fn engine_at(endpoint: &Endpoint) -> usize {
    (0..ENGINES).find(|engine| at(*engine) == *endpoint).unwrap()
}

impl Engine {
    fn new(life: u8, role: Role) -> Self {
        Self { life, role, silent: false, doubtful: false, kept: 0 }
    }

    fn holds(&self) -> bool {
        matches!(self.role, Role::Holds(_))
    }

    /// Has begun something that takes no time.
    fn is_busy(&self) -> bool {
        match &self.role {
            Role::Reads(..) => true,
            Role::Publishes(_, action) => *action != Action::Wait,
            _ => false,
        }
    }
}

impl World {
    fn life(&self, engine: usize) -> Life {
        Life { engine, life: self.engines[engine].life }
    }

    /// What the engine at this endpoint answers, if an answer comes through.
    fn answer(&self, endpoint: &Endpoint, heard: bool) -> HolderAnswer {
        let engine = engine_at(endpoint);
        match (&self.engines[engine], heard) {
            (Engine { silent: true, .. }, _) | (_, false) => HolderAnswer::Silent,
            (Engine { role: Role::Dead, .. }, true) => HolderAnswer::Refused,
            (_, true) => HolderAnswer::Alive { incarnation: Some(incarnation(self.life(engine))) },
        }
    }

    /// Whether this life holds the name and nobody has reason to doubt it.
    fn lives(&self, Life { engine, life }: Life) -> bool {
        let owner = &self.engines[engine];
        owner.life == life && owner.holds() && !owner.silent && !owner.doubtful
    }

    /// Whether the holder has to look after its records: once between two ticks, and after the last as often as it takes.
    fn is_due(&self, number: usize) -> bool {
        let engine = &self.engines[number];
        let theirs = |entry: &Option<Entry>| entry.is_none_or(|entry| entry.by.engine != number);
        let late = self.ticks == TICKS && self.store.iter().any(theirs);
        engine.holds() && (engine.kept < 2 || late)
    }

    fn put(&mut self, which: Which, condition: PutCondition, by: Life, compares: bool) -> Event {
        let place = &mut self.store[which as usize];
        let fits = match condition {
            PutCondition::Always => true,
            PutCondition::Absent => place.is_none(),
            PutCondition::Revision(revision) => place.is_some_and(|entry| entry.revision == revision),
        };
        if compares && !fits {
            return Event::Conflict;
        }
        self.revision += 1;
        let revision = self.revision;
        if let Some(old) = place.replace(Entry { by, revision, age: 0 })
            && which == Which::Record
            && old.by != by
            && self.lives(old.by)
        {
            self.wrong = Some(format!("{by:?} overwrites {:?}, which is alive", old.by));
        }
        Event::Written { revision }
    }

    fn found(&self, which: Which, by: Life) -> Option<Found> {
        let ours = |entry: &Entry| match which {
            Which::Place => entry.by.engine == by.engine,
            Which::Record => entry.by == by,
        };
        self.store[which as usize].map(|entry| Found { revision: entry.revision, ours: ours(&entry) })
    }

    fn act(&mut self, flaw: Flaw, engine: usize, heard: bool) {
        let by = self.life(engine);
        let role = std::mem::replace(&mut self.engines[engine].role, Role::Idle);
        let (mut machine, event) = match role {
            Role::Publishes(machine, Action::Read) => {
                self.engines[engine].role = Role::Reads(machine, self.store[0]);
                return;
            }
            Role::Reads(machine, place) => {
                let record = self.store[1];
                let owner = |entry: Entry| {
                    Some(Owner {
                        incarnation: Some(incarnation(entry.by)),
                        control: Some(at(entry.by.engine)),
                    })
                };
                let location = place.map(|entry| at(entry.by.engine));
                let claimed = sort(location, record.map(owner), Some(incarnation(by)), &at(engine));
                let revisions = [place, record].map(|entry| entry.map(|entry| entry.revision));
                (machine, Event::Read { claimed, revisions })
            }
            Role::Publishes(machine, action) => {
                let event = match action {
                    Action::Ask(endpoint) => Event::Answered(match self.answer(&endpoint, heard) {
                        HolderAnswer::Silent if flaw == Flaw::Impatient => HolderAnswer::Refused,
                        answer => answer,
                    }),
                    Action::Put(which, condition) => self.put(which, condition, by, flaw != Flaw::Store),
                    Action::Look(which) => Event::Found(self.found(which, by)),
                    Action::Delete(which) => {
                        self.store[which as usize] = None;
                        Event::Deleted
                    }
                    Action::Wait if self.ticks == TICKS => Event::OutOfTime,
                    Action::Wait | Action::Read | Action::Finish(_) => Event::Waited,
                };
                (machine, event)
            }
            other => {
                self.engines[engine].role = other;
                return;
            }
        };
        let place = &mut self.engines[engine];
        place.role = match machine.on(event) {
            Action::Finish(Ok(revisions)) => {
                place.kept = 2;
                Role::Holds(revisions)
            }
            Action::Finish(Err(refusal)) => Role::Refused(refusal),
            action => Role::Publishes(machine, action),
        };
    }

    /// As `keep` of the directory: renews under leases, and looks where that does not succeed.
    fn keep(&mut self, flaw: Flaw, leases: bool, engine: usize) {
        let by = self.life(engine);
        let Role::Holds(revisions) = self.engines[engine].role else { return };
        self.engines[engine].kept %= 2;
        let which = if self.engines[engine].kept == 0 { Which::Record } else { Which::Place };
        let renewed = match &mut self.store[which as usize] {
            Some(entry) if leases && entry.revision == revisions[which as usize] => {
                entry.age = 0;
                true
            }
            _ => false,
        };
        let looked = match self.found(which, by) {
            _ if renewed => Looked::There,
            Some(Found { ours: false, .. }) if flaw == Flaw::Timid => Looked::Lost,
            found => looked_after(which, found, leases),
        };
        let place = &mut self.engines[engine];
        match looked {
            Looked::There => {
                place.kept += 1;
                place.doubtful &= place.kept < 2;
            }
            Looked::Missing => {
                let abilities = Abilities { conditional: true, leases };
                let (machine, action) = Publishing::begin(abilities, Some(revisions));
                place.role = Role::Publishes(machine, action);
            }
            Looked::Lost => place.role = Role::Refused(Refusal::Lost),
        }
    }

    fn tick(&mut self, leases: bool) {
        self.ticks += 1;
        for place in &mut self.store {
            place.iter_mut().for_each(|entry| entry.age += u8::from(leases));
            place.take_if(|entry| entry.age >= LEASE);
        }
        for engine in &mut self.engines {
            engine.kept = 0;
            if let Role::Publishes(machine, action @ Action::Wait) = &mut engine.role
                && !engine.silent
                && self.ticks < TICKS
            {
                *action = machine.on(Event::Waited);
            }
        }
    }
}
