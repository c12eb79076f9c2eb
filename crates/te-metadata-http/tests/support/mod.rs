//! What the tests share.
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use te_metadata::{Key, MetadataStore as _, PutRequest, WatchEvent, WatchStream};
use te_metadata_http::{
    HttpConfig, HttpStore,
    server::{MetadataServer, ServerBuilder},
};

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text)
}

pub(crate) fn put(text: &str, value: &str) -> PutRequest {
    PutRequest::new(key(text), value.to_owned())
}

/// A server on a free port of the loopback address.
pub(crate) fn builder() -> ServerBuilder {
    MetadataServer::builder().bind(SocketAddr::from(([127, 0, 0, 1], 0)))
}

pub(crate) async fn server() -> MetadataServer {
    builder().start().await.unwrap()
}

pub(crate) async fn connect(url: &str) -> HttpStore {
    HttpStore::connect(HttpConfig::parse(url).unwrap(), soon()).await.unwrap()
}

/// A server with a store that has found out what it is.
pub(crate) async fn pair() -> (MetadataServer, HttpStore) {
    let server = server().await;
    let store = connect(&server.url()).await;
    (server, store)
}

pub(crate) async fn value(store: &HttpStore, text: &str) -> Option<String> {
    store.get(&key(text), soon()).await.unwrap().map(|entry| entry.value)
}

/// The next event of a watch, in short: `+key=value`, `-key`, `resync`.
pub(crate) async fn event(watch: &mut WatchStream) -> String {
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("an event in time");
    match next.expect("the watch goes on").expect("the watch works") {
        WatchEvent::Put { key, entry } => format!("+{key}={}", entry.value),
        WatchEvent::Delete { key, .. } => format!("-{key}"),
        WatchEvent::Resync => "resync".to_owned(),
        other => panic!("unknown event {other:?}"),
    }
}

/// A server in a process of its own.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    /// Starts the example `metad`, which cargo builds together with the tests.
    pub(crate) fn start(bind: &str, journal: Option<&Path>) -> Self {
        let mut command = Command::new(program());
        command
            .arg(bind)
            .args(journal)
            .stdout(Stdio::piped())
            .env_remove("TE_METAD_TOKEN")
            .env("RUST_LOG", "warn");
        Self::of(command)
    }

    /// Any program that says its URL in its first line.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the server's program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("http"), "the server did not start: {line:?}");
        Self { child, url: line.trim().to_owned() }
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").trim_end_matches("/metadata").to_owned()
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Stops it from answering while its connections stay up.
    pub(crate) fn freeze(&self) {
        te_testkit::freeze(self.pid()).unwrap();
    }

    pub(crate) fn thaw(&self) {
        te_testkit::thaw(self.pid()).unwrap();
    }

    /// Kill -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop; whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::INT).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended already, mostly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The reference's Python server from its wheel, killed when dropped.
pub(crate) struct Python {
    child: Child,
    pub(crate) url: String,
}

impl Python {
    /// Starts it, if an interpreter that has it is named; says loudly if not.
    pub(crate) fn start() -> Option<Self> {
        let Ok(python) = std::env::var("TE_INTEROP_PYTHON") else {
            eprintln!("SKIPPED: TE_INTEROP_PYTHON names no interpreter with the reference's wheel");
            return None;
        };
        let port = free_port();
        let mut child = Command::new(python)
            .args(["-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not start");
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(Self { child, url: format!("http://127.0.0.1:{port}/metadata") })
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/metad");
    assert!(program.is_file(), "{} is missing: build the examples", program.display());
    program
}

/// A free port. Somebody could take it before it is used; that fails loudly.
pub(crate) fn free_port() -> u16 {
    te_testkit::free_port().unwrap()
}

/// One request without any client of ours: status, head and body.
pub(crate) async fn raw(address: &str, request: &[u8]) -> (u16, String, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

/// Gets a page over a connection that stays open.
pub(crate) async fn get_over(connection: &mut tokio::net::TcpStream, target: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let request = format!("GET {target} HTTP/1.1\r\nHost: te\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    connection.read_exact(&mut body).await.unwrap();
    String::from_utf8(body).unwrap()
}

/// One request with the usual parts around it, over a connection of its own.
pub(crate) async fn ask(
    address: &str,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    raw(address, request.as_bytes()).await
}
