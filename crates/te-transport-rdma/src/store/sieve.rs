//! The SIEVE order: a queue in order of insertion, a mark for what was used, and a hand that walks from old to new.

use std::collections::HashMap;
use std::hash::Hash;

#[derive(Debug)]
struct Node<K, V> {
    key: K,
    value: V,
    used: bool,
    /// Toward the newest.
    newer: Option<usize>,
    /// Toward the oldest.
    older: Option<usize>,
}

/// Values by key. Indices are stable and re-used; nothing points at memory.
#[derive(Debug)]
pub(super) struct Sieve<K, V> {
    index: HashMap<K, usize>,
    nodes: Vec<Option<Node<K, V>>>,
    free: Vec<usize>,
    newest: Option<usize>,
    oldest: Option<usize>,
    /// Where the search for a victim goes on; none: at the oldest.
    hand: Option<usize>,
}

impl<K, V> Default for Sieve<K, V> {
    fn default() -> Self {
        Self {
            index: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: None,
            oldest: None,
            hand: None,
        }
    }
}

impl<K: Clone + Eq + Hash, V> Sieve<K, V> {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    fn node(&mut self, at: usize) -> Option<&mut Node<K, V>> {
        self.nodes.get_mut(at)?.as_mut()
    }

    pub(super) fn touch(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.index.get(key)?;
        let node = self.node(at)?;
        node.used = true;
        Some(&mut node.value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.nodes.iter().flatten().map(|node| &node.value)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.nodes.iter_mut().flatten().map(|node| (&node.key, &mut node.value))
    }

    /// Puts a value in front; returns what was under its key.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let replaced = self.remove(&key);
        let node = Node { key: key.clone(), value, used: false, newer: None, older: self.newest };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = Some(node);
                at
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        if let Some(second) = self.newest.and_then(|newest| self.node(newest)) {
            second.newer = Some(at);
        }
        self.newest = Some(at);
        self.oldest = self.oldest.or(Some(at));
        self.index.insert(key, at);
        replaced
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.index.remove(key)?;
        let node = self.nodes.get_mut(at)?.take()?;
        if self.hand == Some(at) {
            self.hand = node.newer;
        }
        match node.newer.and_then(|newer| self.node(newer)) {
            Some(newer) => newer.older = node.older,
            None => self.newest = node.older,
        }
        match node.older.and_then(|older| self.node(older)) {
            Some(older) => older.newer = node.newer,
            None => self.oldest = node.newer,
        }
        self.free.push(at);
        Some(node.value)
    }

    /// Removes every value that matches.
    pub(super) fn take_all(&mut self, matches: impl Fn(&V) -> bool) -> Vec<V> {
        let nodes = self.nodes.iter().flatten().filter(|node| matches(&node.value));
        let keys: Vec<_> = nodes.map(|node| node.key.clone()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Removes the first value from the hand on that may go and was not used since the hand passed it.
    pub(super) fn evict(&mut self, may_go: impl Fn(&V) -> bool) -> Option<(K, V)> {
        // Twice round: the first time clears the marks.
        for _ in 0..2 * self.len() {
            let at = self.hand.or(self.oldest)?;
            let node = self.node(at)?;
            let newer = node.newer;
            // The mark of what may not go stays: it is in use.
            if may_go(&node.value) && !std::mem::take(&mut node.used) {
                let key = node.key.clone();
                let value = self.remove(&key)?;
                self.hand = newer;
                return Some((key, value));
            }
            self.hand = newer;
        }
        None
    }
}
