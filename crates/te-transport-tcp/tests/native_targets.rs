//! Our native initiator against targets that do not behave, scripted on plain sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{ATTEMPT, Batch, FakePeer, Node, bytes, failed, transfer_of};
use te_segment::{Access, Generation, Incarnation};
use te_transport::{FailureKind, Op, Outcome, RemoteEffect, SubmitMode};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::native::{
    ANSWER_LEN, Answer, HELLO_LEN, Hello, REQUEST_LEN, Request, VERSIONS, Verdict, Why,
};

const LIFE: Incarnation = Incarnation::from_bits(77);
const OF: Generation = Generation::new(3);
const REMOTE: u64 = 0x7000_0000_0000;

fn read_hello(stream: &mut TcpStream) -> Option<Hello> {
    let mut bytes = [0; HELLO_LEN];
    stream.read_exact(&mut bytes).ok()?;
    Hello::decode(&bytes).ok()
}

fn welcome(stream: &mut TcpStream) -> Option<()> {
    read_hello(stream)?;
    stream.write_all(&Answer::Welcome { version: 1, now: LIFE }.encode()).ok()
}

fn next_request(stream: &mut TcpStream) -> Option<Request> {
    let mut header = [0; REQUEST_LEN];
    stream.read_exact(&mut header).ok()?;
    Some(Request::decode(&header).unwrap())
}

/// Reads a request and its payload, if it has one.
fn whole_request(stream: &mut TcpStream) -> Option<Request> {
    let request = next_request(stream)?;
    if request.op == Op::Write {
        let mut body = vec![0; request.len as usize];
        stream.read_exact(&mut body).ok()?;
    }
    Some(request)
}

fn with(settings: &[(&str, &str)]) -> Node {
    let mut config = TcpConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    Node::with(config)
}

fn one(node: &Node, peer: &FakePeer, op: Op, len: u64) -> Outcome {
    let local = node.region(len as usize, Access::LOCAL);
    transfer_of(&peer.native_path(node, LIFE), op, local.hold(0, len).unwrap(), REMOTE, OF)
}

/// Answers the hello with `answer` and waits for the end.
fn answering(answer: Answer) -> FakePeer {
    FakePeer::new(move |_, mut stream| {
        if read_hello(&mut stream).is_some() {
            let _ = stream.write_all(&answer.encode());
            let _ = stream.read(&mut [0; 64]);
        }
    })
}

#[test]
fn answers_to_the_hello_become_failures_of_their_kind() {
    let other = Incarnation::from_bits(78);
    let cases = [
        (Answer::StaleIncarnation { now: other }, FailureKind::StaleIncarnation),
        // A target that does not look whom the hello is for.
        (Answer::Welcome { version: 1, now: other }, FailureKind::StaleIncarnation),
        (Answer::Welcome { version: VERSIONS.1 + 1, now: LIFE }, FailureKind::Protocol),
        (Answer::Version { oldest: 2, newest: 3 }, FailureKind::Protocol),
        (Answer::ShuttingDown, FailureKind::Unreachable),
        (Answer::Busy, FailureKind::Unreachable),
        (Answer::Other(200), FailureKind::Unreachable),
    ];
    for (answer, kind) in cases {
        let (node, peer) = (Node::new(), answering(answer));
        for op in [Op::Read, Op::Write] {
            let outcome = one(&node, &peer, op, 64);
            assert_eq!((failed(&outcome).kind(), failed(&outcome).effect()), (kind, RemoteEffect::None));
        }
        assert_eq!(peer.connections(), 2, "{answer:?}");
    }
}

