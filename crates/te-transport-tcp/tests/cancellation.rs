//! Cancellation, deadlines and shutdown while work is in flight.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Batch, FakePeer, Node, bytes, eventually, failed};
use te_segment::{Access, TcpFraming};
use te_transport::{
    AttemptId, CancelReason, CompletionSink, CompletionToken, FailureKind, Op, Outcome, RemoteEffect, Slice,
    Submission, SubmitMode, Transport,
};

const REMOTE: u64 = 0x7000_0000_0000;
const V2: TcpFraming = TcpFraming::V2;

/// Takes everything slowly and answers nothing.
fn slow_reader() -> FakePeer {
    FakePeer::new(|_, mut stream| {
        let mut buffer = vec![0; 64 << 10];
        while matches!(stream.read(&mut buffer), Ok(1..)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    })
}

/// Answers a READ with a trickle.
fn slow_writer() -> FakePeer {
    FakePeer::new(|_, mut stream| {
        use std::io::Write;
        let mut header = [0; 24];
        let _ = stream.read_exact(&mut header);
        let _ = stream.write_all(&te_transport_tcp::frame::Status::Ok.encode());
        while stream.write_all(&[0x5a; 4096]).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

#[test]
fn cancelled_batch_ends_soon_with_its_reason() {
    let node = Node::new();
    let local = node.region(64 << 20, Access::LOCAL);
    for (reason, kind) in [
        (CancelReason::Cancelled, FailureKind::Cancelled),
        (CancelReason::Expired, FailureKind::TimedOut),
        (CancelReason::Shutdown, FailureKind::Shutdown),
        (CancelReason::Withdrawn, FailureKind::Cancelled),
    ] {
        let peer = slow_reader();
        let path = peer.path(&node, V2);
        let mut batch = Batch::new(Duration::from_secs(60));
        for _ in 0..4 {
            batch.add(Op::Write, local.hold(0, 64 << 20).unwrap(), REMOTE);
        }
        let pending = batch.submit(&path, SubmitMode::Background);
        eventually("connected", || peer.connections() > 0);
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        assert!(pending.scope.cancel(reason));
        let outcomes = pending.wait();
        assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
        let mut sent = 0;
        for outcome in &outcomes {
            assert_eq!(failed(outcome).kind(), kind);
            sent += usize::from(failed(outcome).effect() == RemoteEffect::MayStillApply);
        }
        assert!(sent >= 1, "what was on the wire says so");
    }
}

/// Contract 7: once a cancelled READ is reported, its memory is touched no more, although the peer goes on sending.
#[test]
fn memory_of_a_cancelled_read_is_quiet_once_it_is_reported() {
    let peer = slow_writer();
    let node = Node::new();
    let path = peer.path(&node, V2);
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        for _ in 0..10 {
            let local = node.region(8 << 20, Access::LOCAL);
            let mut batch = Batch::new(Duration::from_secs(60));
            batch.add(Op::Read, local.hold(0, 8 << 20).unwrap(), REMOTE);
            let scope = batch.scope.clone();
            let watched = local.clone();
            let canceller = std::thread::spawn(move || {
                eventually("data arrives", || bytes(&watched, 0, 1) == [0x5a]);
                scope.cancel(CancelReason::Cancelled);
            });
            let outcome = batch.submit(&path, mode).wait().remove(0);
            assert_eq!(failed(&outcome).kind(), FailureKind::Cancelled);
            // The hold is gone with the report, so the memory can be taken out and reused at once.
            local.block();
            local.wait_drained(Instant::now()).unwrap();
            canceller.join().unwrap();
            let mut memory = local.release().unwrap();
            let canary = memory.bytes_mut().unwrap();
            canary.fill(0x11);
            std::thread::sleep(Duration::from_millis(5));
            assert!(canary.iter().all(|byte| *byte == 0x11), "written after the report");
        }
    }
}

/// A cancellation hits its own batch only: another one on the same path goes on.
#[test]
fn cancelling_one_batch_does_not_disturb_another() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4 << 20, Access::REMOTE);
    let local = initiator.region(4 << 20, Access::LOCAL);
    let path = initiator.path_to(&target);
    for round in 0..200_u64 {
        let batch = |size: u64| {
            let mut batch = Batch::new(Duration::from_secs(60));
            for _ in 0..4 {
                batch.add(Op::Write, local.hold(0, size).unwrap(), remote.range().start());
            }
            batch.submit(&path, SubmitMode::Background)
        };
        let (victim, other) = (batch(1 << 20), batch(64 << 10));
        std::thread::sleep(Duration::from_micros(round * 7));
        victim.scope.cancel(CancelReason::Cancelled);
        let third = batch(4096);
        assert!(other.wait().iter().all(Outcome::is_done), "round {round}");
        assert!(third.wait().iter().all(Outcome::is_done), "round {round}");
        for outcome in victim.wait() {
            assert!(outcome.is_done() || failed(&outcome).kind() == FailureKind::Cancelled, "{outcome:?}");
        }
    }
}

#[test]
fn batch_cancelled_before_it_is_submitted_sends_nothing() {
    let peer = slow_reader();
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64, Access::LOCAL);
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        let batch = Batch::new(Duration::from_secs(60)).with(Op::Write, local.hold(0, 64).unwrap(), REMOTE);
        batch.scope.cancel(CancelReason::Cancelled);
        let outcome = batch.submit(&path, mode).wait().remove(0);
        assert_eq!(failed(&outcome).kind(), FailureKind::Cancelled);
        assert_eq!(failed(&outcome).effect(), RemoteEffect::None);
    }
    assert_eq!(peer.connections(), 0);
}

