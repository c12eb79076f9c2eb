//! What engines know of each other's lives, over real control connections.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{World, free_port, on_port, soon, until};
use te_engine::{Engine, ErrorKind, LifeCause, PeerLife, block_on};
use te_rpc::BoxFuture;
use te_rpc::native::{
    Answer, CloseReason, Expectation, NativeClient, NativeHandler, NativeLimits, NativePeer, PeerId, Request,
    Target,
};
use te_segment::{Access, Endpoint, Incarnation};

/// A peer that only asks.
struct Stranger(PeerId);

impl NativeHandler for Stranger {
    fn identity(&self) -> PeerId {
        self.0.clone()
    }

    fn handle(self: Arc<Self>, _: NativePeer, _: Request) -> BoxFuture<'static, Answer> {
        Box::pin(std::future::ready(Answer::Invalidate))
    }
}

fn stranger() -> NativeClient {
    let id = PeerId { incarnation: Incarnation::from_bits(99), name: "stranger".to_owned() };
    NativeClient::new(Arc::new(Stranger(id)), NativeLimits::default())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn place(engine: &Engine) -> Endpoint {
    format!("127.0.0.1:{}", engine.control_port()).parse().unwrap()
}

fn life_of(engine: &Engine, of: Incarnation) -> Option<PeerLife> {
    engine.peers().into_iter().find(|peer| peer.incarnation == Some(of)).map(|peer| peer.life)
}

#[test]
fn probe_says_which_life_answers() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    block_on(async {
        let report = initiator.probe("target").await.unwrap();
        assert_eq!(report.incarnation, Some(target.incarnation()));
        let _open = initiator.open("target").await.unwrap();
        let report = initiator.probe("target").await.unwrap();
        assert_eq!(report.incarnation, Some(target.incarnation()));
        let itself = target.probe("target").await.unwrap();
        assert_eq!(itself.incarnation, Some(target.incarnation()));
    });
}

/// META-02
#[test]
fn hello_to_an_earlier_life_is_refused() {
    let world = World::new();
    let target = world.engine("target");
    runtime().block_on(async {
        let earlier = Incarnation::from_bits(7);
        let expects = Expectation { incarnation: Some(earlier), name: None };
        let to = Target { endpoint: place(&target), expects };
        let error = stranger().probe(&to, soon().instant()).await.unwrap_err();
        assert_eq!(error.stale(), Some(target.incarnation()));
    });
}

#[test]
fn open_peers_are_alive_and_say_so() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let _open = block_on(initiator.open("target")).unwrap();
    assert_eq!(life_of(&initiator, target.incarnation()), Some(PeerLife::Alive));
    // The other side knows who came.
    assert_eq!(life_of(&target, initiator.incarnation()), Some(PeerLife::Alive));
    let missing = initiator.watch_peer("nobody").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// FO-01, FO-13: the end of a process is noticed at its control connection, the handle says since when and why, and
/// nothing is submitted to it any more.
#[test]
fn a_killed_peer_is_lost_and_refuses_submits() {
    let world = World::new();
    let (target, initiator) = (world.mortal(World::config("target")), world.engine("initiator"));
    let life = target.engine.incarnation();
    let offered = block_on(target.engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(target.engine.published(soon())).unwrap();
    let local = block_on(initiator.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let peer = block_on(initiator.open("target")).unwrap();
    let remote = peer.range(offered.address(), 4096).unwrap();
    let mut watch = initiator.watch_peer("target").unwrap();
    assert_eq!(watch.now().life, PeerLife::Alive);
    std::mem::forget(offered);
    let killed = Instant::now();
    target.kill();
    let state = block_on(watch.until(|state| state.life == PeerLife::Lost)).unwrap();
    assert_eq!((state.incarnation, state.cause), (Some(life), LifeCause::Refused));
    assert_eq!(peer.peer(), state);
    assert!(state.since >= killed && state.since <= Instant::now());
    let refused = initiator.batch().read(&remote, local.slice(..)).submit().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SegmentGone);
}

/// META-02, FO-13: the next life answers at the same place under the same name; the handle of the earlier one is stale.
#[test]
fn a_restarted_peer_has_replaced_its_earlier_life() {
    let world = World::new();
    let initiator = world.engine("initiator");
    let port = free_port();
    let first = world.mortal(on_port("target", port));
    let offered = block_on(first.engine.register(vec![0_u8; 4096], Access::REMOTE)).unwrap();
    block_on(first.engine.published(soon())).unwrap();
    let local = block_on(initiator.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let peer = block_on(initiator.open("target")).unwrap();
    let remote = peer.range(offered.address(), 4096).unwrap();
    let mut watch = initiator.watch_peer("target").unwrap();
    std::mem::forget(offered);
    first.kill();
    let second = world.mortal(on_port("target", port));
    let by = second.engine.incarnation();
    let state = block_on(watch.until(|state| matches!(state.life, PeerLife::Replaced { .. }))).unwrap();
    assert_eq!(state.life, PeerLife::Replaced { by });
    let stale = initiator.batch().read(&remote, local.slice(..)).submit().unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleIncarnation);
    assert_eq!(block_on(initiator.open("target")).unwrap().incarnation(), Some(by));
    assert_eq!(initiator.watch_peer("target").unwrap().now().incarnation, Some(by));
}

/// A stop is told: nobody has to find out.
#[test]
fn a_stopped_peer_said_goodbye() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let _open = block_on(initiator.open("target")).unwrap();
    let mut watch = initiator.watch_peer("target").unwrap();
    assert!(block_on(target.shutdown(soon())).is_clean());
    let state = block_on(watch.until(|state| state.life == PeerLife::Lost)).unwrap();
    assert!(matches!(state.cause, LifeCause::Goodbye | LifeCause::Refused), "{state:?}");
    assert!(block_on(target.shutdown(soon())).is_clean(), "again is fine");
}

