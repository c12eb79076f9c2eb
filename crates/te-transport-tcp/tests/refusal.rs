//! What the target refuses, and how the initiator reports it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Batch, Node, bytes, failed, transfer};
use te_segment::{Access, TcpFraming};
use te_transport::{FailureKind, Op, RemoteEffect, SubmitMode, Transport};
use te_transport_tcp::frame::{Request, Status};

const V2: TcpFraming = TcpFraming::V2;
const V1: TcpFraming = TcpFraming::V1;

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn header(op: Op, framing: TcpFraming, addr: u64, len: u64) -> [u8; 24] {
    Request { op, framing, addr, len }.encode()
}

/// What the target answers until it closes.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

/// SEC-01, SEC-02: outside, crossing an end, across two regions, empty, wrapping, extreme.
#[test]
fn every_range_outside_one_region_is_refused_with_a_status_and_a_close() {
    let node = Node::new();
    let region = node.region(8192, Access::REMOTE);
    let (start, end) = (region.range().start(), region.range().end());
    let cases = [
        (end, 1),
        (end - 1, 2),
        (start - 1, 1),
        (start - 1, 8194),
        (start, 0),
        (start, u64::MAX),
        (start, u64::MAX - start),
        (start, u64::MAX - start + 1),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0, 1),
        (0, u64::MAX),
    ];
    for (addr, len) in cases {
        for op in [Op::Read, Op::Write] {
            let mut stream = connect(&node);
            stream.write_all(&header(op, V2, addr, len)).unwrap();
            assert_eq!(answer(&mut stream), Status::REJECTED.encode(), "{op} {addr:#x} {len}");
        }
    }
    assert_eq!(node.transport.counters().refused, 2 * cases.len() as u64);
}

/// The statuses of what was served before the refusal come before it.
#[test]
fn pipelined_writes_before_a_refused_one_are_acknowledged() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    let mut requests = Vec::new();
    for index in 0..50_u64 {
        requests.extend(header(Op::Write, V2, region.range().start() + index * 16, 16));
        requests.extend([index as u8 + 1; 16]);
    }
    requests.extend(header(Op::Write, V2, region.range().end(), 16));
    requests.extend([0xee; 16]);
    requests.extend(header(Op::Write, V2, region.range().start(), 16));
    requests.extend([0xee; 16]);
    stream.write_all(&requests).unwrap();
    let expected = [[Status::Ok.encode(); 50].as_flattened(), &Status::REJECTED.encode()].concat();
    assert_eq!(answer(&mut stream), expected);
    for index in 0..50_u64 {
        assert_eq!(bytes(&region, index * 16, 16), [index as u8 + 1; 16]);
    }
}

#[test]
fn access_is_enforced_in_each_direction() {
    let node = Node::new();
    for (access, op) in [
        (Access::LOCAL, Op::Read),
        (Access::LOCAL, Op::Write),
        (Access::REMOTE_READ, Op::Write),
        (Access::REMOTE_WRITE, Op::Read),
    ] {
        let region = node.region(4096, access);
        let mut stream = connect(&node);
        stream.write_all(&header(op, V2, region.range().start(), 16)).unwrap();
        assert_eq!(answer(&mut stream), Status::REJECTED.encode(), "{access:?} {op}");
    }
}

#[test]
fn refused_v1_request_is_closed_without_an_answer() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE_READ);
    for (op, addr) in [(Op::Read, region.range().end()), (Op::Write, region.range().start())] {
        let mut stream = connect(&node);
        stream.write_all(&header(op, V1, addr, 16)).unwrap();
        assert_eq!(answer(&mut stream), b"", "{op}");
    }
}

/// Spec sharp edge 48: the status survives although the sender is still sending.
#[test]
fn status_of_a_refused_write_arrives_behind_a_body_of_16_mib() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    for _ in 0..10 {
        let mut stream = connect(&node);
        let len = 16 << 20;
        stream.write_all(&header(Op::Write, V2, region.range().end(), len)).unwrap();
        // All of it can be sent: the target reads and forgets it.
        stream.write_all(&vec![1; len as usize]).unwrap();
        assert_eq!(answer(&mut stream), Status::REJECTED.encode());
    }
}

/// Contract 3: a region that is being withdrawn is not served, and neither is one that is not committed.
#[test]
fn blocked_and_reserved_regions_are_refused() {
    let node = Node::new();
    let blocked = node.region(4096, Access::REMOTE);
    blocked.block();
    let memory = te_memory::Memory::allocate(4096).unwrap();
    let reserved = node.context.regions.reserve(memory, Access::REMOTE, te_segment::Location::Any).unwrap();
    for range in [blocked.range(), reserved.region().range()] {
        let mut stream = connect(&node);
        stream.write_all(&header(Op::Read, V2, range.start(), 16)).unwrap();
        assert_eq!(answer(&mut stream), Status::REJECTED.encode());
    }
}