#[test]
fn batch_past_its_deadline_is_not_sent() {
    let peer = slow_reader();
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64, Access::LOCAL);
    let batch = Batch::new(Duration::ZERO).with(Op::Write, local.hold(0, 64).unwrap(), REMOTE);
    let outcome = batch.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
    assert_eq!(failed(&outcome).kind(), FailureKind::TimedOut);
    assert_eq!(peer.connections(), 0);
}

/// Work that waits behind a stalled peer is resolved by its own deadline, or when it is cancelled.
#[test]
fn queued_work_ends_by_its_own_deadline_and_cancellation() {
    let peer = slow_reader();
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64 << 20, Access::LOCAL);
    let batch = |time: Duration, size: u64| {
        Batch::new(time)
            .with(Op::Write, local.hold(0, size).unwrap(), REMOTE)
            .submit(&path, SubmitMode::Background)
    };
    let stuck: Vec<_> = (0..4).map(|_| batch(Duration::from_secs(60), 64 << 20)).collect();
    eventually("all connections busy", || peer.connections() == 4);
    let start = Instant::now();
    let (short, cancelled) = (batch(Duration::from_millis(150), 64), batch(Duration::from_secs(60), 64));
    cancelled.scope.cancel(CancelReason::Cancelled);
    let outcome = cancelled.log.wait(1, Duration::from_secs(1)).remove(0);
    assert_eq!(failed(&outcome).kind(), FailureKind::Cancelled);
    assert!(start.elapsed() < Duration::from_millis(140), "{:?}", start.elapsed());
    let outcome = short.log.wait(1, Duration::from_secs(1)).remove(0);
    assert_eq!(
        (failed(&outcome).kind(), failed(&outcome).effect()),
        (FailureKind::TimedOut, RemoteEffect::None)
    );
    let late = start.elapsed().saturating_sub(Duration::from_millis(150));
    assert!(late < Duration::from_millis(200), "{late:?} late");
    for batch in stuck {
        batch.scope.cancel(CancelReason::Cancelled);
        batch.wait();
    }
}

/// A caller that executes its own batch waits no longer than to the deadline.
#[test]
fn caller_comes_back_by_the_deadline() {
    let peer = slow_reader();
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64 << 20, Access::LOCAL);
    let start = Instant::now();
    let batch =
        Batch::new(Duration::from_millis(250)).with(Op::Write, local.hold(0, 64 << 20).unwrap(), REMOTE);
    let pending = batch.submit(&path, SubmitMode::CallerRuns);
    pending.wait();
    assert!(start.elapsed() < Duration::from_millis(750), "{:?}", start.elapsed());
}

