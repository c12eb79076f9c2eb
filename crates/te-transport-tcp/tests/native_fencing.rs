//! Contract 9 at the target: attempts that their sender has given up do not begin, stop, and end before that is said.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Batch, Node, bytes, eventually, failed};
use parking_lot::{Condvar, Mutex};
use te_memory::Region;
use te_segment::{Access, Incarnation};
use te_transport::{
    Abort, Admission, AdmitAll, AttemptId, FailureKind, Op, RemoteEffect, SubmitMode, Transport,
};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::frame::STATUS_LEN;
use te_transport_tcp::native::{ANSWER_LEN, Answer, Hello, Request, Verdict};

/// What an engine's ledger does, for one request.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Attempts up to this one are refused.
    fenced: u32,
    running: Vec<(Incarnation, AttemptId, Arc<dyn Abort>)>,
    admitted: usize,
}

impl Admission for Gate {
    fn admit(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>) -> bool {
        let mut state = self.state.lock();
        if ids.iter().any(|id| id.attempt <= state.fenced) {
            return false;
        }
        state.admitted += ids.len();
        state.running.extend(ids.iter().map(|id| (peer, *id, executor.clone())));
        true
    }

    fn ended(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>) {
        let mut state = self.state.lock();
        for id in ids {
            let at = state
                .running
                .iter()
                .position(|(life, other, one)| (*life, *other) == (peer, *id) && Arc::ptr_eq(one, executor));
            state.running.swap_remove(at.unwrap());
        }
        drop(state);
        self.ended.notify_all();
    }
}

impl Gate {
    /// Refuses attempts up to this one, stops those that run and waits for their end.
    fn fence(&self, attempt: u32) {
        let mut state = self.state.lock();
        state.fenced = attempt;
        for (_, id, executor) in &state.running {
            if id.attempt <= attempt {
                executor.abort();
            }
        }
        let end = Instant::now() + Duration::from_secs(10);
        while state.running.iter().any(|(_, id, _)| id.attempt <= attempt) {
            assert!(!self.ended.wait_until(&mut state, end).timed_out(), "a fenced attempt goes on");
        }
    }

    fn running(&self) -> usize {
        self.state.lock().running.len()
    }
}

fn attempt(attempt: u32) -> AttemptId {
    AttemptId { request: 7, attempt }
}

fn life(bits: u128) -> Incarnation {
    Incarnation::from_bits(bits)
}

/// A native connection of a peer that is only a socket.
fn greeted(node: &Node, from: Incarnation) -> TcpStream {
    let mut stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&Hello { version: 1, from, to: node.context.incarnation }.encode()).unwrap();
    let mut answer = [0; ANSWER_LEN];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Answer::decode(&answer), Ok(Answer::Welcome { version: 1, now: node.context.incarnation }));
    stream
}

fn request(op: Op, region: &Region, offset: u64, len: u64, attempt: AttemptId) -> [u8; 48] {
    let addr = region.range().start() + offset;
    Request { op, attempt, part: 0, addr, len, generation: Some(region.generation()), digest: false }.encode()
}

fn verdict(stream: &mut TcpStream) -> [u8; STATUS_LEN] {
    let mut status = [0; STATUS_LEN];
    stream.read_exact(&mut status).unwrap();
    status
}

fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Ok(1..))
}

/// A WRITE of which some payload is here and the rest is not.
fn half_written(node: &Node, region: &Region, from: Incarnation, attempt: AttemptId) -> TcpStream {
    let mut stream = greeted(node, from);
    stream.write_all(&request(Op::Write, region, 0, 1 << 20, attempt)).unwrap();
    stream.write_all(&[0x77; 100_000]).unwrap();
    eventually("some bytes are in place", || bytes(region, 99_999, 1) == [0x77]);
    stream
}

