//! Engines without an engine over NICs in this process, and a control plane between them that fails on demand.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use te_memory::Region;
use te_segment::{Endpoint, SegmentDescriptor};
use te_sys_verbs::fake::{Fabric, Live, Nic};
use te_testkit::node::{Node, bytes, until};
use te_testkit::{Ledger, Switchboard, pattern, verify};
use te_transport::{
    AttemptId, Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, CancelScope, Context, Failure,
    InstallError, LocateError, Op, Outcome, Path, Publisher, Slice, Submission, SubmitMode,
};
use te_transport_rdma::wire::{Handshake, Reading};
use te_transport_rdma::{Rdma, RdmaConfig, RdmaTransport};

/// A request that is cut into many pieces.
pub(crate) const LARGE: usize = 8 << 20;

/// NICs, and a control plane that reaches every engine on them.
pub(crate) struct Bench {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) switch: Switchboard,
}

/// One engine's share, with the control plane as it sees it.
pub(crate) struct Peer {
    node: Node<RdmaTransport>,
    pub(crate) wire: Arc<Wire>,
    told: Arc<Told>,
    switch: Switchboard,
}

/// Counts how often what peers need has changed.
#[derive(Default)]
struct Told(AtomicUsize);

impl Publisher for Told {
    fn changed(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bench {
    pub(crate) fn new(nics: &[&str]) -> Self {
        let fabric = Arc::new(Fabric::new(nics.iter().map(|name| Nic::new(name))));
        Self { fabric, switch: Switchboard::default() }
    }

    /// An engine with these NICs, at a number of the control plane.
    pub(crate) fn peer(&self, number: u16, nics: &[&str], config: RdmaConfig) -> Peer {
        let (mut wire, told) = (None, Arc::new(Told::default()));
        let node = Node::on(&self.switch, number, |context| {
            let own = wire.insert(Arc::new(Wire::new(context.bootstrap.clone()))).clone();
            Rdma::over(self.fabric.verbs_with(nics), config).start(&Context {
                bootstrap: own,
                publisher: told.clone(),
                ..context.clone()
            })
        });
        Peer { node, wire: wire.unwrap(), told, switch: self.switch.clone() }
    }

    /// Why an engine with these NICs does not start.
    pub(crate) fn refused(&self, nics: &[&str]) -> InstallError {
        let context = te_testkit::node::context("127.0.0.1");
        Rdma::over(self.fabric.verbs_with(nics), config(&[])).start(&context).unwrap_err()
    }

    /// Two engines with two NICs each.
    pub(crate) fn pair() -> (Self, Peer, Peer) {
        Self::pair_with(&config(&[]))
    }

    pub(crate) fn pair_with(config: &RdmaConfig) -> (Self, Peer, Peer) {
        let bench = Self::new(&["a0", "a1", "b0", "b1"]);
        let a = bench.peer(1, &["a0", "a1"], config.clone());
        let b = bench.peer(2, &["b0", "b1"], config.clone());
        (bench, a, b)
    }

    /// Two engines with one NIC each.
    pub(crate) fn simple() -> (Self, Peer, Peer) {
        let bench = Self::new(&["a0", "b0"]);
        let a = bench.peer(1, &["a0"], config(&[]));
        let b = bench.peer(2, &["b0"], config(&[]));
        (bench, a, b)
    }

    pub(crate) fn bytes_of(&self, nic: &str) -> u64 {
        self.fabric.carried(nic).1
    }

    /// Nothing is left of any engine.
    pub(crate) fn expect_empty(&self) {
        until(&format!("nothing is left, not {:?}", self.fabric.live()), || {
            self.fabric.live() == Live::default()
        });
    }
}

impl Deref for Peer {
    type Target = Node<RdmaTransport>;

    fn deref(&self) -> &Self::Target {
        &self.node
    }
}

impl Peer {
    /// How often its engine was told that what it offers has changed.
    pub(crate) fn told(&self) -> usize {
        self.told.0.load(Ordering::SeqCst)
    }

    /// From now on its control plane answers nobody.
    pub(crate) fn hang_up(&self) {
        self.switch.hang_up(self.control().unwrap());
    }
}

/// Settings by name.
pub(crate) fn config(settings: &[(&str, &str)]) -> RdmaConfig {
    let mut config = RdmaConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    config
}

/// What becomes of a request to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    Works,
    /// Nobody is there.
    Dead,
    /// No answer comes in time.
    Mute,
}

/// The control plane of one engine.
pub(crate) struct Wire {
    inner: Arc<dyn Bootstrap>,
    all: AtomicU8,
    cuts: AtomicU8,
    opens: AtomicUsize,
    asked_to_cut: AtomicUsize,
}

impl Wire {
    fn new(inner: Arc<dyn Bootstrap>) -> Self {
        let works = || AtomicU8::new(Mode::Works as u8);
        Self {
            inner,
            all: works(),
            cuts: works(),
            opens: AtomicUsize::new(0),
            asked_to_cut: AtomicUsize::new(0),
        }
    }

    /// What becomes of every request of it.
    pub(crate) fn set(&self, mode: Mode) {
        self.all.store(mode as u8, Ordering::SeqCst);
    }

    /// What becomes of its requests to cut endpoints.
    pub(crate) fn set_cuts(&self, mode: Mode) {
        self.cuts.store(mode as u8, Ordering::SeqCst);
    }

    /// Requests to open an endpoint that it has made.
    pub(crate) fn opens(&self) -> usize {
        self.opens.load(Ordering::SeqCst)
    }

