//! Where a listener listens, and what it makes of well-meaning and of slow connections.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use common::*;
use te_rpc::{
    Bind, FrameKind, Handlers, PortChoice, Reply, Retry, RpcClient, RpcError, RpcLimits, RpcListener,
    frame::encode, handler_fn, message::NotifyBody,
};
use te_segment::Endpoint;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};

const SHORT: Duration = Duration::from_millis(300);

fn probe_frame() -> Vec<u8> {
    encode(FrameKind::Probe, false, b"{}\n")
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A handler that says when it was called and waits to be let go.
fn gated() -> (Handlers, Arc<Notify>, Arc<Notify>) {
    let (entered, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enter, wait) = (Arc::clone(&entered), Arc::clone(&gate));
    let slow = handler_fn(move |_| {
        let (enter, wait) = (Arc::clone(&enter), Arc::clone(&wait));
        async move {
            enter.notify_one();
            wait.notified().await;
            Reply::Body(b"{}\n".to_vec())
        }
    });
    let handlers = Handlers { metadata: Some(Arc::new(slow)), ..handlers(&Inbox::default()) };
    (handlers, entered, gate)
}

/// SEC-04: a listener bound to the advertised address is not reachable by any other.
#[tokio::test]
async fn the_advertised_address_is_the_only_one_bound() {
    let free = listen().await.endpoint().port();
    let advertised = Endpoint::new("127.0.0.1".parse().unwrap(), free).unwrap();
    let listener = RpcListener::bind(Bind::advertised(&advertised)).await.unwrap();
    assert_eq!(listener.endpoint(), SocketAddr::from((Ipv4Addr::LOCALHOST, free)));
    let other = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), free)).await;
    assert_eq!(other.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn all_addresses_are_bound_when_asked_for() {
    let bind = Bind { host: "0.0.0.0".parse().unwrap(), port: PortChoice::Fixed(0) };
    let listener = RpcListener::bind(bind).await.unwrap();
    let port = listener.port();
    let _server = listener.serve(handlers(&Inbox::default()), RpcLimits::default());
    assert_serves((Ipv4Addr::new(127, 0, 0, 2), port).into()).await;
}

#[tokio::test]
async fn a_name_is_bound_where_it_resolves_to() {
    let bind = Bind { host: "localhost".parse().unwrap(), port: PortChoice::Fixed(0) };
    assert!(RpcListener::bind(bind).await.unwrap().endpoint().ip().is_loopback());
}

#[tokio::test]
async fn an_address_of_another_host_is_an_error_that_names_it() {
    let bind = Bind { host: "192.0.2.1".parse().unwrap(), port: PortChoice::Fixed(0) };
    let text = RpcListener::bind(bind).await.unwrap_err().to_string();
    assert!(text.starts_with("cannot listen on 192.0.2.1 port 0: "), "{text}");
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_names_it() {
    let taken = listen().await;
    let error = RpcListener::bind(loopback(PortChoice::Fixed(taken.port()))).await.unwrap_err();
    let RpcError::Bind { port, source, .. } = error else { panic!("{error}") };
    assert_eq!((port, source.kind()), (taken.port(), std::io::ErrorKind::AddrInUse));
}

#[tokio::test]
async fn a_free_port_comes_from_its_range() {
    let port = RpcListener::bind(loopback(PortChoice::default())).await.unwrap().port();
    assert!((15000..=17000).contains(&port), "{port}");
}

#[tokio::test]
async fn a_range_without_a_free_port_is_an_error() {
    let taken = listen().await;
    let (min, max) = (taken.port(), taken.port());
    let error = RpcListener::bind(loopback(PortChoice::Free { min, max })).await.unwrap_err();
    assert!(matches!(error, RpcError::NoFreePort { .. }), "{error}");
}

#[tokio::test]
async fn an_empty_range_is_an_error() {
    for (min, max) in [(2, 1), (0, 9)] {
        let error = RpcListener::bind(loopback(PortChoice::Free { min, max })).await.unwrap_err();
        assert!(matches!(error, RpcError::PortRange { .. }), "{error}");
        assert_eq!(error.retry(), Retry::Pointless);
    }
}

#[tokio::test]
async fn a_fixed_port_can_be_bound_again_right_after_shutdown() {
    let server = serve(RpcLimits::default()).await;
    let port = server.endpoint().port();
    // The listener closes first, so its side of this connection lingers in the kernel.
    exchange(server.endpoint(), &probe_frame()).await;
    assert_eq!(server.shutdown(soon()).await, 0);
    RpcListener::bind(loopback(PortChoice::Fixed(port))).await.unwrap();
}

#[tokio::test]
async fn a_port_once_found_free_can_be_asked_for_by_the_next_life() {
    let found = RpcListener::bind(loopback(PortChoice::default())).await.unwrap();
    let server = found.serve(Handlers::default(), RpcLimits::default());
    let port = server.endpoint().port();
    exchange(server.endpoint(), &probe_frame()).await;
    assert_eq!(server.shutdown(soon()).await, 0);
    RpcListener::bind(loopback(PortChoice::Fixed(port))).await.unwrap();
}

#[tokio::test]
async fn a_request_sent_byte_by_byte_is_answered() {
    let server = serve(RpcLimits::default()).await;
    let mut stream = connect(server.endpoint()).await;
    for byte in probe_frame() {
        stream.write_all(&[byte]).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    let (reply, end) = read_all(&mut stream).await;
    assert_eq!((&reply[8..], end), (&b"\x03{\"status\":\"success\"}\n"[..], End::Closed));
}

#[tokio::test]
async fn a_client_that_closes_its_side_first_is_answered() {
    let server = serve(RpcLimits::default()).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&probe_frame()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await.0.len(), 30);
}

/// The reply is followed by an end of stream although this side stays open, and then the connection goes.
#[tokio::test]
async fn a_client_that_never_closes_is_let_go() {
    let server = serve(RpcLimits { linger: SHORT, ..RpcLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&probe_frame()).await.unwrap();
    assert_eq!(read_all(&mut stream).await.0.len(), 30);
    eventually(|| server.connections() == 0).await;
}

#[tokio::test]
async fn a_request_without_a_handler_is_answered_with_null() {
    let server = listen().await.serve(Handlers::default(), RpcLimits::default());
    for kind in FrameKind::ALL {
        let (reply, _) = exchange(server.endpoint(), &encode(kind, false, b"{}")).await;
        assert_eq!(reply, encode(kind, false, b"null\n"));
    }
}

#[tokio::test]
async fn a_body_above_a_raised_limit_is_checked_and_delivered() {
    let inbox = Inbox::default();
    let limits = RpcLimits { max_frame_strangers: 8 << 20, ..RpcLimits::default() };
    let server = listen().await.serve(handlers(&inbox), limits);
    let note = NotifyBody::new("large", "x".repeat(4 << 20));
    let to = server.endpoint().try_into().unwrap();
    RpcClient::default().notify(&to, &note, soon()).await.unwrap();
    assert_eq!(*inbox.lock().unwrap(), [note]);
}

#[tokio::test]
async fn a_request_over_the_limit_is_closed() {
    let server = serve(RpcLimits::default()).await;
    let note = NotifyBody::new("large", "x".repeat(1 << 20));
    let error = RpcClient::default().notify(&server.endpoint().try_into().unwrap(), &note, soon()).await;
    assert_eq!(error.unwrap_err().attempts().len(), 1);
}

#[tokio::test]
async fn a_slow_handler_delays_no_other_request() {
    let (handlers, entered, gate) = gated();
    let server = listen().await.serve(handlers, RpcLimits { request: PATIENCE, ..RpcLimits::default() });
    let to = server.endpoint();
    let slow = tokio::spawn(async move { exchange(to, &encode(FrameKind::Metadata, false, b"{}")).await });
    entered.notified().await;
    assert_serves(to).await;
    assert!(!slow.is_finished());
    gate.notify_one();
    assert_eq!(slow.await.unwrap().0, encode(FrameKind::Metadata, false, b"{}\n"));
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_cut() {
    let (handlers, ..) = gated();
    let server = listen().await.serve(handlers, RpcLimits { request: SHORT, ..RpcLimits::default() });
    let (reply, end) = exchange(server.endpoint(), &encode(FrameKind::Metadata, false, b"{}")).await;
    assert_eq!((reply, end), (Vec::new(), End::Closed));
}

#[tokio::test]
async fn a_panic_in_a_handler_closes_one_connection() {
    let broken = handler_fn(|_| async { panic!("on purpose") });
    let handlers = Handlers { metadata: Some(Arc::new(broken)), ..handlers(&Inbox::default()) };
    let server = listen().await.serve(handlers, RpcLimits::default());
    assert_eq!(exchange(server.endpoint(), &encode(FrameKind::Metadata, false, b"{}")).await.0, b"");
    assert_serves(server.endpoint()).await;
    eventually(|| server.connections() == 0).await;
}

#[tokio::test]
async fn shutdown_waits_for_a_running_request() {
    let (handlers, entered, gate) = gated();
    let server = listen().await.serve(handlers, RpcLimits { request: PATIENCE, ..RpcLimits::default() });
    let to = server.endpoint();
    let mut silent = connect(to).await;
    let slow = tokio::spawn(async move { exchange(to, &encode(FrameKind::Metadata, false, b"{}")).await });
    entered.notified().await;
    let down = tokio::spawn(server.shutdown(soon()));
    // The silent connection goes at once, and with it the port.
    assert_eq!(read_all(&mut silent).await.0, b"");
    assert!(!down.is_finished());
    gate.notify_one();
    assert_eq!(timeout(PATIENCE, down).await.unwrap().unwrap(), 0);
    assert_eq!(slow.await.unwrap().0, encode(FrameKind::Metadata, false, b"{}\n"));
}

#[tokio::test]
async fn shutdown_cuts_a_request_at_its_deadline_and_says_so() {
    let (handlers, entered, _gate) = gated();
    let server = listen().await.serve(handlers, RpcLimits { request: PATIENCE, ..RpcLimits::default() });
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&encode(FrameKind::Metadata, false, b"{}")).await.unwrap();
    entered.notified().await;
    assert_eq!(server.shutdown(Instant::now() + SHORT).await, 1);
    assert_eq!(read_all(&mut stream).await.0, b"");
}

#[tokio::test]
async fn dropping_the_server_closes_everything() {
    let server = serve(RpcLimits::default()).await;
    let to = server.endpoint();
    let mut stream = connect(to).await;
    eventually(|| server.connections() == 1).await;
    drop(server);
    assert_eq!(read_all(&mut stream).await.0, b"");
    assert!(TcpStream::connect(to).await.is_err());
}
