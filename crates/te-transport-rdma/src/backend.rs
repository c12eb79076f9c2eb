//! The transport as the engine sees it.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use parking_lot::Mutex;
use te_memory::Region;
use te_segment::{
    BufferDescriptor, DescriptorBuilder, Incarnation, MAX_PARTS, SegmentDescriptor, TransportKind, Via,
};
use te_sys_verbs::Verbs;
use te_transport::{
    Assessment, Capabilities, Context, Install, InstallError, Path, RDMA_PROTOCOL, Registration, Threads,
    Transport, TransportError,
};

use crate::client::{Common, Nics, Peer, Peers, RdmaPath, Shared};
use crate::config::RdmaConfig;
use crate::counters::{Counters, RdmaCounters};
use crate::device::{Desk, Errand, NotRegistered, Registry, Setup, all, poll, topology};
use crate::error::transport_error;
use crate::offer;
use crate::route::Reach;

/// The transport before it runs.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    config: RdmaConfig,
    verbs: Option<Verbs>,
}

impl Rdma {
    /// Over the NICs of this host.
    #[must_use]
    pub fn new(config: RdmaConfig) -> Self {
        Self { config, verbs: None }
    }

    /// Over the NICs that a library finds which is loaded already.
    #[must_use]
    pub fn over(verbs: Verbs, config: RdmaConfig) -> Self {
        Self { config, verbs: Some(verbs) }
    }

    /// Opens the NICs and answers peers.
    ///
    /// # Errors
    ///
    /// [`InstallError::Config`] for a setting out of range, [`InstallError::Unavailable`] with what is lacking when no NIC can
    /// be used, [`InstallError::Failed`] when no thread can be started.
    pub fn start(self, context: &Context) -> Result<Arc<RdmaTransport>, InstallError> {
        let transport = TransportKind::RDMA;
        self.config.validate().map_err(|error| error.into_install_error(transport.clone()))?;
        let unavailable =
            |missing: String| InstallError::Unavailable { transport: TransportKind::RDMA, missing };
        let failed = |cause: String| InstallError::Failed { transport: TransportKind::RDMA, cause };
        let verbs = match self.verbs {
            Some(verbs) => verbs,
            None => Verbs::load().map_err(|error| unavailable(error.to_string()))?,
        };
        let common = Arc::new(Common {
            incarnation: context.incarnation,
            server: context.name.as_str().to_owned(),
            config: self.config,
            verbs: verbs.clone(),
            bootstrap: context.bootstrap.clone(),
            publisher: context.publisher.clone(),
            regions: Registry::default(),
            counters: Counters::default(),
            threads: Arc::new(Threads::new("te-rdma")),
            peers: Peers::default(),
            closing: AtomicBool::new(false),
        });
        let (opened, lacking) = all(&verbs, &common);
        for reason in &lacking {
            tracing::info!(target: "te::rdma", reason, "a NIC is not used");
        }
        if opened.is_empty() {
            let reasons =
                if lacking.is_empty() { "there is no RDMA device".to_owned() } else { lacking.join("; ") };
            return Err(unavailable(reasons));
        }
        let mut largest = common.config.max_mr_size;
        for device in opened.iter().filter_map(|(nic, _)| nic.device()) {
            let limits = device.context.limits().map_err(|error| failed(error.to_string()))?;
            largest = largest.min(limits.registration_bytes);
        }
        let names: BTreeSet<_> = opened.iter().map(|(nic, _)| nic.name().clone()).collect();
        let nics: Nics = opened.iter().map(|(nic, _)| nic.clone()).collect();
        let shared = Arc::new(Shared {
            common,
            nics: nics.clone(),
            topology: topology(&names),
            reach: Mutex::new(Reach::default()),
        });
        let running = Arc::new(RdmaTransport {
            capabilities: offer::capabilities(),
            largest: NonZeroU64::new(largest).unwrap_or(NonZeroU64::MIN),
            shared,
        });
        // From here on, dropping it ends what has been started.
        for (nic, errands) in opened {
            let setup = Setup::new(nic.clone());
            let threads = &running.shared.common.threads;
            threads.spawn("setup", move || setup.run(&errands)).map_err(|error| failed(error.to_string()))?;
            threads.spawn("poll", move || poll(&nic)).map_err(|error| failed(error.to_string()))?;
        }
        if !context.bootstrap.handle(RDMA_PROTOCOL, Arc::new(Desk(Arc::downgrade(&nics)))) {
            return Err(failed("handshakes are answered by another transport already".to_owned()));
        }
        Ok(running)
    }
}

