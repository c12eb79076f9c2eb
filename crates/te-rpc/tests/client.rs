//! Calls to peers that answer badly or not at all: every one ends in time with an error that says what happened.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use common::*;
use te_rpc::{
    Cause, FrameKind, Handlers, Reply, Retry, RpcClient, RpcError, RpcLimits, Stage,
    frame::{MAX_FRAME, encode},
    handler_fn,
    message::{ConnectionBody, NotifyBody, notify_refused},
};
use te_segment::Endpoint;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

const SHORT: Duration = Duration::from_millis(300);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A peer that takes one request of a probe and then does something of its own.
async fn peer<F, Fut>(act: F) -> Endpoint
where
    F: FnOnce(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
        act(stream).await;
    });
    address.try_into().unwrap()
}

async fn answering(bytes: impl Into<Vec<u8>>) -> Endpoint {
    let bytes = bytes.into();
    peer(|mut stream| async move { stream.write_all(&bytes).await.unwrap() }).await
}

async fn failing_probe(to: &Endpoint) -> RpcError {
    RpcClient::default().probe(to, soon()).await.unwrap_err()
}

fn only_attempt(error: &RpcError) -> (Stage, &Cause) {
    let [attempt] = error.attempts() else { panic!("not one attempt: {error}") };
    (attempt.stage, &attempt.cause)
}

#[tokio::test]
async fn a_notification_is_delivered_once() {
    let inbox = Inbox::default();
    let server = listen().await.serve(handlers(&inbox), RpcLimits::default());
    let note = NotifyBody::new("batch", "17");
    RpcClient::default().notify(&server.endpoint().try_into().unwrap(), &note, soon()).await.unwrap();
    assert_eq!(*inbox.lock().unwrap(), [note]);
}

#[tokio::test]
async fn a_refused_notification_is_an_error_of_its_own() {
    let refuse = handler_fn(|_| async { Reply::Body(notify_refused()) });
    let handlers = Handlers { notify: Some(Arc::new(refuse)), ..Handlers::default() };
    let server = listen().await.serve(handlers, RpcLimits::default());
    let to = server.endpoint().try_into().unwrap();
    let error = RpcClient::default().notify(&to, &NotifyBody::new("n", "m"), soon()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("notification refused by {to}"));
}

#[tokio::test]
async fn a_refused_connection_is_a_reply() {
    let refuse = handler_fn(|_| async { Reply::Body(ConnectionBody::refusal("not today").encode()) });
    let handlers = Handlers { connection: Some(Arc::new(refuse)), ..Handlers::default() };
    let server = listen().await.serve(handlers, RpcLimits::default());
    let to = server.endpoint().try_into().unwrap();
    let reply = RpcClient::default().connect(&to, &ConnectionBody::default(), soon()).await.unwrap();
    assert_eq!(reply.rejection(), Some("not today"));
}

/// TCP-05: a peer that accepts but never answers.
#[tokio::test]
async fn a_peer_that_never_answers_fails_at_the_deadline_and_is_named() {
    let to = peer(|stream| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let started = Instant::now();
    let error = RpcClient::default().probe(&to, started + SHORT).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(matches!(only_attempt(&error), (Stage::Receive, Cause::DeadlineExceeded { .. })), "{error}");
    assert!(error.is_silence());
    assert_eq!(error.retry(), Retry::CanHelp);
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("probe request to {to} failed: {to} receive: no answer within ")),
        "{text}"
    );
}

