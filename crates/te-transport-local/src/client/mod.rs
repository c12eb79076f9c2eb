//! The initiator: copies to and from the memory of other members.

mod peer;
mod pool;
mod rounds;
mod transfer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use te_segment::Incarnation;
use te_transport::{Comparing, Fencing, Path, PathHealth, PathLabel, Submission, SubmitMode, Threads};

use crate::counters::Counters;
use crate::group::Member;
use peer::Peer;
pub(crate) use transfer::MAX_SLICE;
pub use transfer::PIECE;

/// What all peers have in common.
pub(crate) struct Common {
    pub(crate) incarnation: Incarnation,
    pub(crate) threads_per_peer: usize,
    pub(crate) comparing: Comparing,
    pub(crate) counters: Arc<Counters>,
    pub(crate) threads: Arc<Threads>,
    pub(crate) closing: AtomicBool,
}

impl Common {
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

/// The peers that are in use.
pub(crate) struct Peers {
    common: Arc<Common>,
    known: Mutex<HashMap<Incarnation, Weak<Peer>>>,
}

impl Peers {
    pub(crate) fn new(common: Common) -> Self {
        Self { common: Arc::new(common), known: Mutex::default() }
    }

    pub(crate) fn path(&self, member: &Arc<Member>) -> Result<LocalPath, String> {
        let mut known = self.known.lock();
        if self.common.is_closing() {
            return Err("the transport is shutting down".to_owned());
        }
        known.retain(|_, peer| peer.strong_count() > 0);
        if let Some(peer) = known.get(&member.life()).and_then(Weak::upgrade) {
            return Ok(LocalPath { peer: peer.used() });
        }
        let peer = Arc::new(Peer::new(self.common.clone(), member.clone()));
        known.insert(member.life(), Arc::downgrade(&peer));
        Ok(LocalPath { peer: peer.used() })
    }

    /// Begins nothing any more and stops what is under way.
    pub(crate) fn close(&self) {
        let known = {
            let mut known = self.known.lock();
            self.common.closing.store(true, Ordering::SeqCst);
            std::mem::take(&mut *known)
        };
        known.values().filter_map(Weak::upgrade).for_each(|peer| peer.pool().close());
    }
}

/// A way to one member.
pub(crate) struct LocalPath {
    peer: Arc<Peer>,
}

impl Path for LocalPath {
    fn label(&self) -> &Arc<PathLabel> {
        self.peer.label()
    }

    fn submit(&self, submission: Submission, mode: SubmitMode) {
        self.peer.submit(submission, mode);
    }

    /// Copies are made here, and stop here.
    fn fencing(&self) -> Fencing {
        Fencing::Immediate
    }

    fn health(&self) -> PathHealth {
        self.peer.health()
    }
}

impl Drop for LocalPath {
    fn drop(&mut self) {
        self.peer.unused();
    }
}
