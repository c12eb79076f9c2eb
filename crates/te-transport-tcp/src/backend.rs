//! The transport as the engine sees it.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use te_memory::Region;
use te_segment::{
    DescriptorBuilder, Host, Incarnation, Location, SegmentDescriptor, TcpFraming, TcpService, TransportKind,
    Via,
};
use te_transport::{
    Assessment, Capabilities, Context, Fencing, Install, InstallError, Path, Reach, Registration, Threads,
    Transport, TransportError,
};

use crate::client::{Common, Peers, data_endpoint, parallel};
use crate::config::{FramingChoice, TcpConfig};
use crate::counters::{Counters, TcpCounters};
use crate::error::transport_error;
use crate::offer;
use crate::server::Server;

/// The TCP transport before it runs.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    config: TcpConfig,
}

impl Tcp {
    /// A transport with these settings.
    #[must_use]
    pub fn new(config: TcpConfig) -> Self {
        Self { config }
    }

    /// Starts the transport; its listener accepts before this returns.
    ///
    /// # Errors
    ///
    /// [`InstallError::Config`] for a setting out of range, [`InstallError::Failed`] when no port is free or the
    /// address is not one of this host. Nothing is left running.
    pub fn start(self, context: &Context) -> Result<Arc<TcpTransport>, InstallError> {
        self.config.validate().map_err(|error| error.into_install_error(TransportKind::TCP))?;
        let config = Arc::new(self.config);
        let own_address = config.address.clone().map(|address| Context {
            bind: address.clone(),
            advertise: address,
            ..context.clone()
        });
        let context = own_address.as_ref().unwrap_or(context);
        let counters = Arc::<Counters>::default();
        let threads = Arc::new(Threads::new("te-tcp"));
        let native = matches!(config.framing, FramingChoice::Auto | FramingChoice::Native);
        let common = Common {
            incarnation: context.incarnation,
            config: config.clone(),
            counters: counters.clone(),
            threads: threads.clone(),
            parallel: parallel(&config),
        };
        let peers = Arc::new(Peers::new(common));
        let reaped = Arc::downgrade(&peers);
        let chore = Box::new(move || {
            if let Some(peers) = reaped.upgrade() {
                peers.reap();
            }
        });
        let failed = |cause| InstallError::Failed { transport: TransportKind::TCP, cause };
        let server =
            Server::start(context, config, counters.clone(), threads.clone(), chore).map_err(failed)?;
        let Some(port) = NonZeroU16::new(server.address().port()) else {
            return Err(failed("listening on port 0".to_owned()));
        };
        Ok(Arc::new(TcpTransport {
            capabilities: Capabilities {
                read: true,
                write: true,
                host_memory: true,
                device_memory: false,
                max_slice: u64::MAX,
                reach: Reach::Network,
                // With te peers; a path says what it can.
                fencing: if native { Fencing::Target } else { Fencing::LocalOnly },
                checks_identity: native,
                registers_at_once: true,
            },
            advertise: context.advertise.clone(),
            port,
            server,
            peers,
            counters,
            threads,
            stopped: AtomicBool::new(false),
        }))
    }
}

impl Install for Tcp {
    fn kind(&self) -> TransportKind {
        TransportKind::TCP
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Ok(self.start(context)?)
    }
}

/// The running TCP transport. Dropping it stops it without waiting; [`Transport::shutdown`] waits.
pub struct TcpTransport {
    capabilities: Capabilities,
    advertise: Host,
    port: NonZeroU16,
    server: Server,
    peers: Arc<Peers>,
    counters: Arc<Counters>,
    threads: Arc<Threads>,
    stopped: AtomicBool,
}

impl TcpTransport {
    /// Where the data port listens: the bind address, with the port that was free.
    #[must_use]
    pub fn listening_on(&self) -> SocketAddr {
        self.server.address()
    }

    /// Connections of peers that are open now.
    #[must_use]
    pub fn accepted_connections(&self) -> usize {
        self.server.connections()
    }

    /// Bytes and connections since the start.
    #[must_use]
    pub fn counters(&self) -> TcpCounters {
        self.counters.snapshot()
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.peers.close();
        self.server.stop();
    }
}

impl Transport for TcpTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::TCP
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        let (host, port, framing) = (Some(self.advertise.clone()), self.port, TcpFraming::V2);
        offer::advertise(builder.tcp(TcpService { host, port, framing }))
    }

    /// Host memory needs nothing: every request is checked against the region table.
    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        match region.location() {
            Location::Device { kind, index } => Ok(Registration::NotMine(format!(
                "tcp moves host memory only, and {}:{index} is device memory",
                kind.as_str()
            ))),
            _ => Ok(Registration::Registered(Via::Tcp)),
        }
    }

    /// Cuts the requests of peers that still use the region.
    fn unregister(&self, region: &Region) -> Result<(), TransportError> {
        self.server.withdraw(region).map_err(|using| {
            let cause = format!("{using} requests of peers still use {}", region.range());
            transport_error("unregister", cause, true)
        })
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        let spoken = |endpoint| Ok((endpoint, self.peers.framing(peer)?));
        match data_endpoint(peer).and_then(spoken) {
            Ok((endpoint, framing)) => {
                Assessment::Usable(format!("data port {endpoint}, framing {}", framing.as_str()))
            }
            Err(reason) => Assessment::Unusable(reason),
        }
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        Ok(self.peers.path(peer)?)
    }

    /// Closes the native connections of that life. Those of versions 1 and 2 do not say whose they are: revoked regions
    /// refuse what comes over them.
    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError> {
        self.server.fence(peer, deadline).map_err(|serving| {
            let cause = format!("{serving} connections of incarnation {peer} are still being served");
            transport_error("fence", cause, true)
        })
    }

    /// Requests of peers that are in progress get a second, or half the time if that is less, to end.
    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.stop();
        let left = deadline.saturating_duration_since(Instant::now());
        self.server.wait_idle(Instant::now() + (left / 2).min(Duration::from_secs(1)));
        self.server.cut();
        self.threads
            .wait_ended(deadline)
            .map_err(|running| transport_error("shutdown", format!("threads still running: {running}"), true))
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.stop();
        self.server.cut();
    }
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpTransport").field("listening_on", &self.listening_on()).finish_non_exhaustive()
    }
}
