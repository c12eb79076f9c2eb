//! Servers that freeze, die, restart and come back empty: each in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use support::{Process, connect, event, free_port, key, put, soon, value};
use te_metadata::{MetadataStore as _, PutCondition, StoreErrorKind};
use te_metadata_http::{HttpConfig, HttpStore};

const FREE: &str = "127.0.0.1:0";

/// META-05: a stopped server accepts connections and stays silent.
#[tokio::test]
async fn frozen_server_costs_no_more_than_the_deadline() {
    let server = Process::start(FREE, None);
    let store = connect(&server.url).await;
    server.freeze();
    for fresh in [false, true] {
        let store = if fresh {
            HttpStore::new(HttpConfig::parse(&server.url).unwrap()).unwrap()
        } else {
            store.clone()
        };
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(400);
        let error = store.put(put("k", "v"), deadline).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::DeadlineExceeded);
        assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    }
    server.thaw();
    assert!(store.put(put("k", "v"), soon()).await.is_ok());
}

/// META-05: with two servers the second is used, within the same deadline, and stays in use.
#[tokio::test]
async fn second_server_stands_in_for_a_frozen_one() {
    let (first, second) = (Process::start(FREE, None), Process::start(FREE, None));
    let url = format!("http://{},{}/metadata", first.address(), second.address());
    let store = connect(&url).await;
    store.put(put("k", "first"), soon()).await.unwrap();
    first.freeze();
    let begun = Instant::now();
    store.put(put("k", "second"), begun + Duration::from_secs(2)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1800));
    let begun = Instant::now();
    assert_eq!(value(&store, "k").await.as_deref(), Some("second"));
    assert!(begun.elapsed() < Duration::from_millis(500), "it asks the one that answered last");
    first.thaw();
    second.kill();
    assert_eq!(value(&store, "k").await.as_deref(), Some("first"), "and back");
}

#[tokio::test]
async fn second_server_stands_in_for_one_that_is_away() {
    let second = Process::start(FREE, None);
    let url = format!("http://127.0.0.1:{},{}/metadata", free_port(), second.address());
    let store = connect(&url).await;
    assert!(store.info().leases);
    store.put(put("k", "v"), soon()).await.unwrap();
}

/// META-04: a server that comes back empty has lost the keys, and says so to watchers.
#[tokio::test]
async fn server_that_comes_back_empty_makes_watchers_read_again() {
    let server = Process::start(FREE, None);
    let (address, store) = (server.address(), connect(&server.url).await);
    let revision = store.put(put("k", "v").leased(Duration::from_secs(30)), soon()).await.unwrap();
    let mut watch = store.watch("", soon()).await.unwrap();
    server.kill();
    let server = Process::start(&address, None);
    assert_eq!(event(&mut watch).await, "resync");
    assert_eq!(value(&store, "k").await, None);
    assert!(
        !store.renew(&key("k"), revision, Duration::from_secs(30), soon()).await.unwrap(),
        "publish again"
    );
    let again = store.put(put("k", "v").on(PutCondition::Absent), soon()).await.unwrap();
    assert!(again > revision, "revisions never repeat");
    assert_eq!(event(&mut watch).await, "+k=v");
    drop(server);
}

/// A connection that broke is taken up where it was; nothing is told twice or lost.
#[tokio::test]
async fn watch_is_resumed_over_a_broken_connection() {
    let server = support::server().await;
    let relay = Relay::start(server.local_addr()).await;
    let store = connect(&format!("http://{}/metadata", relay.address)).await;
    let direct = connect(&server.url()).await;
    let mut watch = store.watch("p/", soon()).await.unwrap();
    for round in 0..5 {
        for at in 0..20 {
            direct.put(put("p/k", &format!("{round}.{at}")), soon()).await.unwrap();
            if at == 10 {
                relay.cut();
            }
        }
        for at in 0..20 {
            assert_eq!(event(&mut watch).await, format!("+p/k={round}.{at}"));
        }
    }
}

#[tokio::test]
async fn watch_that_missed_too_much_is_told_to_read_again() {
    let mut limits = te_metadata_http::server::ServerLimits::default();
    limits.history = 5;
    let server = support::builder().limits(limits).start().await.unwrap();
    let relay = Relay::start(server.local_addr()).await;
    let store = connect(&format!("http://{}/metadata", relay.address)).await;
    let direct = connect(&server.url()).await;
    let mut watch = store.watch("", soon()).await.unwrap();
    direct.put(put("k", "0"), soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "+k=0");
    relay.block();
    for at in 1..=20 {
        direct.put(put("k", &at.to_string()), soon()).await.unwrap();
    }
    relay.unblock();
    assert_eq!(event(&mut watch).await, "resync");
    direct.put(put("k", "21"), soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "+k=21");
}

#[tokio::test]
async fn watch_of_a_server_that_is_gone_ends_with_the_reason() {
    let server = Process::start(FREE, None);
    let store = connect(&server.url).await;
    let mut watch = store.watch("", soon()).await.unwrap();
    server.kill();
    let end = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.unwrap();
    let error = end.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(watch.next().await.is_none());
}

