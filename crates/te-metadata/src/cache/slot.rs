//! One name: its fetches, one at a time, and its lives.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use te_segment::{Incarnation, SegmentName};

use super::{
    deadline_exceeded,
    registry::Registry,
    view::{Cause, SegmentState, Snapshot, View},
};
use crate::{
    directory::{Directory, Resolved},
    error::DirectoryError,
};

/// One life of a segment: everything between two changes of incarnation.
pub(super) struct Life(ArcSwap<View>);

impl Life {
    fn new(snapshot: Snapshot) -> Self {
        let view = View { snapshot: Arc::new(snapshot), state: SegmentState::Fresh, doubts: 0 };
        Self(ArcSwap::from_pointee(view))
    }

    pub(super) fn view(&self) -> Guard<Arc<View>> {
        self.0.load()
    }

    /// Neither replaced nor gone.
    pub(super) fn is_current(&self) -> bool {
        matches!(self.view().state, SegmentState::Fresh | SegmentState::Suspect { .. })
    }

    fn change(&self, mut to: impl FnMut(&View) -> Option<View>) {
        self.0.rcu(|view| match to(view) {
            Some(next) if !matches!(view.state, SegmentState::Replaced { .. }) => Arc::new(next),
            _ => Arc::clone(view),
        });
    }

    pub(super) fn doubt(&self, cause: Cause) {
        let now = Instant::now();
        self.change(|view| {
            let state = match &view.state {
                SegmentState::Gone { .. } => return None,
                SegmentState::Suspect { since, cause: known } => {
                    let keep = known.starts_expiry() && !cause.starts_expiry();
                    let cause = if keep { known.clone() } else { cause.clone() };
                    SegmentState::Suspect { since: *since, cause }
                }
                _ => SegmentState::Suspect { since: now, cause: cause.clone() },
            };
            Some(View { state, doubts: view.doubts + 1, snapshot: Arc::clone(&view.snapshot) })
        });
    }

    pub(super) fn trust(&self) {
        self.change(|view| {
            let suspect = matches!(view.state, SegmentState::Suspect { .. });
            suspect.then(|| View { state: SegmentState::Fresh, ..view.clone() })
        });
    }

    pub(super) fn bury(&self) {
        let now = Instant::now();
        self.change(|view| Some(View { state: SegmentState::Gone { since: now }, ..view.clone() }));
    }

    fn replace(&self, by: Option<Incarnation>) {
        let now = Instant::now();
        self.change(|view| Some(View { state: SegmentState::Replaced { since: now, by }, ..view.clone() }));
    }

    /// Takes a newer snapshot of the same life. Doubts raised after `known` of them stay.
    fn renew(&self, snapshot: &Arc<Snapshot>, known: Option<u64>) {
        self.change(|view| {
            let doubted = known.is_some_and(|known| known != view.doubts);
            let state = if doubted { view.state.clone() } else { SegmentState::Fresh };
            let lagging = view.snapshot.is_newer_than(&snapshot.descriptor);
            let snapshot = if lagging { &view.snapshot } else { snapshot };
            Some(View { snapshot: Arc::clone(snapshot), state, doubts: view.doubts })
        });
    }
}

/// Whose fetch a caller may share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    /// Any that ends after the call began.
    InFlight,
    /// Only one that began after the call did, so that it sees what was published before.
    StartedAfter,
}

/// What was known when a fetch began.
pub(super) struct Begun {
    life: Option<Arc<Life>>,
    doubts: u64,
}

impl Begun {
    /// How many doubts about `life` it knows of: of a life that came later, none.
    fn doubts_about(&self, life: &Arc<Life>) -> u64 {
        if self.is_of(life) { self.doubts } else { 0 }
    }

    fn is_of(&self, life: &Arc<Life>) -> bool {
        self.life.as_ref().is_some_and(|known| Arc::ptr_eq(known, life))
    }
}

struct Fetched {
    number: u64,
    outcome: Result<(), DirectoryError>,
}

