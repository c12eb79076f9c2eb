//! The store contract, over HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::time::{Duration, Instant};

use support::{connect, event, key, pair, put, soon, value};
use te_metadata::{MetadataStore as _, PutCondition, PutRequest, StoreErrorKind};
use te_metadata_http::HttpConfig;
use te_segment::Incarnation;

const SECOND: Duration = Duration::from_secs(1);

fn conflict(outcome: Result<u64, te_metadata::StoreError>) -> Option<u64> {
    match outcome.map_err(|error| error.kind) {
        Err(StoreErrorKind::Conflict { current }) => current,
        other => panic!("no conflict: {other:?}"),
    }
}

#[tokio::test]
async fn our_server_announces_what_it_can() {
    let (_server, store) = pair().await;
    let info = store.info();
    assert!(info.leases && info.watch && info.conditional && !info.trailing_newline);
    assert_eq!((info.scheme, info.max_value), ("http", Some(1 << 20)));
}

#[tokio::test]
async fn value_is_given_back_as_it_was_put() {
    let (_server, store) = pair().await;
    for text in ["", "{}", "line\nline\r\n", "h\u{e9}llo \u{1f980}", " \t"] {
        store.put(put("k", text), soon()).await.unwrap();
        assert_eq!(value(&store, "k").await.as_deref(), Some(text));
    }
}

#[tokio::test]
async fn missing_key_is_a_value() {
    let (_server, store) = pair().await;
    assert_eq!(value(&store, "k").await, None);
    assert!(!store.delete(&key("k"), None, soon()).await.unwrap());
    assert!(!store.renew(&key("k"), 1, SECOND, soon()).await.unwrap());
}

#[tokio::test]
async fn odd_keys_do_not_meet() {
    let (_server, store) = pair().await;
    let long = "n".repeat(1024);
    let keys = [
        "a/b",
        "a%2Fb",
        "a//b",
        "a+b",
        "a b",
        "a&b=c",
        "a?b",
        "a#b",
        "\u{e9}",
        "e\u{301}",
        "\u{1f980}",
        "..",
        "/",
        "%",
        &long,
        "[2001:db8::1%eth0]:15893",
        "a\u{0}b",
    ];
    for text in keys {
        store.put(put(text, text), soon()).await.unwrap();
    }
    for text in keys {
        assert_eq!(value(&store, text).await.as_deref(), Some(text));
    }
    assert_eq!(store.list("", soon()).await.unwrap().len(), keys.len());
}

/// META-03: the same value twice is no conflict, neither is another one from the same writer.
#[tokio::test]
async fn putting_again_is_no_conflict() {
    let (_server, store) = pair().await;
    for text in ["a", "a", "b"] {
        store.put(put("mooncake/rpc_meta/x", text), soon()).await.unwrap();
    }
    let own = store.with_incarnation(Incarnation::from_bits(1));
    for text in ["b", "b", "c"] {
        own.put(put("mooncake/rpc_meta/x", text).leased(SECOND * 10), soon()).await.unwrap();
    }
    assert_eq!(value(&store, "mooncake/rpc_meta/x").await.as_deref(), Some("c"));
}

#[tokio::test]
async fn conditions_are_decided_by_the_server() {
    let (_server, store) = pair().await;
    let absent = |text| put("k", text).on(PutCondition::Absent);
    let first = store.put(absent("a"), soon()).await.unwrap();
    assert_eq!(conflict(store.put(absent("b"), soon()).await), Some(first));
    let second = store.put(put("k", "c").on(PutCondition::Revision(first)), soon()).await.unwrap();
    assert!(second > first);
    assert_eq!(
        conflict(store.put(put("k", "d").on(PutCondition::Revision(first)), soon()).await),
        Some(second)
    );
    assert_eq!(store.get(&key("k"), soon()).await.unwrap().unwrap().revision, second);
    let refused = store.delete(&key("k"), Some(first), soon()).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Conflict { current: Some(second) });
    assert!(store.delete(&key("k"), Some(second), soon()).await.unwrap());
    assert_eq!(conflict(store.put(put("k", "e").on(PutCondition::Revision(second)), soon()).await), None);
}

/// META-19: keys of the dead vanish.
#[tokio::test]
async fn lease_ends_and_says_so() {
    let (_server, store) = pair().await;
    let mut watch = store.watch("", soon()).await.unwrap();
    store.put(put("k", "a").leased(Duration::from_millis(200)), soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "+k=a");
    let begun = Instant::now();
    assert_eq!(event(&mut watch).await, "-k");
    assert!(begun.elapsed() < SECOND * 5);
    assert_eq!(value(&store, "k").await, None);
}

