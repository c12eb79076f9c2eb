//! Whole engines over NICs of one fabric in this process, with TCP behind them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::sync::Arc;
use std::time::Duration;

use te::{Access, Buffer, Deadline, Engine, ErrorKind, Location, RemoteRange};
use te_engine::block_on;
use te_sys_verbs::fake::{Fabric, Nic};
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
    /// Two engines with two NICs each, that speak RDMA and TCP.
    fn new() -> Self {
        let fabric = Arc::new(Fabric::new(["a0", "a1", "b0", "b1"].map(Nic::new)));
        let build = |nics: [&str; 2]| {
            let mut config = RdmaConfig::default();
            config.set("rail_map", "a0=b0;a1=b1;b0=a0;b1=a1").unwrap();
            let rdma = Rdma::over(fabric.verbs_with(&nics), config);
            let builder = te::builder("127.0.0.1").transport(Box::new(rdma));
            block_on(builder.set("transports", "tcp").build()).unwrap()
        };
        let (engine, owner) = (build(["a0", "a1"]), build(["b0", "b1"]));
        let offered = block_on(owner.allocate(LEN, Location::Any, Access::REMOTE)).unwrap();
        let local = block_on(engine.allocate(LEN, Location::Any, Access::LOCAL)).unwrap();
        let remote = block_on(engine.open(owner.name().as_str())).unwrap().buffer(0).unwrap();
        Self { fabric, engine, owner, local, offered, remote }
    }

    fn write(&self, byte: u8) -> te::Batch {
        self.local.write_at(0, &vec![byte; LEN]).unwrap();
        let batch = self.engine.batch().deadline(Duration::from_secs(20));
        batch.write(self.local.slice(..), &self.remote).submit().unwrap()
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
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let report = pair.write(3).wait().unwrap();
        if report.path().starts_with("rdma") {
            break;
        }
        assert!(std::time::Instant::now() < end, "{}", report.path());
        std::thread::sleep(Duration::from_millis(50));
    }
    pair.end();
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
