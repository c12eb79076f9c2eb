//! Native connections over real sockets, both ends ours.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use common::{engine::*, *};
use te_rpc::{RpcLimits, native::*};
use te_segment::{DescriptorVersion, Generation, Incarnation};
use tokio::time::sleep;

const SHORT: Duration = Duration::from_millis(300);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn refused(error: &NativeError) -> &DialError {
    let NativeError::Dial { source, .. } = error else { panic!("{error}") };
    source
}

fn notify(batch: u64, message: String) -> Request {
    Request::Notify { batch, name: "batch".to_owned(), message, outcome: BatchOutcome::Success }
}

#[tokio::test]
async fn a_handshake_tells_each_side_who_the_other_is() {
    let (owner, holder) = (Engine::new(1, "owner"), Engine::new(2, "holder"));
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = NativeClient::new(holder.clone(), NativeLimits::default());
    let peer = client.peer(&target(&server), soon()).await.unwrap();
    assert_eq!((peer.id(), peer.version()), (&owner.identity(), Some(1)));
    eventually(|| owner.opened.lock().unwrap().len() == 1).await;
    assert_eq!(owner.opened.lock().unwrap()[0].id(), &holder.identity());
}

#[tokio::test]
async fn a_probe_is_answered() {
    let server = serve_engine(&Engine::new(1, "owner"), RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    client.probe(&target(&server), soon()).await.unwrap();
}

#[tokio::test]
async fn attempts_are_fenced_in_order() {
    let server = serve_engine(&Engine::new(1, "owner"), RpcLimits::default()).await;
    let requests = (0..3).map(|request| FencedAttempt { request, attempt: 1 }).collect();
    let stopped = client(NativeLimits::default()).fence(&target(&server), requests, soon()).await.unwrap();
    assert_eq!(stopped, [FenceOutcome::Stopped, FenceOutcome::Applied, FenceOutcome::Stopped]);
}

#[tokio::test]
async fn a_notification_is_taken() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let answer = client(NativeLimits::default()).call(&target(&server), notify(3, "m".into()), soon()).await;
    assert_eq!(answer.unwrap(), Answer::Notify { taken: true });
    assert_eq!(*owner.notified.lock().unwrap(), [3]);
}

/// What an owner withdraws is pushed to whoever told its interest, on the connection that the holder opened.
#[tokio::test]
async fn an_invalidation_is_pushed_to_an_interested_holder() {
    let (owner, holder) = (Engine::new(1, "owner"), Engine::new(2, "holder"));
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = NativeClient::new(holder.clone(), NativeLimits::default());
    let version = client.interest(&target(&server), DescriptorVersion::new(6), soon()).await.unwrap();
    assert_eq!(version, DescriptorVersion::new(7));
    let push = owner.holders.lock().unwrap()[0].clone();
    let withdrawn = vec![Generation::new(5)];
    let request = Request::Invalidate { version: DescriptorVersion::new(8), withdrawn: withdrawn.clone() };
    assert_eq!(push.call(request, soon()).await, Ok(Answer::Invalidate));
    assert_eq!(*holder.withdrawn.lock().unwrap(), withdrawn);
}

#[tokio::test]
async fn calls_share_one_connection() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    let calls: Vec<_> = (0..1000)
        .map(|batch| {
            let (client, to) = (client.clone(), target(&server));
            tokio::spawn(async move { client.call(&to, notify(batch, batch.to_string()), soon()).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), Answer::Notify { taken: true });
    }
    assert_eq!((server.connections(), owner.opened.lock().unwrap().len()), (1, 1));
    let mut notified = owner.notified.lock().unwrap().clone();
    notified.sort_unstable();
    assert_eq!(notified, Vec::from_iter(0..1000));
}

#[tokio::test]
async fn requests_are_asked_in_the_order_in_which_they_were_sent() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    let peer = client.peer(&target(&server), soon()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for batch in 0..200 {
        let mut call = Box::pin({
            let peer = peer.clone();
            async move { peer.call(notify(batch, String::new()), soon()).await }
        });
        // Polled once, so that it is sent now.
        tokio::select! { biased; answer = &mut call => drop(answer), () = std::future::ready(()) => {} }
        tasks.spawn(call);
    }
    while let Some(answer) = tasks.join_next().await {
        answer.unwrap().unwrap();
    }
    assert_eq!(*owner.notified.lock().unwrap(), Vec::from_iter(0..200));
}