/// TCP-05: the limit of one request holds whatever the caller would wait.
#[tokio::test]
async fn a_peer_that_never_answers_fails_at_the_request_limit() {
    let to = peer(|stream| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let client = RpcClient::new(RpcLimits { request: SHORT, ..RpcLimits::default() });
    let started = Instant::now();
    let error = client.probe(&to, soon()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(error.stage(), Some(Stage::Receive));
}

#[tokio::test]
async fn a_trickled_reply_fails_at_the_deadline() {
    let to = peer(|mut stream| async move {
        for byte in encode(FrameKind::Probe, false, &b" ".repeat(1000)) {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let started = Instant::now();
    let error = RpcClient::default().probe(&to, started + SHORT).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(matches!(only_attempt(&error), (Stage::Receive, Cause::DeadlineExceeded { .. })), "{error}");
}

/// A listener whose queue is full drops further attempts, as a firewall does.
#[tokio::test]
async fn a_connect_that_is_not_answered_fails_at_its_own_limit() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let _queued = connect(address).await;
    let client = RpcClient::new(RpcLimits { connect: SHORT, ..RpcLimits::default() });
    let started = Instant::now();
    let error = client.probe(&address.try_into().unwrap(), soon()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(matches!(only_attempt(&error), (Stage::Connect, Cause::DeadlineExceeded { .. })), "{error}");
    assert!(!error.may_have_been_delivered());
}

/// META-06: an unreachable control address yields an error that names the address tried.
#[tokio::test]
async fn a_name_that_leads_nowhere_is_shown_with_the_addresses_tried() {
    let port = listen().await.port();
    let to = Endpoint::new("localhost".parse().unwrap(), port).unwrap();
    let error = failing_probe(&to).await;
    assert!(error.is_refused(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("probe request to localhost:{port} failed: ")), "{text}");
    for attempt in error.attempts() {
        assert!(text.contains(&format!("{} connect: ", attempt.address)), "{text}");
    }
}

#[tokio::test]
async fn a_name_without_an_address_fails_at_resolving() {
    let to: Endpoint = "no-such-host.invalid:1".parse().unwrap();
    let error = failing_probe(&to).await;
    assert_eq!(error.stage(), Some(Stage::Resolve));
    assert!(error.to_string().starts_with("cannot resolve no-such-host.invalid:1: "), "{error}");
}

/// Peers that predate probes take one for a broken frame and close.
#[tokio::test]
async fn a_close_without_a_reply_is_told_apart() {
    let to = peer(|stream| async move { drop(stream) }).await;
    let error = failing_probe(&to).await;
    assert!(error.is_closed() && !error.is_refused() && !error.is_silence(), "{error}");
}

#[tokio::test]
async fn half_a_reply_is_a_close_without_a_reply() {
    let error = failing_probe(&answering(&encode(FrameKind::Probe, false, b"{}\n")[..11]).await).await;
    assert!(matches!(only_attempt(&error), (Stage::Receive, Cause::Closed)), "{error}");
}

#[tokio::test]
async fn a_reply_of_another_kind_is_an_error() {
    let error = failing_probe(&answering(encode(FrameKind::Notify, false, b"{}\n")).await).await;
    let text = error.to_string();
    assert!(text.ends_with("reply to a probe request is of kind notify"), "{text}");
    assert_eq!(error.retry(), Retry::Pointless);
}

#[tokio::test]
async fn a_reply_in_the_old_form_is_an_error() {
    let error = failing_probe(&answering(encode(FrameKind::Connection, true, b"{}\n")).await).await;
    assert!(matches!(only_attempt(&error).1, Cause::WrongKind { got: None, .. }), "{error}");
}

#[tokio::test]
async fn another_protocol_is_an_error_that_no_retry_helps() {
    let error = failing_probe(&answering(*b"HTTP/1.1 400 Bad Request\r\n\r\n").await).await;
    assert!(matches!(only_attempt(&error), (Stage::Receive, Cause::BadReply(_))), "{error}");
    assert_eq!(error.retry(), Retry::Pointless);
}

#[tokio::test]
async fn a_reply_that_is_not_json_is_an_error() {
    let to = answering(encode(FrameKind::Probe, false, b"{oops")).await;
    let error = failing_probe(&to).await;
    assert!(
        error.to_string().starts_with(&format!("probe reply from {to} is unusable: body is not JSON")),
        "{error}"
    );
    assert_eq!(error.stage(), Some(Stage::Decode));
}

#[tokio::test]
async fn a_reply_over_the_limit_is_an_error() {
    let to = answering(encode(FrameKind::Probe, false, &b" ".repeat(100))).await;
    let client = RpcClient::new(RpcLimits { max_reply: 100, ..RpcLimits::default() });
    let error = client.probe(&to, soon()).await.unwrap_err();
    assert!(error.to_string().ends_with("frame of 101 bytes is over the limit of 100"), "{error}");
}

#[tokio::test]
async fn a_large_reply_is_taken() {
    let body = b" ".repeat(20 << 20);
    let reply = answering(encode(FrameKind::Probe, false, &body)).await;
    let call = RpcClient::default().call(&reply, FrameKind::Probe, b"{}\n", soon()).await.unwrap();
    assert!(call == body);
}

#[tokio::test]
async fn a_request_over_the_limit_is_not_sent() {
    let to: Endpoint = "127.0.0.1:1".parse().unwrap();
    let body = vec![b' '; MAX_FRAME];
    let error = RpcClient::default().call(&to, FrameKind::Probe, &body, soon()).await.unwrap_err();
    let RpcError::RequestTooLong { length, limit, .. } = error else { panic!("{error}") };
    assert_eq!((length, limit), (MAX_FRAME + 1, MAX_FRAME));
}

#[tokio::test]
async fn a_deadline_in_the_past_is_an_error_and_not_a_wait() {
    let to = peer(|stream| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let started = Instant::now();
    let error = RpcClient::default().probe(&to, started).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(error.is_silence(), "{error}");
}
