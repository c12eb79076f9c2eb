//! Servers that go, come back, lose their data, or stop answering.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use te_metadata::{MetadataStore, PutCondition, StoreErrorKind};
use te_metadata_redis::{RedisConfig, RedisStore};
use te_testkit::{LinkControl, TcpProxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{key, put, read, server::Server, soon};

fn within(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
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
    let store = RedisStore::new(server.config().patience(Duration::from_millis(200))).unwrap();
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

/// A write is held up on its way, its caller gives up, and it arrives after the key was written again.
#[tokio::test]
async fn a_write_that_was_held_up_does_not_overwrite_a_later_one() {
    let server = Server::start();
    let proxy = TcpProxy::start(server.address().parse().unwrap()).unwrap();
    let slow = RedisConfig::parse(&proxy.address().to_string()).unwrap();
    let (first, second) = (RedisStore::new(slow).unwrap(), server.store());
    first.put(put("a", "0"), soon()).await.unwrap();
    let mut held_up = 0;
    // Held up before the call, and at different moments of it.
    for round in 0..40 {
        if round == 0 {
            proxy.stall();
        }
        let call = tokio::spawn({
            let first = first.clone();
            async move { first.put(put("a", "held up"), within(100)).await }
        });
        tokio::time::sleep(Duration::from_micros(50 * round)).await;
        proxy.stall();
        held_up += usize::from(call.await.unwrap().is_err());
        let later = format!("later {round}");
        second.put(put("a", &later), soon()).await.unwrap();
        proxy.resume();
        // Answered on the same connection, after what was held up.
        first.get(&key("a"), soon()).await.unwrap();
        assert_eq!(read(&second, "a").await, Some(later));
    }
    assert!(held_up > 0);
}

/// A way to the server that from some moment on loses everything on the connections there are, as behind a rebooted
/// firewall.
async fn lossy_way(server: &Server) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (way, target) = (listener.local_addr().unwrap().to_string(), server.address());
    let lossy = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&lossy);
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let is_later = switch.load(Ordering::SeqCst);
            let mut far = TcpStream::connect(&target).await.unwrap();
            let switch = Arc::clone(&switch);
            tokio::spawn(async move {
                let (mut there, mut back) = (vec![0; 65536], vec![0; 65536]);
                loop {
                    let (count, to, bytes) = tokio::select! {
                        count = near.read(&mut there) => (count.unwrap_or(0), &mut far, &there),
                        count = far.read(&mut back) => (count.unwrap_or(0), &mut near, &back),
                    };
                    if count == 0 {
                        return;
                    }
                    if is_later || !switch.load(Ordering::SeqCst) {
                        to.write_all(&bytes[..count]).await.unwrap();
                    }
                }
            });
        }
    });
    (way, lossy)
}

#[tokio::test]
async fn a_connection_that_went_silent_is_replaced() {
    let server = Server::start();
    let (way, lossy) = lossy_way(&server).await;
    let config = RedisConfig::parse(&format!("redis://{way}")).unwrap();
    let store = RedisStore::new(config.answer_timeout(Duration::from_millis(500))).unwrap();
    store.put(put("a", "1"), soon()).await.unwrap();
    lossy.store(true, Ordering::SeqCst);
    // Calls with less time than it takes to lose faith do not wait for it, and together they do.
    let mut failed = 0;
    while store.get(&key("a"), within(200)).await.is_err() {
        failed += 1;
        assert!(failed < 100);
    }
    assert!(failed > 0);
}
