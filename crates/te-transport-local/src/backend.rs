//! The transport as the engine sees it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use te_memory::Region;
use te_segment::{DescriptorBuilder, Incarnation, Location, SegmentDescriptor, TransportKind};
use te_transport::{
    Assessment, Capabilities, Comparing, Context, Fencing, Install, InstallError, Path, Reach, Registration,
    Threads, Transport, TransportError,
};

use crate::client::{Common, MAX_SLICE, Peers};
use crate::config::LocalConfig;
use crate::counters::{Counters, LocalCounters};
use crate::error::transport_error;
use crate::group::{LocalGroup, Member};
use crate::offer;

/// The copies within a process before they run.
#[derive(Clone, Debug)]
pub struct Local {
    group: LocalGroup,
    config: LocalConfig,
}

impl Local {
    /// A transport to the members of `group`.
    #[must_use]
    pub fn new(group: &LocalGroup, config: LocalConfig) -> Self {
        Self { group: group.clone(), config }
    }

    /// Joins the group.
    ///
    /// # Errors
    ///
    /// [`InstallError::Config`] for a setting out of range, [`InstallError::Failed`] when this life is in the group already.
    pub fn start(self, context: &Context) -> Result<Arc<LocalTransport>, InstallError> {
        self.config.validate().map_err(|error| error.into_install_error(TransportKind::LOCAL))?;
        let Some(own) = self.group.join(context.incarnation, context.regions.clone()) else {
            let cause = "this life of the engine is in the group already".to_owned();
            return Err(InstallError::Failed { transport: TransportKind::LOCAL, cause });
        };
        let (counters, threads) = (Arc::<Counters>::default(), Arc::new(Threads::new("te-local")));
        let peers = Peers::new(Common {
            incarnation: context.incarnation,
            threads_per_peer: self.config.threads,
            comparing: Comparing::new(self.config.compare),
            counters: counters.clone(),
            threads: threads.clone(),
            closing: AtomicBool::new(false),
        });
        let capabilities = Capabilities {
            read: true,
            write: true,
            host_memory: true,
            device_memory: false,
            max_slice: MAX_SLICE,
            reach: Reach::Process,
            fencing: Fencing::Immediate,
            checks_identity: true,
            registers_at_once: true,
        };
        Ok(Arc::new(LocalTransport { capabilities, group: self.group, own, peers, counters, threads }))
    }
}

impl Install for Local {
    fn kind(&self) -> TransportKind {
        TransportKind::LOCAL
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Ok(self.start(context)?)
    }
}

/// The running transport. Dropping it stops it without waiting; [`Transport::shutdown`] waits.
pub struct LocalTransport {
    capabilities: Capabilities,
    group: LocalGroup,
    own: Arc<Member>,
    peers: Peers,
    counters: Arc<Counters>,
    threads: Arc<Threads>,
}

impl LocalTransport {
    /// What was done since the start.
    #[must_use]
    pub fn counters(&self) -> LocalCounters {
        self.counters.snapshot()
    }

    fn member(&self, peer: &SegmentDescriptor) -> Result<Arc<Member>, String> {
        let life = offer::read(peer)?;
        self.group.find(life).ok_or_else(|| "that life of the peer is not in the local group".to_owned())
    }

    fn stop(&self) {
        self.group.leave(&self.own);
        self.own.close();
        self.peers.close();
    }
}

impl Transport for LocalTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::LOCAL
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        offer::advertise(builder)
    }

    /// Host memory needs nothing: the others look into the table.
    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        match region.location() {
            Location::Device { kind, index } => Ok(Registration::NotMine(format!(
                "copies within the process are of host memory only, and {}:{index} is device memory",
                kind.as_str()
            ))),
            _ => Ok(Registration::Registered(offer::via())),
        }
    }

    /// Nothing to give up: copies count at the region itself.
    fn unregister(&self, _region: &Region) -> Result<(), TransportError> {
        Ok(())
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        match self.member(peer) {
            Ok(_) => Assessment::Usable("an engine of this process, in the local group".to_owned()),
            Err(reason) => Assessment::Unusable(reason),
        }
    }

    /// Being in the group is the proof.
    fn prove(&self, peer: &Arc<SegmentDescriptor>, _deadline: Instant) -> Result<(), String> {
        self.member(peer).map(drop)
    }

    fn has_proven(&self, peer: &SegmentDescriptor) -> bool {
        self.member(peer).is_ok()
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        Ok(Arc::new(self.peers.path(&self.member(peer)?)?))
    }

    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError> {
        self.own
            .cut(Some(peer), deadline)
            .map_err(|copies| transport_error("fence", format!("{copies} copies of {peer} are under way")))
    }

    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.stop();
        self.own.cut(None, deadline).map_err(|copies| {
            transport_error("shutdown", format!("{copies} copies of peers are under way"))
        })?;
        self.threads
            .wait_ended(deadline)
            .map_err(|running| transport_error("shutdown", format!("threads still running: {running}")))
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTransport").field("group", &self.group).finish_non_exhaustive()
    }
}
