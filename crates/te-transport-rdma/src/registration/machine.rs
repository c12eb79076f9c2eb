//! The machine.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use te_segment::{AddressRange, NicName};

use super::{Chunk, Errno, Keys, Memory, Outcome, Place, Task, Unwind, Went};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Export {
    No,
    Asked,
    Open,
    Closing,
    Closed,
}

/// Why it does not end as registered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    Stage,
    Failed { cause: String, retryable: bool },
}

/// One buffer on its way to be registered at some NICs.
#[derive(Clone, Debug)]
pub struct Registration {
    chunks: Vec<AddressRange>,
    start: u64,
    memory: Memory,
    export: Export,
    /// What is to be handed out.
    ready: Vec<Task>,
    /// What is handed out and has no outcome.
    running: Vec<Task>,
    /// What waits for the export.
    waiting: Vec<Place>,
    /// What is registered, in the order of the outcomes.
    made: Vec<Place>,
    keys: BTreeMap<Place, Keys>,
    reasons: BTreeSet<String>,
    stop: Option<Stop>,
    unwind: Option<Unwind>,
}

impl Registration {
    /// A buffer to be registered at these NICs, in parts of at most `max` bytes: the least of what they take at a time.
    #[must_use]
    pub fn new(buffer: AddressRange, nics: Vec<NicName>, max: NonZeroU64, memory: Memory) -> Self {
        let chunks: Vec<_> = buffer.pieces(max).collect();
        let place = |nic: &NicName, chunk| Place { nic: nic.clone(), chunk };
        let places = nics.iter().flat_map(|nic| (0..chunks.len()).map(move |chunk| place(nic, chunk)));
        let mut new = Self {
            start: buffer.start(),
            memory,
            export: Export::No,
            ready: Vec::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            made: Vec::new(),
            keys: BTreeMap::new(),
            reasons: BTreeSet::new(),
            stop: None,
            unwind: None,
            chunks: chunks.clone(),
        };
        match memory {
            Memory::DeviceByExport => {
                new.waiting = places.collect();
                new.ask_export();
            }
            Memory::Host | Memory::Device => {
                new.ready = places.map(|place| Task::Register(place.clone(), chunks[place.chunk])).collect();
            }
        }
        if nics.is_empty() {
            (new.ready, new.stop) = (Vec::new(), Some(Stop::Stage));
            new.reasons.insert("no NIC is in use".to_owned());
        }
        new
    }

    /// The tasks that can begin now, each handed out once. None, while others are under way or when it has ended.
    pub fn tasks(&mut self) -> Vec<Task> {
        if self.running.is_empty() && self.ready.is_empty() {
            self.proceed();
        }
        self.running.extend(self.ready.iter().cloned());
        std::mem::take(&mut self.ready)
    }

    /// What came of a task that was handed out. Anything else changes nothing.
    pub fn done(&mut self, task: Task, outcome: Result<Went, Errno>) {
        let Some(at) = self.running.iter().position(|running| *running == task) else { return };
        self.running.swap_remove(at);
        match (task, outcome) {
            (Task::Register(place, _) | Task::Import(place, ..), Ok(Went::Registered(keys))) => {
                self.made.push(place.clone());
                self.keys.insert(place, keys);
            }
            // A NIC refuses memory of a device in more ways than one, by driver and by how it was allocated.
            (Task::Register(place, _), Err(errno)) if !errno.is_passing() && self.memory != Memory::Host => {
                self.reasons.insert(format!("{} cannot register it by address: {errno}", place.nic));
                match self.export {
                    Export::Open if self.stop.is_none() => self.import(place),
                    _ => {
                        self.waiting.push(place);
                        self.ask_export();
                    }
                }
            }
            (Task::Import(place, ..), Err(errno)) if errno.is_incapable() => {
                self.reasons.insert(format!("{} cannot import its dma-buf: {errno}", place.nic));
                self.end(Stop::Stage);
            }
            (Task::Register(place, _) | Task::Import(place, ..), Err(errno)) => {
                let cause = format!("registering at {} failed: {errno}", place.nic);
                self.end(Stop::Failed { cause, retryable: errno.is_passing() });
            }
            (Task::Export, Ok(_)) => {
                self.export = Export::Open;
                if self.stop.is_none() {
                    std::mem::take(&mut self.waiting).into_iter().for_each(|place| self.import(place));
                }
            }
            (Task::Export, Err(errno)) => self.cannot_export(&errno.to_string()),
            (Task::CloseExport, _) => self.export = Export::Closed,
            (Task::Deregister(_), outcome) => {
                if let Some(unwind) = &mut self.unwind {
                    unwind.done(outcome.map(drop));
                }
            }
            // A registration without keys is a defect of whoever carried it out.
            (Task::Register(place, _) | Task::Import(place, ..), Ok(Went::Done)) => {
                let cause = format!("registering at {} gave no keys", place.nic);
                self.end(Stop::Failed { cause, retryable: false });
            }
        }
    }