/// Contract 3: requests that do not end in time are cut, and the region is free.
#[test]
fn unregister_cuts_a_stalled_write_and_frees_the_region() {
    let node = Node::new();
    let region = node.region(1 << 20, Access::REMOTE);
    let mut stream = connect(&node);
    stream.write_all(&header(Op::Write, V2, region.range().start(), 1 << 20)).unwrap();
    stream.write_all(&[7; 1000]).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while region.holds().remote == 0 {
        assert!(Instant::now() < end, "the request never began");
        std::thread::yield_now();
    }
    region.block();
    node.transport.unregister(&region).unwrap();
    region.wait_drained(Instant::now() + Duration::from_secs(1)).unwrap();
    assert!(region.release().is_ok());
    node.transport.unregister(&region).unwrap();
}

#[test]
fn refused_slice_names_its_range_and_changes_nothing() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE_READ);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.path_to(&target);
    for mode in [SubmitMode::CallerRuns, SubmitMode::Background] {
        let start = remote.range().start() + 256;
        let outcome = transfer(&path, Op::Write, local.hold(0, 128).unwrap(), start, mode);
        let failure = failed(&outcome);
        assert_eq!(failure.kind(), FailureKind::Rejected);
        assert_eq!(failure.effect(), RemoteEffect::None);
        assert!(failure.to_string().contains(&format!("{start:#x}")), "{failure}");
        assert!(failure.to_string().contains("tcp 127.0.0.1:"), "{failure}");
    }
}

/// A refusal costs the connection; the rest of the batch goes on with another.
#[test]
fn one_refused_slice_fails_alone() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(64 << 10, Access::REMOTE);
    let local = initiator.region(64 << 10, Access::LOCAL);
    local.fill(5).unwrap();
    let path = initiator.path_to(&target);
    for op in [Op::Write, Op::Read] {
        for mode in [SubmitMode::CallerRuns, SubmitMode::Background] {
            remote.fill(if op == Op::Read { 5 } else { 0 }).unwrap();
            let mut batch = Batch::new(Duration::from_secs(30));
            for index in 0..64_u64 {
                let bad = index == 10 || index == 11 || index == 40;
                let at = if bad { remote.range().end() } else { remote.range().start() + index * 1024 };
                batch.add(op, local.hold(index * 1024, 1024).unwrap(), at);
            }
            for (index, outcome) in batch.submit(&path, mode).wait().iter().enumerate() {
                if matches!(index, 10 | 11 | 40) {
                    assert_eq!(failed(outcome).kind(), FailureKind::Rejected, "{index}");
                } else {
                    assert!(outcome.is_done(), "{index} {outcome:?}");
                    let place = if op == Op::Read { &local } else { &remote };
                    assert_eq!(bytes(place, index as u64 * 1024, 1024), [5; 1024]);
                }
            }
        }
    }
}

/// Contract 6: a refused v1 WRITE is not reported as done.
#[test]
fn refused_v1_write_is_unconfirmed_and_read_is_lost() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.transport.path(&target.descriptor_with(V1)).unwrap();
    let outside = remote.range().end();
    let outcome = transfer(&path, Op::Write, local.hold(0, 16).unwrap(), outside, SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::Unconfirmed);
    assert_eq!(failed(&outcome).effect(), RemoteEffect::MayHaveApplied);
    let outcome = transfer(&path, Op::Read, local.hold(0, 16).unwrap(), outside, SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::ConnectionLost);
    assert!(failed(&outcome).cause().contains("refuses a range this way"), "{outcome:?}");
    // The next legal request does not suffer.
    let legal = transfer(
        &path,
        Op::Write,
        local.hold(0, 16).unwrap(),
        remote.range().start(),
        SubmitMode::CallerRuns,
    );
    assert!(legal.is_done(), "{legal:?}");
}

/// A v1 WRITE to memory that may not be read cannot be confirmed.
#[test]
fn v1_write_without_read_access_is_unconfirmed() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE_WRITE);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.transport.path(&target.descriptor_with(V1)).unwrap();
    let hold = local.hold(0, 16).unwrap();
    let outcome = transfer(&path, Op::Write, hold, remote.range().start(), SubmitMode::CallerRuns);
    assert_eq!(failed(&outcome).kind(), FailureKind::Unconfirmed);
}

/// SEL-08: not a failure, so that others may serve it.
#[test]
fn device_memory_is_not_ours() {
    let node = Node::new();
    let memory = te_memory::Memory::allocate(4096).unwrap();
    let location = te_segment::Location::device(te_segment::DeviceKind::ALL[0], 0);
    let reserved = node.context.regions.reserve(memory, Access::REMOTE, location).unwrap();
    let answer = node.transport.register(reserved.region()).unwrap();
    assert!(matches!(answer, te_transport::Registration::NotMine(_)), "{answer:?}");
}
