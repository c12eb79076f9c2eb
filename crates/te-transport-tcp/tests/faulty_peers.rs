//! The initiator against targets that do not behave.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Batch, FakePeer, Node, bytes, descriptor, failed, transfer};
use te_segment::{Access, TcpFraming};
use te_transport::{FailureKind, Op, Outcome, RemoteEffect, SubmitMode, Transport};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::frame::{HEADER_LEN, Request, Status};

const MODES: [SubmitMode; 2] = [SubmitMode::CallerRuns, SubmitMode::Background];
const REMOTE: u64 = 0x7000_0000_0000;
const V2: TcpFraming = TcpFraming::V2;

fn next_request(stream: &mut TcpStream) -> Option<Request> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).ok()?;
    Some(Request::decode(&header).unwrap())
}

/// Reads a request and its body, if it has one.
fn whole_request(stream: &mut TcpStream) -> Option<Request> {
    let request = next_request(stream)?;
    if request.op == Op::Write {
        std::io::copy(&mut stream.take(request.len), &mut std::io::sink()).ok()?;
    }
    Some(request)
}

/// Serves everything with zeros.
fn serve(stream: &mut TcpStream) {
    while let Some(request) = whole_request(stream) {
        let mut answer = Status::Ok.encode().to_vec();
        if request.op == Op::Read {
            answer.resize(8 + request.len as usize, 0);
        }
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn one(node: &Node, peer: &FakePeer, op: Op, len: u64, mode: SubmitMode) -> Outcome {
    let local = node.region(len as usize, Access::LOCAL);
    transfer(&peer.path(node, V2), op, local.hold(0, len).unwrap(), REMOTE, mode)
}

/// META-21: the failure names the address and that it is the data port, within the connect timeout.
#[test]
fn refused_data_port_is_named() {
    let node = Node::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = node.transport.path(&descriptor("127.0.0.1", port, V2, None)).unwrap();
    let local = node.region(64, Access::LOCAL);
    for mode in MODES {
        let outcome = transfer(&path, Op::Write, local.hold(0, 64).unwrap(), REMOTE, mode);
        let failure = failed(&outcome);
        assert_eq!(failure.kind(), FailureKind::Unreachable);
        assert_eq!(failure.effect(), RemoteEffect::None);
        assert!(failure.cause().contains(&format!("data port 127.0.0.1:{port}")), "{failure}");
    }
    assert!(path.health().last_failure.is_some());
}

/// What waits behind an attempt to connect that fails is not made to wait for one attempt each.
#[test]
fn queue_of_an_unreachable_peer_fails_at_once() {
    let node = Node::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = node.transport.path(&descriptor("127.0.0.1", port, V2, None)).unwrap();
    let local = node.region(64, Access::LOCAL);
    let batches: Vec<_> = (0..200)
        .map(|_| {
            let batch = Batch::new(Duration::from_secs(20));
            batch.with(Op::Write, local.hold(0, 64).unwrap(), REMOTE).submit(&path, SubmitMode::Background)
        })
        .collect();
    for batch in batches {
        let outcome = batch.log.wait(1, Duration::from_secs(5)).remove(0);
        assert_eq!(failed(&outcome).kind(), FailureKind::Unreachable);
    }
}

/// TCP-05: accepted and never answered ends at the deadline, with what is known of the effect.
#[test]
fn silence_after_accept_ends_at_the_deadline() {
    let peer = FakePeer::new(|_, stream| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64 << 20, Access::LOCAL);
    for mode in MODES {
        for (op, len, effect) in [
            (Op::Write, 64, RemoteEffect::MayStillApply),
            // More than the buffers of two sockets take.
            (Op::Write, 64 << 20, RemoteEffect::MayStillApply),
            (Op::Read, 64, RemoteEffect::None),
        ] {
            let start = Instant::now();
            let batch = Batch::new(Duration::from_millis(300)).with(op, local.hold(0, len).unwrap(), REMOTE);
            let outcome = batch.submit(&path, mode).wait().remove(0);
            let failure = failed(&outcome);
            assert_eq!(failure.kind(), FailureKind::TimedOut, "{failure}");
            assert_eq!(failure.effect(), effect, "{op} {len}");
            let late = start.elapsed().saturating_sub(Duration::from_millis(300));
            assert!(late < Duration::from_secs(2), "{late:?} late");
        }
    }
}

/// The status timeout bounds a wait that the deadline does not.
#[test]
fn status_timeout_ends_a_wait_before_the_deadline() {
    let peer = FakePeer::new(|_, stream| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let mut config = TcpConfig::default();
    config.set("status_timeout", "200ms").unwrap();
    let node = Node::with(config);
    for op in [Op::Write, Op::Read] {
        let outcome = one(&node, &peer, op, 64, SubmitMode::CallerRuns);
        assert_eq!(failed(&outcome).kind(), FailureKind::TimedOut);
        assert!(failed(&outcome).cause().contains("no answer"), "{outcome:?}");
    }
}

#[test]
fn progress_timeout_ends_a_body_nobody_takes() {
    let peer = FakePeer::new(|_, stream| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let mut config = TcpConfig::default();
    config.set("progress_timeout", "200ms").unwrap();
    let node = Node::with(config);
    let outcome = one(&node, &peer, Op::Write, 64 << 20, SubmitMode::Background);
    assert_eq!(failed(&outcome).kind(), FailureKind::TimedOut);
    assert_eq!(failed(&outcome).effect(), RemoteEffect::MayStillApply);
}

/// Contract 9: a peer that has stopped delays only what was submitted to it.
#[test]
fn stopped_peer_delays_no_other_peer() {
    let stopped = FakePeer::new(|_, stream| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let (node, healthy) = (Node::new(), Node::new());
    let remote = healthy.region(4096, Access::REMOTE);
    let local = node.region(16 << 20, Access::LOCAL);
    let (dead, alive) = (stopped.path(&node, V2), node.path_to(&healthy));
    // One end for all: those that wait would begin if the connections were freed before their time is over.
    let end = Instant::now() + Duration::from_millis(1500);
    let stuck: Vec<_> = (0..20)
        .map(|_| {
            let batch = Batch { deadline: end, ..Batch::new(Duration::ZERO) };
            let hold = local.hold(0, 16 << 20).unwrap();
            batch.with(Op::Write, hold, REMOTE).submit(&dead, SubmitMode::Background)
        })
        .collect();
    let start = Instant::now();
    for count in 0..200 {
        let hold = local.hold(0, 4096).unwrap();
        let outcome = transfer(&alive, Op::Write, hold, remote.range().start(), MODES[count % 2]);
        assert!(outcome.is_done(), "{outcome:?}");
    }
    assert!(start.elapsed() < Duration::from_millis(1400), "{:?}", start.elapsed());
    // Those that waited in the queue end at the deadline too, and were never sent.
    let mut never_sent = 0;
    for batch in stuck {
        let outcome = batch.log.wait(1, Duration::from_secs(3)).remove(0);
        assert_eq!(failed(&outcome).kind(), FailureKind::TimedOut);
        never_sent += usize::from(failed(&outcome).effect() == RemoteEffect::None);
    }
    assert!(never_sent >= 16, "{never_sent}");
}

/// TCP-01: a connection that lost the framing is closed and never used again.
#[test]
fn corrupted_framing_closes_the_connection_for_good() {
    for mode in MODES {
        let peer = FakePeer::new(|number, mut stream| {
            if number == 0 {
                whole_request(&mut stream);
                let mut status = Status::Ok.encode();
                status[5] ^= 1;
                stream.write_all(&status).unwrap();
                // Nothing more may come on this connection.
                assert!(whole_request(&mut stream).is_none());
            } else {
                serve(&mut stream);
            }
        });
        let node = Node::new();
        let outcome = one(&node, &peer, Op::Write, 64, mode);
        assert_eq!(failed(&outcome).kind(), FailureKind::Protocol, "{outcome:?}");
        assert!(one(&node, &peer, Op::Write, 64, mode).is_done());
        assert_eq!(peer.connections(), 2);
    }
}

/// A target that speaks version 1 only takes a version 2 request for a READ and streams (wire spec, exchanges).
#[test]
fn v1_target_behind_a_v2_descriptor_is_a_protocol_error() {
    let peer = FakePeer::new(|_, mut stream| {
        let request = next_request(&mut stream).unwrap();
        let _ = stream.write_all(&vec![9; request.len as usize]);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let node = Node::new();
    for op in [Op::Read, Op::Write] {
        let outcome = one(&node, &peer, op, 4096, SubmitMode::CallerRuns);
        assert_eq!(failed(&outcome).kind(), FailureKind::Protocol, "{outcome:?}");
    }
}

#[test]
fn answer_before_the_request_is_a_protocol_error() {
    let peer = FakePeer::new(|_, mut stream| {
        next_request(&mut stream).unwrap();
        let _ = stream.write_all(&Status::Ok.encode());
        std::thread::sleep(Duration::from_secs(20));
    });
    let node = Node::new();
    let outcome = one(&node, &peer, Op::Write, 64 << 20, SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::Protocol, "{outcome:?}");
}

/// Spec correction 9: the reference may answer OK and close.
#[test]
fn ok_followed_by_the_end_is_a_failure() {
    let peer = FakePeer::new(|_, mut stream| {
        whole_request(&mut stream);
        stream.write_all(&Status::Ok.encode()).unwrap();
        stream.write_all(&[1; 100]).unwrap();
    });
    let node = Node::new();
    for mode in MODES {
        let outcome = one(&node, &peer, Op::Read, 4096, mode);
        assert_eq!(failed(&outcome).kind(), FailureKind::ConnectionLost, "{outcome:?}");
        assert!(failed(&outcome).cause().contains("after 108 of 4104"), "{outcome:?}");
    }
}

/// A status that comes while the body is still being sent ends the sending.
#[test]
fn early_refusal_ends_a_large_write() {
    let peer = FakePeer::new(|_, mut stream| {
        next_request(&mut stream);
        stream.write_all(&Status::REJECTED.encode()).unwrap();
        // Reads nothing: only the status can end this.
        std::thread::sleep(Duration::from_secs(20));
    });
    let node = Node::new();
    let start = Instant::now();
    let outcome = one(&node, &peer, Op::Write, 64 << 20, SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::Rejected, "{outcome:?}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// Spec sharp edge 47: a connection closed while idle costs the next request nothing.
#[test]
fn connection_closed_while_idle_is_replaced_without_a_failure() {
    for op in [Op::Read, Op::Write] {
        let peer = FakePeer::new(|_, mut stream| {
            let request = whole_request(&mut stream).unwrap();
            let mut answer = Status::Ok.encode().to_vec();
            if request.op == Op::Read {
                answer.resize(8 + request.len as usize, 0);
            }
            stream.write_all(&answer).unwrap();
        });
        let node = Node::new();
        let path = peer.path(&node, V2);
        let local = node.region(64, Access::LOCAL);
        for _ in 0..5 {
            let outcome = transfer(&path, op, local.hold(0, 64).unwrap(), REMOTE, SubmitMode::CallerRuns);
            assert!(outcome.is_done(), "{outcome:?}");
            // The close needs a moment to arrive.
            std::thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(peer.connections(), 5);
    }
}

/// A READ that meets a connection closed in the same moment is sent again.
#[test]
fn read_on_a_stale_connection_is_repeated_on_a_fresh_one() {
    let peer = FakePeer::new(|number, mut stream| {
        let request = whole_request(&mut stream).unwrap();
        let mut answer = Status::Ok.encode().to_vec();
        answer.resize(8 + request.len as usize, 3);
        stream.write_all(&answer).unwrap();
        if number == 0 {
            // The second request gets a close for an answer.
            whole_request(&mut stream);
        } else {
            serve(&mut stream);
        }
    });
    let node = Node::new();
    let path = peer.path(&node, V2);
    let local = node.region(64, Access::LOCAL);
    for _ in 0..2 {
        let outcome = transfer(&path, Op::Read, local.hold(0, 64).unwrap(), REMOTE, SubmitMode::CallerRuns);
        assert!(outcome.is_done(), "{outcome:?}");
    }
    assert_eq!(bytes(&local, 0, 64), [3; 64]);
    assert_eq!(peer.connections(), 2);
}

/// A WRITE that may have been seen is not sent twice.
#[test]
fn write_whose_header_was_sent_is_not_repeated() {
    let peer = FakePeer::new(|_, mut stream| {
        whole_request(&mut stream);
    });
    let node = Node::new();
    let outcome = one(&node, &peer, Op::Write, 64, SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::ConnectionLost, "{outcome:?}");
    assert_eq!(failed(&outcome).effect(), RemoteEffect::MayHaveApplied);
    assert_eq!(peer.connections(), 1);
}

/// Idle connections of a peer that is gone do not stay.
#[test]
fn connections_to_a_peer_that_went_away_are_given_up() {
    let (node, peer) = (Node::new(), Node::new());
    let remote = peer.region(64, Access::REMOTE);
    let local = node.region(64, Access::LOCAL);
    let path = node.path_to(&peer);
    let hold = local.hold(0, 64).unwrap();
    assert!(transfer(&path, Op::Write, hold, remote.range().start(), SubmitMode::CallerRuns).is_done());
    assert_eq!(path.health().connections, 1);
    peer.shutdown();
    common::eventually("reaped", || path.health().connections == 0);
}