#[tokio::test]
async fn renewed_lease_keeps_its_key() {
    let (_server, store) = pair().await;
    let lease = Duration::from_millis(600);
    let revision = store.put(put("k", "a").leased(lease), soon()).await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(lease / 3).await;
        assert!(store.renew(&key("k"), revision, lease, soon()).await.unwrap());
    }
    assert_eq!(value(&store, "k").await.as_deref(), Some("a"));
    assert!(!store.renew(&key("k"), revision + 1, lease, soon()).await.unwrap(), "another revision");
}

/// Contract 14, META-03: a leased key has one holder until the lease ends.
#[tokio::test]
async fn leased_name_is_protected_against_another_incarnation() {
    let (server, store) = pair().await;
    let (one, two) = (
        store.with_incarnation(Incarnation::from_bits(1)),
        store.with_incarnation(Incarnation::from_bits(2)),
    );
    let name = "mooncake/rpc_meta/x";
    let lease = Duration::from_millis(700);
    let held = one.put(put(name, "one").leased(lease), soon()).await.unwrap();
    assert_eq!(conflict(two.put(put(name, "two").leased(lease), soon()).await), Some(held));
    assert_eq!(conflict(store.put(put(name, "plain"), soon()).await), Some(held));
    assert!(two.delete(&key(name), None, soon()).await.is_err());
    let address = server.local_addr().to_string();
    let target = "/metadata?key=mooncake%2Frpc_meta%2Fx";
    assert_eq!(support::ask(&address, "PUT", target, "", "reference").await.0, 409);
    one.put(put(name, "one again").leased(lease), soon()).await.unwrap();

    tokio::time::sleep(lease + SECOND / 2).await;
    two.put(put(name, "two").leased(lease), soon()).await.unwrap();
    assert_eq!(value(&store, name).await.as_deref(), Some("two"));
}

#[tokio::test]
async fn list_is_complete_and_in_byte_order() {
    let (_server, store) = pair().await;
    let big = "x".repeat(200_000);
    for at in 0..60 {
        store.put(put(&format!("p/{at:03}"), &big), soon()).await.unwrap();
    }
    store.put(put("q", ""), soon()).await.unwrap();
    store.put(put("p", ""), soon()).await.unwrap();
    let found = store.list("p/", soon()).await.unwrap();
    let expected: Vec<String> = (0..60).map(|at| format!("p/{at:03}")).collect();
    assert_eq!(
        found.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
        expected,
        "three pages of 4 MiB"
    );
    assert!(found.iter().all(|(_, entry)| entry.value == big && entry.revision > 0));
}

#[tokio::test]
async fn watch_tells_every_change_of_its_prefix_in_order() {
    let (_server, store) = pair().await;
    store.put(put("p/old", "0"), soon()).await.unwrap();
    let mut watch = store.watch("p/", soon()).await.unwrap();
    for at in 0..300 {
        store.put(put(&format!("p/{at}"), "x"), soon()).await.unwrap();
        store.put(put("q", &at.to_string()), soon()).await.unwrap();
    }
    store.delete(&key("p/0"), None, soon()).await.unwrap();
    for at in 0..300 {
        assert_eq!(event(&mut watch).await, format!("+p/{at}=x"));
    }
    assert_eq!(event(&mut watch).await, "-p/0");
}

