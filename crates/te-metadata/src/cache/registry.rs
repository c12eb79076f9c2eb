//! All names of a cache: lookups load one pointer, writers exchange a copy.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use te_segment::SegmentName;

use super::slot::Slot;

/// Keeps the copy that a writer makes small.
const SHARDS: usize = 64;

type Names = HashMap<SegmentName, Weak<Slot>>;

#[derive(Default)]
struct Shard {
    names: ArcSwap<Names>,
    /// Held by writers, never while an `Arc<Slot>` is dropped: that takes it again.
    writing: Mutex<()>,
}

pub(super) struct Registry {
    shards: Vec<Shard>,
    hasher: RandomState,
    sequence: AtomicU64,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
            hasher: RandomState::new(),
            sequence: AtomicU64::new(0),
        }
    }

    fn shard(&self, name: &SegmentName) -> &Shard {
        let hash = self.hasher.hash_one(name);
        // The remainder is below SHARDS, which is the length.
        &self.shards[(hash % SHARDS as u64) as usize]
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn find(&self, name: &SegmentName) -> Option<Arc<Slot>> {
        self.shard(name).names.load().get(name)?.upgrade()
    }

    /// The slot of a name, a new one if there is none.
    pub(super) fn slot(self: &Arc<Self>, name: &SegmentName) -> Arc<Slot> {
        if let Some(slot) = self.find(name) {
            return slot;
        }
        let shard = self.shard(name);
        let _writing = shard.writing.lock();
        if let Some(slot) = shard.names.load().get(name).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Slot::new(name.clone(), Arc::downgrade(self)));
        let mut names = Names::clone(&shard.names.load());
        names.insert(name.clone(), Arc::downgrade(&slot));
        shard.names.store(Arc::new(names));
        slot
    }

    /// Removes a slot that is being dropped, unless its name has another one already.
    pub(super) fn forget(&self, name: &SegmentName, slot: *const Slot) {
        let shard = self.shard(name);
        let _writing = shard.writing.lock();
        let names = shard.names.load();
        if names.get(name).is_some_and(|known| known.as_ptr() == slot) {
            let mut names = Names::clone(&names);
            names.remove(name);
            shard.names.store(Arc::new(names));
        }
    }

    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        let of = |shard: &Shard| -> Vec<Arc<Slot>> {
            shard.names.load().values().filter_map(Weak::upgrade).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.names.load().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot whose last handle is gone may be replaced before it gets to forgetting itself.
    #[test]
    fn a_late_drop_does_not_remove_the_slot_that_replaced_it() {
        let registry = Arc::new(Registry::new());
        let name = SegmentName::new("b").unwrap();
        let earlier = Slot::new(name.clone(), Weak::new());
        let current = registry.slot(&name);
        registry.forget(&name, &earlier);
        assert!(registry.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &current)));
        drop(current);
        assert_eq!((registry.find(&name).is_none(), registry.len()), (true, 0));
    }
}
