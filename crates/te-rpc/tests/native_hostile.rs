//! Native connections whose other end breaks the rules, is silent, or is something else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{engine::*, *};
use te_rpc::{RpcLimits, RpcServer, native::*};
use te_segment::{Endpoint, Incarnation};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const SHORT: Duration = Duration::from_millis(300);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn hello() -> Vec<u8> {
    let hello = ControlFrame::Hello {
        version: 1,
        from: Incarnation::from_bits(3),
        name: "raw".to_owned(),
        expects: None,
        expects_name: None,
    };
    [&PREAMBLE[..], &encode(&hello).unwrap()].concat()
}

fn probe(id: u64) -> Vec<u8> {
    encode(&ControlFrame::Probe { id: RequestId::new(id) }).unwrap()
}

fn frames(bytes: &[u8]) -> Vec<ControlFrame> {
    let mut decoder = ControlDecoder::new();
    decoder.open();
    decoder.feed(bytes);
    std::iter::from_fn(|| decoder.next_frame().unwrap()).collect()
}

/// Sends bytes behind a good handshake, and gives the frames that come back until the end.
async fn after_hello(server: &RpcServer, bytes: &[u8]) -> Vec<ControlFrame> {
    frames(&exchange(server.endpoint(), &[&hello()[..], bytes].concat()).await.0)
}

async fn serve_with(native: NativeLimits) -> (Arc<Engine>, RpcServer) {
    let engine = Engine::new(1, "owner");
    let server = serve_engine(&engine, RpcLimits { native, ..RpcLimits::default() }).await;
    (engine, server)
}

/// Accepts one connection after another and does something with it.
async fn listener<F, Fut>(act: F) -> Target
where
    F: Fn(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::try_from(listener.local_addr().unwrap()).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(act(stream));
        }
    });
    Target::from(endpoint)
}

/// A reference engine, and a listener of ours without native connections, close at the preamble.
#[tokio::test]
async fn a_listener_that_does_not_know_the_preamble_is_told_apart() {
    let server = serve(RpcLimits::default()).await;
    let error = client(NativeLimits::default()).probe(&target(&server), soon()).await.unwrap_err();
    assert!(error.is_not_native() && !error.is_refused() && !error.is_silence(), "{error}");
    let text = error.to_string();
    assert!(text.ends_with("does not speak native: it closed at the first bytes"), "{text}");
    assert_serves(server.endpoint()).await;
}

#[tokio::test]
async fn another_protocol_is_told_apart() {
    let to = listener(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok();
        stream.read_to_end(&mut Vec::new()).await.ok();
    })
    .await;
    let error = client(NativeLimits::default()).probe(&to, soon()).await.unwrap_err();
    assert!(error.is_not_native(), "{error}");
    assert_eq!(error.retry(), te_rpc::Retry::Pointless);
}

