//! What the server holds: keys, values, leases, holders and recent changes. No I/O, no clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use super::history::History;

/// A lease as granted or last renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ttl: Duration,
    pub(super) renewed: Instant,
}

impl Lease {
    /// When it ends; `None` if that is beyond what the clock can say.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.renewed.checked_add(self.ttl)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ends().is_some_and(|at| at <= now)
    }
}

/// A key's value with all that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) value: Arc<str>,
    pub(super) revision: u64,
    pub(super) lease: Option<Lease>,
    /// The incarnation that wrote it, if it said so.
    pub(super) holder: Option<u128>,
    /// When it was written, in milliseconds since 1970.
    pub(super) changed_ms: u64,
}

/// On which condition a write takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    Absent,
    Revision(u64),
}

/// What a client wants changed.
#[derive(Debug)]
pub(super) enum Command {
    Put {
        key: Arc<str>,
        value: Arc<str>,
        condition: Condition,
        lease: Option<Duration>,
        holder: Option<u128>,
    },
    Delete {
        key: Arc<str>,
        condition: Condition,
        holder: Option<u128>,
    },
    Renew {
        key: Arc<str>,
        revision: u64,
        lease: Duration,
        holder: Option<u128>,
    },
}

/// Why a command has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Missing,
    /// The condition does not hold; the revision found.
    Conflict(Option<u64>),
    /// Another incarnation holds the key under a lease that still runs.
    Held(u64),
    TooManyKeys,
    Full,
    /// The journal cannot be written.
    Broken,
    /// Too many writes wait.
    Busy,
}

/// One change that was decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put { key: Arc<str>, record: Record },
    Delete { key: Arc<str>, revision: u64 },
    Renew { key: Arc<str>, lease: Lease },
}

/// Bounds of what is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

/// Everything the server holds.
#[derive(Debug)]
pub(super) struct Contents {
    records: BTreeMap<Arc<str>, Record>,
    expiries: BTreeSet<(Instant, Arc<str>)>,
    pub(super) revision: u64,
    bytes: usize,
    pub(super) history: History,
}

impl Contents {
    /// What was held before, and the revision from which to go on. Revisions never repeat, not even across restarts.
    pub(super) fn new(
        records: impl IntoIterator<Item = (Arc<str>, Record)>,
        revision: u64,
        history: History,
    ) -> Self {
        let mut contents =
            Self { records: BTreeMap::new(), expiries: BTreeSet::new(), revision, bytes: 0, history };
        for (key, record) in records {
            contents.insert(key, record);
        }
        contents
    }

    /// A record whose lease has not ended.
    pub(super) fn get(&self, key: &str, now: Instant) -> Option<&Record> {
        self.records.get(key).filter(|record| !record.lease.is_some_and(|lease| lease.is_over(now)))
    }

    /// The live records that begin with `prefix` and come after `after`, in byte order.
    pub(super) fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        now: Instant,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Record)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.records
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter(move |(_, record)| !record.lease.is_some_and(|lease| lease.is_over(now)))
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn leased(&self) -> usize {
        self.expiries.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the next lease ends.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    fn expired(&self, now: Instant) -> impl Iterator<Item = &Arc<str>> {
        self.expiries.iter().take_while(move |(at, _)| *at <= now).map(|(_, key)| key)
    }

    /// Makes a change visible, to readers and watchers.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Put { key, record } => {
                self.revision = record.revision;
                self.history.push(record.revision, Arc::clone(&key), Some(Arc::clone(&record.value)));
                self.remove(&key);
                self.insert(key, record);
            }
            Change::Delete { key, revision } => {
                self.revision = revision;
                self.remove(&key);
                self.history.push(revision, key, None);
            }
            Change::Renew { key, lease } => {
                if let Some(mut record) = self.remove(&key) {
                    record.lease = Some(lease);
                    self.insert(key, record);
                }
            }
        }
    }

    fn insert(&mut self, key: Arc<str>, record: Record) {
        if let Some(at) = record.lease.and_then(|lease| lease.ends()) {
            self.expiries.insert((at, Arc::clone(&key)));
        }
        self.bytes += record.value.len();
        self.records.insert(key, record);
    }

    fn remove(&mut self, key: &Arc<str>) -> Option<Record> {
        let record = self.records.remove(key)?;
        self.bytes -= record.value.len();
        if let Some(at) = record.lease.and_then(|lease| lease.ends()) {
            self.expiries.remove(&(at, Arc::clone(key)));
        }
        Some(record)
    }
}

/// Changes decided on one after the other, none of them visible yet.
pub(super) struct Plan<'a> {
    contents: &'a Contents,
    bounds: Bounds,
    now: Instant,
    now_ms: u64,
    /// What the changes so far make of keys; `None` is gone.
    overlay: HashMap<Arc<str>, Option<Record>>,
    revision: u64,
    keys: usize,
    bytes: usize,
    /// The changes so far.
    pub(super) changes: Vec<Change>,
}