    /// Requests to cut that it has made.
    pub(crate) fn cuts(&self) -> usize {
        self.asked_to_cut.load(Ordering::SeqCst)
    }
}

impl Bootstrap for Wire {
    fn locate<'a>(
        &'a self,
        peer: &'a SegmentDescriptor,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, LocateError>> {
        self.inner.locate(peer, deadline)
    }

    fn exchange<'a>(
        &'a self,
        peer: &'a Endpoint,
        protocol: &'a str,
        device_path: &'a str,
        message: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<u8>, BootstrapError>> {
        let mut mode = self.all.load(Ordering::SeqCst);
        match Handshake::decode(&message).and_then(Handshake::read) {
            Ok(Reading::Open(_)) => {
                self.opens.fetch_add(1, Ordering::SeqCst);
            }
            Ok(Reading::Cut(_)) => {
                self.asked_to_cut.fetch_add(1, Ordering::SeqCst);
                mode = mode.max(self.cuts.load(Ordering::SeqCst));
            }
            _ => {}
        }
        let error =
            |cause: &str| BootstrapError { peer: peer.clone(), cause: cause.to_owned(), retryable: true };
        if mode == Mode::Works as u8 {
            return self.inner.exchange(peer, protocol, device_path, message, deadline);
        }
        if mode == Mode::Dead as u8 {
            return Box::pin(async move { Err(error("nobody is there")) });
        }
        let (late, over) = tokio::sync::oneshot::channel::<()>();
        thread::spawn(move || {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            drop(late);
        });
        Box::pin(async move {
            let _ = over.await;
            Err(error("no answer in time"))
        })
    }

    fn handle(&self, protocol: &str, handler: Arc<dyn BootstrapHandler>) -> bool {
        self.inner.handle(protocol, handler)
    }
}

/// Fills a region with the pattern of a seed.
pub(crate) fn fill(region: &Region, seed: u8) {
    let len = usize::try_from(region.range().len()).unwrap();
    region.write_at(0, &pattern(seed, len)).unwrap();
}

/// Expects the pattern of a seed from the front of a region on.
pub(crate) fn expect(region: &Region, seed: u8) {
    if let Err(mismatch) = verify(seed, 0, &bytes(region)) {
        panic!("not the bytes of seed {seed}: {mismatch}");
    }
}

/// A batch: what is moved between two regions, in slices of equal length.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) op: Op,
    pub(crate) local: &'a Region,
    pub(crate) remote: &'a Region,
    pub(crate) slices: u32,
    pub(crate) within: Duration,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(op: Op, local: &'a Region, remote: &'a Region, slices: u32) -> Self {
        Self { op, local, remote, slices, within: Duration::from_secs(60) }
    }

    pub(crate) fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    pub(crate) fn begin(&self, path: &dyn Path, scope: &CancelScope) -> Arc<Ledger> {
        let ledger = Ledger::new(self.slices as usize);
        self.submit(path, scope, &ledger);
        ledger
    }

    pub(crate) fn submit(&self, path: &dyn Path, scope: &CancelScope, ledger: &Arc<Ledger>) {
        let len = self.local.range().len() / u64::from(self.slices);
        let slice = |at: u32| Slice {
            op: self.op,
            local: self.local.hold(u64::from(at) * len, len).unwrap(),
            remote: self.remote.range().slice(u64::from(at) * len, len).unwrap(),
            generation: Some(self.remote.generation()),
            attempt: AttemptId { request: 1, attempt: 1 },
            token: ledger.token(at),
        };
        let slices = (0..self.slices).map(slice).collect();
        let deadline = Instant::now() + self.within;
        path.submit(Submission { slices, deadline, scope: scope.clone() }, SubmitMode::Background);
    }

    /// Runs it; its outcomes, each of which was reported once.
    pub(crate) fn run(&self, path: &dyn Path) -> Vec<Outcome> {
        let ledger = self.begin(path, &CancelScope::new());
        te_testkit::node::outcomes(&ledger)
    }

    pub(crate) fn done(&self, path: &dyn Path) {
        for outcome in self.run(path) {
            assert!(outcome.is_done(), "{outcome:?}");
        }
    }

    pub(crate) fn works(&self, path: &dyn Path) -> bool {
        self.run(path).iter().all(Outcome::is_done)
    }

    /// The first failure, which there must be.
    pub(crate) fn fails(&self, path: &dyn Path) -> Failure {
        first_failure(&self.run(path))
    }
}

pub(crate) fn first_failure(outcomes: &[Outcome]) -> Failure {
    let failure = |outcome: &Outcome| match outcome {
        Outcome::Failed(failure) => Some(failure.clone()),
        _ => None,
    };
    outcomes.iter().find_map(failure).unwrap_or_else(|| panic!("should fail: {outcomes:?}"))
}

pub(crate) const OPS: [Op; 2] = [Op::Write, Op::Read];

/// Sets both sides of a transfer to different bytes; afterwards both have those of `seed`.
pub(crate) fn prepare(batch: &Batch<'_>, seed: u8) {
    let (from, to) = match batch.op {
        Op::Write => (batch.local, batch.remote),
        Op::Read => (batch.remote, batch.local),
    };
    fill(from, seed);
    to.fill(0xee).unwrap();
}

pub(crate) fn check(batch: &Batch<'_>, seed: u8) {
    expect(batch.local, seed);
    expect(batch.remote, seed);
}
