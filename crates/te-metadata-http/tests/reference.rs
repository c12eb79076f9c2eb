//! Compatibility with the reference engine: recorded traffic, and its own server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::time::Duration;

use serde::Deserialize;
use support::{ask, event, key, pair, put, soon, value};
use te_metadata::{MetadataStore as _, PutCondition, StoreErrorKind};
use te_metadata_http::{HttpConfig, HttpStore};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// A request of a reference engine (0.3.13), and what its own server answered.
#[derive(Deserialize)]
struct Exchange {
    step: String,
    method: String,
    target: String,
    body: String,
    status: u16,
    answer: String,
}

#[tokio::test]
async fn recorded_requests_get_the_recorded_answers() {
    let server = support::server().await;
    let address = server.local_addr().to_string();
    let recorded: Vec<Exchange> = serde_json::from_str(include_str!("vectors/reference.json")).unwrap();
    assert_eq!(recorded.len(), 18);
    for Exchange { step, method, target, body, status, answer } in recorded {
        let headers = "Accept: */*\r\nContent-Type: application/json\r\n";
        let (got, head, text) = ask(&address, &method, &target, headers, &body).await;
        assert_eq!((got, text), (status, answer), "{step}: {method} {target}");
        assert!(head.contains("content-type: application/json"), "{step}: {head}");
    }
}

/// META-03: crash-restart under the same name, and publishing again, both with plain requests.
#[tokio::test]
async fn reference_may_write_its_own_keys_again() {
    let server = support::server().await;
    let address = server.local_addr().to_string();
    let target = "/metadata?key=mooncake%2Frpc_meta%2Fnode-a";
    for body in ["{\"rpc_port\":1}", "{\"rpc_port\":1}", "{\"rpc_port\":2}"] {
        assert_eq!(ask(&address, "PUT", target, "", body).await.0, 200);
    }
    assert_eq!(ask(&address, "GET", target, "", "").await.2, "{\"rpc_port\":2}");
}

#[tokio::test]
async fn malformed_requests_are_answered_in_words() {
    let server = support::server().await;
    let address = server.local_addr().to_string();
    let long = format!("/metadata?key={}", "k".repeat(5000));
    for (method, target, headers, status, said) in [
        ("GET", "/metadata", "", 400, "metadata key is required"),
        ("PUT", "/metadata?key=", "", 400, "metadata key is required"),
        ("GET", "/metadata?key=%ff", "", 400, "metadata key is not UTF-8"),
        ("GET", long.as_str(), "", 400, "metadata key is too long"),
        ("PATCH", "/metadata?key=k", "", 405, "Method not allowed"),
        ("DELETE", "/metadata?key=k", "", 404, "metadata not found"),
        ("PUT", "/metadata?key=k", "te-lease-ms: 0\r\n", 400, "te-lease-ms is no positive number"),
        ("PUT", "/metadata?key=k", "te-lease-ms: x\r\n", 400, "te-lease-ms is no positive number"),
        ("PUT", "/metadata?key=k", "te-incarnation: 12\r\n", 400, "te-incarnation is no incarnation"),
        ("PUT", "/metadata?key=k", "if-match: 7\r\n", 400, "the condition is neither"),
        (
            "PUT",
            "/metadata?key=k",
            "if-match: \"1\"\r\nif-none-match: *\r\n",
            400,
            "the condition is neither",
        ),
        ("POST", "/metadata?key=k", "te-lease-ms: 1000\r\n", 400, "a renewal needs"),
        ("GET", "/other", "", 404, "no such page"),
    ] {
        let (got, _, text) = ask(&address, method, target, headers, "").await;
        assert!(got == status && text.starts_with(said), "{method} {target} {headers}: {got} {text}");
    }
}

/// Servers of other kinds: what they do with a put on a key that exists is the difference.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Overwrites, and deletes what is missing with 200.
    Go,
    /// Refuses any put on an existing `rpc_meta` key.
    Python,
    /// Refuses it unless the value is the same.
    Master,
    /// Answers 201 instead of 200.
    Created,
    /// Refuses bodies.
    Small,
}

/// A foreign server, as small as can be.
async fn foreign(kind: Kind) -> String {
    use std::{collections::HashMap, sync::Arc};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let store = Arc::new(std::sync::Mutex::new(HashMap::<String, Vec<u8>>::new()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let store = Arc::clone(&store);
            tokio::spawn(async move { while serve_one(kind, &mut stream, &store).await.is_some() {} });
        }
    });
    url
}

