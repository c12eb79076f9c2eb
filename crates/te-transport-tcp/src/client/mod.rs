//! The initiator: paths to peers, their queues and connections.

mod address;
mod exchange;
mod greet;
mod lease;
mod peer;
mod queue;
mod read;
mod turns;
mod unit;
mod write;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use te_segment::{Endpoint, SegmentDescriptor, TcpFraming};
use te_transport::{Fencing, Path, PathHealth, PathLabel, Submission, SubmitMode};

use self::peer::{Identity, Peer};
use crate::config::{FramingChoice, TcpConfig};
use crate::framing::Framing;
use crate::offer;

pub(crate) use self::address::data_endpoint;
pub(crate) use self::peer::Common;

/// Connections that are worth using at once for one batch: each keeps a thread busy. Asks the system, which takes tens
/// of microseconds.
pub(crate) fn parallel(config: &TcpConfig) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.min(config.connections_per_peer)
}

/// All peers of a transport, by data endpoint.
pub(crate) struct Peers {
    common: Common,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_endpoint: HashMap<Endpoint, Weak<Peer>>,
    /// Those whose endpoint was taken over while paths still used them.
    replaced: Vec<Weak<Peer>>,
    closed: bool,
}

impl Known {
    fn live(&self) -> Vec<Arc<Peer>> {
        self.by_endpoint.values().chain(&self.replaced).filter_map(Weak::upgrade).collect()
    }
}

impl Peers {
    pub(crate) fn new(common: Common) -> Self {
        Self { common, known: Mutex::default() }
    }

    /// The framing to use with a peer: the best that both know, or the one that is set.
    pub(crate) fn framing(&self, peer: &SegmentDescriptor) -> Result<Framing, String> {
        let native = offer::is_native(peer);
        let v2 = peer.tcp().is_some_and(|service| service.framing == TcpFraming::V2);
        let choice = self.common.config.framing;
        match choice {
            FramingChoice::Auto | FramingChoice::Native if native => Ok(Framing::Native),
            FramingChoice::Auto | FramingChoice::V2 if v2 => Ok(Framing::V2),
            FramingChoice::Auto | FramingChoice::V1 => Ok(Framing::V1),
            FramingChoice::Native | FramingChoice::V2 => {
                let missing = if choice == FramingChoice::V2 { Framing::V2 } else { Framing::Native };
                let missing = missing.as_str();
                Err(format!("{} advertises no {missing} framing, and framing = {missing}", peer.name()))
            }
        }
    }

    /// A path to the peer as this snapshot describes it.
    pub(crate) fn path(&self, peer: &SegmentDescriptor) -> Result<Arc<TcpPath>, String> {
        let endpoint = data_endpoint(peer)?;
        let framing = self.framing(peer)?;
        let incarnation = peer.incarnation();
        let version = peer.version().filter(|_| framing != Framing::Native);
        let identity = Identity { endpoint: endpoint.clone(), framing, incarnation, version };
        let mut known = self.known.lock();
        if known.closed {
            return Err("the transport is shutting down".to_owned());
        }
        let old = known.by_endpoint.get(&endpoint).and_then(Weak::upgrade);
        if let Some(old) = &old
            && *old.identity() == identity
        {
            return Ok(TcpPath::new(old.clone()));
        }
        let new = Peer::new(identity, self.common.clone());
        known.by_endpoint.insert(endpoint, Arc::downgrade(&new));
        known.replaced.retain(|peer| peer.strong_count() > 0);
        known.replaced.extend(old.as_ref().map(Arc::downgrade));
        drop(known);
        if let Some(old) = old {
            old.replace();
        }
        Ok(TcpPath::new(new))
    }

    /// Forgets peers without paths and closes idle connections whose peer is gone.
    pub(crate) fn reap(&self) {
        let mut known = self.known.lock();
        known.by_endpoint.retain(|_, peer| peer.strong_count() > 0);
        known.replaced.retain(|peer| peer.strong_count() > 0);
        let live = known.live();
        drop(known);
        for peer in live {
            peer.reap();
        }
    }

    /// Ends everything. Does not wait.
    pub(crate) fn close(&self) {
        let mut known = self.known.lock();
        known.closed = true;
        let live = known.live();
        drop(known);
        for peer in live {
            peer.close();
        }
    }
}

/// A path over TCP.
pub(crate) struct TcpPath {
    peer: Arc<Peer>,
}

impl TcpPath {
    fn new(peer: Arc<Peer>) -> Arc<Self> {
        peer.attach();
        Arc::new(Self { peer })
    }
}

impl Drop for TcpPath {
    fn drop(&mut self) {
        self.peer.detach();
    }
}

impl Path for TcpPath {
    fn label(&self) -> &Arc<PathLabel> {
        self.peer.label()
    }

    fn submit(&self, submission: Submission, mode: SubmitMode) {
        self.peer.submit(submission, mode);
    }

    fn fencing(&self) -> Fencing {
        if self.peer.identity().framing == Framing::Native { Fencing::Target } else { Fencing::LocalOnly }
    }

    fn health(&self) -> PathHealth {
        self.peer.health()
    }
}
