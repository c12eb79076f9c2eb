//! Calls to endpoints with several addresses.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use te_segment::Host;
use tokio::{io::AsyncReadExt, net::TcpListener};

use super::*;
use crate::{AnswerProbes, Bind, Handlers, PortChoice, RpcListener, RpcServer};

/// Accepts, reads and closes without a reply; counts the connections.
async fn closer() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            stream.read_u8().await.ok();
        }
    });
    (address, count)
}

async fn refusing() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn answering() -> RpcServer {
    let host = Host::from("127.0.0.1".parse::<std::net::IpAddr>().unwrap());
    let listener = RpcListener::bind(Bind { host, port: PortChoice::Fixed(0) }).await.unwrap();
    let handlers = Handlers { probe: Some(Arc::new(AnswerProbes)), ..Handlers::default() };
    listener.serve(handlers, RpcLimits::default())
}

async fn call(addresses: &[SocketAddr], kind: FrameKind) -> Result<Vec<u8>, RpcError> {
    let to = "several.example:1".parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    RpcClient::default().call_any(&to, addresses, kind, b"{}\n", deadline).await
}

#[tokio::test]
async fn the_next_address_is_tried_after_a_refusal() {
    let server = answering().await;
    let reply = call(&[refusing().await, server.endpoint()], FrameKind::Notify).await.unwrap();
    assert_eq!(reply, b"null\n");
}

#[tokio::test]
async fn a_probe_is_repeated_at_the_next_address() {
    let (closes, _) = closer().await;
    let server = answering().await;
    let reply = call(&[closes, server.endpoint()], FrameKind::Probe).await.unwrap();
    assert_eq!(reply, ProbeReply::success().encode());
}

#[tokio::test]
async fn a_notification_is_sent_at_most_once() {
    let (first, _) = closer().await;
    let (second, reached) = closer().await;
    let error = call(&[first, second], FrameKind::Notify).await.unwrap_err();
    assert_eq!(error.attempts().len(), 1);
    assert!(error.may_have_been_delivered());
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

/// META-06: the error names every address that was tried.
#[tokio::test]
async fn every_address_tried_is_named() {
    let (first, second) = (refusing().await, refusing().await);
    let error = call(&[first, second], FrameKind::Probe).await.unwrap_err();
    assert!(error.is_refused());
    let text = error.to_string();
    assert!(text.starts_with("probe request to several.example:1 failed: "), "{text}");
    for address in [first, second] {
        assert!(text.contains(&format!("{address} connect: ")), "{text}");
    }
}