async fn serve_one(
    kind: Kind,
    stream: &mut TcpStream,
    store: &std::sync::Mutex<std::collections::HashMap<String, Vec<u8>>>,
) -> Option<()> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(text).unwrap();
    assert!(!head.to_lowercase().contains("if-"), "no conditions are sent to a server that ignores them");
    let length =
        head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let mut words = head.split(' ');
    let (method, key) = (words.next()?, words.next()?.split_once("key=")?.1.to_owned());
    let (status, answer) = {
        let mut store = store.lock().unwrap();
        match (method, store.get(&key).cloned()) {
            ("GET", Some(value)) => (200, value),
            ("GET", None) => (404, b"metadata not found".to_vec()),
            ("PUT", _) if kind == Kind::Small => (413, vec![]),
            ("PUT", Some(held)) if key.contains("rpc_meta") && kind == Kind::Python => {
                drop(held);
                (400, b"Duplicate rpc_meta key not allowed".to_vec())
            }
            ("PUT", Some(held)) if key.contains("rpc_meta") && kind == Kind::Master && held != body => {
                (400, vec![])
            }
            ("PUT", _) => {
                store.insert(key, body);
                (if kind == Kind::Created { 201 } else { 200 }, vec![])
            }
            ("DELETE", None) if kind == Kind::Go => (200, vec![]),
            ("DELETE", held) => {
                store.remove(&key);
                (if held.is_some() { 200 } else { 404 }, vec![])
            }
            _ => (405, vec![]),
        }
    };
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", answer.len());
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&answer).await.ok()
}

async fn on(kind: Kind) -> HttpStore {
    let config = HttpConfig::parse(&foreign(kind).await).unwrap().poll_interval(Duration::from_millis(50));
    HttpStore::connect(config, soon()).await.unwrap()
}

#[tokio::test]
async fn foreign_server_is_known_for_what_it_cannot_do() {
    let info = on(Kind::Go).await.info();
    assert!(!info.leases && !info.conditional && info.watch);
    assert_eq!(info.max_value, Some(1 << 20));
}

/// META-03: what the records of an engine that restarted look like to each kind of server.
#[tokio::test]
async fn rpc_location_is_written_again_on_every_kind_of_server() {
    for kind in [Kind::Go, Kind::Python, Kind::Master] {
        let store = on(kind).await;
        for text in ["a", "a", "b"] {
            store.put(put("mooncake/rpc_meta/x", text), soon()).await.unwrap();
            assert_eq!(value(&store, "mooncake/rpc_meta/x").await.as_deref(), Some(text));
        }
        assert!(store.delete(&key("mooncake/rpc_meta/x"), None, soon()).await.unwrap());
        assert_eq!(value(&store, "mooncake/rpc_meta/x").await, None);
    }
}

#[tokio::test]
async fn anything_but_200_is_failure() {
    let error = on(Kind::Created).await.put(put("k", "v"), soon()).await.unwrap_err();
    assert!(matches!(&error.kind, StoreErrorKind::Invalid { detail } if detail.contains("201")), "{error}");
    let error = on(Kind::Small).await.put(put("k", "v"), soon()).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::TooLarge { size: 1, .. }), "{error}");
}

