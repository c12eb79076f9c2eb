//! The transport as the engine sees it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use te_memory::Region;
use te_segment::{
    BufferDescriptor, DescriptorBuilder, Incarnation, Location, SegmentDescriptor, TransportKind,
};
use te_transport::{
    Assessment, Capabilities, Comparing, Context, Fencing, Install, InstallError, Path, Reach, Registration,
    Threads, Transport, TransportError,
};

use crate::client::{Common, MAX_SLICE, Peers, Proof};
use crate::config::ShmConfig;
use crate::counters::{Counters, ShmCounters};
use crate::error::transport_error;
use crate::offer::{self, Reached};
use crate::server::Server;

/// The shared-memory transport before it runs.
#[derive(Clone, Debug, Default)]
pub struct Shm {
    config: ShmConfig,
}

impl Shm {
    /// A transport with these settings.
    #[must_use]
    pub fn new(config: ShmConfig) -> Self {
        Self { config }
    }

    /// Starts the transport; its socket accepts before this returns.
    ///
    /// # Errors
    ///
    /// [`InstallError::Config`] for a setting out of range, [`InstallError::Unavailable`] when this host has no Unix
    /// sockets or no memory files. Nothing is left running.
    pub fn start(self, context: &Context) -> Result<Arc<ShmTransport>, InstallError> {
        self.config.validate().map_err(|error| error.into_install_error(TransportKind::SHM))?;
        let config = Arc::new(self.config);
        let counters = Arc::<Counters>::default();
        let threads = Arc::new(Threads::new("te-shm"));
        let server =
            Server::start(context, config.clone(), counters.clone(), threads.clone()).map_err(|error| {
                InstallError::Unavailable {
                    transport: TransportKind::SHM,
                    missing: format!("a Unix socket to listen at: {error}"),
                }
            })?;
        let peers = Peers::new(Common {
            incarnation: context.incarnation,
            comparing: Comparing::new(config.compare),
            config,
            counters: counters.clone(),
            threads: threads.clone(),
            closing: AtomicBool::new(false),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        });
        let capabilities = Capabilities {
            read: true,
            write: true,
            host_memory: true,
            device_memory: false,
            max_slice: MAX_SLICE,
            reach: Reach::Host,
            fencing: Fencing::Immediate,
            checks_identity: true,
            registers_at_once: true,
        };
        Ok(Arc::new(ShmTransport { capabilities, server, peers, counters, threads }))
    }
}

impl Install for Shm {
    fn kind(&self) -> TransportKind {
        TransportKind::SHM
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Ok(self.start(context)?)
    }
}

/// The running shared-memory transport. Dropping it stops it without waiting; [`Transport::shutdown`] waits.
pub struct ShmTransport {
    capabilities: Capabilities,
    server: Server,
    peers: Peers,
    counters: Arc<Counters>,
    threads: Arc<Threads>,
}

impl ShmTransport {
    /// Name of the socket in the abstract name space of Unix sockets.
    #[must_use]
    pub fn socket(&self) -> &str {
        self.server.name()
    }

    /// Connections of peers that are open now.
    #[must_use]
    pub fn accepted_connections(&self) -> usize {
        self.server.connections()
    }

    /// Buffers of peers that are mapped now.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.peers.mappings()
    }

    /// What was done since the start.
    #[must_use]
    pub fn counters(&self) -> ShmCounters {
        self.counters.snapshot()
    }

    fn stop(&self) {
        self.peers.close();
        self.server.stop();
    }
}

impl Transport for ShmTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::SHM
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        offer::advertise(builder, self.server.name())
    }

    /// Host memory needs nothing: a peer that wants to use a buffer asks for it.
    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        match region.location() {
            Location::Device { kind, index } => Ok(Registration::NotMine(format!(
                "shm moves host memory only, and {}:{index} is device memory",
                kind.as_str()
            ))),
            _ => Ok(Registration::Registered(offer::via(offer::reached(region)))),
        }
    }

    /// Waits a while for copies that are under way, and says who still makes one.
    fn unregister(&self, region: &Region) -> Result<(), TransportError> {
        self.server
            .withdraw(region)
            .map_err(|who| transport_error("unregister", format!("{} is {who}", region.range())))
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        let offer = match offer::read(peer) {
            Ok(offer) => offer,
            Err(reason) => return Assessment::Unusable(reason),
        };
        match self.peers.proof(offer.life) {
            None => Assessment::Usable("offered; nothing is proven yet".to_owned()),
            Some(Proof::Proven { pid, .. }) => {
                Assessment::Usable(format!("process {pid} of this host, proven"))
            }
            Some(Proof::Failed(reason)) => Assessment::Unusable(reason),
        }
    }

    fn assess_buffer(&self, peer: &SegmentDescriptor, buffer: &BufferDescriptor) -> Assessment {
        let Assessment::Usable(reason) = self.assess(peer) else { return self.assess(peer) };
        let reached = match offer::reached_at(buffer) {
            Ok(reached) => reached,
            Err(reason) => return Assessment::Unusable(reason),
        };
        let proof = peer.incarnation().and_then(|life| self.peers.proof(life));
        match (reached, proof) {
            (Reached::File, _) => Assessment::Usable(format!("{reason}; its memory is mapped")),
            (Reached::Process, Some(Proof::Proven { process: Err(why), .. })) => Assessment::Unusable(
                format!("the buffer does not lie in memory that can be mapped with its access, and {why}"),
            ),
            (Reached::Process, _) => {
                Assessment::Usable(format!("{reason}; copied by process_vm_readv and writev"))
            }
        }
    }

    fn prove(&self, peer: &Arc<SegmentDescriptor>, deadline: Instant) -> Result<(), String> {
        self.peers.prove(peer, deadline)
    }

    fn has_proven(&self, peer: &SegmentDescriptor) -> bool {
        let proof = offer::read(peer).ok().and_then(|offer| self.peers.proof(offer.life));
        matches!(proof, Some(Proof::Proven { .. }))
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        Ok(Arc::new(self.peers.path(peer)?))
    }

    /// Gives up a little before the deadline, so that whoever asks can still tell who holds it up.
    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.server
            .fence(peer, deadline.checked_sub(left / 8).unwrap_or(deadline))
            .map_err(|who| transport_error("fence", format!("memory of this engine is {who}")))
    }

    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.stop();
        self.server
            .wait_idle(deadline)
            .map_err(|who| transport_error("shutdown", format!("memory of this engine is {who}")))?;
        self.threads
            .wait_ended(deadline)
            .map_err(|running| transport_error("shutdown", format!("threads still running: {running}")))
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmTransport").field("socket", &self.socket()).finish_non_exhaustive()
    }
}
