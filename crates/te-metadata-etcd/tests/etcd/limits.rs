//! How large values may be.

use te_metadata::{MetadataStore, StoreErrorKind};
use te_metadata_etcd::EtcdStore;

use crate::{put, read, server::Server, soon};

/// The largest value under the longest key of a deployment, with a lease and a condition: the largest request there is.
#[tokio::test]
async fn the_largest_value_fits_with_the_longest_key() {
    let server = Server::start();
    let store = server.store();
    let limit = store.info().max_value.unwrap();
    let at = format!("mooncake/{}/rpc_meta/{}", "c".repeat(1024), "n".repeat(1024));
    let lease = std::time::Duration::from_secs(60);
    let value = "v".repeat(limit);
    let request = put(&at, &value).on(te_metadata::PutCondition::Absent).leased(lease);
    let revision = store.put(request, soon()).await.unwrap();
    let again = put(&at, &value).on(te_metadata::PutCondition::Revision(revision)).leased(lease);
    store.put(again, soon()).await.unwrap();
    assert_eq!(read(&store, &at).await, Some(value));
}

#[tokio::test]
async fn a_server_with_a_higher_limit_is_used_up_to_it() {
    let server = Server::start_with(&["--max-request-bytes=8388608"]);
    let store = EtcdStore::new(server.config().max_request(8 << 20)).unwrap();
    let limit = store.info().max_value.unwrap();
    assert_eq!(limit, (8 << 20) - (8 << 10));
    let value = "v".repeat(limit);
    store.put(put("a", &value), soon()).await.unwrap();
    assert_eq!(read(&store, "a").await, Some(value));
    let error = store.put(put("a", &"w".repeat(limit + 1)), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::TooLarge { size: limit + 1, limit, store: "etcd" });
    // More than one page of the largest values.
    for at in ["b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        store.put(put(at, &"v".repeat(limit)), soon()).await.unwrap();
    }
    assert_eq!(store.list("", soon()).await.unwrap().len(), 10);
}

/// We were told of a limit that the server does not have.
#[tokio::test]
async fn a_refusal_by_the_server_is_too_large_as_well() {
    let server = Server::start();
    let store = EtcdStore::new(server.config().max_request(32 << 20)).unwrap();
    for size in [2 << 20, 5 << 20] {
        let error = store.put(put("a", &"v".repeat(size)), soon()).await.unwrap_err();
        assert!(matches!(error.kind, StoreErrorKind::TooLarge { .. }), "{size}: {error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_listing_of_many_keys_is_whole_and_of_one_moment() {
    let server = Server::start();
    let store = server.store();
    let expected: Vec<_> = (0..1300).map(|n| format!("many/{n:05}")).collect();
    for chunk in expected.chunks(64) {
        let puts = chunk.iter().map(|at| {
            let (store, at) = (store.clone(), at.clone());
            tokio::spawn(async move { store.put(put(&at, "x"), soon()).await })
        });
        for task in puts.collect::<Vec<_>>() {
            task.await.unwrap().unwrap();
        }
    }
    let listed = store.list("many/", soon()).await.unwrap();
    let found: Vec<_> = listed.iter().map(|(key, _)| key.as_str().to_owned()).collect();
    assert_eq!(found, expected);
}
