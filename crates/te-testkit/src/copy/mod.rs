//! A transport that copies between two region tables of one process.

mod exec;
mod flaw;
mod path;
mod port;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_memory::Region;
use te_segment::{
    DescriptorBuilder, Device, Incarnation, MemoryKey, NicName, SegmentDescriptor, TransportKind, Via,
};
use te_transport::{
    Assessment, Capabilities, Context, Fencing, Install, InstallError, Path, Reach, Registration, Transport,
    TransportError,
};

pub use flaw::Flaw;
use path::CopyPath;
pub use port::Fabric;
use port::Port;

/// A transport between engines of one process: it copies from one region table to the other and keeps every promise
/// of the contract.
///
/// Engine tests install it under the kind they want to play, several times for several kinds. With
/// [`with_flaw`](Self::with_flaw) it breaks one promise, to show that the conformance suite notices.
///
/// ```
/// use te_segment::TransportKind;
/// use te_testkit::{CopyTransport, Fabric};
/// use te_transport::Install;
/// let fabric = Fabric::new();
/// let rdma = CopyTransport::new(&fabric, TransportKind::RDMA);
/// assert_eq!(rdma.kind(), TransportKind::RDMA);
/// ```
#[derive(Clone)]
pub struct CopyTransport {
    fabric: Fabric,
    kind: TransportKind,
    capabilities: Capabilities,
    chunk: u64,
    pace: Duration,
    flaw: Option<Flaw>,
}

impl CopyTransport {
    /// A transport that plays `kind`.
    #[must_use]
    pub fn new(fabric: &Fabric, kind: TransportKind) -> Self {
        let capabilities = Capabilities {
            read: true,
            write: true,
            host_memory: true,
            device_memory: false,
            max_slice: 1 << 40,
            reach: Reach::Process,
            fencing: Fencing::Target,
            checks_identity: true,
            registers_at_once: true,
        };
        let (chunk, pace) = (64 << 10, Duration::ZERO);
        Self { fabric: fabric.clone(), kind, capabilities, chunk, pace, flaw: None }
    }

    /// Claims other capabilities. Operations that they exclude are refused; the rest is only claimed.
    #[must_use]
    pub fn with_capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }

    /// Copies in chunks of so many bytes, default 64 KiB, and waits this long before each.
    #[must_use]
    pub fn with_pace(mut self, chunk: u64, pace: Duration) -> Self {
        self.chunk = chunk;
        self.pace = pace;
        self
    }

    /// Breaks one promise of the contract.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Flaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// What a buffer's entry in the descriptor looks like, in the form that the kind prescribes. Nothing reads it.
    fn entry(&self) -> Via {
        let key = || NicName::new("copy0").map(|nic| BTreeMap::from([(nic, MemoryKey::new(1))]));
        match self.kind.as_str() {
            "tcp" => Via::Tcp,
            "cxl" => Via::Cxl { offset: 0 },
            "nvlink" | "hip" => Via::Handle("copy".to_owned()),
            "rdma" => key().map_or_else(|_| Via::Tcp, |keys| Via::Rdma { keys }),
            _ => Via::Other(serde_json::json!({})),
        }
    }
}

impl Install for CopyTransport {
    fn kind(&self) -> TransportKind {
        self.kind.clone()
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        let (number, port) = self.fabric.open(context.regions.clone(), context.incarnation);
        let shared = Arc::new(Near { config: *self, work: Mutex::default(), idle: Condvar::new() });
        Ok(Arc::new(Installed {
            number,
            port,
            near: shared,
            withdrawn: Mutex::default(),
            worker: Mutex::default(),
        }))
    }
}

/// What the paths of one transport share.
struct Near {
    config: CopyTransport,
    work: Mutex<Work>,
    idle: Condvar,
}

#[derive(Default)]
struct Work {
    closing: bool,
    // Slices accepted and not resolved.
    pending: usize,
}

impl Near {
    /// Counts `slices` as accepted, unless the transport is closing.
    fn accept(&self, slices: usize) -> bool {
        let mut work = self.work.lock();
        if work.closing && !self.config.has(Flaw::AcceptsAfterShutdown) {
            return false;
        }
        work.pending += slices;
        true
    }

    fn resolved(&self) {
        self.work.lock().pending -= 1;
        self.idle.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.work.lock().closing && !self.config.has(Flaw::AcceptsAfterShutdown)
    }
}

struct Installed {
    number: u64,
    port: Arc<Port>,
    near: Arc<Near>,
    withdrawn: Mutex<Vec<Region>>,
    // The one worker of a transport that has the flaw to have only one.
    worker: Mutex<Option<Arc<path::Queue>>>,
}

impl Installed {
    fn error(&self, operation: &'static str, cause: String) -> TransportError {
        TransportError { transport: self.kind(), operation, cause, retryable: true }
    }
}

impl Transport for Installed {
    fn kind(&self) -> TransportKind {
        self.near.config.kind.clone()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.near.config.capabilities
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        let builder = builder.data(self.kind(), serde_json::json!({ "port": self.number }));
        match self.near.config.entry() {
            Via::Rdma { keys } => {
                keys.into_keys().fold(builder, |builder, nic| builder.device(Device::new(nic)))
            }
            _ => builder,
        }
    }

    fn register(&self, _region: &Region) -> Result<Registration, TransportError> {
        Ok(Registration::Registered(self.near.config.entry()))
    }

    fn unregister(&self, region: &Region) -> Result<(), TransportError> {
        let mut withdrawn = self.withdrawn.lock();
        if self.near.config.has(Flaw::UnregistersOnce) && withdrawn.contains(region) {
            return Err(self.error("unregister", "the region is not registered".to_owned()));
        }
        withdrawn.push(region.clone());
        Ok(())
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        if self.near.config.has(Flaw::AssessesEverything) {
            return Assessment::Usable("looks fine".to_owned());
        }
        match self.near.config.fabric.route(&self.near.config.kind, peer) {
            Ok(route) => Assessment::Usable(format!("port {} is in this process", route.number)),
            Err(reason) => Assessment::Unusable(reason),
        }
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        let route = self.near.config.fabric.route(&self.near.config.kind, peer)?;
        let mut worker = self.worker.lock();
        let shared = worker.clone().filter(|_| self.near.config.has(Flaw::SharesWorker));
        let path = CopyPath::new(self.near.clone(), route, peer.incarnation(), shared);
        *worker = Some(path.queue().clone());
        Ok(Arc::new(path))
    }

    /// A copy is over before its initiator hears of it, and nothing else of a peer is kept.
    fn fence(&self, _peer: Incarnation, _deadline: Instant) -> Result<(), TransportError> {
        Ok(())
    }

    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.port.close();
        let mut work = self.near.work.lock();
        if std::mem::replace(&mut work.closing, true) && self.near.config.has(Flaw::ShutsDownOnce) {
            return Err(self.error("shutdown", "the transport is closed".to_owned()));
        }
        while work.pending > 0 && !self.near.config.has(Flaw::AbandonsAtShutdown) {
            if self.near.idle.wait_until(&mut work, deadline).timed_out() {
                return Err(self.error("shutdown", format!("{} slices are in flight", work.pending)));
            }
        }
        drop(work);
        match self.port.wait_idle(deadline) {
            0 => Ok(()),
            serving => Err(self.error("shutdown", format!("{serving} requests are being served"))),
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // What is in flight towards us and from us ends; nobody waits for it here.
        self.port.close();
        self.near.work.lock().closing = true;
    }
}
