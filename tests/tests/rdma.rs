//! Whole engines over NICs of one fabric in this process, with TCP behind them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::sync::Arc;
use std::time::Duration;

use te::{
    Access, Buffer, Deadline, Engine, EngineBuilder, ErrorKind, Location, RemoteRange, SegmentDescriptor,
    TransportKind,
};
use te_engine::block_on;
use te_metadata::MemoryStore;
use te_segment::{MemoryKey, Via};
use te_sys_verbs::fake::{Fabric, Live, Nic};
use te_sys_verbs::{EventKind, Gid};
use te_testkit::node::until;
use te_transport_rdma::{Rdma, RdmaConfig};

const LEN: usize = 4 << 20;

struct Pair {
    fabric: Arc<Fabric>,
    engine: Engine,
    owner: Engine,
    local: Buffer,
    offered: Buffer,
    remote: RemoteRange,
}

impl Pair {
    /// Two engines with two NICs each, that speak RDMA and TCP and ask each other for descriptors.
    fn new() -> Self {
        Self::of(|_| te::builder("127.0.0.1"))
    }

    /// The same over a store.
    fn over(store: &Arc<MemoryStore>) -> Self {
        Self::of(|name| te::builder(name).advertise("127.0.0.1").store(store.clone()))
    }

    fn of(begin: impl Fn(&str) -> EngineBuilder) -> Self {
        let fabric = Arc::new(Fabric::new(["a0", "a1", "b0", "b1"].map(Nic::new)));
        let build = |name: &str, nics: [&str; 2]| {
            let mut config = RdmaConfig::default();
            config.set("rail_map", "a0=b0;a1=b1;b0=a0;b1=a1").unwrap();
            let rdma = Rdma::over(fabric.verbs_with(&nics), config);
            let builder = begin(name).transport(Box::new(rdma));
            block_on(builder.set("transports", "tcp").build()).unwrap()
        };
        let (engine, owner) = (build("a", ["a0", "a1"]), build("b", ["b0", "b1"]));
        let offered = block_on(owner.allocate(LEN, Location::Any, Access::REMOTE)).unwrap();
        block_on(owner.published(Deadline::after_secs(10))).unwrap();
        let local = block_on(engine.allocate(LEN, Location::Any, Access::LOCAL)).unwrap();
        let remote = block_on(engine.open(owner.name().as_str())).unwrap().buffer(0).unwrap();
        Self { fabric, engine, owner, local, offered, remote }
    }

    fn write(&self, byte: u8) -> te::Batch {
        self.local.write_at(0, &vec![byte; LEN]).unwrap();
        let batch = self.engine.batch().deadline(Duration::from_secs(20));
        batch.write(self.local.slice(..), &self.remote).submit().unwrap()
    }

    /// Writes until that goes over RDMA alone.
    fn write_over_rdma(&self, byte: u8) {
        until("a WRITE goes over RDMA", || self.write(byte).wait().unwrap().path().starts_with("rdma"));
        assert!(self.is_written(byte));
    }

    /// The owner's descriptor as the peer that has it open knows it.
    fn opened(&self) -> Arc<SegmentDescriptor> {
        self.remote.segment().descriptor()
    }

    fn is_written(&self, byte: u8) -> bool {
        let mut found = vec![0; LEN];
        self.offered.read_at(0, &mut found).unwrap();
        found.iter().all(|found| *found == byte)
    }

    fn end(self) {
        let Self { engine, owner, local, offered, .. } = self;
        drop((local, offered));
        for engine in [engine, owner] {
            let report = block_on(engine.shutdown(Deadline::after_secs(10)));
            assert!(report.is_clean(), "{report:?}");
        }
    }
}

#[test]
fn engines_with_nics_use_them() {
    let pair = Pair::new();
    let report = pair.write(7).wait().unwrap();
    assert!(report.path().starts_with("rdma"), "{}", report.path());
    assert!(pair.is_written(7));
    pair.offered.write_at(0, &vec![9; LEN]).unwrap();
    let report = pair.engine.batch().read(&pair.remote, pair.local.slice(..)).run().unwrap();
    assert!(report.path().starts_with("rdma"), "{}", report.path());
    let mut found = vec![0; LEN];
    pair.local.read_at(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 9));
    pair.end();
}

/// FO-06: all rails of a WRITE go down under it, and it goes on over TCP: the peer has cut the rails before.
#[test]
fn a_write_without_rails_goes_on_over_tcp() {
    let pair = Pair::new();
    pair.write(1).wait().unwrap();
    pair.fabric.hold_nic("a0");
    pair.fabric.hold_nic("a1");
    let batch = pair.write(2);
    std::thread::sleep(Duration::from_millis(20));
    pair.fabric.set_port("a0", false);
    pair.fabric.set_port("a1", false);
    let report = batch.wait().unwrap();
    assert!(report.path().contains("tcp"), "{}", report.path());
    assert!(pair.is_written(2));
    // Up again, they are used again.
    pair.fabric.release();
    pair.fabric.set_port("a0", true);
    pair.fabric.set_port("a1", true);
    pair.write_over_rdma(3);
    pair.end();
}

/// The GID of a descriptor's NIC.
fn gid(descriptor: &SegmentDescriptor, nic: &str) -> [u8; 16] {
    descriptor.device(&nic.parse().unwrap()).and_then(|device| device.gid()).unwrap().bytes()
}

