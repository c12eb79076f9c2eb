//! The user's side of another's segment: what may be used, and when an invalidation is acknowledged.
//!
//! A use is anything that touches the owner's memory: a request from its submission to its local end, a mapping while it
//! is copied from. The acknowledgement says that no use of the withdrawn buffers is left and none will begin; the owner
//! may give the memory back on that word. That is the whole safety of a withdrawal without a fence.
//!
//! A lost control connection does not end uses: the owner counts this peer as a holder until it has fenced it.

use std::collections::BTreeMap;

use te_segment::Generation;

/// Why a buffer may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NotUsable {
    /// The owner does not know that we are interested: ask first.
    NotJoined,
    /// The snapshot is older than what the owner may have changed: look again.
    Stale {
        /// A snapshot of this version or a newer one is needed.
        needs: u64,
    },
    /// The buffer is withdrawn.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owed {
    /// The invalidation to acknowledge.
    id: u64,
    withdrawn: Vec<Generation>,
}

/// What one peer may use of one life of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    limit: usize,
    joined: bool,
    /// Snapshots older than this may name anything that was withdrawn.
    floor: u64,
    /// Withdrawn since the floor, with the version that does not have them any more.
    withdrawn: BTreeMap<Generation, u64>,
    uses: BTreeMap<Generation, u32>,
    owed: Vec<Owed>,
}

impl Holding {
    /// Nothing may be used yet. Remembers `limit` withdrawn buffers one by one; beyond, older snapshots are stale.
    pub(crate) fn new(limit: usize) -> Self {
        let (withdrawn, uses) = (BTreeMap::new(), BTreeMap::new());
        Self { limit, joined: false, floor: 0, withdrawn, uses, owed: Vec::new() }
    }

    /// The owner has registered our interest and serves this version. Words from before the present connection must not
    /// be passed in.
    pub(crate) fn joined(&mut self, version: u64) {
        self.joined = true;
        self.floor = self.floor.max(version);
    }

    /// The control connection is gone. Nobody waits for acknowledgements on it; uses go on.
    pub(crate) fn disconnected(&mut self) {
        self.joined = false;
        self.owed.clear();
    }

    /// Begins a use of a buffer that was found in a snapshot of this version.
    pub(crate) fn begin(&mut self, buffer: Generation, snapshot: u64) -> Result<(), NotUsable> {
        if !self.joined {
            return Err(NotUsable::NotJoined);
        }
        if self.withdrawn.contains_key(&buffer) {
            return Err(NotUsable::Gone);
        }
        if snapshot < self.floor {
            return Err(NotUsable::Stale { needs: self.floor });
        }
        self.count(buffer);
        Ok(())
    }

    /// Ends a use. Returns the invalidations to acknowledge now.
    pub(crate) fn end(&mut self, buffer: Generation) -> Vec<u64> {
        if let Some(uses) = self.uses.get_mut(&buffer) {
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.uses.remove(&buffer);
            }
        }
        self.acknowledge()
    }

    /// The owner withdrew these buffers; its descriptor of this version does not have them. Returns the invalidations to
    /// acknowledge now; the others follow from [`Holding::end`].
    pub(crate) fn invalidated(&mut self, id: u64, version: u64, withdrawn: Vec<Generation>) -> Vec<u64> {
        for buffer in &withdrawn {
            self.withdrawn.insert(*buffer, version);
        }
        while self.withdrawn.len() > self.limit {
            if let Some((_, version)) = self.withdrawn.pop_first() {
                self.floor = self.floor.max(version);
            }
        }
        self.owed.push(Owed { id, withdrawn });
        self.acknowledge()
    }

    /// Counts a use that nobody vouches for: the owner's own checks decide on it. [`Holding::end`] ends it too.
    pub(crate) fn count(&mut self, buffer: Generation) {
        let uses = self.uses.entry(buffer).or_insert(0);
        *uses = uses.saturating_add(1);
    }

    /// Whether the buffer is known to be withdrawn.
    pub(crate) fn is_withdrawn(&self, buffer: Generation) -> bool {
        self.withdrawn.contains_key(&buffer)
    }

    /// Whether the buffer is being used.
    #[cfg(test)]
    pub(crate) fn uses(&self, buffer: Generation) -> bool {
        self.uses.contains_key(&buffer)
    }

    fn acknowledge(&mut self) -> Vec<u64> {
        let uses = &self.uses;
        let mut quiet = Vec::new();
        self.owed.retain(|owed| {
            let used = owed.withdrawn.iter().any(|buffer| uses.contains_key(buffer));
            if !used {
                quiet.push(owed.id);
            }
            used
        });
        quiet
    }
}

#[cfg(test)]
mod tests;
