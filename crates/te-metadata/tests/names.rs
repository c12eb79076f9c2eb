//! A name has one live holder, and what is published lives as long as it is kept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use support::{FaultyStore, location, name};
use te_metadata::{
    BoxFuture, Directory, DirectoryError, HolderAnswer, HolderProbe, Kept, Key, Keys, MemoryStore,
    MetadataStore, PutRequest, StoreDirectory,
};
use te_segment::{DescriptorVersion, Endpoint, Identity, Incarnation, SegmentDescriptor};

const LEASE: Duration = Duration::from_secs(10);

/// Answers as told and counts.
struct Probe {
    answer: Mutex<HolderAnswer>,
    asked: Mutex<Vec<Endpoint>>,
}

impl Probe {
    fn new(answer: HolderAnswer) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), asked: Mutex::default() })
    }
}

impl HolderProbe for Probe {
    fn ask<'a>(&'a self, endpoint: &'a Endpoint, _deadline: Instant) -> BoxFuture<'a, HolderAnswer> {
        self.asked.lock().push(endpoint.clone());
        Box::pin(std::future::ready(*self.answer.lock()))
    }
}

fn descriptor(life: u128, version: u64) -> Arc<SegmentDescriptor> {
    let control = Some(format!("10.0.0.{life}:15000").parse().unwrap());
    let built = SegmentDescriptor::builder(name("node-a"))
        .identity(Identity::Te { incarnation: Incarnation::from_bits(life), control })
        .version(DescriptorVersion::new(version))
        .build();
    Arc::new(built.unwrap())
}

fn place(life: u128) -> te_segment::RpcLocation {
    format!("10.0.0.{life}:15000").parse::<Endpoint>().unwrap().into()
}

fn over(store: &MemoryStore, probe: &Arc<Probe>) -> StoreDirectory<MemoryStore> {
    StoreDirectory::new(store.clone(), Keys::default()).with_lease(LEASE).with_probe(probe.clone())
}

fn within(time: Duration) -> Instant {
    (tokio::time::Instant::now() + time).into_std()
}

fn soon() -> Instant {
    within(Duration::from_secs(5))
}

fn alive(life: u128) -> HolderAnswer {
    HolderAnswer::Alive { incarnation: Some(Incarnation::from_bits(life)) }
}

async fn owner(store: &MemoryStore) -> Option<Incarnation> {
    let entry = store.get(&Key::new("mooncake/ram/node-a"), soon()).await.unwrap()?;
    SegmentDescriptor::decode(entry.value.as_bytes()).unwrap().descriptor.incarnation()
}

/// META-03: other live incarnation: taken, by name of the holder; nothing is written.
#[tokio::test(start_paused = true)]
async fn living_holder_keeps_its_name() {
    let (store, probe) = (MemoryStore::new(), Probe::new(alive(1)));
    over(&store, &probe).publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    let error = over(&store, &probe).publish(descriptor(2, 1), place(2), soon()).await.unwrap_err();
    let holder = "10.0.0.1:15000".parse::<Endpoint>().unwrap();
    assert_eq!(error, DirectoryError::NameTaken { name: name("node-a"), holder: Some(holder.clone()) });
    assert_eq!(*probe.asked.lock(), [holder]);
    assert_eq!(owner(&store).await, Some(Incarnation::from_bits(1)));
}

/// META-03: refused, or another life at the holder's place: taken over at once.
#[tokio::test(start_paused = true)]
async fn dead_holder_is_replaced_at_once() {
    for answer in [HolderAnswer::Refused, alive(9)] {
        let (store, probe) = (MemoryStore::new(), Probe::new(answer));
        over(&store, &probe).publish(descriptor(1, 1), place(1), soon()).await.unwrap();
        over(&store, &probe).publish(descriptor(2, 1), place(2), soon()).await.unwrap();
        assert_eq!(owner(&store).await, Some(Incarnation::from_bits(2)));
    }
}

/// META-03: a silent holder has until the end of its lease.
#[tokio::test(start_paused = true)]
async fn silent_holder_has_until_its_lease_ends() {
    let (store, probe) = (MemoryStore::new(), Probe::new(HolderAnswer::Silent));
    over(&store, &probe).publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    let late = over(&store, &probe).publish(descriptor(2, 1), place(2), within(LEASE / 2)).await.unwrap_err();
    assert!(matches!(late, DirectoryError::NameTaken { .. }), "{late}");
    over(&store, &probe).publish(descriptor(2, 1), place(2), within(LEASE * 2)).await.unwrap();
    assert_eq!(owner(&store).await, Some(Incarnation::from_bits(2)));
}

/// META-03: the same life publishes as often as it likes, also through a directory that was made anew.
#[tokio::test(start_paused = true)]
async fn own_life_is_never_asked() {
    let (store, probe) = (MemoryStore::new(), Probe::new(alive(1)));
    let directory = over(&store, &probe);
    for version in 1..4 {
        directory.publish(descriptor(1, version), place(1), soon()).await.unwrap();
    }
    over(&store, &probe).publish(descriptor(1, 4), place(1), soon()).await.unwrap();
    assert!(probe.asked.lock().is_empty());
}