/// The key of the owner's buffer at a NIC.
fn key(descriptor: &SegmentDescriptor, nic: &str) -> MemoryKey {
    let via = descriptor.buffers()[0].via_transport(&TransportKind::RDMA);
    let Some(Via::Rdma { keys }) = via else { panic!("{via:?}") };
    keys[&nic.parse().unwrap()]
}

/// What a newcomer finds in the store, or is told by the owner.
fn found_by_newcomer(pair: &Pair, store: Option<&Arc<MemoryStore>>) -> Arc<SegmentDescriptor> {
    let builder = match store {
        Some(store) => te::builder("newcomer").advertise("127.0.0.1").store(store.clone()),
        None => te::builder("127.0.0.1"),
    };
    let newcomer = block_on(builder.set("transports", "tcp").build()).unwrap();
    block_on(newcomer.open(pair.owner.name().as_str())).unwrap().descriptor()
}

/// RDMA-10: an address that changes is published without anybody asking, in a store and between peers, and a peer that has an
/// earlier version open goes on with a range of that one.
#[test]
fn an_address_that_changes_is_published() {
    let store = Arc::new(MemoryStore::new());
    for store in [None, Some(&store)] {
        let pair = store.map_or_else(Pair::new, Pair::over);
        pair.write(1).wait().unwrap();
        let before = pair.opened();
        let address = Gid(std::net::Ipv4Addr::new(10, 99, 7, 7).to_ipv6_mapped().octets());
        assert_ne!(gid(&before, "b0"), address.0);
        pair.fabric.set_gid("b0", 1, address);
        until("the peer knows the address", || gid(&pair.opened(), "b0") == address.0);
        assert!(pair.opened().version() > before.version());
        assert_eq!(gid(&found_by_newcomer(&pair, store), "b0"), address.0);
        pair.write_over_rdma(2);
        // A burst in which nothing changes is no news.
        let version = || pair.owner.descriptor().unwrap().version().unwrap().value();
        let before = version();
        pair.fabric.raise("b0", EventKind::GID_CHANGE, 1_000);
        pair.fabric.set_gid("b1", 1, Gid(std::net::Ipv4Addr::new(10, 99, 7, 8).to_ipv6_mapped().octets()));
        until("the next change", || version() > before);
        pair.write_over_rdma(3);
        assert_eq!(version(), before + 1);
        pair.end();
    }
}

/// RDMA-10, FO-06: both NICs of the owner are lost under a WRITE, which goes on over TCP, and come back with other keys. These
/// are published, and the peer goes back to RDMA with the range that it has had from the beginning.
#[test]
fn devices_that_come_back_are_published() {
    let store = Arc::new(MemoryStore::new());
    for store in [None, Some(&store)] {
        let pair = store.map_or_else(Pair::new, Pair::over);
        pair.write(1).wait().unwrap();
        let before = pair.opened();
        ["a0", "a1"].iter().for_each(|nic| pair.fabric.hold_nic(nic));
        let batch = pair.write(2);
        ["b0", "b1"].iter().for_each(|nic| pair.fabric.unplug(nic));
        pair.fabric.release();
        let report = batch.wait().unwrap();
        assert!(report.path().contains("tcp"), "{}", report.path());
        assert!(pair.is_written(2));
        ["b0", "b1"].iter().for_each(|nic| pair.fabric.plug(nic));
        let is_new = |descriptor: &SegmentDescriptor| {
            ["b0", "b1"].iter().all(|nic| key(descriptor, nic) != key(&before, nic))
        };
        until("the peer knows the keys", || is_new(&pair.opened()));
        assert!(is_new(&found_by_newcomer(&pair, store)));
        pair.write_over_rdma(3);
        pair.end();
    }
}

/// Memory comes back while the only NICs are away, and an engine ends.
#[test]
fn memory_comes_back_and_engines_end_while_devices_are_away() {
    let pair = Pair::new();
    pair.write(1).wait().unwrap();
    ["a0", "a1", "b0", "b1"].iter().for_each(|nic| pair.fabric.unplug(nic));
    let Pair { fabric, engine, owner, local, offered, .. } = pair;
    for buffer in [local, offered] {
        let mut left = Some(buffer);
        until("the memory is back", || {
            let failed = block_on(left.take().unwrap().unregister(Deadline::after_secs(10))).err();
            left = failed.map(|failed| failed.buffer);
            left.is_none()
        });
    }
    for engine in [engine, owner] {
        let report = block_on(engine.shutdown(Deadline::after_secs(10)));
        assert!(report.is_clean(), "{report:?}");
    }
    until("nothing is left", || fabric.live() == Live::default());
}

/// A withdrawn buffer is touched by no NIC any more, and the memory comes back.
#[test]
fn withdrawn_memory_is_no_nics() {
    let pair = Pair::new();
    pair.write(1).wait().unwrap();
    let Pair { engine, owner: _owner, local, offered, remote, .. } = pair;
    let before = vec![1; LEN];
    let memory = block_on(offered.unregister(Deadline::after_secs(10))).unwrap();
    assert_eq!(memory.len(), LEN);
    local.write_at(0, &vec![5; LEN]).unwrap();
    let error = match engine.batch().write(local.slice(..), &remote).submit() {
        Ok(batch) => batch.wait().unwrap_err(),
        Err(error) => error,
    };
    assert!([ErrorKind::BufferGone, ErrorKind::Rejected].contains(&error.kind()), "{error}");
    assert!(memory.bytes().unwrap() == before);
}