/// One name of the cache.
pub(super) struct Slot {
    name: SegmentName,
    registry: Weak<Registry>,
    life: ArcSwapOption<Life>,
    /// Held across a fetch; holds the last one's outcome. A dropped fetch passes it on to the next in line.
    gate: tokio::sync::Mutex<Option<Fetched>>,
    /// Number of the fetch begun last.
    begun: AtomicU64,
    /// Number of the fetch ended last.
    ended: AtomicU64,
    installing: parking_lot::Mutex<()>,
}

impl Slot {
    pub(super) fn new(name: SegmentName, registry: Weak<Registry>) -> Self {
        Self {
            name,
            registry,
            life: ArcSwapOption::empty(),
            gate: tokio::sync::Mutex::new(None),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            installing: parking_lot::Mutex::new(()),
        }
    }

    pub(super) fn name(&self) -> &SegmentName {
        &self.name
    }

    pub(super) fn life(&self) -> Option<Arc<Life>> {
        self.life.load_full()
    }

    /// Fetches, or waits for a fetch that will do.
    pub(super) async fn refresh(
        &self,
        directory: &dyn Directory,
        deadline: Instant,
        join: Join,
    ) -> Result<Arc<Life>, DirectoryError> {
        let seen = match join {
            Join::InFlight => self.ended.load(Ordering::SeqCst),
            Join::StartedAfter => self.begun.load(Ordering::SeqCst),
        };
        let late = || deadline_exceeded(&self.name, directory.scheme());
        let until = tokio::time::Instant::from_std(deadline);
        let mut gate = tokio::time::timeout_at(until, self.gate.lock()).await.map_err(|_| late())?;
        if let Some(Fetched { number, outcome }) = &*gate
            && *number > seen
        {
            match (outcome, self.life()) {
                (Ok(()), Some(life)) => return Ok(life),
                // Another caller's deadline is not ours.
                (Ok(()), None) | (Err(DirectoryError::DeadlineExceeded { .. }), _) => {}
                (Err(error), _) => return Err(error.clone()),
            }
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let begun = self.begun();
        let resolved = tokio::time::timeout_at(until, directory.resolve(&self.name, deadline))
            .await
            .unwrap_or_else(|_| Err(late()));
        let result = match resolved {
            Ok(resolved) => Ok(self.install(resolved, Some(begun))),
            Err(error) => {
                if let Some(life) = self.life() {
                    life.doubt(Cause::of(&error));
                }
                Err(error)
            }
        };
        *gate = Some(Fetched { number, outcome: result.as_ref().map(drop).map_err(Clone::clone) });
        self.ended.store(number, Ordering::SeqCst);
        result
    }

    fn begun(&self) -> Begun {
        let life = self.life();
        let doubts = life.as_ref().map_or(0, |life| life.view().doubts);
        Begun { life, doubts }
    }

    /// Takes over a descriptor: of the life we know, or of a new one. `begun` is of the fetch that found it; none if the
    /// owner itself said so.
    pub(super) fn install(&self, resolved: Resolved, begun: Option<Begun>) -> Arc<Life> {
        let sequence = self.registry.upgrade().map_or(0, |registry| registry.next_sequence());
        let snapshot = Snapshot::new(resolved, sequence);
        let _one_at_a_time = self.installing.lock();
        if let Some(life) = self.life() {
            if life.view().snapshot.same_life(&snapshot.descriptor) {
                life.renew(&Arc::new(snapshot), begun.map(|begun| begun.doubts_about(&life)));
                return life;
            }
            // The owner said meanwhile that this life is over, and lives do not come back.
            let earlier = begun.filter(|begun| !begun.is_of(&life)).and_then(|begun| begun.life);
            if earlier.is_some_and(|earlier| earlier.view().snapshot.same_life(&snapshot.descriptor)) {
                return life;
            }
            life.replace(snapshot.descriptor.incarnation());
        }
        let life = Arc::new(Life::new(snapshot));
        self.life.store(Some(Arc::clone(&life)));
        life
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.forget(&self.name, self);
        }
    }
}

#[cfg(test)]
mod interleavings;
