//! No write to a closed connection raises `SIGPIPE`. In a binary of its own, because signals concern the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    io::{IoSlice, Write},
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use common::*;
use te_rpc::{FrameKind, Handlers, Reply, RpcClient, RpcLimits, frame::encode, handler_fn};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};

async fn raised(signal: &mut Signal) -> bool {
    timeout(Duration::from_millis(200), signal.recv()).await.is_ok()
}

/// Closes so that the other side, which has already seen the end of the stream, finds a broken pipe when it writes.
async fn break_pipe(mut stream: TcpStream) {
    stream.shutdown().await.unwrap();
    // The end of the stream has to be there before the reset.
    sleep(Duration::from_millis(50)).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
}

#[tokio::test]
async fn no_write_raises_a_signal() {
    let mut pipe = signal(SignalKind::pipe()).unwrap();

    // A vectored write does raise it, which proves that this test would see one.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = connect(listener.local_addr().unwrap()).await;
    let (mut accepted, _) = listener.accept().unwrap();
    break_pipe(client).await;
    while accepted.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"b")]).is_ok() {}
    assert!(raised(&mut pipe).await);

    // The same to a reply, small and large.
    for size in [1, 8 << 20] {
        let late = handler_fn(move |_| async move {
            sleep(Duration::from_millis(200)).await;
            Reply::Body(vec![b' '; size])
        });
        let handlers = Handlers { metadata: Some(Arc::new(late)), ..handlers(&Inbox::default()) };
        let server = listen().await.serve(handlers, RpcLimits::default());
        let mut stream = connect(server.endpoint()).await;
        stream.write_all(&encode(FrameKind::Metadata, false, b"{}")).await.unwrap();
        break_pipe(stream).await;
        eventually(|| server.connections() == 0).await;
        assert!(!raised(&mut pipe).await);
    }

    // And to a request.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap().try_into().unwrap();
    let peer = tokio::spawn(async move { break_pipe(listener.accept().await.unwrap().0).await });
    let body = vec![b' '; 64 << 20];
    let deadline = Instant::now() + PATIENCE;
    RpcClient::default().call(&to, FrameKind::Metadata, &body, deadline).await.unwrap_err();
    peer.await.unwrap();
    assert!(!raised(&mut pipe).await);
}
