//! A node for tests and examples: a region table, a transport and a descriptor, without an engine.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_memory::{Hold, Memory, Region};
use te_segment::{
    Access, AddressRange, Generation, Identity, Incarnation, Location, SegmentDescriptor, SegmentName,
    TcpFraming, TcpService, TransportKind,
};
use te_transport::{
    Admission, AdmitAll, AttemptId, CancelScope, CompletionSink, CompletionToken, Context, Op, Outcome, Path,
    PortRange, Slice, Submission, SubmitMode, Transport,
};
use te_transport_tcp::{Tcp, TcpConfig, TcpTransport};

/// Of every request that does not care.
pub const ATTEMPT: AttemptId = AttemptId { request: 1, attempt: 1 };

/// What the engine would hand to a transport, bound to `host`.
pub fn context(host: &str, life: u128) -> Context {
    // Other tests look for free ports in the same range at the same time, which is fine.
    let ports = PortRange { min: 18_000, max: 21_000 };
    Context { incarnation: Incarnation::from_bits(life), ports, ..te_testkit::node::context(host) }
}

/// A number no other node of this process has.
fn life() -> u128 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    u128::from(count.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(std::process::id())
}

/// One engine's share of the tests.
pub struct Node {
    pub context: Context,
    pub transport: Arc<TcpTransport>,
}

impl Node {
    pub fn new() -> Self {
        Self::with(TcpConfig::default())
    }

    pub fn with(config: TcpConfig) -> Self {
        Self::admitting(config, Arc::new(AdmitAll))
    }

    /// A node that asks before it lets a te peer touch memory.
    pub fn admitting(config: TcpConfig, admission: Arc<dyn Admission>) -> Self {
        let context = Context { admission, ..context("127.0.0.1", life()) };
        let transport = Tcp::new(config).start(&context).unwrap();
        Self { context, transport }
    }

    /// Registers `len` bytes.
    pub fn region(&self, len: usize, access: Access) -> Region {
        let memory = Memory::allocate(len).unwrap();
        self.context.regions.reserve(memory, access, Location::Any).unwrap().commit()
    }

    pub fn descriptor(&self) -> Arc<SegmentDescriptor> {
        self.descriptor_with(TcpFraming::V2)
    }

    /// As published, or as a peer of version 1 would be seen.
    pub fn descriptor_with(&self, framing: TcpFraming) -> Arc<SegmentDescriptor> {
        let incarnation = Some(self.context.incarnation);
        descriptor("127.0.0.1", self.transport.listening_on().port(), framing, incarnation)
    }

    /// As its engine would publish it, without buffers.
    pub fn published(&self) -> Arc<SegmentDescriptor> {
        self.published_as(self.context.incarnation)
    }

    /// As an earlier life at the same port would have been published.
    pub fn published_as(&self, incarnation: Incarnation) -> Arc<SegmentDescriptor> {
        let name = SegmentName::new("peer").unwrap();
        let builder = SegmentDescriptor::builder(name).identity(Identity::Te { incarnation, control: None });
        Arc::new(self.transport.advertise(builder).build().unwrap())
    }

    /// A path over the native framing.
    pub fn native_path_to(&self, peer: &Self) -> Arc<dyn Path> {
        self.transport.path(&peer.published()).unwrap()
    }

    pub fn path_to(&self, peer: &Self) -> Arc<dyn Path> {
        self.transport.path(&peer.descriptor()).unwrap()
    }

    pub fn shutdown(&self) {
        self.transport.shutdown(Instant::now() + Duration::from_secs(10)).unwrap();
    }
}