    /// As [`done`](Self::done) for an export that failed, in the words of whoever exports.
    pub fn not_exported(&mut self, cause: &str) {
        if let Some(at) = self.running.iter().position(|running| *running == Task::Export) {
            self.running.swap_remove(at);
            self.cannot_export(cause);
        }
    }

    fn cannot_export(&mut self, cause: &str) {
        self.export = Export::Closed;
        self.reasons.insert(format!("it cannot be exported as a dma-buf: {cause}"));
        self.end(Stop::Stage);
    }

    /// What was tried in vain so far, and why that failed, one line each.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.reasons.iter().map(String::as_str)
    }

    /// How it ended, once nothing is left to be done.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        let unwound = self.unwind.as_ref().is_none_or(|unwind| unwind.next().is_none());
        let busy = !self.running.is_empty() || !self.ready.is_empty() || !self.waiting.is_empty();
        if busy || !unwound || !matches!(self.export, Export::No | Export::Closed) {
            return None;
        }
        let left = || self.unwind.clone().unwrap_or_default();
        match &self.stop {
            None => Some(Outcome::Registered(self.registered())),
            Some(_) if self.unwind.is_none() && !self.made.is_empty() => None,
            Some(Stop::Failed { cause, retryable }) => {
                Some(Outcome::Failed { cause: cause.clone(), retryable: *retryable, left: left() })
            }
            Some(Stop::Stage) if left().failed().is_empty() => {
                Some(Outcome::Stage(self.reasons.iter().cloned().collect()))
            }
            Some(Stop::Stage) => {
                let cause = "a registration that is of no use could not be undone".to_owned();
                Some(Outcome::Failed { cause, retryable: true, left: left() })
            }
        }
    }

    /// Every registration that was made, in order: what is to be undone when the buffer is withdrawn.
    #[must_use]
    pub fn unwind(&self) -> Unwind {
        Unwind::new(self.made.clone())
    }

    fn registered(&self) -> Vec<Chunk> {
        let chunk = |(number, range): (usize, &AddressRange)| Chunk {
            range: *range,
            keys: self
                .keys
                .iter()
                .filter(|(place, _)| place.chunk == number)
                .map(|(place, keys)| (place.nic.clone(), *keys))
                .collect(),
        };
        self.chunks.iter().enumerate().map(chunk).collect()
    }

    fn ask_export(&mut self) {
        if self.export == Export::No && self.stop.is_none() {
            self.export = Export::Asked;
            self.ready.push(Task::Export);
        }
        if self.stop.is_some() {
            self.waiting.clear();
        }
    }

    fn import(&mut self, place: Place) {
        let range = self.chunks[place.chunk];
        self.ready.push(Task::Import(place, range, range.start() - self.start));
    }

    /// It will not be registered. The first failure counts, and a failure counts more than staging. What is under way is
    /// waited for.
    fn end(&mut self, stop: Stop) {
        let is_failure = matches!(stop, Stop::Failed { .. });
        if self.stop.is_none() || is_failure && self.stop == Some(Stop::Stage) {
            self.stop = Some(stop);
        }
        self.ready.clear();
        self.waiting.clear();
        if self.export == Export::Asked && !self.running.contains(&Task::Export) {
            self.export = Export::Closed;
        }
    }

    /// What comes when nothing is under way: closing the export, or undoing what was made.
    fn proceed(&mut self) {
        if self.stop.is_some() {
            let unwind = self.unwind.get_or_insert_with(|| Unwind::new(self.made.clone()));
            if let Some(place) = unwind.next() {
                self.ready.push(Task::Deregister(place.clone()));
                return;
            }
        }
        if self.export == Export::Open {
            self.export = Export::Closing;
            self.ready.push(Task::CloseExport);
        }
    }
}
