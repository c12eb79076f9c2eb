//! Engines of one process over an in-memory store and transports that copy.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

pub(crate) mod pair;

use std::sync::Arc;

use te_engine::{Bound, Deadline, Engine, EngineConfig, Naming, RuntimeChoice, block_on};
use te_metadata::{Keys, MemoryStore, StoreDirectory};
use te_segment::{Host, SegmentName, TransportKind};
use te_testkit::{CopyTransport, Fabric};
use te_transport::{Install, Reach};

/// A store and the fabric that the transports of its engines share.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) fabric: Fabric,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { store: MemoryStore::new(), fabric: Fabric::new() }
    }

    pub(crate) fn config(name: &str) -> EngineConfig {
        let naming = Naming::Store(SegmentName::new(name).unwrap());
        EngineConfig::new(naming, "127.0.0.1".parse::<Host>().unwrap())
    }

    /// A transport of another host: reachable over the network, as far as selection cares.
    pub(crate) fn transport(&self, kind: TransportKind) -> CopyTransport {
        CopyTransport::new(&self.fabric, kind)
            .with_capabilities(|capabilities| capabilities.reach = Reach::Network)
    }

    pub(crate) fn engine(&self, name: &str) -> Engine {
        self.engine_with(Self::config(name), vec![Box::new(self.transport(TransportKind::SHM))])
    }

    pub(crate) fn engine_with(&self, config: EngineConfig, transports: Vec<Box<dyn Install>>) -> Engine {
        block_on(async {
            let bound = Bound::bind(config, RuntimeChoice::Owned).await.unwrap();
            let directory = StoreDirectory::new(self.store.clone(), Keys::default());
            bound.start(Arc::new(directory), None, transports).await.unwrap()
        })
    }
}

pub(crate) fn soon() -> Deadline {
    Deadline::after_secs(10)
}