/// More is asked than the send queue holds: calls wait for room instead of failing.
#[tokio::test]
async fn calls_wait_for_room_in_the_queue() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = client(NativeLimits { max_queued: 128 << 10, ..NativeLimits::default() });
    let calls: Vec<_> = (0..200)
        .map(|batch| {
            let (client, to) = (client.clone(), target(&server));
            tokio::spawn(
                async move { client.call(&to, notify(batch, "m".repeat(MAX_MESSAGE)), soon()).await },
            )
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_earlier_life_is_told_apart_and_never_asked() {
    let owner = Engine::new(9, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let earlier = expecting(&server, 1);
    let error = client(NativeLimits::default()).probe(&earlier, soon()).await.unwrap_err();
    assert_eq!(error.stale(), Some(Incarnation::from_bits(9)), "{error}");
    assert!(!error.may_have_been_delivered());
    assert_eq!(error.retry(), te_rpc::Retry::Pointless);
    assert!(owner.opened.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_earlier_life_is_told_apart_while_another_connection_is_open() {
    let server = serve_engine(&Engine::new(9, "owner"), RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    client.probe(&target(&server), soon()).await.unwrap();
    let error = client.probe(&expecting(&server, 1), soon()).await.unwrap_err();
    assert_eq!(error.stale(), Some(Incarnation::from_bits(9)), "{error}");
    client.probe(&expecting(&server, 9), soon()).await.unwrap();
    assert!(client.connected(&target(&server).endpoint).is_some(), "the open connection stays");
}

#[tokio::test]
async fn another_name_is_refused() {
    let server = serve_engine(&Engine::new(1, "owner"), RpcLimits::default()).await;
    let mut to = target(&server);
    to.expects.name = Some("other".to_owned());
    let error = client(NativeLimits::default()).probe(&to, soon()).await.unwrap_err();
    assert!(matches!(refused(&error), DialError::Refused(RefuseReason::NameMismatch)), "{error}");
}

#[tokio::test]
async fn an_unwelcome_peer_is_refused_with_the_reason() {
    let owner = Engine::new(1, "owner");
    owner.unwelcome.store(true, Ordering::SeqCst);
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let error = client(NativeLimits::default()).probe(&target(&server), soon()).await.unwrap_err();
    assert!(matches!(refused(&error), DialError::Refused(RefuseReason::ShuttingDown)), "{error}");
}

#[tokio::test]
async fn neighbouring_versions_talk() {
    let old = Versions { oldest: 1, newest: 1 };
    let new = Versions { oldest: 1, newest: 2 };
    for (ours, theirs) in [(old, new), (new, old)] {
        let native = NativeLimits { versions: theirs, ..NativeLimits::default() };
        let limits = RpcLimits { native, ..RpcLimits::default() };
        let server = serve_engine(&Engine::new(1, "owner"), limits).await;
        let client = client(NativeLimits { versions: ours, ..NativeLimits::default() });
        let peer = client.peer(&target(&server), soon()).await.unwrap();
        assert_eq!(peer.version(), Some(1));
        assert_eq!(peer.call(Request::Probe, soon()).await, Ok(Answer::Probe));
    }
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_and_the_connection_goes_on() {
    let owner = Engine::new(1, "owner");
    owner.slow.store(true, Ordering::SeqCst);
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    let started = Instant::now();
    let error = client.call(&target(&server), notify(1, String::new()), started + SHORT).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(error.is_silence() && error.may_have_been_delivered(), "{error}");
    owner.slow.store(false, Ordering::SeqCst);
    client.probe(&target(&server), soon()).await.unwrap();
    assert_eq!(owner.opened.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_handler_that_takes_too_long_closes_the_connection() {
    let owner = Engine::new(1, "owner");
    owner.slow.store(true, Ordering::SeqCst);
    let native = NativeLimits { request: SHORT, ..NativeLimits::default() };
    let server = serve_engine(&owner, RpcLimits { native, ..RpcLimits::default() }).await;
    let to = target(&server);
    let error = client(NativeLimits::default()).call(&to, notify(1, String::new()), soon()).await;
    let text = error.unwrap_err().to_string();
    assert!(text.ends_with("closed by the peer: a request was not answered in time"), "{text}");
}

#[tokio::test]
async fn a_handler_that_panics_closes_one_connection() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let (first, second) = (client(NativeLimits::default()), client(NativeLimits::default()));
    second.probe(&target(&server), soon()).await.unwrap();
    first.call(&target(&server), notify(PANICS, String::new()), soon()).await.unwrap_err();
    second.probe(&target(&server), soon()).await.unwrap();
    assert_eq!(owner.opened.lock().unwrap().len(), 2, "the other connection goes on");
    first.probe(&target(&server), soon()).await.unwrap();
}

#[tokio::test]
async fn a_peer_killed_in_the_middle_of_a_call_fails_it_at_once_and_is_found_again() {
    let owner = Engine::new(1, "owner");
    owner.slow.store(true, Ordering::SeqCst);
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let to = target(&server);
    let client = client(NativeLimits::default());
    let call = tokio::spawn({
        let (client, to) = (client.clone(), to.clone());
        async move { client.call(&to, notify(1, String::new()), soon()).await }
    });
    eventually(|| owner.asked.load(Ordering::SeqCst) == 1).await;
    drop(server);
    let error = call.await.unwrap().unwrap_err();
    assert!(error.may_have_been_delivered(), "{error}");
    let gone = client.probe(&to, soon()).await.unwrap_err();
    assert!(gone.is_refused(), "{gone}");

    let _next = serve_engine_at(&Engine::new(2, "owner"), to.endpoint.port()).await;
    client.probe(&to, soon()).await.unwrap();
    let error = client.probe(&Target { expects: life(1), ..to }, soon()).await.unwrap_err();
    assert_eq!(error.stale(), Some(Incarnation::from_bits(2)), "{error}");
}

#[tokio::test]
async fn an_end_is_told_to_both_handlers() {
    let (owner, holder) = (Engine::new(1, "owner"), Engine::new(2, "holder"));
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = NativeClient::new(holder.clone(), NativeLimits::default());
    let peer = client.peer(&target(&server), soon()).await.unwrap();
    drop(client);
    eventually(|| owner.gone.load(Ordering::SeqCst) == 1 && holder.gone.load(Ordering::SeqCst) == 1).await;
    assert!(!peer.is_open());
    let closed = owner.opened.lock().unwrap()[0].closed();
    assert_eq!(closed, Some(CloseReason::Goodbye { reason: "shutting down".to_owned() }));
    eventually(|| server.connections() == 0).await;
}

#[tokio::test]
async fn a_shutdown_lets_a_request_finish_and_says_goodbye() {
    let owner = Engine::new(1, "owner");
    owner.delay.store(200, Ordering::SeqCst);
    let server = serve_engine(&owner, RpcLimits::default()).await;
    let client = client(NativeLimits::default());
    let peer = client.peer(&target(&server), soon()).await.unwrap();
    let call = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(notify(1, String::new()), soon()).await }
    });
    eventually(|| owner.asked.load(Ordering::SeqCst) == 1).await;
    assert_eq!(server.shutdown(soon()).await, 0, "nothing was cut");
    assert_eq!(call.await.unwrap(), Ok(Answer::Notify { taken: true }));
    eventually(|| peer.closed().is_some()).await;
    assert_eq!(peer.closed(), Some(CloseReason::Goodbye { reason: "shutting down".to_owned() }));
}

#[tokio::test]
async fn an_idle_connection_is_probed_and_stays() {
    let owner = Engine::new(1, "owner");
    let often = NativeLimits { idle: Duration::from_millis(50), silent: SHORT, ..NativeLimits::default() };
    let limits = RpcLimits { native: often.clone(), silent: SHORT, request: SHORT, ..RpcLimits::default() };
    let server = serve_engine(&owner, limits).await;
    let client = client(often);
    let peer = client.peer(&target(&server), soon()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(peer.is_open(), "{:?}", peer.closed());
    assert_eq!((server.connections(), owner.gone.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn a_failed_connection_is_not_tried_again_before_a_pause() {
    let port = listen().await.port();
    let to = Target::from(te_segment::Endpoint::new("127.0.0.1".parse().unwrap(), port).unwrap());
    let pause = Duration::from_secs(60);
    let client = client(NativeLimits { first_pause: pause, last_pause: pause, ..NativeLimits::default() });
    let first = client.probe(&to, soon()).await.unwrap_err();
    assert!(matches!(first, NativeError::Dial { pause: None, .. }), "{first}");
    let started = Instant::now();
    let second = client.probe(&to, soon()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5), "it does not wait in vain");
    let NativeError::Dial { pause: Some(left), .. } = second else { panic!("{second}") };
    assert!(left > pause / 3 && left <= pause, "{left:?}");
    assert!(second.is_refused(), "the earlier failure is shown");
}

#[tokio::test]
async fn connections_to_too_many_peers_are_an_error() {
    let server = serve_engine(&Engine::new(1, "owner"), RpcLimits::default()).await;
    let client = client(NativeLimits { max_peers: 1, ..NativeLimits::default() });
    client.probe(&target(&server), soon()).await.unwrap();
    let other = Target::from("127.0.0.1:1".parse::<te_segment::Endpoint>().unwrap());
    let error = client.probe(&other, soon()).await.unwrap_err();
    assert!(matches!(error, NativeError::TooManyPeers { limit: 1, .. }), "{error}");
    client.disconnect(&target(&server).endpoint, "enough");
    assert!(client.probe(&other, soon()).await.unwrap_err().is_refused());
}

#[tokio::test]
async fn native_connections_leave_a_quarter_of_the_places() {
    let owner = Engine::new(1, "owner");
    let server = serve_engine(&owner, RpcLimits { max_connections: 4, ..RpcLimits::default() }).await;
    let clients = [(); 4].map(|()| client(NativeLimits::default()));
    for client in &clients[..3] {
        client.probe(&target(&server), soon()).await.unwrap();
    }
    let error = clients[3].probe(&target(&server), soon()).await.unwrap_err();
    assert!(matches!(refused(&error), DialError::Refused(RefuseReason::Busy)), "{error}");
    assert_serves(server.endpoint()).await;
    assert_eq!(owner.gone.load(Ordering::SeqCst), 0, "nobody had to go");
}
