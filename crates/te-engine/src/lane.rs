//! Lanes: what is known of one path to one life of a peer, beyond a snapshot of its descriptor. Its circuit, and the
//! flights that are looked after.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_segment::{Incarnation, SegmentName};
use te_transport::{FailureKind, PathLabel};

use crate::batch::BatchState;
use crate::machines::circuit::{
    Circuit, CircuitOpen, CircuitSettings, CircuitSnapshot, CircuitState, Ticket, blames_path,
};
use crate::metrics::{Metrics, OfTransport};

/// Whether a path to a peer is used, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathCircuit {
    /// The path.
    pub path: Arc<PathLabel>,
    /// What its circuit is doing.
    pub state: PathCircuitState,
    /// Failures that opened it or kept it open, since it was last calm.
    pub failures: u32,
    /// What the last of them was.
    pub last_failure: Option<FailureKind>,
}

/// What the circuit of a path is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathCircuitState {
    /// Used freely.
    Closed,
    /// It failed: used last, until so long from now.
    Open {
        /// Time left.
        remaining: Duration,
    },
    /// The time is over: one attempt decides.
    HalfOpen,
}

impl PathCircuit {
    /// Whether the path is used freely.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == PathCircuitState::Closed
    }
}

impl fmt::Display for PathCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            PathCircuitState::Closed => return f.write_str("closed"),
            PathCircuitState::Open { remaining } => {
                write!(f, "open for {} ms more", remaining.as_millis())?;
            }
            PathCircuitState::HalfOpen => f.write_str("half open, one attempt decides")?,
        }
        let times = if self.failures == 1 { "failure" } else { "failures" };
        write!(f, " after {} {times}", self.failures)?;
        match self.last_failure {
            Some(kind) => write!(f, ", the last: {kind}"),
            None => Ok(()),
        }
    }
}

/// One path to one life of a peer.
pub(crate) struct Lane {
    label: Arc<PathLabel>,
    circuit: Mutex<Circuit>,
    /// Whether the circuit has anything to say. Mirrors it, so that an untroubled path costs one load.
    troubled: AtomicBool,
    epoch: AtomicU64,
    watched: Mutex<Watched>,
    metrics: Arc<OfTransport>,
}

/// A flight that is under way, to be found and looked after there.
pub(crate) struct Watch {
    pub(crate) batch: Weak<BatchState>,
    pub(crate) flight: usize,
    pub(crate) started: Instant,
    /// It is looked at so often.
    pub(crate) look: Duration,
    /// Without progress for so long it is given up, if another path is open to it.
    pub(crate) silence: Option<Duration>,
    /// It is stopped at this time, so that its target can be fenced before the deadline.
    pub(crate) cutoff: Option<Instant>,
}

impl Watch {
    /// When it is first looked at.
    pub(crate) fn due(&self) -> Instant {
        let look = crate::machines::after(self.started, self.look);
        self.cutoff.map_or(look, |cutoff| cutoff.min(look))
    }
}

#[derive(Default)]
struct Watched {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Flights that ended so far: a sign of life of the path.
    ended: u64,
    seen_ended: u64,
    heard: Option<Instant>,
}

struct Entry {
    watch: Watch,
    /// Slices resolved when last looked at, and when that was more than before.
    resolved: usize,
    heard: Instant,
    over: bool,
}

/// A flight without progress, or too late to go on.
pub(crate) struct Overdue {
    pub(crate) batch: Arc<BatchState>,
    pub(crate) flight: usize,
    pub(crate) heard: Instant,
}

/// A flight on a path that moves others is silent after so many times the usual wait: it may just be queued.
const QUEUED_PATIENCE: u32 = 4;

impl Lane {
    fn new(label: Arc<PathLabel>, metrics: Arc<OfTransport>) -> Self {
        Self {
            label,
            metrics,
            circuit: Mutex::new(Circuit::new(CircuitSettings::default())),
            troubled: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            watched: Mutex::default(),
        }
    }

    pub(crate) fn label(&self) -> &Arc<PathLabel> {
        &self.label
    }

    /// Counters of its transport.
    pub(crate) fn metrics(&self) -> &OfTransport {
        &self.metrics
    }

