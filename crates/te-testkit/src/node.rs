//! One backend without an engine: a region table, a transport and a descriptor, for tests of the backend itself.
//!
//! Unlike the cases, this panics when something is wrong: it is part of a test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use te_memory::{Memory, Region, RegionTable, Sharing};
use te_segment::{
    Access, AddressRange, BufferDescriptor, Endpoint, Generation, Host, Identity, Incarnation, Location,
    SegmentDescriptor, SegmentName,
};
use te_transport::{
    AdmitAll, AttemptId, Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, CancelScope, Context,
    FailureKind, InstallError, LocateError, Op, Outcome, Path, PortRange, Registration, Slice, Submission,
    SubmitMode, Transport, Unpublished,
};

use crate::{Ledger, Switchboard};

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane that reaches nobody.
#[derive(Clone, Copy, Debug)]
pub struct NoBootstrap;

/// Where the peer of a descriptor takes control requests, by the descriptor's own statement.
pub(crate) fn stated_control(peer: &SegmentDescriptor) -> Result<Endpoint, LocateError> {
    let unknown = || LocateError {
        segment: peer.name().clone(),
        cause: "its descriptor states none".to_owned(),
        retryable: false,
    };
    peer.control().cloned().ok_or_else(unknown)
}

impl Bootstrap for NoBootstrap {
    fn locate<'a>(
        &'a self,
        peer: &'a SegmentDescriptor,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, LocateError>> {
        Box::pin(std::future::ready(stated_control(peer)))
    }

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

/// What an engine of its own life would hand to a transport, bound to `host`, without a control plane.
#[must_use]
pub fn context(host: &str) -> Context {
    let host: Host = host.parse().unwrap();
    let incarnation = Incarnation::from_bits(rand::random());
    Context {
        name: SegmentName::new(&format!("peer-{incarnation}")).unwrap(),
        incarnation,
        regions: RegionTable::default(),
        bind: host.clone(),
        advertise: host,
        ports: PortRange::default(),
        bootstrap: Arc::new(NoBootstrap),
        admission: Arc::new(AdmitAll),
        publisher: Arc::new(Unpublished),
    }
}

/// One engine's share of a test.
pub struct Node<T> {
    /// What the transport was given.
    pub context: Context,
    /// The transport.
    pub transport: Arc<T>,
    /// Where peers reach its control plane.
    control: Option<Endpoint>,
}

impl<T: Transport> Node<T> {
    /// Starts a transport on loopback.
    pub fn start(start: impl FnOnce(&Context) -> Result<Arc<T>, InstallError>) -> Self {
        Self::with(context("127.0.0.1"), None, start)
    }

    /// Starts a transport whose control plane has a number of `switch`, under a name of that number.
    pub fn on(
        switch: &Switchboard,
        number: u16,
        start: impl FnOnce(&Context) -> Result<Arc<T>, InstallError>,
    ) -> Self {
        let control = Endpoint::new(Host::V4(Ipv4Addr::LOCALHOST), number).unwrap();
        let mut context = context("127.0.0.1");
        context.name = SegmentName::new(&control.to_string()).unwrap();
        context.bootstrap = switch.desk(control.clone());
        Self::with(context, Some(control), start)
    }

    fn with(
        context: Context,
        control: Option<Endpoint>,
        start: impl FnOnce(&Context) -> Result<Arc<T>, InstallError>,
    ) -> Self {
        let transport = start(&context).unwrap();
        Self { context, transport, control }
    }

    /// Registers memory.
    pub fn register(&self, memory: Memory, access: Access) -> Region {
        let reservation = self.context.regions.reserve(memory, access, Location::Any).unwrap();
        let registered = self.transport.register(reservation.region()).unwrap();
        assert!(matches!(registered, Registration::Registered(_)));
        reservation.commit()
    }

    /// Registers `len` bytes for own use.
    pub fn local(&self, len: usize) -> Region {
        self.register(Memory::allocate(len).unwrap(), Access::LOCAL)
    }