/// Contract 14: who was overtaken notices, stays out, and takes nothing of the other away.
#[tokio::test(start_paused = true)]
async fn overtaken_engine_leaves_the_name_alone() {
    let (store, probe) = (MemoryStore::new(), Probe::new(HolderAnswer::Refused));
    let first = over(&store, &probe);
    first.publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    over(&store, &probe).publish(descriptor(2, 1), place(2), soon()).await.unwrap();
    let lost = DirectoryError::NameLost { name: name("node-a") };
    assert_eq!(first.publish(descriptor(1, 2), place(1), soon()).await.unwrap_err(), lost);
    assert_eq!(first.keep(soon()).await.unwrap_err(), lost);
    assert_eq!(first.publish(descriptor(1, 3), place(1), soon()).await.unwrap_err(), lost);
    first.withdraw(&name("node-a"), soon()).await.unwrap();
    assert_eq!(owner(&store).await, Some(Incarnation::from_bits(2)));
}

#[tokio::test(start_paused = true)]
async fn overtaken_engine_notices_when_it_renews() {
    let (store, probe) = (MemoryStore::new(), Probe::new(HolderAnswer::Refused));
    let first = over(&store, &probe);
    first.publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    over(&store, &probe).publish(descriptor(2, 1), place(2), soon()).await.unwrap();
    assert!(matches!(first.keep(soon()).await.unwrap_err(), DirectoryError::NameLost { .. }));
}

/// META-19: what nobody keeps vanishes; what is kept stays.
#[tokio::test(start_paused = true)]
async fn records_live_as_long_as_they_are_kept() {
    let (store, probe) = (MemoryStore::new(), Probe::new(HolderAnswer::Refused));
    let directory = over(&store, &probe);
    assert_eq!((directory.lease(), directory.keep_interval()), (Some(LEASE), Some(LEASE / 3)));
    directory.publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    for _ in 0..5 {
        tokio::time::advance(LEASE / 2).await;
        assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Kept);
    }
    tokio::time::advance(LEASE + Duration::from_secs(1)).await;
    assert!(store.list("", soon()).await.unwrap().is_empty());
}

/// META-04: a store that came back empty is noticed and filled again, by the same life.
#[tokio::test(start_paused = true)]
async fn emptied_store_is_noticed_and_filled_again() {
    let (store, probe) = (MemoryStore::new(), Probe::new(HolderAnswer::Refused));
    let directory = over(&store, &probe);
    directory.publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    for key in ["mooncake/ram/node-a", "mooncake/rpc_meta/node-a"] {
        store.delete(&Key::new(key), None, soon()).await.unwrap();
    }
    assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Missing);
    directory.publish(descriptor(1, 1), place(1), soon()).await.unwrap();
    assert_eq!(directory.keep(soon()).await.unwrap(), Kept::Kept);
    assert_eq!(owner(&store).await, Some(Incarnation::from_bits(1)));
}

/// A record of a reference engine: asked at its RPC location, overwritten when nobody answers there.
#[tokio::test(start_paused = true)]
async fn reference_holder_is_asked_at_its_location() {
    for (answer, taken) in [(HolderAnswer::Alive { incarnation: None }, true), (HolderAnswer::Refused, false)]
    {
        let (store, probe) = (MemoryStore::new(), Probe::new(answer));
        let record =
            r#"{"buffers":[],"name":"node-a","protocol":"tcp","tcp_data_port":0,"tcp_proto_version":1}"#;
        let place_of = r#"{"ip_or_host_name":"10.0.0.9","rpc_port":16000}"#;
        for (key, text) in [("mooncake/ram/node-a", record), ("mooncake/rpc_meta/node-a", place_of)] {
            store.put(PutRequest::new(Key::new(key), text.to_owned()), soon()).await.unwrap();
        }
        let outcome = over(&store, &probe).publish(descriptor(2, 1), place(2), soon()).await;
        assert_eq!(*probe.asked.lock(), ["10.0.0.9:16000".parse::<Endpoint>().unwrap()]);
        assert_eq!(outcome.is_err(), taken, "{outcome:?}");
    }
}

/// Contract 14: a server that refuses any second write of a location is overruled once the holder is dead.
#[tokio::test]
async fn guarded_location_of_a_dead_holder_is_deleted_and_written() {
    let store = Arc::new(FaultyStore { guards_rpc_meta: true, ..FaultyStore::new() });
    let probe = Probe::new(HolderAnswer::Refused);
    let over = || StoreDirectory::new(store.clone(), Keys::default()).with_probe(probe.clone());
    over().publish(descriptor(1, 1), location(), soon()).await.unwrap();
    let second = over();
    second.publish(descriptor(2, 1), place(2), soon()).await.unwrap();
    let found = second.resolve(&name("node-a"), soon()).await.unwrap();
    assert_eq!(found.descriptor.incarnation(), Some(Incarnation::from_bits(2)));
    assert_eq!(second.locate(&name("node-a"), soon()).await.unwrap(), place(2).endpoint());
}

/// Two newcomers at one free name: exactly one gets it.
#[tokio::test]
async fn racing_newcomers_do_not_both_win() {
    for _ in 0..50 {
        let (store, probe) = (MemoryStore::new(), Probe::new(alive(1)));
        let (a, b) = (over(&store, &probe), over(&store, &probe));
        let (first, second) = tokio::join!(
            a.publish(descriptor(1, 1), place(1), soon()),
            b.publish(descriptor(2, 1), place(2), soon())
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    }
}
