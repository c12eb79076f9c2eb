//! Engines over an HTTP server that knows no leases: what they leave behind there.
#![cfg(all(feature = "tcp", feature = "http"))]
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use support::{named, read_across, soon, stop};
use te::{Deadline, ErrorKind, Result, blocking};

/// What the server does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The first deletion of each key is answered 503.
    RefusesFirstDeletions,
    /// Descriptors are too large for it.
    RefusesDescriptors,
}

#[derive(Default)]
struct Contents {
    values: BTreeMap<String, Vec<u8>>,
    refused: Vec<String>,
}

/// A server with the three requests of the reference engine, and nothing else.
struct Foreign {
    url: String,
    contents: Arc<Mutex<Contents>>,
}

impl Foreign {
    fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/metadata", listener.local_addr().unwrap());
        let contents = Arc::new(Mutex::new(Contents::default()));
        let shared = contents.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || while serve(fault, &stream, &shared).is_some() {});
            }
        });
        Self { url, contents }
    }

    fn keys(&self) -> Vec<String> {
        self.contents.lock().unwrap().values.keys().cloned().collect()
    }

    fn build(&self) -> Result<blocking::Engine> {
        blocking::build(named("node").metadata(&self.url))
    }
}

/// Answers one request; nothing when the connection is closed.
fn serve(fault: Fault, stream: &TcpStream, contents: &Mutex<Contents>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split(' ');
    let (method, key) = (words.next()?.to_owned(), words.next()?.split_once("key=")?.1.to_owned());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim().to_lowercase() {
            end if end.is_empty() => break,
            header => {
                if let Some(text) = header.strip_prefix("content-length: ") {
                    length = text.parse().ok()?;
                }
            }
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut held = contents.lock().ok()?;
    let (status, answer) = answer(fault, &method, key, body, &mut held);
    drop(held);
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", answer.len());
    let mut out = stream;
    out.write_all(&[head.into_bytes(), answer].concat()).ok()
}

fn answer(fault: Fault, method: &str, key: String, body: Vec<u8>, contents: &mut Contents) -> (u16, Vec<u8>) {
    match method {
        "GET" => contents.values.get(&key).map_or((404, vec![]), |value| (200, value.clone())),
        "PUT" if fault == Fault::RefusesDescriptors && !key.contains("rpc_meta") => (413, vec![]),
        "PUT" => {
            contents.values.insert(key, body);
            (200, vec![])
        }
        "DELETE" if fault == Fault::RefusesFirstDeletions && !contents.refused.contains(&key) => {
            contents.refused.push(key);
            (503, vec![])
        }
        "DELETE" => (if contents.values.remove(&key).is_some() { 200 } else { 404 }, vec![]),
        _ => (405, vec![]),
    }
}

/// META-19: nobody expires these keys, so the engine removes them.
#[test]
fn an_engine_that_shuts_down_leaves_nothing_on_a_server_without_leases() -> Result<()> {
    let store = Foreign::start(Fault::None);
    let owner = store.build()?;
    let other = blocking::build(named("other").metadata(&store.url))?;
    read_across(&owner, &other)?;
    assert_eq!(store.keys().len(), 4);
    stop(&other);
    stop(&owner);
    assert_eq!(store.keys(), [""; 0]);
    Ok(())
}

/// META-19: what could not be removed is tried again on the way out, and said.
#[test]
fn a_refused_removal_is_repeated_when_the_engine_ends() {
    let store = Foreign::start(Fault::RefusesFirstDeletions);
    let engine = store.build().unwrap();
    let report = engine.shutdown(Deadline::after_secs(5));
    assert_eq!(store.keys(), [""; 0]);
    assert!(report.left.iter().any(|left| left.contains("may still be published")), "{report:?}");
}

/// META-19: half a publication of an engine that could not start would stay for ever.
#[test]
fn an_engine_that_cannot_start_leaves_nothing_on_a_server_without_leases() {
    let store = Foreign::start(Fault::RefusesDescriptors);
    assert_eq!(store.build().unwrap_err().kind(), ErrorKind::LimitReached);
    assert_eq!(store.keys(), [""; 0]);
}

/// A list is more than such a server can; that is said by name.
#[test]
fn a_server_that_cannot_list_is_an_error_that_says_so() {
    let store = Foreign::start(Fault::None);
    let mut settings = te::settings::Settings::default();
    settings.set("metadata", &store.url, te::settings::Origin::Builder).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(te::metadata::list(&settings, soon())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MetadataUnavailable);
    assert!(error.cause().contains("list"), "{error}");
}