    /// Registers `len` bytes that peers may read and write, and cannot map.
    pub fn offered(&self, len: usize) -> Region {
        self.register(Memory::allocate(len).unwrap(), Access::REMOTE)
    }

    /// Registers `len` bytes that peers may read and write, and can map.
    pub fn shared(&self, len: usize) -> Region {
        self.register(Memory::allocate_shareable(len, Sharing::ReadWrite).unwrap(), Access::REMOTE)
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

    /// As another life at the same place would be published.
    pub fn published_as(&self, incarnation: Incarnation) -> Arc<SegmentDescriptor> {
        let name = self.context.name.clone();
        let builder = SegmentDescriptor::builder(name)
            .identity(Identity::Te { incarnation, control: self.control.clone() });
        let regions = self.context.regions.regions();
        let buffers = regions.iter().filter(|region| region.access().is_remote()).map(|region| {
            let Registration::Registered(via) = self.transport.register(region).unwrap() else {
                panic!("not registered")
            };
            let via = BTreeMap::from([(self.transport.kind(), via)]);
            let generation = Some(region.generation());
            BufferDescriptor::new(region.range(), Location::Any, region.access(), generation, via).unwrap()
        });
        Arc::new(self.transport.advertise(builder).buffers(buffers).build().unwrap())
    }

    /// A path to what a peer publishes now.
    pub fn path_to(&self, peer: &Self) -> Arc<dyn Path> {
        self.transport.path(&peer.published()).unwrap()
    }

    /// Where peers reach its control plane, if it has one.
    #[must_use]
    pub fn control(&self) -> Option<&Endpoint> {
        self.control.as_ref()
    }

    /// Shuts the transport down, all of it.
    pub fn shutdown(&self) {
        self.transport.shutdown(Instant::now() + PATIENCE).unwrap();
    }
}

/// The outcomes of all slices of a ledger.
#[must_use]
pub fn outcomes(ledger: &Ledger) -> Vec<Outcome> {
    ledger.wait(Instant::now() + PATIENCE).unwrap();
    ledger.outcomes()
}

/// Submits slices with enough time.
pub fn submit(path: &dyn Path, slices: Vec<Slice>, mode: SubmitMode, scope: &CancelScope) {
    let deadline = Instant::now() + PATIENCE;
    path.submit(Submission { slices, deadline, scope: scope.clone() }, mode);
}

/// What to move: all of a local region, to or from the same length at the peer's range.
#[derive(Clone)]
pub struct Move<'a> {
    /// Which way.
    pub op: Op,
    /// The memory here.
    pub local: &'a Region,
    /// The addresses there.
    pub remote: AddressRange,
    /// The registration there.
    pub generation: Generation,
}

impl<'a> Move<'a> {
    /// To or from the front of `remote`.
    #[must_use]
    pub fn new(op: Op, local: &'a Region, remote: &Region) -> Self {
        let range = remote.range().slice(0, local.range().len()).unwrap();
        Self { op, local, remote: range, generation: remote.generation() }
    }

    /// Submits it as slice 0 of a ledger.
    #[must_use]
    pub fn begin(&self, path: &dyn Path, mode: SubmitMode, scope: &CancelScope) -> Arc<Ledger> {
        let ledger = Ledger::new(1);
        let slice = Slice {
            op: self.op,
            local: self.local.hold(0, self.local.range().len()).unwrap(),
            remote: self.remote,
            generation: Some(self.generation),
            attempt: AttemptId { request: 1, attempt: 1 },
            token: ledger.token(0),
        };
        submit(path, vec![slice], mode, scope);
        ledger
    }

    /// Runs it.
    #[must_use]
    pub fn run(&self, path: &dyn Path) -> Outcome {
        outcomes(&self.begin(path, SubmitMode::Background, &CancelScope::new())).remove(0)
    }

    /// Runs it and says how it failed.
    #[must_use]
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
#[must_use]
pub fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.range().len()).unwrap()];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Waits until something is so.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