/// Counts outcomes and drops nothing silently.
#[derive(Default)]
struct Count {
    all: AtomicU64,
    dropped: AtomicU64,
}

impl CompletionSink for Count {
    fn complete(&self, _index: u32, outcome: Outcome) {
        self.all.fetch_add(1, Ordering::SeqCst);
        if let Outcome::Failed(failure) = outcome
            && failure.kind() == FailureKind::Dropped
        {
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// TCP-07: everything is dropped while transfers are in flight; each slice still ends exactly once.
#[test]
fn dropping_everything_in_flight_resolves_each_slice_once() {
    for round in 0..30_u64 {
        let target = Node::new();
        let initiator = Node::new();
        let remote = target.region(1 << 20, Access::REMOTE);
        let local = initiator.region(1 << 20, Access::LOCAL);
        let sink = Arc::new(Count::default());
        let path = initiator.path_to(&target);
        for batch in 0..8_u32 {
            let slices = (0..16_u32)
                .map(|index| Slice {
                    op: if batch % 2 == 0 { Op::Write } else { Op::Read },
                    local: local.hold(0, 1 << 20).unwrap(),
                    remote: remote.range(),
                    generation: None,
                    attempt: AttemptId { request: 1, attempt: 1 },
                    token: CompletionToken::new(sink.clone(), index),
                })
                .collect();
            let deadline = Instant::now() + Duration::from_secs(60);
            path.submit(Submission { slices, deadline, scope: Default::default() }, SubmitMode::Background);
        }
        std::thread::sleep(Duration::from_micros(round * 200));
        drop(path);
        if round % 2 == 0 {
            drop(initiator);
            drop(target);
        } else {
            drop(target);
            drop(initiator);
        }
        eventually("all resolved", || sink.all.load(Ordering::SeqCst) == 128);
        assert_eq!(sink.dropped.load(Ordering::SeqCst), 0);
        local.block();
        local.wait_drained(Instant::now() + Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn shutdown_resolves_what_is_in_flight_and_queued() {
    let peer = slow_reader();
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64 << 20, Access::LOCAL);
    let pending: Vec<_> = (0..20)
        .map(|_| {
            let hold = local.hold(0, 64 << 20).unwrap();
            Batch::new(Duration::from_secs(60))
                .with(Op::Write, hold, REMOTE)
                .submit(&path, SubmitMode::Background)
        })
        .collect();
    eventually("connected", || peer.connections() > 0);
    let start = Instant::now();
    node.transport.shutdown(Instant::now() + Duration::from_secs(5)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    for batch in &pending {
        let outcome = batch.log.wait(1, Duration::from_secs(1)).remove(0);
        assert_eq!(failed(&outcome).kind(), FailureKind::Shutdown);
    }
    // Idempotent, and nothing is accepted any more.
    node.transport.shutdown(Instant::now() + Duration::from_secs(5)).unwrap();
    let late = Batch::new(Duration::from_secs(5)).with(Op::Write, local.hold(0, 64).unwrap(), REMOTE);
    let outcome = late.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
    assert_eq!(failed(&outcome).kind(), FailureKind::Shutdown);
    assert!(std::net::TcpStream::connect(node.transport.listening_on()).is_err());
    assert!(node.transport.path(&common::descriptor("127.0.0.1", peer.port, V2, None)).is_err());
}

/// A request of a peer that is nearly through may end; one that is stuck is cut, and the shutdown ends in time.
#[test]
fn shutdown_cuts_a_peer_that_is_stuck() {
    use std::io::Write;
    let node = Node::new();
    let region = node.region(1 << 20, Access::REMOTE);
    let mut stream = std::net::TcpStream::connect(node.transport.listening_on()).unwrap();
    let request = te_transport_tcp::frame::Request {
        op: Op::Write,
        framing: V2,
        addr: region.range().start(),
        len: 1 << 20,
    };
    stream.write_all(&request.encode()).unwrap();
    eventually("in progress", || region.holds().remote == 1);
    let start = Instant::now();
    node.transport.shutdown(Instant::now() + Duration::from_millis(800)).unwrap();
    assert!(start.elapsed() < Duration::from_millis(800), "{:?}", start.elapsed());
    assert_eq!(region.holds().remote, 0);
}