    /// Whether the circuit must be asked, and told of successes.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// Whether the path is to be used last now.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.is_troubled() && self.circuit.lock().refuses(now).is_some()
    }

    /// Permission to use the path. One that is used although its circuit is open is as good as a trial.
    pub(crate) fn ticket(&self, now: Instant) -> Ticket {
        if !self.is_troubled() {
            return Ticket::closed(self.epoch.load(Ordering::Acquire));
        }
        self.change(|circuit| {
            let half_open = matches!(circuit.snapshot().state, CircuitState::HalfOpen { .. });
            let asked = match circuit.admit(now) {
                Err(CircuitOpen { until }) if !half_open => circuit.admit(until),
                answer => answer,
            };
            // Epochs begin at 0 and only grow: the ticket of one that is long over says nothing.
            asked.unwrap_or_else(|_| Ticket::closed(u64::MAX))
        })
    }

    pub(crate) fn succeeded(&self, ticket: Ticket) {
        self.change(|circuit| circuit.succeeded(Instant::now(), ticket));
    }

    /// The path failed, or an attempt on it ended without saying anything of it.
    pub(crate) fn failed(&self, ticket: Ticket, kind: FailureKind, blamed: bool) {
        let blamed = blamed && blames_path(kind);
        if !blamed && !self.is_troubled() {
            return;
        }
        let now = Instant::now();
        self.change(|circuit| {
            if blamed {
                circuit.failed(now, ticket, kind, rand::random());
            } else {
                circuit.abandoned(now, ticket);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Circuit) -> T) -> T {
        let mut circuit = self.circuit.lock();
        let answer = change(&mut circuit);
        self.epoch.store(circuit.epoch(), Ordering::Release);
        self.troubled.store(!circuit.is_untroubled(), Ordering::Release);
        answer
    }

    /// What can be told of the circuit.
    pub(crate) fn circuit(&self, now: Instant) -> PathCircuit {
        let CircuitSnapshot { state, failures, last } = self.circuit.lock().snapshot();
        let state = match state {
            CircuitState::Closed => PathCircuitState::Closed,
            CircuitState::Open { until } => {
                PathCircuitState::Open { remaining: until.saturating_duration_since(now) }
            }
            CircuitState::HalfOpen { .. } => PathCircuitState::HalfOpen,
        };
        PathCircuit { path: self.label.clone(), state, failures, last_failure: last }
    }

    /// Adds the batches that are under way over this path.
    fn batches(&self, batches: &mut Vec<Arc<BatchState>>) {
        let watched = self.watched.lock();
        batches.extend(watched.entries.iter().flatten().filter_map(|entry| entry.watch.batch.upgrade()));
    }

    /// Looks after a flight until [`unwatch`](Self::unwatch) is called with the number returned.
    pub(crate) fn watch(&self, watch: Watch) -> usize {
        let entry = Entry { resolved: 0, heard: watch.started, over: false, watch };
        let mut watched = self.watched.lock();
        match watched.free.pop() {
            Some(slot) => {
                watched.entries[slot] = Some(entry);
                slot
            }
            None => {
                watched.entries.push(Some(entry));
                watched.entries.len() - 1
            }
        }
    }

    /// When something was last heard of a flight that is under way.
    pub(crate) fn heard(&self, slot: usize) -> Option<Instant> {
        Some(self.watched.lock().entries.get(slot)?.as_ref()?.heard)
    }

    /// The flight is over; when something was last heard of it.
    pub(crate) fn unwatch(&self, slot: usize) -> Option<Instant> {
        let mut watched = self.watched.lock();
        let entry = watched.entries.get_mut(slot).and_then(Option::take)?;
        watched.free.push(slot);
        watched.ended += 1;
        Some(entry.heard)
    }

    /// Finds the flights that are overdue, each once, and says when to look again.
    fn look(&self, now: Instant, overdue: &mut Vec<Overdue>) -> Option<Instant> {
        // Batches are counted and dropped outside the lock: dropping one may run anything.
        let flights: Vec<(usize, Arc<BatchState>, usize)> = {
            let watched = self.watched.lock();
            let flying = watched.entries.iter().enumerate().filter_map(|(slot, entry)| {
                let watch = &entry.as_ref().filter(|entry| !entry.over)?.watch;
                Some((slot, watch.batch.upgrade()?, watch.flight))
            });
            flying.collect()
        };
        let counted: Vec<_> =
            flights.iter().map(|(slot, batch, flight)| (*slot, batch, batch.resolved_in(*flight))).collect();
        let mut watched = self.watched.lock();
        let Watched { entries, ended, seen_ended, heard, .. } = &mut *watched;
        if std::mem::replace(seen_ended, *ended) != *ended {
            *heard = Some(now);
        }
        for (slot, batch, resolved) in &counted {
            let Some(entry) = entries.get_mut(*slot).and_then(Option::as_mut) else { continue };
            if entry.watch.batch.as_ptr() == Arc::as_ptr(batch) && *resolved > entry.resolved {
                (entry.resolved, entry.heard, *heard) = (*resolved, now, Some(now));
            }
        }
        let mut next: Option<Instant> = None;
        for (slot, batch, _) in counted {
            let Some(entry) = entries.get_mut(slot).and_then(Option::as_mut) else { continue };
            if entry.watch.batch.as_ptr() != Arc::as_ptr(batch) {
                continue;
            }
            if entry.is_overdue(now, *heard) {
                entry.over = true;
                let (flight, heard) = (entry.watch.flight, entry.heard);
                overdue.push(Overdue { batch: batch.clone(), flight, heard });
                continue;
            }
            let looks = crate::machines::after(now, entry.watch.look);
            next = next.into_iter().chain([looks]).chain(entry.watch.cutoff).min();
        }
        drop(watched);
        next
    }
}

impl Entry {
    fn is_overdue(&self, now: Instant, path_heard: Option<Instant>) -> bool {
        if self.watch.cutoff.is_some_and(|cutoff| now >= cutoff) {
            return true;
        }
        let Some(silence) = self.watch.silence else { return false };
        let quiet = now.saturating_duration_since(self.heard);
        let path_quiet = path_heard.is_none_or(|heard| now.saturating_duration_since(heard) >= silence);
        quiet >= silence && (path_quiet || quiet >= silence.saturating_mul(QUEUED_PATIENCE))
    }
}

/// Names a lane.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    peer: SegmentName,
    life: Option<Incarnation>,
    path: PathLabel,
}

