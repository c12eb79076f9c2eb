//! A transport around another one that fails by script.

mod parked;
mod script;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use te_memory::Region;
use te_segment::{DescriptorBuilder, Incarnation, SegmentDescriptor, TransportKind, Via};
use te_transport::{
    Assessment, Capabilities, Context, Failure, FailureKind, Fencing, Install, InstallError, Path,
    PathHealth, PathLabel, Registration, Slice, Submission, SubmitMode, Transport, TransportError,
};

use parked::Parked;
pub use script::{Fault, Script, Site, When};

/// Wraps a backend so that it fails by script, within the transport contract.
///
/// ```
/// use te_segment::TransportKind;
/// use te_testkit::{CopyTransport, Fabric, Fault, FaultTransport, Script, Site, When};
/// use te_transport::FailureKind;
///
/// let script = Script::new(7).with(Site::Slice, When::Every(3), Fault::Refuse(FailureKind::ConnectionLost));
/// let flaky = FaultTransport::new(CopyTransport::new(&Fabric::new(), TransportKind::SHM), &script);
/// ```
pub struct FaultTransport {
    inner: Box<dyn Install>,
    script: Script,
}

impl FaultTransport {
    /// `inner`, failing by `script`.
    pub fn new(inner: impl Install + 'static, script: &Script) -> Self {
        Self { inner: Box::new(inner), script: script.clone() }
    }
}

impl Install for FaultTransport {
    fn kind(&self) -> TransportKind {
        self.inner.kind()
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        let Self { inner, script } = *self;
        if script.next(Site::Install).is_some() {
            let missing = "what the script took away".to_owned();
            return Err(InstallError::Unavailable { transport: inner.kind(), missing });
        }
        let inner = inner.install(context)?;
        Ok(Arc::new(FaultyTransport { inner, script }))
    }
}

struct FaultyTransport {
    inner: Arc<dyn Transport>,
    script: Script,
}

impl FaultyTransport {
    /// Counts the call; an error if it is to fail.
    fn pass(&self, site: Site, operation: &'static str) -> Result<Option<Fault>, TransportError> {
        match self.script.next(site) {
            Some(Fault::Fail) => {
                let cause = "the script says so".to_owned();
                Err(TransportError { transport: self.kind(), operation, cause, retryable: true })
            }
            other => Ok(other),
        }
    }
}

impl Transport for FaultyTransport {
    fn kind(&self) -> TransportKind {
        self.inner.kind()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder {
        self.inner.advertise(builder)
    }

    fn register(&self, region: &Region) -> Result<Registration, TransportError> {
        match self.pass(Site::Register, "register")? {
            Some(Fault::NotMine) => Ok(Registration::NotMine("the script says so".to_owned())),
            _ => self.inner.register(region),
        }
    }

    fn via(&self, region: &Region) -> Option<Via> {
        self.inner.via(region)
    }

    fn unregister(&self, region: &Region) -> Result<(), TransportError> {
        self.pass(Site::Unregister, "unregister")?;
        self.inner.unregister(region)
    }

    fn assess(&self, peer: &SegmentDescriptor) -> Assessment {
        self.inner.assess(peer)
    }

    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String> {
        if self.script.next(Site::Path).is_some() {
            return Err("the script says so".to_owned());
        }
        let inner = self.inner.path(peer)?;
        Ok(Arc::new(FaultyPath { inner, script: self.script.clone() }))
    }

    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError> {
        self.pass(Site::Fence, "fence")?;
        self.inner.fence(peer, deadline)
    }

    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError> {
        self.pass(Site::Shutdown, "shutdown")?;
        self.inner.shutdown(deadline)
    }
}

struct FaultyPath {
    inner: Arc<dyn Path>,
    script: Script,
}

impl FaultyPath {
    fn refuse(&self, slice: Slice, kind: FailureKind) {
        slice.token.fail(Failure::new(kind, "the script says so").on_path(self.label().clone()));
    }
}

impl Path for FaultyPath {
    fn label(&self) -> &Arc<PathLabel> {
        self.inner.label()
    }

    fn submit(&self, submission: Submission, mode: SubmitMode) {
        let Submission { slices, deadline, scope } = submission;
        let parked = Parked::new(self.label(), &scope, deadline);
        let mut through = Vec::with_capacity(slices.len());
        for mut slice in slices {
            match self.script.next(Site::Slice) {
                None | Some(Fault::NotMine) => through.push(slice),
                Some(Fault::Fail) => self.refuse(slice, FailureKind::Unreachable),
                Some(Fault::Refuse(kind)) => self.refuse(slice, kind),
                Some(Fault::Drop) => drop(slice),
                Some(Fault::Hang) => parked.park(slice),
                Some(fault) => {
                    slice.token = parked.intercept(slice.token, fault);
                    through.push(slice);
                }
            }
        }
        parked.watch();
        if !through.is_empty() {
            self.inner.submit(Submission { slices: through, deadline, scope }, mode);
        }
    }

    fn fencing(&self) -> Fencing {
        self.inner.fencing()
    }

    fn health(&self) -> PathHealth {
        self.inner.health()
    }
}
