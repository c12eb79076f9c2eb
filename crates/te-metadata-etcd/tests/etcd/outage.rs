//! Servers that go, come back, lose their data, or stop answering.

use std::time::{Duration, Instant};

use te_metadata::{MetadataStore, PutCondition, StoreErrorKind};
use te_metadata_etcd::{EtcdConfig, EtcdStore};

use crate::{key, put, read, server::Server, soon};

fn within(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

fn over(servers: &[&Server]) -> EtcdStore {
    let list: Vec<_> = servers.iter().map(|server| server.address()).collect();
    EtcdStore::new(EtcdConfig::parse(&list.join(",")).unwrap()).unwrap()
}

#[tokio::test]
async fn a_store_works_again_after_a_restart_of_its_server() {
    let mut server = Server::start();
    let store = server.store();
    let lease = Duration::from_secs(60);
    let revision = store.put(put("a", "1").leased(lease), soon()).await.unwrap();
    server.stop();
    let error = store.get(&key("a"), within(300)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.run();
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
    assert!(store.renew(&key("a"), revision, lease, soon()).await.unwrap());
    store.put(put("a", "2").on(PutCondition::Revision(revision)), soon()).await.unwrap();
}

/// META-04: what is put after the server came back empty works, with a new lease.
#[tokio::test]
async fn a_wiped_server_forgets_keys_and_leases_and_takes_new_ones() {
    let mut server = Server::start();
    let store = server.store();
    let lease = Duration::from_secs(60);
    let revision = store.put(put("a", "1").leased(lease), soon()).await.unwrap();
    server.stop();
    server.wipe();
    server.run();
    assert_eq!(read(&store, "a").await, None);
    assert!(!store.renew(&key("a"), revision, lease, soon()).await.unwrap());
    let again = store.put(put("a", "1").leased(lease), soon()).await.unwrap();
    assert!(store.renew(&key("a"), again, lease, soon()).await.unwrap());
}

#[tokio::test]
async fn nobody_at_the_endpoint_is_an_outage_that_names_it() {
    let mut server = Server::start();
    server.stop();
    let store = EtcdStore::new(server.config().patience(Duration::from_millis(200))).unwrap();
    let began = Instant::now();
    let error = store.get(&key("a"), soon()).await.unwrap_err();
    let StoreErrorKind::Unavailable { detail } = &error.kind else { panic!("{error}") };
    assert!(detail.contains(&server.address()) && detail.contains("refused"), "{detail}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

/// META-05.
#[tokio::test]
async fn every_call_to_a_frozen_server_ends_at_its_deadline() {
    let server = Server::start();
    let store = server.store();
    store.put(put("a", "1"), soon()).await.unwrap();
    server.freeze();
    let began = Instant::now();
    let deadline = within(700);
    let (a, lease) = (key("a"), Duration::from_secs(10));
    let calls = tokio::join!(
        store.get(&a, deadline),
        store.put(put("a", "2").leased(lease), deadline),
        store.put(put("a", "2").on(PutCondition::Absent), deadline),
        store.delete(&a, None, deadline),
        store.renew(&a, 1, lease, deadline),
        store.list("", deadline),
        store.watch("", deadline),
    );
    let errors = [
        calls.0.unwrap_err(),
        calls.1.unwrap_err(),
        calls.2.unwrap_err(),
        calls.3.unwrap_err(),
        calls.4.unwrap_err(),
        calls.5.unwrap_err(),
        calls.6.unwrap_err(),
    ];
    assert!(began.elapsed() < Duration::from_millis(1200), "{:?}", began.elapsed());
    assert!(began.elapsed() >= Duration::from_millis(650));
    for error in errors {
        assert_eq!(error.kind, StoreErrorKind::DeadlineExceeded);
    }
    server.thaw();
    store.put(put("a", "3"), soon()).await.unwrap();
    store.get(&a, soon()).await.unwrap();
}

/// META-05: the leader of a cluster stops answering while its connections stay up.
#[tokio::test]
async fn a_frozen_member_is_left_for_another_within_the_deadline() {
    let members = Server::cluster();
    for frozen in 0..members.len() {
        // The frozen one is the one in use, whether it leads or not.
        let others = (1..members.len()).map(|step| (frozen + step) % members.len());
        let order: Vec<_> = std::iter::once(frozen).chain(others).map(|index| &members[index]).collect();
        let store = over(&order);
        let revision = store.put(put("a", "before"), soon()).await.unwrap();
        members[frozen].freeze();
        let deadline = within(6000);
        let request = put("a", "after").on(PutCondition::Revision(revision));
        store.put(request, deadline).await.unwrap();
        assert!(Instant::now() < deadline);
        // From now on, the other one is used first.
        let began = Instant::now();
        assert_eq!(read(&store, "a").await.as_deref(), Some("after"));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        members[frozen].thaw();
    }
}

#[tokio::test]
async fn a_dead_member_is_passed_over_at_once() {
    let mut members = Server::cluster();
    members[0].stop();
    let store = over(&members.iter().collect::<Vec<_>>());
    let began = Instant::now();
    store.put(put("a", "1"), soon()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_dropped_call_does_not_harm_the_next() {
    let server = Server::start();
    let store = server.store();
    for _ in 0..50 {
        let _ = tokio::time::timeout(Duration::from_micros(300), store.put(put("a", "1"), soon())).await;
    }
    // Another key: the server may still be about to apply what was dropped.
    store.put(put("b", "2"), soon()).await.unwrap();
    assert_eq!(read(&store, "b").await.as_deref(), Some("2"));
}

/// A member holds a write back whose caller has given up, and gets round to it after the key was written again.
#[tokio::test]
async fn a_write_that_was_held_up_does_not_overwrite_a_later_one() {
    let members = Server::cluster();
    let (first, second) = (members[0].store(), members[1].store());
    first.put(put("a", "0"), soon()).await.unwrap();
    let mut held_up = 0;
    // Frozen before the call, and at different moments of it.
    for round in 0..10 {
        if round == 0 {
            members[0].freeze();
        }
        let call = tokio::spawn({
            let first = first.clone();
            async move { first.put(put("a", "held up"), within(200)).await }
        });
        tokio::time::sleep(Duration::from_micros(500 * round)).await;
        members[0].freeze();
        held_up += usize::from(call.await.unwrap().is_err());
        let later = format!("later {round}");
        second.put(put("a", &later), soon()).await.unwrap();
        members[0].thaw();
        // It answers again when it has done what it was asked before.
        first.get(&key("a"), soon()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(read(&second, "a").await, Some(later));
    }
    assert!(held_up > 0);
}