/// The lanes of an engine. They outlive the snapshots and handles that use them, so that what is known of a path is not
/// forgotten with a new descriptor.
#[derive(Default)]
pub(crate) struct Lanes {
    known: Mutex<Known>,
    metrics: Metrics,
}

#[derive(Default)]
struct Known {
    lanes: HashMap<Key, Arc<Lane>>,
    /// At so many those that nobody uses are forgotten.
    limit: usize,
}

/// Fewer lanes than this are never cleaned up.
const FEW: usize = 64;

impl Lanes {
    /// The lane of a path to one life of a peer.
    pub(crate) fn lane(
        &self,
        peer: &SegmentName,
        life: Option<Incarnation>,
        path: &Arc<PathLabel>,
    ) -> Arc<Lane> {
        let now = Instant::now();
        let mut known = self.known.lock();
        let Known { lanes, limit } = &mut *known;
        if lanes.len() >= (*limit).max(FEW) {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1 || lane.is_open(now));
            *limit = lanes.len() * 2;
        }
        let key = Key { peer: peer.clone(), life, path: PathLabel::clone(path) };
        let new = || Arc::new(Lane::new(path.clone(), self.metrics.of(path.transport())));
        lanes.entry(key).or_insert_with(new).clone()
    }

    /// What each transport has moved.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All paths that are known, by peer and name.
    pub(crate) fn paths(&self) -> Vec<(String, PathCircuit)> {
        let now = Instant::now();
        let known = self.known.lock();
        let path = |(key, lane): (&Key, &Arc<Lane>)| (key.peer.as_str().to_owned(), lane.circuit(now));
        let mut paths: Vec<_> = known.lanes.iter().map(path).collect();
        drop(known);
        paths.sort_by_cached_key(|(peer, circuit)| (peer.clone(), circuit.path.to_string()));
        paths
    }

    /// The circuits to one life of a peer, in the order of their paths' names.
    pub(crate) fn circuits(&self, peer: &SegmentName, life: Option<Incarnation>) -> Vec<PathCircuit> {
        let now = Instant::now();
        let known = self.known.lock();
        let of_peer = known.lanes.iter().filter(|(key, _)| key.peer == *peer && key.life == life);
        let mut circuits: Vec<_> = of_peer.map(|(_, lane)| lane.circuit(now)).collect();
        circuits.sort_by_cached_key(|circuit| circuit.path.to_string());
        circuits
    }

    /// The batches that are under way, some more than once.
    pub(crate) fn batches(&self) -> Vec<Arc<BatchState>> {
        let lanes: Vec<Arc<Lane>> = self.known.lock().lanes.values().cloned().collect();
        let mut batches = Vec::new();
        for lane in lanes {
            lane.batches(&mut batches);
        }
        batches
    }

    /// Finds the flights of all lanes that are overdue, and says when to look again.
    pub(crate) fn look(&self, now: Instant) -> (Vec<Overdue>, Option<Instant>) {
        let lanes: Vec<Arc<Lane>> = self.known.lock().lanes.values().cloned().collect();
        let mut overdue = Vec::new();
        let next = lanes.iter().filter_map(|lane| lane.look(now, &mut overdue)).min();
        (overdue, next)
    }
}

#[cfg(test)]
mod tests;