impl Install for Rdma {
    fn kind(&self) -> TransportKind {
        TransportKind::RDMA
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        Ok(self.start(context)?)
    }
}

/// The running transport. Dropping it stops it without waiting; [`Transport::shutdown`] waits.
pub struct RdmaTransport {
    capabilities: Capabilities,
    /// Largest registration that every NIC takes, in bytes.
    largest: NonZeroU64,
    shared: Arc<Shared>,
}

impl RdmaTransport {
    /// What was done since the start.
    #[must_use]
    pub fn counters(&self) -> RdmaCounters {
        self.shared.common.counters.snapshot()
    }

    fn stop(&self) {
        if !self.shared.common.closing.swap(true, Ordering::SeqCst) {
            self.shared.nics.iter().for_each(|nic| nic.signals().errand(Errand::Shut));
        }
    }
}

impl Transport for RdmaTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::RDMA
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        let devices = self.shared.nics.iter().map(|nic| nic.described());
        offer::advertise(builder, devices, self.shared.topology.clone(), None)
    }

    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        let parts = region.range().len().div_ceil(self.largest.get());
        if region.access().is_remote() && parts > MAX_PARTS as u64 {
            return Ok(Registration::NotMine(format!(
                "it has {} bytes, a NIC registers {} at a time, and peers are told the keys of {MAX_PARTS} parts at most: \
                 offer it in several buffers, or raise max_mr_size",
                region.range().len(),
                self.largest
            )));
        }
        match self.shared.common.regions.register(region, &self.shared.nics, self.largest) {
            Ok(registered) => Ok(Registration::Registered(offer::via(&registered.chunks))),
            Err(NotRegistered::NotMine(reason)) => Ok(Registration::NotMine(reason)),
            Err(NotRegistered::Failed { cause, retryable }) => {
                Err(transport_error("register", cause, retryable))
            }
        }
    }

    fn via(&self, region: &Region) -> Option<Via> {
        let registered = self.shared.common.regions.get(region.generation())?;
        Some(offer::via(&registered.chunks))
    }

    fn unregister(&self, region: &Region) -> Result<(), TransportError> {
        let done = self.shared.common.regions.unregister(region);
        done.map_err(|cause| transport_error("unregister", cause, true))
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        offer::assess(peer)
    }

    fn assess_buffer(&self, peer: &SegmentDescriptor, buffer: &BufferDescriptor) -> Assessment {
        offer::assess_buffer(peer, buffer)
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        match offer::assess(peer) {
            Assessment::Usable(_) => Ok(Arc::new(RdmaPath(Peer::new(&self.shared, peer)))),
            other => Err(other.reason().to_owned()),
        }
    }

    /// Its queue pairs here are flushed or gone: what it has posted is applied no more.
    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError> {
        let (done, finished) = channel();
        for nic in self.shared.nics.iter() {
            nic.signals().errand(Errand::Fence(peer, done.clone()));
        }
        drop(done);
        for nic in self.shared.nics.iter() {
            let left = deadline.saturating_duration_since(Instant::now());
            // A thread that has ended has nothing left that could be cut off.
            if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = finished.recv_timeout(left) {
                let cause = format!("{} has not cut off {peer} yet", nic.name());
                return Err(transport_error("fence", cause, true));
            }
        }
        Ok(())
    }

    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.stop();
        let threads = &self.shared.common.threads;
        let failed = |cause: String| transport_error("shutdown", cause, true);
        threads
            .wait_ended(deadline)
            .map_err(|running| failed(format!("threads still running: {running}")))?;
        // Nothing is under way any more, and peers find no queue pair.
        self.shared.common.regions.close().map_err(failed)
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nics: Vec<_> = self.shared.nics.iter().map(|nic| nic.name().as_str()).collect();
        f.debug_struct("RdmaTransport").field("nics", &nics).finish_non_exhaustive()
    }
}
