//! Engines of one process over an in-memory store and transports that copy.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

pub(crate) mod pair;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use te_engine::{Bound, Deadline, Engine, EngineConfig, Naming, RuntimeChoice, block_on};
use te_metadata::{Keys, MemoryStore, StoreDirectory};
use te_segment::{Host, SegmentName, TransportKind};
use te_testkit::{CopyTransport, Fabric, FaultStore};
use te_transport::{Install, Reach};

/// A store and the fabric that the transports of its engines share.
pub(crate) struct World {
    pub(crate) store: FaultStore,
    pub(crate) fabric: Fabric,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { store: FaultStore::new(MemoryStore::new()), fabric: Fabric::new() }
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
        self.engine_on(RuntimeChoice::Owned, config, transports)
    }

    fn engine_on(
        &self,
        runtime: RuntimeChoice,
        config: EngineConfig,
        transports: Vec<Box<dyn Install>>,
    ) -> Engine {
        self.try_engine_on(runtime, config, transports).unwrap()
    }

    pub(crate) fn try_engine(
        &self,
        config: EngineConfig,
        transports: Vec<Box<dyn Install>>,
    ) -> te_engine::Result<Engine> {
        self.try_engine_on(RuntimeChoice::Owned, config, transports)
    }

    fn try_engine_on(
        &self,
        runtime: RuntimeChoice,
        config: EngineConfig,
        transports: Vec<Box<dyn Install>>,
    ) -> te_engine::Result<Engine> {
        block_on(async {
            let bound = Bound::bind(config, runtime).await?;
            let probe = bound.holder_probe();
            let directory = StoreDirectory::new(self.store.clone(), Keys::default()).with_probe(probe);
            bound.start(Arc::new(directory), None, transports).await
        })
    }

    /// An engine that can be killed.
    pub(crate) fn mortal(&self, config: EngineConfig) -> Mortal {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(stopped).unwrap_err();
        });
        let transports: Vec<Box<dyn Install>> = vec![Box::new(self.transport(TransportKind::SHM))];
        let engine = self.engine_on(RuntimeChoice::Lent(handle), config, transports);
        Mortal { engine, stop, thread }
    }
}

/// An engine whose control plane can end at once, as in a process that is killed: its connections close without a word.
pub(crate) struct Mortal {
    pub(crate) engine: Engine,
    stop: tokio::sync::oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Mortal {
    pub(crate) fn kill(self) {
        drop(self.stop);
        self.thread.join().unwrap();
        drop(self.engine);
    }
}

/// A port for an engine that comes back in its place; both lives must choose it.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn on_port(name: &str, port: u16) -> EngineConfig {
    let mut config = World::config(name);
    config.control_port = te_rpc::PortChoice::Fixed(port);
    config
}

/// Waits until something is so. Fails after ten seconds.
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

pub(crate) fn soon() -> Deadline {
    Deadline::after_secs(10)
}
