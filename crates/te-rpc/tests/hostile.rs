//! Connections that are silent, slow, too many or no peers at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use common::*;
use te_rpc::{FrameKind, Handlers, Reply, RpcClient, RpcLimits, RpcServer, frame::encode, handler_fn};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{sleep, timeout},
};

const SHORT: Duration = Duration::from_millis(300);

/// Bytes that look random and are the same in every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// The start of a TLS 1.2 or 1.3 session, as any client of that protocol opens it.
fn tls_hello() -> Vec<u8> {
    let body = noise(512);
    let mut hello = vec![0x16, 3, 1, 2, 4, 1, 0, 2, 0, 3, 3];
    hello.extend(body);
    hello
}

fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("noise", noise(64 << 10)),
        ("HTTP", b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n".to_vec()),
        ("TLS", tls_hello()),
        ("length zero", vec![0; 8]),
        ("largest length", vec![0xff; 8]),
        ("half a frame, then the end", [&100_u64.to_le_bytes()[..], b"\x01{\"name\""].concat()),
        ("a kind byte above the last", [&3_u64.to_le_bytes()[..], b"\x04{}"].concat()),
        ("white space for a kind", [&3_u64.to_le_bytes()[..], b"\x09{}"].concat()),
        ("a body that is not JSON", encode(FrameKind::Metadata, false, b"{not json")),
        ("a body that is not UTF-8", encode(FrameKind::Probe, false, b"\"\xff\xfe\"")),
        ("a body nested 500,000 deep", encode(FrameKind::Probe, false, &b"[".repeat(500_000))),
    ]
}

async fn send_and_end(to: SocketAddr, bytes: &[u8]) -> (Vec<u8>, End) {
    let mut stream = connect(to).await;
    stream.write_all(bytes).await.ok();
    stream.shutdown().await.ok();
    read_all(&mut stream).await
}

#[tokio::test]
async fn garbage_is_closed_without_a_reply_and_the_listener_goes_on() {
    let server = serve(RpcLimits::default()).await;
    for (what, bytes) in garbage() {
        assert_eq!(send_and_end(server.endpoint(), &bytes).await.0, b"", "{what}");
        assert_serves(server.endpoint()).await;
    }
    eventually(|| server.connections() == 0).await;
}

/// Collects what a log at the level of an operator would show.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs on one thread, so that the subscriber of this test sees all of the listener and nothing else.
async fn log_of_garbage(level: tracing_subscriber::filter::LevelFilter) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    let server = serve(RpcLimits::default()).await;
    for (_, bytes) in garbage() {
        send_and_end(server.endpoint(), &bytes).await;
    }
    eventually(|| server.connections() == 0).await;
    String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
}

#[tokio::test]
async fn garbage_leaves_nothing_in_a_log_but_debug_events() {
    use tracing_subscriber::filter::LevelFilter;
    assert_eq!(log_of_garbage(LevelFilter::INFO).await, "");
    let debug = log_of_garbage(LevelFilter::DEBUG).await;
    assert_eq!(
        debug.matches("DEBUG te::rpc: connection closed without a reply").count(),
        garbage().len(),
        "{debug}"
    );
}

