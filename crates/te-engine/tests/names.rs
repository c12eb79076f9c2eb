//! Names, leases and stores that lose everything, with real control listeners.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{World, soon, until};
use te_engine::{Bound, Engine, Error, ErrorKind, RuntimeChoice, block_on};
use te_metadata::{Key, Keys, MetadataStore, StoreDirectory};
use te_segment::{Access, TransportKind};

const LEASE: Duration = Duration::from_millis(900);

fn start(world: &World, name: &str) -> Result<Engine, Error> {
    block_on(async {
        let bound = Bound::bind(World::config(name), RuntimeChoice::Owned).await?;
        let directory = StoreDirectory::new(world.store.clone(), Keys::default())
            .with_lease(LEASE)
            .with_probe(bound.holder_probe());
        bound.start(Arc::new(directory), None, vec![Box::new(world.transport(TransportKind::SHM))]).await
    })
}

/// META-03: a live holder keeps its name; once it is gone the next life starts at once.
#[test]
fn name_is_taken_while_its_holder_lives() {
    let world = World::new();
    let first = start(&world, "node").unwrap();
    let taken = start(&world, "node").unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Name);
    assert!(taken.cause().contains(&format!("held by 127.0.0.1:{}", first.control_port())), "{taken}");
    assert!(block_on(first.shutdown(soon())).is_clean());
    start(&world, "node").unwrap();
}

/// META-04: everything a store loses is back within a lease, from the same life.
#[test]
fn wiped_store_is_filled_again() {
    let world = World::new();
    let engine = start(&world, "node").unwrap();
    let _buffer = block_on(engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(engine.published(soon())).unwrap();
    let opener = start(&world, "opener").unwrap();
    let before = block_on(opener.open("node")).unwrap().incarnation();
    for key in ["mooncake/ram/node", "mooncake/rpc_meta/node"] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(world.store.delete(&Key::new(key), None, soon().instant())).unwrap();
    }
    assert_eq!(block_on(opener.open("node")).unwrap_err().kind(), ErrorKind::NotFound);
    let took = until("publishing again", || block_on(opener.open("node")).is_ok());
    assert!(took <= LEASE, "{took:?}");
    let after = block_on(opener.open("node")).unwrap();
    assert_eq!(after.incarnation(), before);
    assert_eq!(after.descriptor().buffers().len(), 1);
}

/// META-19: leases are renewed for as long as the engine lives.
#[test]
fn lease_is_renewed_while_the_engine_lives() {
    let world = World::new();
    let _engine = start(&world, "node").unwrap();
    let opener = start(&world, "opener").unwrap();
    let began = Instant::now();
    while began.elapsed() < 3 * LEASE {
        block_on(opener.open("node")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// META-01: a clean stop is noticed by everybody who has the segment open: the next open says "not found", and a
/// transfer on the old handle that the segment is gone.
#[test]
fn handle_of_a_stopped_owner_says_that_the_segment_is_gone() {
    let world = World::new();
    let (owner, opener) = (start(&world, "node").unwrap(), start(&world, "opener").unwrap());
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(owner.published(soon())).unwrap();
    let local = block_on(opener.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let peer = block_on(opener.open("node")).unwrap();
    let remote = peer.range(offered.address(), 4096).unwrap();
    assert!(block_on(owner.shutdown(soon())).is_clean());
    assert_eq!(block_on(opener.open("node")).unwrap_err().kind(), ErrorKind::NotFound);
    let began = Instant::now();
    until("the end to be noticed", || {
        let error = opener.batch().read(&remote, local.slice(..)).run().unwrap_err();
        error.kind() == ErrorKind::SegmentGone
    });
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
}

/// META-02: a handle from an earlier life of the owner never reaches the later one.
#[test]
fn handle_of_an_earlier_life_is_stale() {
    let world = World::new();
    let (owner, opener) = (start(&world, "node").unwrap(), start(&world, "opener").unwrap());
    let offered = block_on(owner.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(owner.published(soon())).unwrap();
    let local = block_on(opener.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let remote = block_on(opener.open("node")).unwrap().range(offered.address(), 4096).unwrap();
    assert!(block_on(owner.shutdown(soon())).is_clean());
    let next = start(&world, "node").unwrap();
    let again = block_on(next.register(vec![1_u8; 4096], Access::REMOTE)).unwrap();
    block_on(next.published(soon())).unwrap();
    let fresh = block_on(opener.open("node")).unwrap();
    let stale = opener.batch().read(&remote, local.slice(..)).submit().unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleIncarnation);
    let range = fresh.range(again.address(), 4096).unwrap();
    opener.batch().read(&range, local.slice(..)).run().unwrap();
}