#[test]
fn bytes_that_are_no_answer_are_a_protocol_error() {
    let peer = FakePeer::new(|_, mut stream| {
        let _ = stream.write_all(&[0x48; ANSWER_LEN]);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(failed(&one(&Node::new(), &peer, Op::Write, 64)).kind(), FailureKind::Protocol);
}

/// TCP-05: accepted and never answered is a failure to connect, in the time for that.
#[test]
fn unanswered_hello_ends_with_the_connect_timeout() {
    let node = with(&[("connect_timeout", "300ms")]);
    let peer = FakePeer::new(|_, mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    for op in [Op::Read, Op::Write] {
        let start = Instant::now();
        let outcome = one(&node, &peer, op, 64);
        let failure = failed(&outcome);
        assert_eq!((failure.kind(), failure.effect()), (FailureKind::Unreachable, RemoteEffect::None));
        assert!(failure.cause().contains("data port 127.0.0.1:"), "{failure}");
        assert!(start.elapsed() >= Duration::from_millis(290), "{:?}", start.elapsed());
    }
}

/// What has not been sent goes over another connection, once.
#[test]
fn connection_that_breaks_at_the_hello_is_replaced_once() {
    let peer = FakePeer::new(|number, mut stream| {
        if number == 0 {
            return;
        }
        welcome(&mut stream);
        while whole_request(&mut stream).is_some() {
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let outcome = one(&Node::new(), &peer, Op::Write, 64);
    assert!(outcome.is_done(), "{outcome:?}");
    assert_eq!(peer.connections(), 2);
    let closing = FakePeer::new(|_, stream| drop(stream));
    assert_eq!(failed(&one(&Node::new(), &closing, Op::Write, 64)).kind(), FailureKind::Unreachable);
    assert_eq!(closing.connections(), 2);
}

#[test]
fn hello_names_both_lives_and_requests_name_all_they_mean() {
    let (seen, sees) = std::sync::mpsc::channel();
    let peer = FakePeer::new(move |_, mut stream| {
        let hello = read_hello(&mut stream).unwrap();
        stream.write_all(&Answer::Welcome { version: 1, now: LIFE }.encode()).unwrap();
        while let Some(request) = whole_request(&mut stream) {
            seen.send((hello, request)).unwrap();
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let node = Node::new();
    let local = node.region(4096, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let mut batch = Batch::new(Duration::from_secs(10));
    for index in 0..3 {
        let attempt = te_transport::AttemptId { request: 40 + index, attempt: 2 };
        batch.add_of(Op::Write, local.hold(0, 16).unwrap(), REMOTE + index, OF, attempt);
    }
    assert!(batch.submit(&path, SubmitMode::CallerRuns).wait().iter().all(Outcome::is_done));
    for index in 0..3_u64 {
        let (hello, request) = sees.recv().unwrap();
        assert_eq!(hello, Hello { version: VERSIONS.1, from: node.context.incarnation, to: LIFE });
        let attempt = te_transport::AttemptId { request: 40 + index, attempt: 2 };
        let (op, part, addr) = (Op::Write, index as u32, REMOTE + index);
        assert_eq!(
            request,
            Request { op, attempt, part, addr, len: 16, generation: Some(OF), digest: false }
        );
    }
}

/// A refusal that comes while the payload is still being sent ends the sending; the others go over a new connection.
#[test]
fn early_rejection_ends_a_large_write_and_nothing_else() {
    let peer = FakePeer::new(|_, mut stream| {
        if welcome(&mut stream).is_none() {
            return;
        }
        while let Some(request) = next_request(&mut stream) {
            if request.len > 1 << 20 {
                let _ = stream.write_all(&Verdict::Rejected(Why::Gone).encode());
                // Takes nothing more.
                std::thread::sleep(Duration::from_secs(1));
                return;
            }
            let mut body = vec![0; request.len as usize];
            stream.read_exact(&mut body).unwrap();
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let node = with(&[("stripe_threshold", "1073741824")]);
    let local = node.region(64 << 20, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let mut batch = Batch::new(Duration::from_secs(20));
    batch.add_of(Op::Write, local.hold(0, 64 << 20).unwrap(), REMOTE, OF, ATTEMPT);
    batch.add_of(Op::Write, local.hold(0, 64).unwrap(), REMOTE, OF, ATTEMPT);
    let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
    let failure = failed(&outcomes[0]);
    assert_eq!((failure.kind(), failure.effect()), (FailureKind::BufferGone, RemoteEffect::None));
    assert!(outcomes[1].is_done(), "{outcomes:?}");
}

/// A WRITE that was cut with bytes on the way may still be applied: the engine has to fence it.
#[test]
fn write_cut_with_bytes_on_the_way_may_still_apply() {
    let peer = FakePeer::new(|_, mut stream| {
        if welcome(&mut stream).is_some() {
            let _ = next_request(&mut stream);
            std::thread::sleep(Duration::from_secs(2));
        }
    });
    let node = Node::new();
    let local = node.region(64, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let mut batch = Batch::new(Duration::from_millis(300));
    batch.add_of(Op::Write, local.hold(0, 64).unwrap(), REMOTE, OF, ATTEMPT);
    let outcome = batch.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
    let failure = failed(&outcome);
    assert_eq!((failure.kind(), failure.effect()), (FailureKind::TimedOut, RemoteEffect::MayStillApply));
}

#[test]
fn verdicts_that_make_no_sense_are_failures_and_local_memory_is_kept() {
    let lost = [0x55; 8];
    let early = Verdict::Ok.encode();
    for (verdict, kind) in [
        (lost, FailureKind::Protocol),
        (Verdict::Rejected(Why::Access).encode(), FailureKind::Rejected),
        (Verdict::Rejected(Why::Withdrawn).encode(), FailureKind::BufferGone),
        (Verdict::Fenced.encode(), FailureKind::Rejected),
        // A code of a later version.
        ([9, 9, 0, 0, early[4], early[5], early[6], early[7]], FailureKind::Rejected),
    ] {
        let peer = FakePeer::new(move |_, mut stream| {
            if welcome(&mut stream).is_some() && whole_request(&mut stream).is_some() {
                let _ = stream.write_all(&verdict);
                let _ = stream.read(&mut [0; 64]);
            }
        });
        for op in [Op::Read, Op::Write] {
            let node = Node::new();
            let local = node.region(4096, Access::LOCAL);
            local.fill(0x5a).unwrap();
            let hold = local.hold(0, 4096).unwrap();
            let outcome = transfer_of(&peer.native_path(&node, LIFE), op, hold, REMOTE, OF);
            assert_eq!(failed(&outcome).kind(), kind, "{op} {verdict:02x?}");
            assert_eq!(bytes(&local, 0, 4096), [0x5a; 4096]);
        }
    }
}

/// A verdict on nothing: before any request was sent.
#[test]
fn answer_before_a_request_is_a_protocol_error() {
    for early in [Verdict::Ok, Verdict::Rejected(Why::Gone)] {
        let peer = FakePeer::new(move |_, mut stream| {
            if read_hello(&mut stream).is_some() {
                let welcome = Answer::Welcome { version: 1, now: LIFE }.encode();
                let _ = stream.write_all(&[&welcome[..], &early.encode(), &early.encode()].concat());
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let node = with(&[("stripe_threshold", "1073741824")]);
        let outcome = one(&node, &peer, Op::Write, 32 << 20);
        assert!(!outcome.is_done(), "{outcome:?}");
    }
}