#[tokio::test]
async fn a_silent_connection_is_closed_in_time() {
    let server = serve(RpcLimits { silent: SHORT, request: 10 * PATIENCE, ..RpcLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    assert_eq!(read_all(&mut stream).await, (Vec::new(), End::Closed));
}

#[tokio::test]
async fn half_a_request_is_closed_in_time() {
    let server = serve(RpcLimits { request: SHORT, silent: 10 * PATIENCE, ..RpcLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&encode(FrameKind::Probe, false, b"{}")[..10]).await.unwrap();
    assert_eq!(read_all(&mut stream).await, (Vec::new(), End::Closed));
}

/// The time counts from the first byte; further bytes do not start it anew.
#[tokio::test]
async fn a_trickled_request_is_closed_in_time() {
    let server = serve(RpcLimits { request: SHORT, ..RpcLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    let started = Instant::now();
    let frame = encode(FrameKind::Metadata, false, &b" ".repeat(1000));
    for byte in frame.chunks(1) {
        if stream.write_all(byte).await.is_err() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    // Sending it all would have taken 20 s.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// A reply that does not fit the socket buffers.
async fn with_large_reply(limits: RpcLimits) -> RpcServer {
    let large = handler_fn(|_| async { Reply::Body(vec![b' '; 32 << 20]) });
    let handlers = Handlers { metadata: Some(Arc::new(large)), ..handlers(&Inbox::default()) };
    listen().await.serve(handlers, limits)
}

async fn unread_reply(to: SocketAddr) -> TcpStream {
    let mut stream = connect(to).await;
    stream.write_all(&encode(FrameKind::Metadata, false, b"{}")).await.unwrap();
    stream.readable().await.unwrap();
    stream
}

#[tokio::test]
async fn a_reply_that_nobody_reads_is_given_up_in_time() {
    let server = with_large_reply(RpcLimits { request: SHORT, ..RpcLimits::default() }).await;
    let _stream = unread_reply(server.endpoint()).await;
    eventually(|| server.connections() == 0).await;
}

#[tokio::test]
async fn replies_that_nobody_reads_do_not_lock_newcomers_out() {
    let limits = RpcLimits { request: PATIENCE, max_connections: 2, ..RpcLimits::default() };
    let server = with_large_reply(limits).await;
    let _unread = [unread_reply(server.endpoint()).await, unread_reply(server.endpoint()).await];
    assert_serves(server.endpoint()).await;
}

#[tokio::test]
async fn replies_that_nobody_reads_hold_bounded_memory() {
    let limits = RpcLimits { request: PATIENCE, max_buffered: 40 << 20, ..RpcLimits::default() };
    let server = with_large_reply(limits).await;
    let _unread = unread_reply(server.endpoint()).await;
    let (second, _) = exchange(server.endpoint(), &encode(FrameKind::Metadata, false, b"{}")).await;
    assert_eq!(second, b"");
    assert_serves(server.endpoint()).await;
}

#[tokio::test]
async fn unfinished_requests_hold_bounded_memory() {
    let limits = RpcLimits { request: PATIENCE, max_buffered: 1 << 20, ..RpcLimits::default() };
    let server = serve(limits).await;
    let most = &encode(FrameKind::Metadata, false, &b" ".repeat((1 << 20) - 1))[..1_000_000];
    let mut both = [connect(server.endpoint()).await, connect(server.endpoint()).await];
    eventually(|| server.connections() == 2).await;
    for stream in &mut both {
        // Whichever comes second finds too little left.
        stream.write_all(most).await.ok();
    }
    eventually(|| server.connections() == 1).await;
    assert_serves(server.endpoint()).await;
}

#[tokio::test]
async fn beyond_the_limit_the_oldest_silent_connection_goes() {
    let limits = RpcLimits { max_connections: 3, silent: PATIENCE, ..RpcLimits::default() };
    let server = serve(limits).await;
    let mut silent = Vec::new();
    for count in 1..=3 {
        silent.push(connect(server.endpoint()).await);
        eventually(|| server.connections() == count).await;
    }
    let _newcomer = connect(server.endpoint()).await;
    assert_eq!(read_all(&mut silent[0]).await.0, b"");
    for older in &mut silent[1..] {
        let read = timeout(SHORT, older.readable()).await;
        assert!(read.is_err(), "a younger connection was closed");
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn half_open_connections_at_the_limit_do_not_lock_newcomers_out() {
    let limits = RpcLimits { max_connections: 8, request: PATIENCE, ..RpcLimits::default() };
    let server = serve(limits).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut stream = connect(server.endpoint()).await;
        stream.write_all(&[0x10, 0, 0]).await.unwrap();
        held.push(stream);
        assert_serves(server.endpoint()).await;
        assert!(server.connections() <= 8);
    }
}

/// A thousand connections that say nothing or half of something, while peers ask at the same time.
#[tokio::test]
async fn a_thousand_silent_and_half_open_connections_delay_no_probe() {
    raise_descriptor_limit();
    let limits = RpcLimits { silent: PATIENCE, request: PATIENCE, ..RpcLimits::default() };
    let server = serve(limits).await;
    let half = encode(FrameKind::Metadata, false, b"{\"name\":\"never finished\"}");
    let mut held = Vec::new();
    for index in 0..1000 {
        let mut stream = connect(server.endpoint()).await;
        if index % 2 == 0 {
            stream.write_all(&half[..3 + index % 20]).await.unwrap();
        }
        held.push(stream);
    }
    eventually(|| server.connections() == 1000).await;

    let to = server.endpoint().try_into().unwrap();
    let client = RpcClient::default();
    let probes: Vec<_> = (0..50)
        .map(|_| {
            let (client, to): (RpcClient, te_segment::Endpoint) = (client.clone(), Clone::clone(&to));
            tokio::spawn(async move {
                let started = Instant::now();
                client.probe(&to, started + PATIENCE).await.map(|reply| (reply, started.elapsed()))
            })
        })
        .collect();
    for probe in probes {
        let (reply, took) = probe.await.unwrap().unwrap();
        assert!(reply.is_success());
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    assert!(server.connections() >= 1000);
}
