//! The initiator: submissions become pieces, pieces get rails.

mod job;
mod path;
mod peer;
mod route;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use te_segment::{Incarnation, NicName};
use te_sys_verbs::Verbs;
use te_transport::{Bootstrap, Publisher, Threads};

use crate::config::RdmaConfig;
use crate::counters::Counters;
use crate::device::{Nic, Registry};
use crate::route::Reach;

pub(crate) use job::Part;
pub(crate) use path::RdmaPath;
pub(crate) use peer::Peer;

/// The NICs that are in use.
pub(crate) type Nics = Arc<[Arc<Nic>]>;

/// What all NICs and peers have in common.
pub(crate) struct Common {
    pub(crate) incarnation: Incarnation,
    /// How peers call this engine in the paths of its NICs.
    pub(crate) server: String,
    pub(crate) config: RdmaConfig,
    /// Opens devices that come back.
    pub(crate) verbs: Verbs,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) regions: Registry,
    pub(crate) counters: Counters,
    pub(crate) threads: Arc<Threads>,
    pub(crate) peers: Peers,
    pub(crate) closing: AtomicBool,
}

impl Common {
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

/// What paths need of the transport.
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) nics: Nics,
    pub(crate) topology: te_segment::Topology,
    pub(crate) reach: Mutex<Reach>,
}

/// The peers to which there is a path.
#[derive(Default)]
pub(crate) struct Peers {
    known: Mutex<Vec<Weak<Peer>>>,
}

impl Peers {
    pub(crate) fn add(&self, peer: &Arc<Peer>) {
        let mut known = self.known.lock();
        known.retain(|peer| peer.strong_count() > 0);
        known.push(Arc::downgrade(peer));
    }

    /// A NIC here is down, or is up again.
    pub(crate) fn set_down(&self, nic: &NicName, down: bool) {
        let known: Vec<_> = self.known.lock().iter().filter_map(Weak::upgrade).collect();
        known.iter().for_each(|peer| peer.set_down(nic, down));
    }
}
