//! Writers that know nothing of revisions: reference engines, operators.

use std::time::Duration;

use redis::Value;
use te_metadata::{MetadataStore, PutCondition, StoreErrorKind, WatchEvent, WatchStream};
use te_metadata_redis::RedisStore;

use crate::{key, put, read, server::Server, soon};

#[tokio::test]
async fn a_value_of_another_writer_has_a_lasting_revision_and_can_be_compared() {
    let server = Server::start();
    let store = server.store();
    server.command(&["SET", "a", "theirs"]).await;
    let first = store.get(&key("a"), soon()).await.unwrap().unwrap();
    let second = store.get(&key("a"), soon()).await.unwrap().unwrap();
    assert_eq!(first, second);
    assert!(first.revision > 0);
    store.put(put("a", "ours").on(PutCondition::Revision(first.revision)), soon()).await.unwrap();
    assert_eq!(read(&store, "a").await.as_deref(), Some("ours"));
}

#[tokio::test]
async fn what_another_writer_overwrote_is_noticed_by_every_comparison() {
    let server = Server::start();
    let store = server.store();
    let lease = Duration::from_secs(60);
    let ours = store.put(put("a", "ours").leased(lease), soon()).await.unwrap();
    server.command(&["SET", "a", "theirs"]).await;
    let put = store.put(put("a", "late").on(PutCondition::Revision(ours)), soon()).await.unwrap_err();
    let StoreErrorKind::Conflict { current: Some(current) } = put.kind else { panic!("{put}") };
    assert!(current > ours);
    assert!(store.delete(&key("a"), Some(ours), soon()).await.is_err());
    assert!(!store.renew(&key("a"), ours, lease, soon()).await.unwrap());
    assert_eq!(read(&store, "a").await.as_deref(), Some("theirs"));
    assert_eq!(server.command(&["PTTL", "a"]).await, Value::Int(-1));
}

#[tokio::test]
async fn what_another_writer_deleted_is_gone() {
    let server = Server::start();
    let store = server.store();
    let ours = store.put(put("a", "ours"), soon()).await.unwrap();
    server.command(&["DEL", "a"]).await;
    assert_eq!(read(&store, "a").await, None);
    assert!(!store.delete(&key("a"), Some(ours), soon()).await.unwrap());
    store.put(put("a", "again").on(PutCondition::Absent), soon()).await.unwrap();
}

#[tokio::test]
async fn revisions_grow_across_the_loss_of_all_data() {
    let mut server = Server::start();
    let store = server.store();
    let before = store.put(put("a", "1"), soon()).await.unwrap();
    server.stop();
    server.wipe();
    server.run();
    assert!(store.put(put("a", "1"), soon()).await.unwrap() > before);
}

#[tokio::test]
async fn a_value_that_is_no_text_is_an_error_of_its_own_key_only() {
    let server = Server::start();
    let store = server.store();
    store.put(put("k/good", "1"), soon()).await.unwrap();
    server.command(&["LPUSH", "k/list", "1"]).await;
    let bytes: &[u8] = b"\xff\xfe";
    let mut command = redis::cmd("SET");
    command.arg("k/bytes").arg(bytes).query_async::<()>(&mut server.foreign().await).await.unwrap();
    for at in ["k/list", "k/bytes"] {
        let error = store.get(&key(at), soon()).await.unwrap_err();
        assert!(matches!(error.kind, StoreErrorKind::Invalid { .. }), "{error}");
    }
    assert_eq!(store.list("k/", soon()).await.unwrap().len(), 1);
}

/// The value alone lies under the key, and the note lives as long as the key.
#[tokio::test]
async fn other_readers_find_the_plain_value_and_notes_end_with_their_keys() {
    let server = Server::start();
    let store = server.store();
    store.put(put("a", "{\"x\":1}\n").leased(Duration::from_millis(300)), soon()).await.unwrap();
    assert_eq!(server.command(&["GET", "a"]).await, Value::BulkString(b"{\"x\":1}\n".to_vec()));
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(server.command(&["EXISTS", "a", "te:revision:a"]).await, Value::Int(0));
    store.put(put("b", "1"), soon()).await.unwrap();
    store.delete(&key("b"), None, soon()).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "b", "te:revision:b"]).await, Value::Int(0));
}

async fn next(watch: &mut WatchStream) -> WatchEvent {
    let event = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
    event.expect("no event came").expect("the watch ended").unwrap()
}

/// A foreign put, overwrite of ours, and delete.
async fn sees_foreign_changes(server: &Server, store: &RedisStore) {
    let mut watch = store.watch("w*/", soon()).await.unwrap();
    server.command(&["SET", "wx/a", "not watched"]).await;
    server.command(&["SET", "w*/a", "theirs"]).await;
    let event = next(&mut watch).await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "theirs"), "{event:?}");
    store.put(put("w*/a", "ours"), soon()).await.unwrap();
    let event = next(&mut watch).await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "ours"), "{event:?}");
    server.command(&["SET", "w*/a", "theirs again"]).await;
    let event = next(&mut watch).await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "theirs again"), "{event:?}");
    server.command(&["RENAME", "w*/a", "w*/b"]).await;
    let mut both = [next(&mut watch).await, next(&mut watch).await];
    both.sort_by_key(|event| matches!(event, WatchEvent::Put { .. }));
    assert!(matches!(&both[0], WatchEvent::Delete { key: gone, .. } if *gone == key("w*/a")), "{both:?}");
    assert!(matches!(&both[1], WatchEvent::Put { key: new, .. } if *new == key("w*/b")), "{both:?}");
    let quiet = tokio::time::timeout(Duration::from_millis(700), watch.next()).await;
    assert!(quiet.is_err(), "told twice: {quiet:?}");
}

#[tokio::test]
async fn foreign_changes_are_told_by_keyspace_events() {
    let server = Server::start_with(&["--notify-keyspace-events", "KA"]);
    let slow = server.config().poll_interval(Duration::from_secs(3600));
    sees_foreign_changes(&server, &RedisStore::new(slow).unwrap()).await;
}

#[tokio::test]
async fn keyspace_events_are_switched_on_when_asked_for() {
    let server = Server::start();
    let slow = server.config().poll_interval(Duration::from_secs(3600)).enable_keyspace_events();
    sees_foreign_changes(&server, &RedisStore::new(slow).unwrap()).await;
}

#[tokio::test]
async fn foreign_changes_are_found_by_polling_and_the_server_is_left_as_it_is() {
    let server = Server::start();
    let store = RedisStore::new(server.config().poll_interval(Duration::from_millis(100))).unwrap();
    sees_foreign_changes(&server, &store).await;
    let setting = server.command(&["CONFIG", "GET", "notify-keyspace-events"]).await;
    assert_eq!(
        setting,
        Value::Array(vec![
            Value::BulkString(b"notify-keyspace-events".to_vec()),
            Value::BulkString(Vec::new()),
        ])
    );
}

#[tokio::test]
async fn databases_of_one_server_are_apart() {
    let server = Server::start();
    let (zero, five) = (server.store(), RedisStore::new(server.config().database(5)).unwrap());
    let mut watch = zero.watch("", soon()).await.unwrap();
    five.put(put("a", "five"), soon()).await.unwrap();
    assert_eq!(read(&zero, "a").await, None);
    zero.put(put("a", "zero"), soon()).await.unwrap();
    let event = next(&mut watch).await;
    assert!(matches!(&event, WatchEvent::Put { entry, .. } if entry.value == "zero"), "{event:?}");
}