/// Python's server would take `a ` for `a`.
#[tokio::test]
async fn keys_that_a_foreign_server_may_shorten_are_refused() {
    let config = HttpConfig::parse(&foreign(Kind::Python).await).unwrap();
    for fresh in [true, false] {
        let store = HttpStore::new(config.clone()).unwrap();
        if !fresh {
            store.put(put("a", "1"), soon()).await.unwrap();
        }
        for text in ["a ", " a", "a\u{a0}"] {
            for error in [
                store.get(&key(text), soon()).await.map(drop).unwrap_err(),
                store.put(put(text, "2"), soon()).await.map(drop).unwrap_err(),
                store.delete(&key(text), None, soon()).await.map(drop).unwrap_err(),
            ] {
                assert!(matches!(error.kind, StoreErrorKind::Invalid { .. }), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn conditions_a_foreign_server_cannot_decide_are_refused() {
    let store = on(Kind::Python).await;
    store.put(put("k", "a").on(PutCondition::Absent), soon()).await.unwrap();
    let taken = store.put(put("k", "b").on(PutCondition::Absent), soon()).await.unwrap_err();
    assert_eq!(taken.kind, StoreErrorKind::Conflict { current: None });
    for error in [
        store.put(put("k", "b").on(PutCondition::Revision(1)), soon()).await.map(drop).unwrap_err(),
        store.delete(&key("k"), Some(1), soon()).await.map(drop).unwrap_err(),
        store.renew(&key("k"), 1, Duration::from_secs(1), soon()).await.map(drop).unwrap_err(),
        store.list("", soon()).await.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error.kind, StoreErrorKind::Unsupported { .. }), "{error}");
    }
    assert_eq!(value(&store, "k").await.as_deref(), Some("a"));
}

#[tokio::test]
async fn keys_that_were_read_are_watched_by_asking_again() {
    let store = on(Kind::Go).await;
    let other = store.clone();
    store.put(put("p/a", "1"), soon()).await.unwrap();
    assert_eq!(value(&store, "p/a").await.as_deref(), Some("1"));
    let mut watch = store.watch("p/", soon()).await.unwrap();
    assert_eq!(value(&store, "p/b").await, None, "read after the watch began, and missing");
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.put(put("p/a", "2"), soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "+p/a=2");
    other.put(put("p/b", "1"), soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "+p/b=1");
    other.delete(&key("p/a"), None, soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, "-p/a");
}

/// META-19: what nobody expires is removed on the way out, unless somebody else wrote it since.
#[tokio::test]
async fn closing_removes_what_a_foreign_server_would_keep() {
    let store = on(Kind::Python).await;
    let lease = Duration::from_secs(10);
    for name in ["mooncake/rpc_meta/x", "mooncake/ram/x", "mooncake/ram/y"] {
        store.put(put(name, "ours").leased(lease), soon()).await.unwrap();
    }
    store.put(put("mooncake/ram/z", "for ever"), soon()).await.unwrap();
    let other = HttpStore::connect(HttpConfig::parse(&store.url()).unwrap(), soon()).await.unwrap();
    other.put(put("mooncake/ram/y", "theirs"), soon()).await.unwrap();
    assert_eq!(store.close(soon()).await.unwrap(), 2);
    assert_eq!(value(&other, "mooncake/rpc_meta/x").await, None);
    assert_eq!(value(&other, "mooncake/ram/x").await, None);
    assert_eq!(value(&other, "mooncake/ram/y").await.as_deref(), Some("theirs"));
    assert_eq!(value(&other, "mooncake/ram/z").await.as_deref(), Some("for ever"));
    assert_eq!(store.close(soon()).await.unwrap(), 0);
}

#[tokio::test]
async fn our_server_leaves_nothing_to_close() {
    let (_server, store) = pair().await;
    store.put(put("k", "v").leased(Duration::from_secs(10)), soon()).await.unwrap();
    assert_eq!(store.close(soon()).await.unwrap(), 0);
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
}

/// A proxy's page is not the store's statement that a key is missing.
#[tokio::test]
async fn answer_of_something_in_between_is_an_outage() {
    let (server, store) = pair().await;
    let address = server.local_addr();
    server.shutdown(soon()).await.unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ =
                stream.write_all(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        }
    });
    let error = store.get(&key("k"), soon()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

/// The reference's Python server from its wheel, if an interpreter that has it is named.
#[tokio::test]
async fn real_python_server_is_used_as_it_is() {
    let Some(server) = support::Python::start() else { return };
    let config = HttpConfig::parse(&server.url).unwrap().poll_interval(Duration::from_millis(50));
    let store = HttpStore::connect(config, soon()).await.unwrap();
    assert!(!store.info().leases);
    for text in ["{\"a\":1}", "{\"a\":1}", "{\"a\":2}"] {
        for name in ["mooncake/rpc_meta/dir/n\u{e9}", "mooncake/dir/n\u{e9}", "mooncake/ram/[2001:db8::1]:1"]
        {
            store.put(put(name, text), soon()).await.unwrap();
            assert_eq!(value(&store, name).await.as_deref(), Some(text));
        }
    }
    let mut watch = store.watch("mooncake/", soon()).await.unwrap();
    assert!(store.delete(&key("mooncake/dir/n\u{e9}"), None, soon()).await.unwrap());
    assert!(!store.delete(&key("mooncake/dir/n\u{e9}"), None, soon()).await.unwrap());
    assert_eq!(event(&mut watch).await, "-mooncake/dir/n\u{e9}");
    let limit = store.info().max_value.unwrap();
    store.put(put("k", &"x".repeat(limit)), soon()).await.unwrap();
    drop(server);
    assert!(store.get(&key("k"), soon()).await.unwrap_err().is_retryable());
}