#[tokio::test]
async fn a_listener_that_never_answers_ends_the_handshake_in_time() {
    let to = listener(|stream| async move {
        tokio::time::sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let client = client(NativeLimits { handshake: SHORT, ..NativeLimits::default() });
    let started = Instant::now();
    let error = client.probe(&to, soon()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(error.is_silence() && !error.may_have_been_delivered(), "{error}");
}

#[tokio::test]
async fn half_a_preamble_is_closed_when_its_time_is_over() {
    let engine = Engine::new(1, "owner");
    let server = serve_engine(&engine, RpcLimits { request: SHORT, ..RpcLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&PREAMBLE[..5]).await.unwrap();
    assert_eq!(read_all(&mut stream).await.0, b"");
}

#[tokio::test]
async fn a_preamble_without_a_hello_is_closed_when_its_time_is_over() {
    let (engine, server) = serve_with(NativeLimits { handshake: SHORT, ..NativeLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&hello()[..20]).await.unwrap();
    let (bytes, _) = read_all(&mut stream).await;
    assert_eq!(frames(&bytes), [ControlFrame::goodbye("no handshake in time")]);
    assert!(engine.opened.lock().unwrap().is_empty());
}

#[tokio::test]
async fn preambles_without_a_hello_do_not_lock_newcomers_out() {
    let engine = Engine::new(1, "owner");
    let server = serve_engine(&engine, RpcLimits { max_connections: 8, ..RpcLimits::default() }).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut stream = connect(server.endpoint()).await;
        stream.write_all(&PREAMBLE).await.unwrap();
        held.push(stream);
        assert_serves(server.endpoint()).await;
        assert!(server.connections() <= 8);
    }
    client(NativeLimits::default()).probe(&target(&server), soon()).await.unwrap();
}

#[tokio::test]
async fn bytes_behind_the_preamble_that_are_no_hello_are_closed() {
    let (engine, server) = serve_with(NativeLimits::default()).await;
    let over = u32::try_from(MAX_HANDSHAKE_FRAME + 1).unwrap().to_le_bytes();
    for (what, bytes) in [
        ("noise", vec![0xa5; 64 << 10]),
        ("an empty frame", vec![0; 4]),
        ("a frame over the limit of handshakes", over.to_vec()),
        ("a request", probe(1)),
        ("half a hello, then the end", hello()[8..20].to_vec()),
        ("a welcome", encode(&ControlFrame::goodbye("hello?")).unwrap()),
    ] {
        let mut stream = connect(server.endpoint()).await;
        stream.write_all(&[&PREAMBLE[..], &bytes].concat()).await.ok();
        stream.shutdown().await.ok();
        let (answer, _) = read_all(&mut stream).await;
        assert!(frames(&answer).iter().all(|f| matches!(f, ControlFrame::Goodbye { .. })), "{what}");
    }
    assert!(engine.opened.lock().unwrap().is_empty());
    eventually(|| server.connections() == 0).await;
    assert_serves(server.endpoint()).await;
}

#[tokio::test]
async fn an_unknown_frame_is_answered_with_a_goodbye_that_names_it() {
    let (engine, server) = serve_with(NativeLimits::default()).await;
    let unknown = [&4_u32.to_le_bytes()[..], &77_u32.to_le_bytes()].concat();
    let answer = after_hello(&server, &unknown).await;
    assert_eq!(answer.last(), Some(&ControlFrame::goodbye("unknown frame of kind 77")));
    eventually(|| engine.gone.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn an_oversized_frame_is_refused_at_its_length() {
    let (_, server) = serve_with(NativeLimits::default()).await;
    let over = u32::try_from(MAX_CONTROL_FRAME + 1).unwrap().to_le_bytes();
    let answer = after_hello(&server, &over).await;
    assert_eq!(
        answer.last(),
        Some(&ControlFrame::goodbye("frame of 1048577 bytes is over the limit of 1048576"))
    );
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_a_violation() {
    let (_, server) = serve_with(NativeLimits::default()).await;
    let answer = encode(&ControlFrame::InvalidateAck { id: RequestId::new(5) }).unwrap();
    let answer = after_hello(&server, &answer).await;
    assert_eq!(answer.last(), Some(&ControlFrame::goodbye("answer to request 5, which was never sent")));
}

#[tokio::test]
async fn a_whole_conversation_in_single_bytes_is_understood() {
    let (_, server) = serve_with(NativeLimits::default()).await;
    let mut stream = connect(server.endpoint()).await;
    let goodbye = encode(&ControlFrame::goodbye("done")).unwrap();
    for byte in [hello(), probe(1), goodbye].concat() {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let answer = frames(&read_all(&mut stream).await.0);
    assert!(
        matches!(answer[..], [ControlFrame::Welcome { .. }, ControlFrame::ProbeAck { .. }]),
        "{answer:?}"
    );
}

/// Asks and never reads: what waits for it is bounded, and then it is cut off.
#[tokio::test]
async fn a_peer_that_asks_and_does_not_read_is_cut_off() {
    let (engine, server) = serve_with(NativeLimits { max_queued: 64 << 10, ..NativeLimits::default() }).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&hello()).await.unwrap();
    let flood = async {
        for id in 1.. {
            if stream.write_all(&probe(id)).await.is_err() {
                return;
            }
        }
    };
    timeout(PATIENCE, flood).await.expect("the flood is stopped");
    eventually(|| engine.gone.load(Ordering::SeqCst) == 1).await;
    assert_eq!(engine.opened.lock().unwrap()[0].closed(), Some(CloseReason::NotReading));
    assert_serves(server.endpoint()).await;
}

/// Does not even ask: what is pushed to it waits for a bounded time.
#[tokio::test]
async fn a_peer_that_does_not_read_what_is_pushed_is_cut_off() {
    let native =
        NativeLimits { max_queued: 64 << 10, stall: SHORT, idle: PATIENCE, ..NativeLimits::default() };
    let (engine, server) = serve_with(native).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&hello()).await.unwrap();
    eventually(|| engine.opened.lock().unwrap().len() == 1).await;
    let peer = engine.opened.lock().unwrap()[0].clone();
    let mut calls = tokio::task::JoinSet::new();
    for batch in 0..400 {
        let peer = peer.clone();
        let message = "m".repeat(MAX_MESSAGE);
        let request = Request::Notify { batch, name: String::new(), message, outcome: BatchOutcome::Success };
        calls.spawn(async move { peer.call(request, soon()).await });
    }
    while let Some(ended) = calls.join_next().await {
        let ended = ended.unwrap();
        assert!(
            matches!(ended, Err(CallError::Disconnected { reason: CloseReason::NotReading, .. })),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn a_silent_peer_is_probed_and_then_closed() {
    let native = NativeLimits { idle: SHORT, silent: SHORT, ..NativeLimits::default() };
    let (engine, server) = serve_with(native).await;
    let mut stream = connect(server.endpoint()).await;
    stream.write_all(&hello()).await.unwrap();
    let answer = frames(&read_all(&mut stream).await.0);
    assert!(matches!(answer[..], [ControlFrame::Welcome { .. }, ControlFrame::Probe { .. }]), "{answer:?}");
    assert_eq!(engine.opened.lock().unwrap()[0].closed(), Some(CloseReason::Silent));
}

/// A quarter of the places is for others, and a native connection is not silence.
#[tokio::test]
async fn silence_does_not_push_native_connections_out() {
    let engine = Engine::new(1, "owner");
    let server = serve_engine(&engine, RpcLimits { max_connections: 4, ..RpcLimits::default() }).await;
    let client = client(NativeLimits::default());
    client.probe(&target(&server), soon()).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(connect(server.endpoint()).await);
    }
    client.probe(&target(&server), soon()).await.unwrap();
    assert_eq!((engine.opened.lock().unwrap().len(), engine.gone.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn frames_that_never_end_hold_bounded_memory() {
    let engine = Engine::new(1, "owner");
    let server = serve_engine(&engine, RpcLimits { max_buffered: 1 << 20, ..RpcLimits::default() }).await;
    let half = [&u32::try_from(MAX_CONTROL_FRAME).unwrap().to_le_bytes()[..], &vec![0; 900_000]].concat();
    let mut both = [connect(server.endpoint()).await, connect(server.endpoint()).await];
    for stream in &mut both {
        stream.write_all(&hello()).await.unwrap();
    }
    eventually(|| engine.opened.lock().unwrap().len() == 2).await;
    for stream in &mut both {
        // Whichever comes second finds too little left.
        stream.write_all(&half).await.ok();
    }
    eventually(|| engine.gone.load(Ordering::SeqCst) == 1).await;
    let reasons: Vec<_> = engine.opened.lock().unwrap().iter().filter_map(NativePeer::closed).collect();
    assert_eq!(reasons, [CloseReason::OverBudget]);
}
