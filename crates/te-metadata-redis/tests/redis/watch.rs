//! Watches across outages.

use std::time::Duration;

use te_metadata::{MetadataStore, WatchEvent, WatchStream};
use te_metadata_redis::RedisStore;

use crate::{put, server::Server, soon};

async fn next(watch: &mut WatchStream) -> WatchEvent {
    let event = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    event.expect("no event came").expect("the watch ended").unwrap()
}

/// The value of the next put.
async fn value(watch: &mut WatchStream) -> String {
    match next(watch).await {
        WatchEvent::Put { entry, .. } => entry.value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_says_resync_after_a_restart_and_goes_on() {
    let mut server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    server.stop();
    server.run();
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
    store.put(put("w/a", "2"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "2");
}

/// META-04.
#[tokio::test]
async fn a_watch_of_a_wiped_server_says_resync_and_goes_on() {
    let mut server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    server.stop();
    server.wipe();
    server.run();
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
}

#[tokio::test]
async fn a_watch_whose_connection_is_cut_is_made_anew() {
    let server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
}

/// META-05, for a watch: its pings are not answered.
#[tokio::test]
async fn a_watch_of_a_frozen_server_goes_on_when_it_is_back() {
    let server = Server::start();
    let store = RedisStore::new(server.config().answer_timeout(Duration::from_millis(300))).unwrap();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    server.freeze();
    // Longer than the ping's interval and the time for its answer.
    tokio::time::sleep(Duration::from_secs(6)).await;
    server.thaw();
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
}

/// Nobody reads, while more is told than any buffer holds.
#[tokio::test]
async fn a_reader_that_lags_is_told_to_read_again() {
    let server = Server::start_with(&["--appendfsync", "no"]);
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    let tasks: Vec<_> = (0..50)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..120 {
                    store.put(put(&format!("w/{task}"), &round.to_string()), soon()).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    while next(&mut watch).await != WatchEvent::Resync {}
    store.put(put("w/last", "last"), soon()).await.unwrap();
    while value(&mut watch).await != "last" {}
}

#[tokio::test]
async fn a_dropped_watch_leaves_no_connection() {
    let server = Server::start();
    let store = server.store();
    store.put(put("w/a", "1"), soon()).await.unwrap();
    for _ in 0..5 {
        drop(store.watch("w/", soon()).await.unwrap());
    }
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while server.connections() > 1 {
        assert!(std::time::Instant::now() < until, "{} connections", server.connections());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