/// FO-03
#[test]
fn fenced_attempt_is_refused_and_a_later_one_is_not() {
    let gate = Arc::new(Gate::default());
    let (initiator, target) = (Node::new(), Node::admitting(TcpConfig::default(), gate.clone()));
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    local.fill(0x44).unwrap();
    let path = initiator.native_path_to(&target);
    gate.fence(2);
    for (number, op) in [(1, Op::Write), (2, Op::Write), (2, Op::Read)] {
        let mut batch = Batch::new(Duration::from_secs(10));
        let hold = local.hold(0, 4096).unwrap();
        batch.add_of(op, hold, remote.range().start(), remote.generation(), attempt(number));
        let outcome = batch.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
        let failure = failed(&outcome);
        assert_eq!((failure.kind(), failure.effect()), (FailureKind::Rejected, RemoteEffect::None));
        assert!(failure.cause().contains("fenced"), "{failure}");
    }
    assert_eq!(bytes(&remote, 0, 4096), [0; 4096]);
    let mut batch = Batch::new(Duration::from_secs(10));
    let hold = local.hold(0, 4096).unwrap();
    batch.add_of(Op::Write, hold, remote.range().start(), remote.generation(), attempt(3));
    let outcome = batch.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
    assert!(outcome.is_done(), "{outcome:?}");
    assert_eq!(bytes(&remote, 0, 4096), [0x44; 4096]);
    // The answer can be here before the target has put the attempt aside.
    eventually("it has ended", || gate.running() == 0);
    assert_eq!(gate.state.lock().admitted, 1);
}

