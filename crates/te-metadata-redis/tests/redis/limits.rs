//! How large values may be.

use std::time::Duration;

use te_metadata::{MetadataStore, StoreErrorKind, WatchEvent};
use te_metadata_redis::{DEFAULT_MAX_VALUE, RedisStore};

use crate::{put, read, server::Server, soon};

#[tokio::test]
async fn the_default_limit_is_the_servers_and_nothing_over_it_is_sent() {
    // Nobody listens: a call that sent anything would be an outage.
    let config = te_metadata_redis::RedisConfig::parse("redis://127.0.0.1:1").unwrap();
    let store = RedisStore::new(config).unwrap();
    assert_eq!(store.info().max_value, Some(512 << 20));
    let size = DEFAULT_MAX_VALUE + 1;
    let value = String::from_utf8(vec![0; size]).unwrap();
    let error = store.put(put("a", &value), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::TooLarge { size, limit: DEFAULT_MAX_VALUE, store: "redis" });
}

/// We were told of a limit that the server does not have.
#[tokio::test]
async fn a_refusal_by_the_server_is_too_large_as_well() {
    let server = Server::start_with(&["--proto-max-bulk-len", "1mb"]);
    let store = server.store();
    let error = store.put(put("a", &"v".repeat(2 << 20)), soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::TooLarge { .. }), "{error}");
    store.put(put("a", "1"), soon()).await.unwrap();
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_value_that_fits_no_message_is_watched_all_the_same() {
    let server = Server::start();
    let store = server.store();
    let mut watch = store.watch("w/", soon()).await.unwrap();
    let value = "v".repeat(16 << 20);
    store.put(put("w/a", &value), soon()).await.unwrap();
    let event = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap().unwrap();
    let WatchEvent::Put { entry, .. } = event else { panic!("{event:?}") };
    assert!(entry.value == value);
}

#[tokio::test]
async fn a_listing_of_many_keys_is_whole() {
    let server = Server::start_with(&["--appendfsync", "no"]);
    let store = server.store();
    let expected: Vec<_> = (0..1300).map(|n| format!("many/{n:05}")).collect();
    for at in &expected {
        store.put(put(at, "x"), soon()).await.unwrap();
    }
    let listed = store.list("many/", soon()).await.unwrap();
    let found: Vec<_> = listed.iter().map(|(key, _)| key.as_str().to_owned()).collect();
    assert_eq!(found, expected);
    // The store's own keys are not among them.
    assert_eq!(store.list("", soon()).await.unwrap().len(), expected.len());
    assert!(store.put(put("te:revision", "1"), soon()).await.is_err());
}