/// A descriptor with a data port and nothing else.
pub fn descriptor(
    host: &str,
    port: u16,
    framing: TcpFraming,
    incarnation: Option<Incarnation>,
) -> Arc<SegmentDescriptor> {
    let identity = match incarnation {
        Some(incarnation) => Identity::Te { incarnation, control: None },
        None => Identity::Reference,
    };
    let service = TcpService { host: Some(host.parse().unwrap()), port: port.try_into().unwrap(), framing };
    let name = SegmentName::new("peer").unwrap();
    Arc::new(SegmentDescriptor::builder(name).identity(identity).tcp(service).build().unwrap())
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
    pub fn len(&self) -> usize {
        self.outcomes.lock().len()
    }

    /// Waits for `count` outcomes and returns them by index. Fails the test if one comes twice.
    pub fn wait(&self, count: usize, time: Duration) -> Vec<Outcome> {
        let end = Instant::now() + time;
        let mut outcomes = self.outcomes.lock();
        while outcomes.len() < count {
            let late = self.more.wait_until(&mut outcomes, end).timed_out();
            assert!(!late || outcomes.len() >= count, "{} of {count} outcomes in {time:?}", outcomes.len());
        }
        let mut all: Vec<_> = outcomes.clone();
        all.sort_by_key(|(index, _)| *index);
        assert_eq!(all.len(), count);
        for (at, (index, _)) in all.iter().enumerate() {
            assert_eq!(*index as usize, at, "an outcome is missing or came twice");
        }
        all.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// A batch under construction.
pub struct Batch {
    pub log: Arc<Log>,
    pub scope: CancelScope,
    pub slices: Vec<Slice>,
    pub deadline: Instant,
}

impl Batch {
    pub fn new(time: Duration) -> Self {
        Self {
            log: Arc::default(),
            scope: CancelScope::new(),
            slices: Vec::new(),
            deadline: Instant::now() + time,
        }
    }

    pub fn add(&mut self, op: Op, local: Hold, remote: u64) {
        let remote = AddressRange::new(remote, local.len()).unwrap();
        let index = u32::try_from(self.slices.len()).unwrap();
        let token = CompletionToken::new(self.log.clone(), index);
        self.slices.push(Slice { op, local, remote, generation: None, attempt: ATTEMPT, token });
    }

    /// Adds a request that names a registration and an attempt.
    pub fn add_of(&mut self, op: Op, local: Hold, remote: u64, of: Generation, attempt: AttemptId) {
        self.add(op, local, remote);
        if let Some(slice) = self.slices.last_mut() {
            slice.generation = Some(of);
            slice.attempt = attempt;
        }
    }

    pub fn with(mut self, op: Op, local: Hold, remote: u64) -> Self {
        self.add(op, local, remote);
        self
    }

    /// Submits and returns where the outcomes go.
    pub fn submit(self, path: &Arc<dyn Path>, mode: SubmitMode) -> Pending {
        let count = self.slices.len();
        path.submit(
            Submission { slices: self.slices, deadline: self.deadline, scope: self.scope.clone() },
            mode,
        );
        Pending { log: self.log, scope: self.scope, count }
    }
}

/// A submitted batch.
pub struct Pending {
    pub log: Arc<Log>,
    pub scope: CancelScope,
    pub count: usize,
}

impl Pending {
    pub fn wait(&self) -> Vec<Outcome> {
        self.log.wait(self.count, Duration::from_secs(60))
    }
}

/// Submits one slice, waits and returns its outcome.
pub fn transfer(path: &Arc<dyn Path>, op: Op, local: Hold, remote: u64, mode: SubmitMode) -> Outcome {
    let pending = Batch::new(Duration::from_secs(30)).with(op, local, remote).submit(path, mode);
    pending.wait().remove(0)
}

/// Submits one slice that names the registration it means, waits and returns its outcome.
pub fn transfer_of(path: &Arc<dyn Path>, op: Op, local: Hold, remote: u64, of: Generation) -> Outcome {
    let mut batch = Batch::new(Duration::from_secs(30));
    batch.add_of(op, local, remote, of, ATTEMPT);
    batch.submit(path, SubmitMode::CallerRuns).wait().remove(0)
}

/// The failure of an outcome that must be one.
pub fn failed(outcome: &Outcome) -> &te_transport::Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

/// Bytes that differ from place to place and seed to seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8) as u8) ^ seed).collect()
}

/// A part of a region's bytes.
pub fn bytes(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    region.read_at(offset, &mut buffer).unwrap();
    buffer
}

/// A listener whose connections do what a script says.
pub struct FakePeer {
    pub port: u16,
    /// Connections accepted so far.
    pub accepted: Arc<std::sync::atomic::AtomicUsize>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl FakePeer {
    /// Runs `script` on a thread for each connection; it is given the number of the connection, from 0.
    pub fn new(script: impl Fn(usize, std::net::TcpStream) + Send + Sync + 'static) -> Self {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stopped, script) = (accepted.clone(), stop.clone(), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let (number, script) = (count.fetch_add(1, Ordering::AcqRel), script.clone());
                std::thread::spawn(move || script(number, stream.unwrap()));
            }
        });
        Self { port, accepted, stop }
    }

    pub fn path(&self, initiator: &Node, framing: TcpFraming) -> Arc<dyn Path> {
        initiator.transport.path(&descriptor("127.0.0.1", self.port, framing, None)).unwrap()
    }

    /// A path over the native framing to a life of the fake.
    pub fn native_path(&self, initiator: &Node, life: Incarnation) -> Arc<dyn Path> {
        let name = SegmentName::new("peer").unwrap();
        let identity = Identity::Te { incarnation: life, control: None };
        let service = TcpService {
            host: Some("127.0.0.1".parse().unwrap()),
            port: self.port.try_into().unwrap(),
            framing: TcpFraming::V2,
        };
        let data = serde_json::json!({ "native": 1 });
        let builder = SegmentDescriptor::builder(name).identity(identity).tcp(service);
        let descriptor = builder.data(TransportKind::TCP, data).build().unwrap();
        initiator.transport.path(&Arc::new(descriptor)).unwrap()
    }

    pub fn connections(&self) -> usize {
        self.accepted.load(std::sync::atomic::Ordering::Acquire)
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Release);
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Waits until `condition` holds; fails the test when it does not within ten seconds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
