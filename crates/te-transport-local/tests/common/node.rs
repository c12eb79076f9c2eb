//! A node for tests and examples: a region table, a transport and a descriptor, without an engine.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_memory::{Memory, Region, RegionTable};
use te_segment::{
    Access, AddressRange, BufferDescriptor, Endpoint, Generation, Host, Identity, Incarnation, Location,
    SegmentDescriptor, SegmentName, TransportKind,
};
use te_transport::{
    AdmitAll, AttemptId, Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, CancelScope, CompletionSink,
    CompletionToken, Context, FailureKind, Op, Outcome, Path, PortRange, Registration, Slice, Submission,
    SubmitMode, Transport,
};
use te_transport_local::{Local, LocalConfig, LocalGroup, LocalTransport};

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane that is not there.
struct NoBootstrap;

impl Bootstrap for NoBootstrap {
    fn exchange<'a>(
        &'a self,
        peer: &'a Endpoint,
        _protocol: &'a str,
        _device_path: &'a str,
        _message: Vec<u8>,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<u8>, BootstrapError>> {
        let error = BootstrapError { peer: peer.clone(), cause: "none here".to_owned(), retryable: false };
        Box::pin(async move { Err(error) })
    }

    fn handle(&self, _protocol: &str, _handler: Arc<dyn BootstrapHandler>) -> bool {
        true
    }
}

/// One engine's share of the tests.
pub struct Node {
    pub context: Context,
    pub transport: Arc<LocalTransport>,
}

impl Node {
    pub fn new(group: &LocalGroup) -> Self {
        Self::with(group, LocalConfig::default())
    }

    pub fn with(group: &LocalGroup, config: LocalConfig) -> Self {
        let host: Host = "127.0.0.1".parse().unwrap();
        let context = Context {
            incarnation: Incarnation::from_bits(rand::random()),
            regions: RegionTable::default(),
            bind: host.clone(),
            advertise: host,
            ports: PortRange::default(),
            bootstrap: Arc::new(NoBootstrap),
            admission: Arc::new(AdmitAll),
        };
        let transport = Local::new(group, config).start(&context).unwrap();
        Self { context, transport }
    }

    /// Registers memory.
    pub fn register(&self, memory: Memory, access: Access) -> Region {
        let reservation = self.context.regions.reserve(memory, access, Location::Any).unwrap();
        let registered = self.transport.register(reservation.region()).unwrap();
        assert!(matches!(registered, Registration::Registered(_)));
        reservation.commit()
    }

    /// Registers `len` bytes that peers may read and write.
    pub fn offered(&self, len: usize) -> Region {
        self.register(Memory::allocate(len).unwrap(), Access::REMOTE)
    }

    /// Registers `len` bytes for own use.
    pub fn local(&self, len: usize) -> Region {
        self.register(Memory::allocate(len).unwrap(), Access::LOCAL)
    }

    /// Takes a region back as an engine does.
    pub fn withdraw(&self, region: &Region) -> Memory {
        region.block();
        region.wait_drained(Instant::now() + PATIENCE).unwrap();
        self.transport.unregister(region).unwrap();
        region.release().unwrap()
    }

    /// As its engine would publish it.
    pub fn published(&self) -> Arc<SegmentDescriptor> {
        self.published_as(self.context.incarnation)
    }

    /// As another life would.
    pub fn published_as(&self, incarnation: Incarnation) -> Arc<SegmentDescriptor> {
        let name = SegmentName::new("peer").unwrap();
        let builder = SegmentDescriptor::builder(name).identity(Identity::Te { incarnation, control: None });
        let regions = self.context.regions.regions();
        let buffers = regions.iter().filter(|region| region.access().is_remote()).map(|region| {
            let Registration::Registered(via) = self.transport.register(region).unwrap() else {
                panic!("not registered")
            };
            let via = BTreeMap::from([(TransportKind::LOCAL, via)]);
            let generation = Some(region.generation());
            BufferDescriptor::new(region.range(), Location::Any, region.access(), generation, via).unwrap()
        });
        Arc::new(self.transport.advertise(builder).buffers(buffers).build().unwrap())
    }

    pub fn path_to(&self, peer: &Self) -> Arc<dyn Path> {
        self.transport.path(&peer.published()).unwrap()
    }

    pub fn shutdown(&self) {
        self.transport.shutdown(Instant::now() + PATIENCE).unwrap();
    }
}

/// Collects outcomes.
#[derive(Default)]
pub struct Log {
    outcomes: Mutex<Vec<(u32, Outcome)>>,
    more: Condvar,
}

impl CompletionSink for Log {
    fn complete(&self, index: u32, outcome: Outcome) {
        self.outcomes.lock().push((index, outcome));
        self.more.notify_all();
    }
}

impl Log {
    /// Waits for `count` outcomes and returns them by index.
    pub fn wait(&self, count: usize) -> Vec<Outcome> {
        let end = Instant::now() + PATIENCE;
        let mut outcomes = self.outcomes.lock();
        while outcomes.len() < count {
            let late = self.more.wait_until(&mut outcomes, end).timed_out();
            assert!(!late || outcomes.len() >= count, "{} of {count} outcomes", outcomes.len());
        }
        let mut all: Vec<_> = outcomes.clone();
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// What to move: all of a local region, to or from the same length at the peer's range.
#[derive(Clone)]
pub struct Move<'a> {
    pub op: Op,
    pub local: &'a Region,
    pub remote: AddressRange,
    pub generation: Generation,
}

impl<'a> Move<'a> {
    pub fn new(op: Op, local: &'a Region, remote: &Region) -> Self {
        let range = remote.range().slice(0, local.range().len()).unwrap();
        Self { op, local, remote: range, generation: remote.generation() }
    }

    pub fn begin(&self, path: &dyn Path, mode: SubmitMode, scope: &CancelScope) -> Arc<Log> {
        let log = Arc::<Log>::default();
        let slice = Slice {
            op: self.op,
            local: self.local.hold(0, self.local.range().len()).unwrap(),
            remote: self.remote,
            generation: Some(self.generation),
            attempt: AttemptId { request: 1, attempt: 1 },
            token: CompletionToken::new(log.clone(), 0),
        };
        let deadline = Instant::now() + PATIENCE;
        path.submit(Submission { slices: vec![slice], deadline, scope: scope.clone() }, mode);
        log
    }

    pub fn run(&self, path: &dyn Path) -> Outcome {
        self.begin(path, SubmitMode::Background, &CancelScope::new()).wait(1).remove(0)
    }

    /// Runs it and says how it failed.
    pub fn fails(&self, path: &dyn Path) -> (FailureKind, String) {
        match self.run(path) {
            Outcome::Failed(failure) => (failure.kind(), failure.to_string()),
            outcome => panic!("should fail: {outcome:?}"),
        }
    }

    /// Runs it and fails the test unless it is done.
    pub fn done(&self, path: &dyn Path) {
        let outcome = self.run(path);
        assert!(outcome.is_done(), "{outcome:?}");
    }
}

/// All bytes of a region.
pub fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.range().len()).unwrap()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}