/// Parts of one attempt run on several connections, and each of them is admitted and ended.
#[test]
fn every_part_of_an_attempt_is_admitted_and_ended_once() {
    let gate = Arc::new(Gate::default());
    let (initiator, target) = (Node::new(), Node::admitting(TcpConfig::default(), gate.clone()));
    let remote = target.region(32 << 20, Access::REMOTE);
    let local = initiator.region(32 << 20, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    for op in [Op::Write, Op::Read] {
        let mut batch = Batch::new(Duration::from_secs(30));
        for index in 0..4 {
            let hold = local.hold(index << 23, 8 << 20).unwrap();
            let at = remote.range().start() + (index << 23);
            batch.add_of(op, hold, at, remote.generation(), attempt(1));
        }
        let outcomes = batch.submit(&path, SubmitMode::Background).wait();
        assert!(outcomes.iter().all(te_transport::Outcome::is_done), "{outcomes:?}");
    }
    eventually("all have ended", || gate.running() == 0);
    assert!(gate.state.lock().admitted >= 8);
}

/// FO-03: the acknowledgement comes when the bytes are left alone, and not before.
#[test]
fn running_attempt_stops_and_is_acknowledged_when_it_touches_nothing() {
    let gate = Arc::new(Gate::default());
    let target = Node::admitting(TcpConfig::default(), gate.clone());
    let region = target.region(1 << 20, Access::REMOTE);
    let mut stream = half_written(&target, &region, life(1), attempt(1));
    assert_eq!(gate.running(), 1);
    gate.fence(1);
    let then = bytes(&region, 0, 1 << 20);
    // What is still sent reaches nobody.
    for _ in 0..8 {
        if stream.write_all(&[0x78; 100_000]).is_err() {
            break;
        }
    }
    assert!(is_closed(&mut stream));
    eventually("the region is free", || region.holds().remote == 0);
    assert!(bytes(&region, 0, 1 << 20) == then);
    // A new connection of the same life brings the same attempt again, in vain.
    let mut again = greeted(&target, life(1));
    again.write_all(&request(Op::Write, &region, 0, 4, attempt(1))).unwrap();
    again.write_all(&[0x79; 4]).unwrap();
    assert_eq!(verdict(&mut again), Verdict::Fenced.encode());
    again.write_all(&request(Op::Write, &region, 0, 4, attempt(2))).unwrap();
    again.write_all(&[0x7a; 4]).unwrap();
    assert_eq!(verdict(&mut again), Verdict::Ok.encode());
    assert_eq!(bytes(&region, 0, 4), [0x7a; 4]);
}

/// Nothing that was received before the interruption is begun after it.
#[test]
fn requests_behind_a_fenced_one_are_not_begun() {
    let gate = Arc::new(Gate::default());
    let target = Node::admitting(TcpConfig::default(), gate.clone());
    let (first, second) = (target.region(1 << 20, Access::REMOTE), target.region(4096, Access::REMOTE));
    let mut stream = half_written(&target, &first, life(1), attempt(1));
    // The rest of the payload, and requests of another attempt, are on their way when the fence comes.
    let mut rest = vec![0x77; (1 << 20) - 100_000];
    for _ in 0..20 {
        rest.extend(request(Op::Write, &second, 0, 16, AttemptId { request: 8, attempt: 9 }));
        rest.extend([0x66; 16]);
    }
    gate.fence(1);
    let _ = stream.write_all(&rest);
    assert!(is_closed(&mut stream));
    eventually("the connection is gone", || target.transport.accepted_connections() == 0);
    assert_eq!(bytes(&second, 0, 16), [0; 16]);
}

/// Contract 3, Fence: one life loses its connections; others, and the same one later, do not.
#[test]
fn fencing_a_life_closes_its_connections_and_waits_for_them() {
    let target = Node::admitting(TcpConfig::default(), Arc::new(AdmitAll));
    let region = target.region(1 << 20, Access::REMOTE);
    let mut writing = half_written(&target, &region, life(1), attempt(1));
    let mut idle = greeted(&target, life(1));
    let mut other = greeted(&target, life(2));
    target.transport.fence(life(1), Instant::now() + Duration::from_secs(10)).unwrap();
    let then = bytes(&region, 0, 1 << 20);
    let _ = writing.write_all(&[0x78; 200_000]);
    assert!(is_closed(&mut writing) && is_closed(&mut idle));
    eventually("the region is free", || region.holds().remote == 0);
    assert!(bytes(&region, 0, 1 << 20) == then);
    let mut again = greeted(&target, life(1));
    for (stream, byte) in [(&mut other, 0x21), (&mut again, 0x22)] {
        stream.write_all(&request(Op::Write, &region, 0, 4, attempt(1))).unwrap();
        stream.write_all(&[byte; 4]).unwrap();
        assert_eq!(verdict(stream), Verdict::Ok.encode());
        assert_eq!(bytes(&region, 0, 4), [byte; 4]);
    }
    // Repeatable, and of nobody as well.
    for bits in [1, 1, 99] {
        target.transport.fence(life(bits), Instant::now() + Duration::from_secs(10)).unwrap();
    }
    assert!(is_closed(&mut again));
}

/// Connections go while they are fenced, again and again, and whatever they write is left alone afterwards.
#[test]
fn fencing_under_traffic_leaves_memory_alone() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4 << 20, Access::REMOTE);
    let local = initiator.region(4 << 20, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    for round in 0..10_u8 {
        local.fill(round + 1).unwrap();
        let mut batch = Batch::new(Duration::from_secs(20));
        for index in 0..64_u64 {
            let hold = local.hold(index << 16, 1 << 16).unwrap();
            let at = remote.range().start() + (index << 16);
            batch.add_of(Op::Write, hold, at, remote.generation(), attempt(1));
        }
        let scope = batch.scope.clone();
        let pending = batch.submit(&path, SubmitMode::Background);
        std::thread::sleep(Duration::from_micros(u64::from(round) * 300));
        // As an engine does: the sender has stopped before it asks for the fence.
        scope.cancel(te_transport::CancelReason::Cancelled);
        pending.wait();
        target
            .transport
            .fence(initiator.context.incarnation, Instant::now() + Duration::from_secs(10))
            .unwrap();
        let then = bytes(&remote, 0, 4 << 20);
        std::thread::sleep(Duration::from_millis(5));
        assert!(bytes(&remote, 0, 4 << 20) == then, "round {round}");
    }
}