/// FO-13: suspicion refuses nothing, and ends when the peer is heard of again.
#[test]
fn a_silent_peer_is_suspect_and_may_still_be_used() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let offered = block_on(target.register(vec![7_u8; 4096], Access::REMOTE)).unwrap();
    block_on(target.published(soon())).unwrap();
    let local = block_on(initiator.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let peer = block_on(initiator.open("target")).unwrap();
    let remote = peer.range(offered.address(), 4096).unwrap();
    let slow = world.transport(te_segment::TransportKind::SHM).with_pace(1 << 10, Duration::from_millis(50));
    let doubter = world.engine_with(World::config("doubter"), vec![Box::new(slow)]);
    let doubted = block_on(doubter.open("target")).unwrap().range(offered.address(), 4096).unwrap();
    let into = block_on(doubter.register(vec![0_u8; 4096], Access::LOCAL)).unwrap();
    let mut watch = doubter.watch_peer("target").unwrap();
    let late = doubter.batch().read(&doubted, into.slice(..)).deadline(Duration::from_millis(60)).run();
    assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
    // The doubt leads to a question, and the question to an answer.
    block_on(watch.until(|state| state.life == PeerLife::Alive)).unwrap();
    doubter.batch().read(&doubted, into.slice(..)).run().unwrap();
    initiator.batch().read(&remote, local.slice(..)).run().unwrap();
}

/// Contract 12: two engines of one process are strangers until one opens the other.
#[test]
fn engines_of_one_process_do_not_know_of_each_other() {
    let world = World::new();
    let (one, two) = (world.engine("one"), world.engine("two"));
    assert_eq!((one.peers(), two.peers()), (vec![], vec![]));
    assert!(block_on(one.shutdown(soon())).is_clean());
    assert!(block_on(two.probe("two")).is_ok());
}

/// META-07: engines that open each other in a ring at the same time all connect.
#[test]
fn a_ring_of_engines_connects_at_once() {
    let world = World::new();
    let engines: Vec<_> = (0..5).map(|number| world.engine(&format!("ring-{number}"))).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (number, engine) in engines.iter().enumerate() {
            scope.spawn(move || block_on(engine.open(&format!("ring-{}", (number + 1) % 5))).unwrap());
        }
    });
    for (number, engine) in engines.iter().enumerate() {
        let next = engines[(number + 1) % 5].incarnation();
        until("the ring", || life_of(engine, next) == Some(PeerLife::Alive));
    }
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// The end of a connection says why, so that a peer that ends is told from one that only closes.
#[test]
fn the_goodbye_of_an_engine_says_that_it_ends() {
    let world = World::new();
    let target = world.engine("target");
    runtime().block_on(async {
        let client = stranger();
        let peer = client.peer(&place(&target).into(), soon().instant()).await.unwrap();
        let ending = std::thread::spawn(move || block_on(target.shutdown(soon())));
        while peer.is_open() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(peer.closed().as_ref().is_some_and(CloseReason::is_end_of_life), "{:?}", peer.closed());
        ending.join().unwrap();
    });
}
