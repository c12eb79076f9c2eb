//! The initiator: copies to and from the buffers of peers.

mod bulk;
mod greet;
mod keeper;
mod line;
mod peer;
mod piece;
mod pool;
mod transfer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use te_segment::{Incarnation, SegmentDescriptor};
use te_transport::{Comparing, Fencing, Path, PathHealth, PathLabel, Submission, SubmitMode, Threads};

use crate::config::ShmConfig;
use crate::counters::Counters;
use crate::offer::{self, Offer};
use peer::Peer;
pub(crate) use transfer::MAX_SLICE;

/// So many lives are remembered of which nothing could be proven.
const FAILED_LIMIT: usize = 4096;

/// What all peers have in common.
pub(crate) struct Common {
    pub(crate) incarnation: Incarnation,
    pub(crate) config: Arc<ShmConfig>,
    pub(crate) comparing: Comparing,
    pub(crate) counters: Arc<Counters>,
    pub(crate) threads: Arc<Threads>,
    pub(crate) closing: AtomicBool,
    /// Threads that can run at once on this host.
    pub(crate) cores: usize,
}

impl Common {
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

/// What is known of one life of a peer.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// It runs on this host.
    Proven {
        /// Its process.
        pid: i32,
        /// Why its other memory cannot be reached, if so.
        process: Result<(), String>,
    },
    /// Nothing is proven: why.
    Failed(String),
}

/// The peers that are in use.
pub(crate) struct Peers {
    common: Arc<Common>,
    known: Mutex<HashMap<Offer, Arc<Peer>>>,
    proofs: Mutex<HashMap<Incarnation, Proof>>,
}

impl Peers {
    pub(crate) fn new(common: Common) -> Self {
        Self { common: Arc::new(common), known: Mutex::default(), proofs: Mutex::default() }
    }

    /// The peer, counted as used by one more path if `used`.
    fn peer(&self, offer: Offer, used: bool) -> Result<Arc<Peer>, String> {
        let mut known = self.known.lock();
        if self.common.is_closing() {
            return Err("the transport is shutting down".to_owned());
        }
        known.retain(|_, peer| peer.is_of_use());
        let peer = match known.get(&offer) {
            Some(peer) => peer.clone(),
            None => {
                let peer =
                    Peer::new(self.common.clone(), offer.clone()).map_err(|error| error.to_string())?;
                known.insert(offer, peer.clone());
                peer
            }
        };
        if used {
            // Under the lock, so that nobody forgets it before.
            peer.enter();
        }
        Ok(peer)
    }

    /// Connects to the peer, which proves that it is on this host.
    pub(crate) fn prove(&self, peer: &SegmentDescriptor, deadline: Instant) -> Result<(), String> {
        let offer = offer::read(peer)?;
        let life = offer.life;
        let proof = match self.peer(offer, false).and_then(|peer| peer.prove(deadline)) {
            Ok(proof) => proof,
            Err(reason) => Proof::Failed(reason),
        };
        let outcome = match &proof {
            Proof::Proven { .. } => Ok(()),
            Proof::Failed(reason) => Err(reason.clone()),
        };
        let mut proofs = self.proofs.lock();
        if proofs.len() >= FAILED_LIMIT {
            proofs.retain(|_, proof| matches!(proof, Proof::Proven { .. }));
        }
        if outcome.is_ok() || !matches!(proofs.get(&life), Some(Proof::Proven { .. })) {
            proofs.insert(life, proof);
        }
        outcome
    }

    /// What is known of the life that a descriptor speaks of.
    pub(crate) fn proof(&self, life: Incarnation) -> Option<Proof> {
        self.proofs.lock().get(&life).cloned()
    }

    pub(crate) fn path(&self, peer: &SegmentDescriptor) -> Result<ShmPath, String> {
        let offer = offer::read(peer)?;
        if let Some(Proof::Failed(reason)) = self.proof(offer.life) {
            return Err(reason);
        }
        Ok(ShmPath { peer: self.peer(offer, true)? })
    }

    /// Mappings of buffers of peers that exist now.
    pub(crate) fn mappings(&self) -> usize {
        self.known.lock().values().map(|peer| peer.mappings()).sum()
    }

    /// Begins nothing any more and stops what is under way.
    pub(crate) fn close(&self) {
        let known = {
            let mut known = self.known.lock();
            self.common.closing.store(true, Ordering::Release);
            std::mem::take(&mut *known)
        };
        known.values().for_each(|peer| peer.close());
    }
}

/// A way to one peer.
pub(crate) struct ShmPath {
    peer: Arc<Peer>,
}

impl Path for ShmPath {
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

impl Drop for ShmPath {
    fn drop(&mut self) {
        self.peer.leave();
    }
}