impl<'a> Plan<'a> {
    /// Begins with the end of the leases that are over.
    pub(super) fn new(contents: &'a Contents, bounds: Bounds, now: Instant, now_ms: u64) -> Self {
        let mut plan = Self {
            contents,
            bounds,
            now,
            now_ms,
            overlay: HashMap::new(),
            revision: contents.revision,
            keys: contents.len(),
            bytes: contents.bytes,
            changes: Vec::new(),
        };
        for key in contents.expired(now) {
            plan.remove(Arc::clone(key));
        }
        plan
    }

    /// Decides on a command. The revision that the key has now, or of its deletion.
    pub(super) fn decide(&mut self, command: Command) -> Result<u64, Refusal> {
        match command {
            Command::Put { key, value, condition, lease, holder } => {
                self.put(key, value, condition, lease, holder)
            }
            Command::Delete { key, condition, holder } => {
                let current = self.find(&key).ok_or(Refusal::Missing)?;
                Self::allowed(Some(&current), condition, holder, self.now)?;
                Ok(self.remove(key))
            }
            Command::Renew { key, revision, lease, holder } => {
                let current = self.find(&key).ok_or(Refusal::Missing)?;
                let other = current.holder.is_some_and(|held| holder.is_some_and(|holder| holder != held));
                if current.revision != revision || other {
                    return Err(Refusal::Conflict(Some(current.revision)));
                }
                let lease = Lease { ttl: lease, renewed: self.now };
                let record = Record { lease: Some(lease), ..current };
                self.overlay.insert(Arc::clone(&key), Some(record));
                self.changes.push(Change::Renew { key, lease });
                Ok(revision)
            }
        }
    }

    fn put(
        &mut self,
        key: Arc<str>,
        value: Arc<str>,
        condition: Condition,
        lease: Option<Duration>,
        holder: Option<u128>,
    ) -> Result<u64, Refusal> {
        let current = self.find(&key);
        if let Some(current) = &current {
            // What a reference engine does when it publishes again: always accepted, nothing changes (META-03).
            let plain = condition == Condition::Always && lease.is_none() && holder.is_none();
            if plain && current.value == value {
                return Ok(current.revision);
            }
        }
        Self::allowed(current.as_ref(), condition, holder, self.now)?;
        if current.is_none() && self.keys >= self.bounds.keys {
            return Err(Refusal::TooManyKeys);
        }
        let bytes = self.bytes - current.as_ref().map_or(0, |record| record.value.len()) + value.len();
        if bytes > self.bounds.bytes {
            return Err(Refusal::Full);
        }
        (self.bytes, self.keys) = (bytes, self.keys + usize::from(current.is_none()));
        let (revision, now) = (self.next_revision(), self.now);
        let lease = lease.map(|ttl| Lease { ttl, renewed: now });
        let record = Record { value, revision, lease, holder, changed_ms: self.now_ms };
        self.overlay.insert(Arc::clone(&key), Some(record.clone()));
        self.changes.push(Change::Put { key, record });
        Ok(revision)
    }

    /// A key has one live holder: only whoever read its current revision, or the holder, may change it.
    fn allowed(
        current: Option<&Record>,
        condition: Condition,
        writer: Option<u128>,
        now: Instant,
    ) -> Result<(), Refusal> {
        match (condition, current) {
            (Condition::Absent, Some(record)) => Err(Refusal::Conflict(Some(record.revision))),
            (Condition::Revision(expected), Some(record)) if record.revision != expected => {
                Err(Refusal::Conflict(Some(record.revision)))
            }
            (Condition::Revision(_), None) => Err(Refusal::Conflict(None)),
            (Condition::Always, Some(record)) => {
                let leased = record.lease.is_some_and(|lease| !lease.is_over(now));
                let protected = leased && record.holder.is_some() && record.holder != writer;
                if protected { Err(Refusal::Held(record.revision)) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn find(&self, key: &str) -> Option<Record> {
        match self.overlay.get(key) {
            Some(changed) => changed.clone(),
            None => self.contents.get(key, self.now).cloned(),
        }
    }

    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn remove(&mut self, key: Arc<str>) -> u64 {
        let held = match self.overlay.get(&key) {
            Some(changed) => changed.as_ref(),
            None => self.contents.records.get(&key),
        };
        if let Some(record) = held {
            self.bytes -= record.value.len();
            self.keys -= 1;
        }
        let revision = self.next_revision();
        self.overlay.insert(Arc::clone(&key), None);
        self.changes.push(Change::Delete { key, revision });
        revision
    }
}

#[cfg(test)]
mod tests;
