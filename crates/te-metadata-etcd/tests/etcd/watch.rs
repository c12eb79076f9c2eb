//! Watches across outages.

use std::time::Duration;

use te_metadata::{MetadataStore, WatchEvent, WatchStream};
use te_metadata_etcd::EtcdStore;

use crate::{put, server::Server, soon};

async fn next(watch: &mut WatchStream) -> WatchEvent {
    let event = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    event.expect("no event came").expect("the watch ended").unwrap()
}

/// The value of the next put, skipping what a watch says when it is not sure.
async fn value(watch: &mut WatchStream) -> String {
    match next(watch).await {
        WatchEvent::Put { entry, .. } => entry.value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_goes_on_where_it_was_after_a_restart() {
    let mut server = Server::start();
    let (store, other) = (server.store(), server.store());
    let mut watch = store.watch("w/", soon()).await.unwrap();
    other.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    server.stop();
    server.run();
    // Nothing was lost, so nothing has to be read again.
    other.put(put("w/a", "2"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "2");
    other.put(put("w/a", "3"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "3");
}

/// Revisions of a wiped server begin again and may overtake what we have seen.
#[tokio::test]
async fn a_watch_of_a_wiped_server_says_resync_and_goes_on() {
    let mut server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    server.stop();
    server.wipe();
    // Overtaken before the watch finds the way back.
    let moved = server.port;
    server.port = te_testkit::free_port().unwrap();
    server.run();
    for value in ["x", "y", "z"] {
        server.store().put(put("w/a", value), soon()).await.unwrap();
    }
    server.stop();
    server.port = moved;
    server.run();
    let mut seen = vec![next(&mut watch).await];
    store.put(put("w/b", "last"), soon()).await.unwrap();
    while !matches!(seen.last(), Some(WatchEvent::Put { entry, .. }) if entry.value == "last") {
        seen.push(next(&mut watch).await);
    }
    assert_eq!(seen[0], WatchEvent::Resync, "{seen:?}");
}

/// Nothing was seen before the connection broke, so nothing proves that the history is the same.
#[tokio::test]
async fn a_watch_that_saw_nothing_says_resync_after_a_restart() {
    let mut server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    server.stop();
    server.run();
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
}

#[tokio::test]
async fn a_compacted_history_is_a_resync() {
    let mut server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    store.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    server.stop();
    // Written and compacted before the watch finds the way back.
    let moved = server.port;
    server.port = te_testkit::free_port().unwrap();
    server.run();
    let writer = server.store();
    let mut last = 0;
    for value in ["2", "3", "4"] {
        last = writer.put(put("w/a", value), soon()).await.unwrap();
    }
    server.ctl(&["compact", &last.to_string()]);
    server.stop();
    server.port = moved;
    server.run();
    assert_eq!(next(&mut watch).await, WatchEvent::Resync);
    store.put(put("w/a", "5"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "5");
}

/// META-05, for a watch: the pings of its connection are not answered.
#[tokio::test]
async fn a_watch_leaves_a_frozen_member() {
    let members = Server::cluster();
    let list: Vec<_> = members.iter().map(|member| member.address()).collect();
    let store = EtcdStore::new(te_metadata_etcd::EtcdConfig::parse(&list.join(",")).unwrap()).unwrap();
    let writer = members[1].store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    writer.put(put("w/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "1");
    members[0].freeze();
    tokio::time::sleep(Duration::from_secs(1)).await;
    writer.put(put("w/a", "2"), soon()).await.unwrap();
    assert_eq!(value(&mut watch).await, "2");
    members[0].thaw();
}