/// A kill at any moment loses no acknowledged write, and invents none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_remembers_every_acknowledged_write() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let mut acknowledged: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut last_revision, mut total) = (0, 0);
    for life in 0..12_u64 {
        let server = Process::start(FREE, Some(&journal));
        let store = connect(&server.url).await;
        let found = store.list("", soon()).await.unwrap();
        let held: BTreeMap<&str, (u64, u64)> = found
            .iter()
            .map(|(key, entry)| (key.as_str(), (entry.value[..20].trim().parse().unwrap(), entry.revision)))
            .collect();
        for (name, (number, revision)) in &acknowledged {
            let found = held.get(name.as_str()).unwrap_or_else(|| panic!("{name} is lost in life {life}"));
            // The one write that was under way may have arrived as well.
            assert!(
                found == &(*number, *revision) || found.0 == number + 1,
                "{name}: {found:?}, {number} was acknowledged"
            );
        }
        last_revision = found.iter().map(|(_, entry)| entry.revision).fold(last_revision, u64::max);

        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let store = store.clone();
                let name = format!("w/{writer}");
                let from = held.get(name.as_str()).map_or(0, |(number, _)| *number);
                tokio::spawn(async move {
                    let (mut number, mut done) = (from, None);
                    // Values of several sizes, so that frames and compactions of several kinds are cut.
                    let padding = "x".repeat(1 << (6 + writer));
                    loop {
                        number += 1;
                        let text = format!("{number:20}{padding}");
                        match store.put(put(&name, &text), Instant::now() + Duration::from_secs(5)).await {
                            Ok(revision) => done = Some((number, revision)),
                            Err(_) => return (name, number - from - 1, done),
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(40 + 37 * life)).await;
        server.kill();
        for writer in writers {
            let (name, written, done) = writer.await.unwrap();
            total += written;
            match done {
                Some((number, revision)) => {
                    assert!(revision > last_revision, "revisions never repeat");
                    acknowledged.insert(name, (number, revision));
                }
                // Nothing acknowledged in this life; what was found at its beginning still counts.
                None => {
                    if let Some(found) = held.get(name.as_str()) {
                        acknowledged.insert(name, *found);
                    }
                }
            }
        }
    }
    assert!(total > 100, "only {total} writes in all");
}

/// Leases survive a restart of the server and begin anew; they end all the same.
#[tokio::test]
async fn persisted_lease_begins_anew_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let server = Process::start(FREE, Some(&journal));
    let (address, store) = (server.address(), connect(&server.url).await);
    let lease = Duration::from_secs(2);
    let revision = store.put(put("k", "v").leased(lease), soon()).await.unwrap();
    store.put(put("stays", "v"), soon()).await.unwrap();
    assert!(server.stop(), "it stops when asked to");
    let server = Process::start(&address, Some(&journal));
    assert!(store.renew(&key("k"), revision, lease, soon()).await.unwrap());
    let begun = Instant::now();
    while value(&store, "k").await.is_some() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the lease does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(value(&store, "stays").await.as_deref(), Some("v"));
    drop(server);
}

#[tokio::test]
async fn stopping_server_ends_watches_and_keeps_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let server = support::builder().persist(&journal).start().await.unwrap();
    let store = connect(&server.url()).await;
    let _watch = store.watch("", soon()).await.unwrap();
    store.put(put("k", "v"), soon()).await.unwrap();
    let begun = Instant::now();
    server.shutdown(begun + Duration::from_secs(5)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let server = support::builder().persist(&journal).start().await.unwrap();
    assert_eq!(value(&connect(&server.url()).await, "k").await.as_deref(), Some("v"));
}

/// Silence cannot keep newcomers out, however many connections are silent.
#[tokio::test]
async fn silent_connections_make_room() {
    let mut limits = te_metadata_http::server::ServerLimits::default();
    limits.max_connections = 4;
    let server = support::builder().limits(limits).start().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(tokio::net::TcpStream::connect(server.local_addr()).await.unwrap());
    }
    let store = connect(&server.url()).await;
    store.put(put("k", "v"), soon()).await.unwrap();
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn silent_connection_is_closed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut limits = te_metadata_http::server::ServerLimits::default();
    limits.silence = Duration::from_millis(300);
    let server = support::builder().limits(limits).start().await.unwrap();
    for begin in
        ["", "GET /metadata?key=", "PUT /metadata?key=k HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"]
    {
        let mut stream = tokio::net::TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "still open after {begin:?}");
    }
}

/// Passes bytes on, and can stop doing so.
struct Relay {
    address: std::net::SocketAddr,
    cut: tokio::sync::watch::Sender<u64>,
    blocked: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Relay {
    async fn start(to: std::net::SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, cuts) = tokio::sync::watch::channel(0);
        let blocked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_blocked = std::sync::Arc::clone(&blocked);
        tokio::spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                if is_blocked.load(std::sync::atomic::Ordering::Relaxed) {
                    continue;
                }
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let mut there = tokio::net::TcpStream::connect(to).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { address, cut, blocked }
    }

    /// Breaks every connection there is.
    fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks every connection and those that follow.
    fn block(&self) {
        self.blocked.store(true, std::sync::atomic::Ordering::Relaxed);
        self.cut();
    }

    fn unblock(&self) {
        self.blocked.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}
