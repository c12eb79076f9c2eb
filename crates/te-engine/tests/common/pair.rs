//! Two engines with two paths between them.

use std::time::Duration;

use te_engine::{Buffer, Engine, EngineConfig, RemoteRange, Report};
use te_segment::{Access, TransportKind};
use te_testkit::{FaultTransport, Script};
use te_transport::{Fencing, Install};

use super::{World, soon};

/// Two engines with two transports each; those of the initiator fail by script.
pub(crate) struct Pair {
    pub(crate) target: Engine,
    pub(crate) initiator: Engine,
    /// Of the path that is tried first, and of the other.
    pub(crate) first: Script,
    pub(crate) second: Script,
}

impl Pair {
    pub(crate) fn new(fencing: Fencing) -> Self {
        Self::cutting(fencing, u64::MAX)
    }

    pub(crate) fn cutting(fencing: Fencing, max_slice: u64) -> Self {
        Self::with(fencing, max_slice, World::config("initiator"))
    }

    pub(crate) fn draining(fencing: Fencing, drain: Duration) -> Self {
        let mut config = World::config("initiator");
        config.limits.drain = drain;
        Self::with(fencing, u64::MAX, config)
    }

    fn with(fencing: Fencing, max_slice: u64, initiator: EngineConfig) -> Self {
        let world = World::new();
        let (first, second) = (Script::new(1), Script::new(2));
        let transport = |kind| {
            world.transport(kind).with_capabilities(|capabilities| {
                capabilities.fencing = fencing;
                capabilities.max_slice = max_slice;
            })
        };
        let faulty =
            |kind, script| -> Box<dyn Install> { Box::new(FaultTransport::new(transport(kind), script)) };
        let plain = |kind| -> Box<dyn Install> { Box::new(transport(kind)) };
        let target = world
            .engine_with(World::config("target"), vec![plain(TransportKind::SHM), plain(TransportKind::CXL)]);
        let initiator = world.engine_with(
            initiator,
            vec![faulty(TransportKind::SHM, &first), faulty(TransportKind::CXL, &second)],
        );
        Self { target, initiator, first, second }
    }

    /// A buffer at the target, one here, and the remote range.
    pub(crate) async fn memory(&self, remote: Vec<u8>, local: Vec<u8>) -> (Buffer, Buffer, RemoteRange) {
        let offered = self.target.register(remote, Access::REMOTE).await.unwrap();
        self.target.published(soon()).await.unwrap();
        let local = self.initiator.register(local, Access::LOCAL).await.unwrap();
        let peer = self.initiator.open("target").await.unwrap();
        let range = peer.range(offered.address(), offered.len()).unwrap();
        (offered, local, range)
    }
}

pub(crate) fn content(buffer: &Buffer) -> Vec<u8> {
    let mut found = vec![0; usize::try_from(buffer.len()).unwrap()];
    buffer.read_at(0, &mut found).unwrap();
    found
}

pub(crate) fn kinds(report: &Report) -> Vec<&TransportKind> {
    report.requests().iter().map(|request| request.path.transport()).collect()
}