#[tokio::test]
async fn dropping_a_wait_for_an_event_loses_nothing() {
    let (_server, store) = pair().await;
    let mut watch = store.watch("", soon()).await.unwrap();
    let writer = tokio::spawn(async move {
        for at in 0..100 {
            store.put(put("k", &at.to_string()), soon()).await.unwrap();
        }
    });
    let mut seen = 0;
    while seen < 100 {
        if let Ok(next) = tokio::time::timeout(Duration::from_micros(300), watch.next()).await {
            let te_metadata::WatchEvent::Put { entry, .. } = next.unwrap().unwrap() else { panic!("no put") };
            assert_eq!(entry.value, seen.to_string());
            seen += 1;
        }
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn largest_value_passes_and_one_byte_more_is_refused_here() {
    let (server, store) = pair().await;
    let limit = store.info().max_value.unwrap();
    store.put(put("k", &"x".repeat(limit)), soon()).await.unwrap();
    assert_eq!(value(&store, "k").await.map(|value| value.len()), Some(limit));
    let error = store.put(put("k", &"x".repeat(limit + 1)), soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::TooLarge { size: limit + 1, limit, store: "http" });
    let target = "/metadata?key=k";
    let raw = support::ask(&server.local_addr().to_string(), "PUT", target, "", &"x".repeat(limit + 1)).await;
    assert_eq!(raw.0, 413, "and by the server");
}

/// META-10: many tasks, few connections, nothing lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_few_connections() {
    const TASKS: usize = 64;
    // Three operations each, so more than 1,000 a task.
    const ROUNDS: usize = 334;
    let server = support::server().await;
    let config = HttpConfig::parse(&server.url()).unwrap().max_connections(8);
    let store = te_metadata_http::HttpStore::connect(config, soon()).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let deadline = Instant::now() + Duration::from_secs(300);
                for round in 0..ROUNDS {
                    let (name, text) = (format!("t/{task}"), format!("{task}:{round}"));
                    store.put(put(&name, &text), deadline).await.unwrap();
                    let found = store.get(&key(&name), deadline).await.unwrap().unwrap();
                    assert_eq!(found.value, text);
                    assert!(store.delete(&key(&name), Some(found.revision), deadline).await.unwrap());
                }
            })
        })
        .collect();
    let mut most = 0;
    // The same one for all questions: the server may count a closed one for a while.
    let mut asking = tokio::net::TcpStream::connect(server.local_addr()).await.unwrap();
    while !tasks.iter().all(|task| task.is_finished()) {
        let text = support::get_over(&mut asking, "/metrics").await;
        let open = text.lines().find_map(|line| line.strip_prefix("te_metad_connections ")).unwrap();
        most = most.max(open.parse::<u32>().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    // Eight in use, one for the questions; and while a busy host is about to connect, a connection can become free, so that
    // the new one is one more for a moment.
    assert!((2..=17).contains(&most), "{most} connections for {TASKS} tasks");
    assert_eq!(store.list("t/", soon()).await.unwrap().len(), 0);
}

#[tokio::test]
async fn deadline_in_the_past_is_exceeded() {
    let (_server, store) = pair().await;
    let past = Instant::now() - SECOND;
    let outcomes = [
        store.get(&key("k"), past).await.map(drop).unwrap_err(),
        store.put(put("k", "v"), past).await.map(drop).unwrap_err(),
        store.delete(&key("k"), None, past).await.map(drop).unwrap_err(),
        store.list("", past).await.map(drop).unwrap_err(),
        store.watch("", past).await.map(drop).unwrap_err(),
    ];
    for error in outcomes {
        assert_eq!(error.kind, StoreErrorKind::DeadlineExceeded);
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn refused_connection_is_an_outage_that_names_the_server() {
    let url = format!("http://127.0.0.1:{}/metadata", support::free_port());
    let store = te_metadata_http::HttpStore::new(HttpConfig::parse(&url).unwrap()).unwrap();
    let begun = Instant::now();
    let error = store.get(&key("k"), soon()).await.unwrap_err();
    assert!(
        matches!(&error.kind, StoreErrorKind::Unavailable { detail } if detail.contains(&url)),
        "{error}"
    );
    assert!(begun.elapsed() < SECOND * 3, "it does not wait for the deadline");
}

/// Engines over it: a segment is published, kept, found and withdrawn.
#[tokio::test]
async fn directory_works_over_it() {
    use te_metadata::{Directory as _, Keys, StoreDirectory};
    use te_segment::{Endpoint, Identity, SegmentDescriptor, SegmentName};
    let (server, store) = pair().await;
    let incarnation = Incarnation::from_bits(7);
    let directory = StoreDirectory::new(store.with_incarnation(incarnation), Keys::default());
    let name = SegmentName::new("dir/node-7").unwrap();
    let control: Endpoint = "10.0.0.7:15893".parse().unwrap();
    let identity = Identity::Te { incarnation, control: Some(control.clone()) };
    let descriptor = SegmentDescriptor::builder(name.clone()).identity(identity).build().unwrap();
    directory.publish(descriptor.into(), control.clone().into(), soon()).await.unwrap();

    let other = StoreDirectory::new(connect(&server.url()).await, Keys::default());
    let found = other.resolve(&name, soon()).await.unwrap();
    assert_eq!(found.descriptor.incarnation(), Some(incarnation));
    assert_eq!(other.locate(&name, soon()).await.unwrap(), control);
    directory.withdraw(&name, soon()).await.unwrap();
    let gone = other.resolve(&name, soon()).await.unwrap_err();
    assert!(matches!(gone, te_metadata::DirectoryError::NotFound { .. }), "{gone}");
}

#[tokio::test]
async fn request_with_an_empty_key_is_refused() {
    let (_server, store) = pair().await;
    let error = store.put(PutRequest::new(key(""), "v".into()), soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Invalid { .. }), "{error}");
}
