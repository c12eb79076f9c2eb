//! The memory store keeps the contract of a metadata store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::soon;
use te_metadata::{Key, MemoryStore, MetadataStore, PutCondition, PutRequest, StoreErrorKind, WatchEvent};

fn key(text: &str) -> Key {
    Key::new(text)
}

fn put(at: &str, value: &str) -> PutRequest {
    PutRequest::new(key(at), value.to_owned())
}

async fn read(store: &MemoryStore, at: &str) -> Option<String> {
    store.get(&key(at), soon()).await.unwrap().map(|entry| entry.value)
}

/// A store on a clock that the test moves, and the clock in milliseconds.
fn with_clock() -> (MemoryStore, Arc<AtomicU64>) {
    let (start, millis) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let clock = Arc::clone(&millis);
    let now = move || start + Duration::from_millis(clock.load(Ordering::SeqCst));
    (MemoryStore::with_clock(now), millis)
}

const LEASE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_missing_key_is_a_value_and_no_error() {
    assert_eq!(MemoryStore::new().get(&key("a"), soon()).await.unwrap(), None);
}

/// META-03.
#[tokio::test]
async fn the_same_value_can_be_put_twice() {
    let store = MemoryStore::new();
    let first = store.put(put("a", "1"), soon()).await.unwrap();
    let second = store.put(put("a", "1"), soon()).await.unwrap();
    assert!(second > first);
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn put_if_absent_is_refused_while_the_key_is_there() {
    let store = MemoryStore::new();
    let revision = store.put(put("a", "1").on(PutCondition::Absent), soon()).await.unwrap();
    let error = store.put(put("a", "2").on(PutCondition::Absent), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict { current: Some(revision) });
    assert!(!error.is_retryable());
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn compare_and_set_needs_the_current_revision() {
    let store = MemoryStore::new();
    let first = store.put(put("a", "1"), soon()).await.unwrap();
    let second = store.put(put("a", "2").on(PutCondition::Revision(first)), soon()).await.unwrap();
    let error = store.put(put("a", "3").on(PutCondition::Revision(first)), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict { current: Some(second) });
}

#[tokio::test]
async fn compare_and_set_of_a_deleted_key_is_refused() {
    let store = MemoryStore::new();
    let revision = store.put(put("a", "1"), soon()).await.unwrap();
    assert!(store.delete(&key("a"), None, soon()).await.unwrap());
    let error = store.put(put("a", "2").on(PutCondition::Revision(revision)), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict { current: None });
}

#[tokio::test]
async fn delete_says_whether_there_was_something() {
    let store = MemoryStore::new();
    store.put(put("a", "1"), soon()).await.unwrap();
    assert!(store.delete(&key("a"), None, soon()).await.unwrap());
    assert!(!store.delete(&key("a"), None, soon()).await.unwrap());
}

#[tokio::test]
async fn delete_of_another_revision_is_refused() {
    let store = MemoryStore::new();
    let old = store.put(put("a", "1"), soon()).await.unwrap();
    let new = store.put(put("a", "2"), soon()).await.unwrap();
    let error = store.delete(&key("a"), Some(old), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict { current: Some(new) });
    assert!(store.delete(&key("a"), Some(new), soon()).await.unwrap());
}

#[tokio::test]
async fn list_gives_the_prefix_in_byte_order() {
    let store = MemoryStore::new();
    for at in ["b/2", "a", "b/1", "b", "c", "b/10"] {
        store.put(put(at, at), soon()).await.unwrap();
    }
    let found = store.list("b/", soon()).await.unwrap();
    let found: Vec<_> = found.iter().map(|(key, entry)| (key.as_str(), entry.value.as_str())).collect();
    assert_eq!(found, [("b/1", "b/1"), ("b/10", "b/10"), ("b/2", "b/2")]);
}

#[tokio::test]
async fn a_value_over_the_limit_is_refused_with_both_sizes() {
    let store = MemoryStore::with_max_value(3);
    store.put(put("a", "123"), soon()).await.unwrap();
    let error = store.put(put("a", "1234"), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::TooLarge { size: 4, limit: 3, store: "memory" });
    assert_eq!(read(&store, "a").await.as_deref(), Some("123"));
}

/// META-05.
#[tokio::test]
async fn a_passed_deadline_is_an_error_of_every_call() {
    let (store, past) = (MemoryStore::new(), Instant::now());
    let kinds = [
        store.get(&key("a"), past).await.unwrap_err().kind,
        store.put(put("a", "1"), past).await.unwrap_err().kind,
        store.delete(&key("a"), None, past).await.unwrap_err().kind,
        store.renew(&key("a"), 1, LEASE, past).await.unwrap_err().kind,
        store.list("", past).await.unwrap_err().kind,
        store.watch("", past).await.unwrap_err().kind,
    ];
    assert!(kinds.iter().all(|kind| *kind == StoreErrorKind::DeadlineExceeded), "{kinds:?}");
    assert_eq!(read(&store, "a").await, None);
}

/// META-19.
#[tokio::test]
async fn a_key_ends_with_its_lease() {
    let (store, millis) = with_clock();
    store.put(put("a", "1").leased(LEASE), soon()).await.unwrap();
    store.put(put("b", "1"), soon()).await.unwrap();
    millis.store(9_999, Ordering::SeqCst);
    assert_eq!(read(&store, "a").await.as_deref(), Some("1"));
    millis.store(10_000, Ordering::SeqCst);
    assert_eq!(read(&store, "a").await, None);
    assert_eq!(read(&store, "b").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn renewal_starts_the_lease_anew_and_keeps_the_revision() {
    let (store, millis) = with_clock();
    let revision = store.put(put("a", "1").leased(LEASE), soon()).await.unwrap();
    millis.store(9_000, Ordering::SeqCst);
    assert!(store.renew(&key("a"), revision, LEASE, soon()).await.unwrap());
    millis.store(18_999, Ordering::SeqCst);
    assert_eq!(store.get(&key("a"), soon()).await.unwrap().unwrap().revision, revision);
    millis.store(19_000, Ordering::SeqCst);
    assert!(!store.renew(&key("a"), revision, LEASE, soon()).await.unwrap());
}

#[tokio::test]
async fn a_key_that_somebody_else_wrote_is_not_renewed() {
    let store = MemoryStore::new();
    let revision = store.put(put("a", "1").leased(LEASE), soon()).await.unwrap();
    store.put(put("a", "2").leased(LEASE), soon()).await.unwrap();
    assert!(!store.renew(&key("a"), revision, LEASE, soon()).await.unwrap());
}

#[tokio::test]
async fn a_put_without_lease_ends_the_lease() {
    let (store, millis) = with_clock();
    store.put(put("a", "1").leased(LEASE), soon()).await.unwrap();
    store.put(put("a", "2"), soon()).await.unwrap();
    millis.store(60_000, Ordering::SeqCst);
    assert_eq!(read(&store, "a").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn watch_gives_the_changes_of_its_prefix_in_order() {
    let store = MemoryStore::new();
    store.put(put("x/before", "0"), soon()).await.unwrap();
    let mut watch = store.watch("x/", soon()).await.unwrap();
    let first = store.put(put("x/a", "1"), soon()).await.unwrap();
    store.put(put("y/a", "1"), soon()).await.unwrap();
    store.delete(&key("x/a"), None, soon()).await.unwrap();
    let WatchEvent::Put { key: at, entry } = watch.next().await.unwrap().unwrap() else { panic!("no put") };
    assert_eq!((at.as_str(), entry.value.as_str(), entry.revision), ("x/a", "1", first));
    let WatchEvent::Delete { key: at, revision } = watch.next().await.unwrap().unwrap() else {
        panic!("no delete")
    };
    assert_eq!(at.as_str(), "x/a");
    assert!(revision > first);
}

#[tokio::test(start_paused = true)]
async fn watch_reports_the_end_of_a_lease_by_itself() {
    let store = MemoryStore::new();
    let mut watch = store.watch("", soon()).await.unwrap();
    let begun = tokio::time::Instant::now();
    let (next, _) = tokio::join!(
        async {
            assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Put { .. }))));
            watch.next().await
        },
        store.put(put("a", "1").leased(LEASE), soon() + LEASE),
    );
    assert!(matches!(next, Some(Ok(WatchEvent::Delete { .. }))), "{next:?}");
    assert!(begun.elapsed() >= LEASE && begun.elapsed() < LEASE + Duration::from_secs(1));
}

#[tokio::test]
async fn a_watcher_that_lags_too_far_is_told_to_read_again() {
    let store = MemoryStore::new();
    let mut watch = store.watch("", soon()).await.unwrap();
    for n in 0..5_000 {
        store.put(put("a", &n.to_string()), soon()).await.unwrap();
    }
    let mut puts = 0;
    loop {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Put { .. } => puts += 1,
            WatchEvent::Resync => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(puts < 5_000);
    store.put(put("a", "last"), soon()).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Put { entry, .. })) if entry.value == "last"));
}

/// META-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_compare_and_set_loses_no_update() {
    let store = MemoryStore::new();
    store.put(put("n", "0"), soon()).await.unwrap();
    let adders = (0..16).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                loop {
                    let entry = store.get(&key("n"), soon()).await.unwrap().unwrap();
                    let next = entry.value.parse::<u64>().unwrap() + 1;
                    let request = put("n", &next.to_string()).on(PutCondition::Revision(entry.revision));
                    if store.put(request, soon()).await.is_ok() {
                        break;
                    }
                }
            }
        })
    });
    for adder in adders.collect::<Vec<_>>() {
        adder.await.unwrap();
    }
    assert_eq!(read(&store, "n").await.as_deref(), Some("800"));
}
