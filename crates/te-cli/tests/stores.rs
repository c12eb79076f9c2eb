//! `te metad`, and engines and commands that use it.
#![cfg(all(feature = "tcp", feature = "http"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure fails the test")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Served, fails, json, run, succeeds, te};
use serde_json::Value;

/// A running `te metad --json`.
struct Metad {
    child: Child,
    url: String,
}

impl Metad {
    fn start(arguments: &[&str]) -> Self {
        let mut child = te()
            .args(["metad", "--json"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        Self { child, url: hello["url"].as_str().unwrap().to_owned() }
    }

    fn anywhere() -> Self {
        Self::start(&["--listen", "127.0.0.1:0"])
    }

    fn address(&self) -> &str {
        let (_, rest) = self.url.split_once("://").unwrap();
        rest.strip_suffix("/metadata").unwrap()
    }

    /// The exit code after SIGTERM.
    fn stop(mut self) -> Option<i32> {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap().code()
    }

    fn serve(&self, name: &str) -> Served {
        let set = ["--set", "advertise=127.0.0.1", "--set", "metadata.lease=4s"];
        Served::start_as(name, &[["--metadata", &self.url].as_slice(), &set].concat())
    }

    fn ls(&self, arguments: &[&str]) -> Vec<Value> {
        let found = json(&[["ls", "--metadata", &self.url].as_slice(), arguments].concat());
        found.as_array().unwrap().clone()
    }

    fn states(&self) -> Vec<(String, String)> {
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        self.ls(&[]).iter().map(|one| (word(&one["segment"]), word(&one["state"]))).collect()
    }

    /// A put of a reference engine.
    fn put(&self, key: &str, value: &str) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        let length = value.len();
        let key = key.replace('/', "%2F");
        write!(
            stream,
            "PUT /metadata?key={key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{value}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Metad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair(name: &str, state: &str) -> (String, String) {
    (name.to_owned(), state.to_owned())
}

#[test]
fn commands_find_an_engine_by_its_name() {
    let store = Metad::anywhere();
    let served = store.serve("prefill-3");
    assert_eq!(served.segment, "prefill-3");
    let shown = json(&["show", "prefill-3", "--metadata", &store.url]);
    assert_eq!(shown["buffers"][0]["length"], 1 << 20);
    assert_eq!(json(&["probe", "prefill-3", "--metadata", &store.url])["ok"], true);
    json(&["notify", "prefill-3", "layer", "17", "--metadata", &store.url]);
    assert_eq!(served.next()["notify"]["message"], "17");
    // Those commands came and went, and left nothing behind.
    assert_eq!(store.states(), [pair("prefill-3", "alive")]);
}

#[test]
fn ls_shows_who_is_there() {
    let store = Metad::anywhere();
    let _served = store.serve("prefill-3");
    let text = succeeds(&["ls", "--metadata", &store.url]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    let head: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(head, ["SEGMENT", "STATE", "ENDPOINT", "BUFFERS", "MEMORY", "TRANSPORTS", "LEASE"]);
    let row: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3], row[4], row[5]), ("prefill-3", "alive", "1", "1", "MiB"), "{text}");
    assert!(row[2].starts_with("127.0.0.1:") && row.contains(&"tcp"), "{text}");
    // Of a lease of four seconds.
    assert!((0..=4).any(|left| lines[1].ends_with(&format!(" {left} s"))), "{text}");
    let lease = store.ls(&[])[0]["lease_ms"].as_u64().unwrap();
    assert!(lease <= 4_000, "{lease}");
    assert!(store.ls(&["--stale"]).is_empty());
}

/// Who looks without a cluster id is told how much there is elsewhere, and sees none of it as a name of its own.
#[test]
fn names_of_other_clusters_are_counted_and_not_shown() {
    let store = Metad::anywhere();
    let _plain = store.serve("rack-1/plain");
    let set = ["--set", "advertise=127.0.0.1", "--set", "metadata.cluster=blue"];
    let arguments = [["--metadata", &store.url].as_slice(), &set].concat();
    let (_one, _two) = (Served::start_as("node", &arguments), Served::start_as("rack-1/node", &arguments));
    assert_eq!(store.states(), [pair("rack-1/plain", "alive")]);
    let shown = run(&["ls", "--metadata", &store.url]);
    let (text, note) = (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(note.contains("2 more names are in other clusters: blue (2);"), "{note}");
    let blue = store.ls(&["--set", "metadata.cluster=blue"]);
    let names: Vec<_> = blue.iter().map(|one| one["segment"].as_str().unwrap()).collect();
    assert_eq!(names, ["node", "rack-1/node"]);
}

/// META-19: what a killed engine published is gone within its lease; until then its state is said.
#[test]
fn a_killed_engine_disappears_within_its_lease() {
    let store = Metad::anywhere();
    let (killed, _alive) = (store.serve("prefill-3"), store.serve("decode-7"));
    assert_eq!(store.states(), [pair("decode-7", "alive"), pair("prefill-3", "alive")]);
    killed.kill();
    let began = Instant::now();
    loop {
        let states = store.states();
        if states == [pair("decode-7", "alive")] {
            break;
        }
        assert_eq!(states, [pair("decode-7", "alive"), pair("prefill-3", "refused")]);
        assert!(began.elapsed() < Duration::from_secs(30), "{states:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // One that asks nobody has not noticed the death of the other.
    assert_eq!(store.serve("prefill-3").segment, "prefill-3");
}

/// A stopped engine cannot renew; whoever asks for its name waits for its lease, and then has it.
#[test]
fn a_stopped_engine_is_silent_until_its_lease_ends() {
    let store = Metad::anywhere();
    let set = ["--set", "advertise=127.0.0.1", "--set", "metadata.lease=20s"];
    let stopped = Served::start_as("prefill-3", &[["--metadata", &store.url].as_slice(), &set].concat());
    stopped.freeze();
    let found = store.ls(&["--stale", "--set", "control.connect=300ms"]);
    assert_eq!((&found[0]["segment"], &found[0]["state"]), (&"prefill-3".into(), &"silent".into()));
    stopped.thaw();
    assert_eq!(store.states(), [pair("prefill-3", "alive")]);
}

/// FO-13: who looks at a segment whose engine is silent or gone is told so, with the reason.
#[test]
fn show_says_whether_the_engine_is_there() {
    let store = Metad::anywhere();
    let set = ["--set", "advertise=127.0.0.1", "--set", "metadata.lease=60s"];
    let served = Served::start_as("prefill-3", &[["--metadata", &store.url].as_slice(), &set].concat());
    let peer = || {
        let shown = json(&["show", "prefill-3", "--metadata", &store.url]);
        assert_eq!(shown["buffers"].as_array().unwrap().len(), 1);
        (shown["peer"]["life"].clone(), shown["peer"]["cause"].clone())
    };
    served.signal("-STOP");
    assert_eq!(peer(), ("suspect".into(), "it did not answer in time".into()));
    served.signal("-CONT");
    served.kill();
    assert_eq!(peer(), ("lost".into(), "its control port refused the connection".into()));
}

#[test]
fn records_of_reference_engines_are_listed_as_far_as_they_go() {
    let store = Metad::anywhere();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    store.put(
        "mooncake/ram/ghost",
        r#"{"name":"ghost","protocol":"tcp","tcp_data_port":16001,"timestamp":"2026-01-02 03:04:05","devices":[],"buffers":[{"name":"cpu:0","addr":4096,"length":8192}],"priority_matrix":null}"#,
    );
    store
        .put("mooncake/rpc_meta/ghost", &format!(r#"{{"ip_or_host_name":"127.0.0.1","rpc_port":{closed}}}"#));
    store.put("mooncake/ram/torn", "{");
    let found = store.ls(&["--stale"]);
    assert_eq!((&found[0]["segment"], &found[0]["state"]), (&"ghost".into(), &"refused".into()), "{found:?}");
    assert_eq!((&found[0]["engine"], &found[0]["memory"][0]), (&"reference".into(), &"8 KiB cpu:0".into()));
    assert_eq!((&found[1]["segment"], &found[1]["state"]), (&"torn".into(), &"unreadable".into()));
    let text = succeeds(&["ls", "--metadata", &store.url]);
    assert!(text.lines().last().unwrap().split_whitespace().skip(2).all(|cell| cell == "-"), "{text}");
    // Nothing ends what a reference engine has written.
    assert!(found.iter().all(|one| one["lease_ms"].is_null()), "{found:?}");
}

#[test]
fn metad_stops_when_it_is_asked_to() {
    let store = Metad::anywhere();
    let _served = store.serve("prefill-3");
    let began = Instant::now();
    assert_eq!(store.stop(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn metad_keeps_what_it_was_told_to_keep() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("metad.journal");
    let arguments = ["--listen", "127.0.0.1:0", "--persist", journal.to_str().unwrap()];
    let store = Metad::start(&arguments);
    store.put("mooncake/ram/torn", "{");
    assert_eq!(store.stop(), Some(0));
    assert_eq!(Metad::start(&arguments).states(), [pair("torn", "unreadable")]);
}

#[test]
fn metad_serves_only_who_has_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "hunter2\n").unwrap();
    let store = Metad::start(&["--listen", "127.0.0.1:0", "--token-file", file.to_str().unwrap()]);
    let (code, error) = fails(&["ls", "--metadata", &store.url]);
    assert_eq!(code, 1, "{error}");
    assert!(store.ls(&["--set", "metadata.token=hunter2"]).is_empty());
    let output =
        te().args(["ls", "--metadata", &store.url]).env("TE_METADATA_TOKEN", "hunter3").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !error.contains("hunter"), "{error}");
}

#[test]
fn metad_says_why_it_cannot_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, error) = fails(&["metad", "--listen", &address]);
    assert_eq!(code, 1);
    assert!(error.starts_with(&format!("te: cannot listen on {address}: ")), "{error}");
    assert_eq!(fails(&["metad", "--token-file", "/nonexistent"]).0, 1);
    assert_eq!(fails(&["metad", "--tls-cert", "x"]).0, 2);
    assert_eq!(run(&["metad", "--listen", "localhost"]).status.code(), Some(2));
}

/// SEC-04: without TLS on the other side, or with an unknown authority, nothing is said.
#[cfg(feature = "tls")]
#[test]
fn metad_serves_https_to_who_trusts_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let store = Metad::start(&["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key]);
    assert!(store.url.starts_with("https://"), "{}", store.url);
    assert_eq!(fails(&["ls", "--metadata", &store.url]).0, 1);
    let trusted = format!("metadata.ca_file={cert}");
    assert!(store.ls(&["--set", &trusted]).is_empty());
    let missing = fails(&["ls", "--metadata", &store.url, "--set", "metadata.ca_file=/nonexistent"]);
    assert!(
        missing.1.contains("metadata.ca_file = /nonexistent from command line cannot be read"),
        "{missing:?}"
    );
}
