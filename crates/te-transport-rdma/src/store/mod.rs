//! A bounded store of what owns queue pairs, with SIEVE eviction.
//!
//! Everything that exists counts against the cap, what is being destroyed included: peers that die cannot pile up queue
//! pairs. What has work under way is never evicted.
//!
//! ```
//! use te_segment::Generation;
//! use te_transport_rdma::store::{Held, Room, Store};
//! # struct Pair { busy: bool, gone: bool }
//! # impl Held for Pair {
//! #     fn endpoints(&self) -> usize { usize::from(!self.gone) }
//! #     fn is_busy(&self) -> bool { self.busy }
//! #     fn next_generation(&self) -> Generation { Generation::new(2) }
//! # }
//! let mut store = Store::new(1);
//! store.insert("a", Pair { busy: true, gone: false });
//! assert!(matches!(store.room(), Room::Full { busy: 1, .. }));
//! store.get(&"a").unwrap().busy = false;
//! assert!(matches!(store.room(), Room::Evicted("a")));
//! // Whoever runs the store closes what was evicted, and comes back.
//! for pair in store.retired() { pair.gone = true; }
//! assert!(matches!(store.room(), Room::Free));
//! ```

mod circuit;
mod sieve;

#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;

use te_segment::Generation;

pub use circuit::{Circuit, CircuitState, Pace};
use sieve::Sieve;

use crate::endpoint::{Line, PeerSet};

/// What a store keeps: an owner of queue pairs.
pub trait Held {
    /// Endpoints whose queue pairs exist.
    fn endpoints(&self) -> usize;

    /// Whether it can be forgotten.
    fn is_gone(&self) -> bool {
        self.endpoints() == 0
    }

    /// Whether work is under way, or will be at once.
    fn is_busy(&self) -> bool;

    /// The number that the next endpoint would have.
    fn next_generation(&self) -> Generation;
}

impl<P: PeerSet> Held for Line<P> {
    fn endpoints(&self) -> usize {
        Self::endpoints(self)
    }

    fn is_gone(&self) -> bool {
        self.endpoints() == 0 && !self.gives_way()
    }

    fn is_busy(&self) -> bool {
        self.outstanding() > 0
    }

    fn next_generation(&self) -> Generation {
        Self::next_generation(self)
    }
}

/// Whether there is room for one endpoint more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room<K> {
    /// There is.
    Free,
    /// Not yet: what was kept under this key is [retired](Store::retired) and has to be closed. Then ask again.
    Evicted(K),
    /// None, and nothing can be evicted. Trying again after some work has completed can help.
    Full {
        /// The cap.
        cap: usize,
        /// How many are kept that have work under way.
        busy: usize,
        /// How many endpoints are being destroyed.
        retiring: usize,
    },
}

impl<K> fmt::Display for Room<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("there is room"),
            Self::Evicted(_) => f.write_str("an idle endpoint is making room"),
            Self::Full { cap, busy, retiring } => write!(
                f,
                "all {cap} endpoints are in use: {busy} with work under way, {retiring} being destroyed (endpoints)"
            ),
        }
    }
}

/// The store.
#[derive(Debug)]
pub struct Store<K, V> {
    kept: Sieve<K, V>,
    retired: Vec<V>,
    cap: usize,
    /// No endpoint from here on has been used by what is forgotten.
    fresh: Generation,
}

impl<K: Clone + Eq + Hash, V: Held> Store<K, V> {
    /// An empty store for at most `cap` endpoints.
    #[must_use]
    pub fn new(cap: usize) -> Self {
        Self { kept: Sieve::default(), retired: Vec::new(), cap, fresh: Generation::new(1) }
    }

    /// What is kept under a key, which is noted as used.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.kept.touch(key)
    }

    /// Looks for room, forgetting what is gone and evicting at most one. Call it before anything that makes an endpoint.
    pub fn room(&mut self) -> Room<K> {
        self.reclaim();
        if self.endpoints() < self.cap {
            return Room::Free;
        }
        match self.kept.evict(|held| !held.is_busy() && held.endpoints() > 0) {
            Some((key, held)) => {
                self.retired.push(held);
                Room::Evicted(key)
            }
            None => Room::Full {
                cap: self.cap,
                busy: self.kept.values().filter(|held| held.is_busy()).count(),
                retiring: self.retired.iter().map(Held::endpoints).sum(),
            },
        }
    }

    /// Keeps something under a key. What was there is retired. What has no endpoints by the next [`room`](Self::room) or
    /// [`reclaim`](Self::reclaim) is forgotten.
    pub fn insert(&mut self, key: K, held: V) {
        if let Some(old) = self.kept.insert(key, held) {
            self.retired.push(old);
        }
    }

    /// Retires what is kept under a key; returns whether there was something.
    pub fn retire(&mut self, key: &K) -> bool {
        let removed = self.kept.remove(key);
        let found = removed.is_some();
        self.retired.extend(removed);
        found
    }

    /// What is retired and not yet gone, for events that are meant for it.
    pub fn retired(&mut self) -> impl Iterator<Item = &mut V> {
        self.retired.iter_mut()
    }

    /// Everything that is kept, without noting a use.
    pub fn kept(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.kept.iter_mut()
    }

    /// Forgets what has no queue pairs any more; returns how many were forgotten. To be called at least once a second,
    /// whether or not anything is inserted.
    pub fn reclaim(&mut self) -> usize {
        let gone = V::is_gone;
        let before = self.kept.len() + self.retired.len();
        let mut fresh = self.fresh;
        for held in self.retired.iter().filter(|held| gone(held)) {
            fresh = fresh.max(held.next_generation());
        }
        self.retired.retain(|held| !gone(held));
        for held in self.kept.take_all(gone) {
            fresh = fresh.max(held.next_generation());
        }
        self.fresh = fresh;
        before - self.kept.len() - self.retired.len()
    }

    /// Endpoints whose queue pairs exist, those under destruction included: the gauge to export.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.kept.values().chain(&self.retired).map(Held::endpoints).sum()
    }

    /// The number for the first endpoint of a new line: above all that were used before under its key.
    #[must_use]
    pub fn first_generation(&self) -> Generation {
        self.retired.iter().map(Held::next_generation).fold(self.fresh, Generation::max)
    }
}
