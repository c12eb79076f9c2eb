//! Engines that share a store of the program's own.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{named, read_across, soon, stop};
use te::{Access, ErrorKind, Memory, Result, blocking};
use te_metadata::{
    BoxFuture, Entry, Key, MemoryStore, MetadataStore, PutRequest, StoreError, StoreInfo, WatchStream,
};

/// Counts what is written, as a server would: puts, deletions, renewals.
#[derive(Clone, Default)]
struct Counting {
    store: MemoryStore,
    writes: Arc<AtomicUsize>,
}

impl MetadataStore for Counting {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    fn get<'a>(
        &'a self,
        key: &'a Key,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<Option<Entry>, StoreError>> {
        self.store.get(key, deadline)
    }

    fn put(
        &self,
        request: PutRequest,
        deadline: Instant,
    ) -> BoxFuture<'_, std::result::Result<u64, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.put(request, deadline)
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        revision: Option<u64>,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<bool, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.delete(key, revision, deadline)
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        revision: u64,
        lease: Duration,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<bool, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.renew(key, revision, lease, deadline)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<Vec<(Key, Entry)>, StoreError>> {
        self.store.list(prefix, deadline)
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<WatchStream, StoreError>> {
        self.store.watch(prefix, deadline)
    }
}

#[test]
fn engines_share_a_store_and_find_each_other_by_name() -> Result<()> {
    let store = MemoryStore::new();
    let start = |name: &str| {
        blocking::build(named(name).store(store.clone()).set("metadata.cluster", "lab")).unwrap()
    };
    let (owner, other) = (start("prefill-3"), start("decode-7"));
    read_across(&owner, &other)?;
    stop(&owner);
    assert_eq!(other.open("prefill-3").unwrap_err().kind(), ErrorKind::NotFound);
    stop(&other);
    Ok(())
}

/// META-03: one live holder a name; the next life of it starts at once.
#[test]
fn a_name_is_refused_while_its_holder_answers() {
    let store = MemoryStore::new();
    let start = || blocking::build(named("prefill-3").store(store.clone()));
    let first = start().unwrap();
    let refused = start().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Name);
    assert!(refused.cause().contains(&format!("127.0.0.1:{}", first.control_port())), "{refused}");
    stop(&first);
    let second = start().unwrap();
    assert_ne!(second.incarnation(), first.incarnation());
    stop(&second);
}

/// META-19: the lease of the settings is the one that the store is told, and it is renewed.
#[test]
fn records_live_as_long_as_the_engine_renews_them() {
    let store = MemoryStore::new();
    let engine = blocking::build(named("node").store(store.clone()).set("metadata.lease", "1s")).unwrap();
    let key = Key::new("mooncake/ram/node");
    let there = || te::block_on(store.get(&key, soon().instant())).unwrap().is_some();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2_500) {
        assert!(there());
        std::thread::sleep(Duration::from_millis(50));
    }
    stop(&engine);
    assert!(!there());
}

/// A registration is no write: claiming a name, publishing under a lease, 1,000 registrations one by one and one
/// `published` are a handful.
#[test]
fn a_thousand_registrations_cost_a_handful_of_writes() -> Result<()> {
    const HANDFUL: usize = 8;
    let store = Counting::default();
    let engine = blocking::build(named("node").store(store.clone()))?;
    let mut held = Vec::new();
    let began = Instant::now();
    for _ in 0..1_000 {
        held.push(engine.register(Memory::from_vec(vec![0; 4_096]), Access::REMOTE).unwrap());
    }
    let took = began.elapsed();
    engine.published(soon())?;
    let writes = store.writes.load(Ordering::Relaxed);
    let found = te::block_on(store.get(&Key::new("mooncake/ram/node"), soon().instant())).unwrap().unwrap();
    let found = te::SegmentDescriptor::decode(found.value.as_bytes()).unwrap();
    assert_eq!(found.descriptor.buffers().len(), 1_000);
    // The pauses between writes grow to a second; a machine that is held up for longer gets one more for each.
    let held_up = usize::try_from(took.as_secs()).unwrap();
    assert!(writes <= HANDFUL + held_up, "{writes} writes while registering took {took:?}");
    drop(held);
    stop(&engine);
    Ok(())
}

/// Who waits for each registration by itself pays one write for it, and does not wait for anybody's pause.
#[test]
fn waiting_for_each_registration_costs_one_write_each() -> Result<()> {
    const COUNT: usize = 20;
    let store = Counting::default();
    let engine = blocking::build(named("node").store(store.clone()))?;
    let before = store.writes.load(Ordering::Relaxed);
    let mut held = Vec::new();
    for _ in 0..COUNT {
        held.push(engine.register(Memory::from_vec(vec![0; 4_096]), Access::REMOTE).unwrap());
        engine.published(soon())?;
    }
    let writes = store.writes.load(Ordering::Relaxed) - before;
    // A renewal or two may come in between.
    assert!((COUNT..COUNT + 5).contains(&writes), "{writes}");
    drop(held);
    stop(&engine);
    Ok(())
}
