//! The target against connections that do not behave.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::{Node, bytes, eventually, pattern, transfer};
use proptest::prelude::*;
use te_segment::{Access, TcpFraming};
use te_transport::{Op, SubmitMode};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::frame::{Request, Status};

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn v2(op: Op, addr: u64, len: u64) -> [u8; 24] {
    Request { op, framing: TcpFraming::V2, addr, len }.encode()
}

fn with(settings: &[(&str, &str)]) -> Node {
    let mut config = TcpConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    Node::with(config)
}

/// Whether the target has closed: the end of the stream or a reset.
fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Ok(1..))
}

/// Spec sharp edge 49: the reference serves unknown opcodes as READ.
#[test]
fn unknown_opcode_closes_the_connection() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    for opcode in [2, 0x7f, 0x82, 0xff] {
        let mut stream = connect(&node);
        let mut header = v2(Op::Read, region.range().start(), 16);
        header[16] = opcode;
        stream.write_all(&header).unwrap();
        assert!(is_closed(&mut stream), "{opcode:#x}");
    }
}

/// What was applied before the stream went wrong is still acknowledged.
#[test]
fn writes_before_an_unknown_opcode_are_acknowledged() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    let mut requests = Vec::new();
    for _ in 0..3 {
        requests.extend(v2(Op::Write, region.range().start(), 16));
        requests.extend([1; 16]);
    }
    requests.extend([0x55; 24]);
    stream.write_all(&requests).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [Status::Ok.encode(); 3].as_flattened());
}

#[test]
fn padding_bytes_are_ignored() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    let mut header = v2(Op::Read, region.range().start(), 8);
    header[17..].copy_from_slice(b"ey: str");
    stream.write_all(&header).unwrap();
    let mut answer = [0xff; 16];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], Status::Ok.encode());
    assert_eq!(answer[8..], [0; 8]);
}

/// The reference sends header and payload as separate writes, and anything may cut a stream anywhere.
#[test]
fn requests_sent_byte_by_byte_are_served() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    stream.set_nodelay(true).unwrap();
    for round in 0..3_u8 {
        let mut request = v2(Op::Write, region.range().start(), 10).to_vec();
        request.extend_from_slice(&[round + 1; 10]);
        for byte in request {
            stream.write_all(&[byte]).unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
        let mut status = [0; 8];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(status, Status::Ok.encode());
        assert_eq!(bytes(&region, 0, 10), [round + 1; 10]);
    }
}

/// Requests sent back to back are answered in order, both versions mixed.
#[test]
fn pipelined_requests_of_both_versions_are_answered_in_order() {
    let node = Node::new();
    let region = node.region(1 << 20, Access::REMOTE);
    region.write_at(4096, &pattern(4096, 3)).unwrap();
    let start = region.range().start();
    let mut stream = connect(&node);
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for round in 0..200_u64 {
        requests.extend(v2(Op::Write, start, 100));
        requests.extend([round as u8; 100]);
        expected.extend(Status::Ok.encode());
        requests.extend(v2(Op::Read, start, 100));
        expected.extend(Status::Ok.encode());
        expected.extend([round as u8; 100]);
        requests
            .extend(Request { op: Op::Read, framing: TcpFraming::V1, addr: start + 4096, len: 50 }.encode());
        expected.extend(&pattern(4096, 3)[..50]);
    }
    let mut sender = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || sender.write_all(&requests).unwrap());
    let mut answers = vec![0; expected.len()];
    stream.read_exact(&mut answers).unwrap();
    writer.join().unwrap();
    assert!(answers == expected);
}

/// A connection comes back to the watching thread after a pause, and the rest of a header wakes it.
#[test]
fn header_with_a_long_pause_in_the_middle_is_served() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    for cut in [1, 12, 23, 24] {
        let header = v2(Op::Read, region.range().start(), 8);
        stream.write_all(&header[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(250));
        stream.write_all(&header[cut..]).unwrap();
        let mut answer = [0xff; 16];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], Status::Ok.encode(), "{cut}");
    }
}

#[test]
fn silent_connection_is_closed_and_a_served_one_stays() {
    let node = with(&[("silent_timeout", "300ms")]);
    let region = node.region(4096, Access::REMOTE);
    let mut served = connect(&node);
    served.write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    served.read_exact(&mut [0; 16]).unwrap();
    let (mut silent, mut half) = (connect(&node), connect(&node));
    half.write_all(&v2(Op::Read, region.range().start(), 8)[..20]).unwrap();
    let start = Instant::now();
    assert!(is_closed(&mut silent));
    assert!(is_closed(&mut half));
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    served.write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    served.read_exact(&mut [0; 16]).unwrap();
}

/// Silence cannot lock newcomers out: the oldest silent connection goes first.
#[test]
fn oldest_silent_connection_makes_room() {
    let node = with(&[("max_connections", "8")]);
    let region = node.region(4096, Access::REMOTE);
    let mut served = connect(&node);
    served.write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    served.read_exact(&mut [0; 16]).unwrap();
    let mut silent: Vec<_> = (0..7)
        .map(|count| {
            let stream = connect(&node);
            eventually("accepted", || node.transport.accepted_connections() == count + 2);
            stream
        })
        .collect();
    let mut newcomer = connect(&node);
    newcomer.write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    newcomer.read_exact(&mut [0; 16]).unwrap();
    assert!(is_closed(&mut silent[0]));
    silent[1].write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    silent[1].read_exact(&mut [0; 16]).unwrap();
    served.write_all(&v2(Op::Read, region.range().start(), 8)).unwrap();
    served.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(node.transport.accepted_connections(), 8);
}

/// A peer that takes no data, or stops in the middle of a body, is given up, and the region is free again.
#[test]
fn stalled_body_and_unread_answer_are_given_up() {
    let node = with(&[("progress_timeout", "300ms")]);
    let region = node.region(64 << 20, Access::REMOTE);
    let mut writer = connect(&node);
    writer.write_all(&v2(Op::Write, region.range().start(), 1 << 20)).unwrap();
    writer.write_all(&[1; 1000]).unwrap();
    let mut reader = connect(&node);
    reader.write_all(&v2(Op::Read, region.range().start(), 64 << 20)).unwrap();
    eventually("both in progress", || region.holds().remote == 2);
    // One byte now and then is no progress.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(100));
        if writer.write_all(&[1]).is_err() {
            break;
        }
    }
    eventually("both given up", || region.holds().remote == 0);
}

#[test]
fn peer_that_dies_in_the_middle_of_a_body_frees_the_region() {
    let node = Node::new();
    let region = node.region(1 << 20, Access::REMOTE);
    let mut stream = connect(&node);
    stream.write_all(&v2(Op::Write, region.range().start(), 1 << 20)).unwrap();
    stream.write_all(&[1; 1000]).unwrap();
    eventually("in progress", || region.holds().remote == 1);
    drop(stream);
    eventually("gone", || region.holds().remote == 0 && node.transport.accepted_connections() == 0);
}

/// A thousand silent and half-open connections, and a transfer goes on beside them.
#[test]
fn thousand_idle_connections_do_not_disturb_a_transfer() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.path_to(&target);
    let mut crowd = Vec::new();
    for count in 0..1000 {
        let mut stream = connect(&target);
        if count % 2 == 0 {
            stream.write_all(&v2(Op::Write, remote.range().start(), 64)[..count % 23 + 1]).unwrap();
        }
        crowd.push(stream);
        if count % 20 == 0 {
            let hold = local.hold(0, 4096).unwrap();
            let outcome = transfer(&path, Op::Write, hold, remote.range().start(), SubmitMode::CallerRuns);
            assert!(outcome.is_done(), "{outcome:?}");
        }
    }
    eventually("all accepted", || target.transport.accepted_connections() >= 1000);
    // None of them has a thread.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads < 300, "{threads} threads");
    let hold = local.hold(0, 4096).unwrap();
    assert!(transfer(&path, Op::Read, hold, remote.range().start(), SubmitMode::Background).is_done());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEC-01, SEC-02: whatever is sent, bytes outside the writable region do not change, and nothing is served that
    /// is not registered.
    #[test]
    fn random_requests_touch_only_what_is_registered(
        offset in -40_i64..4200,
        len in prop_oneof![0_u64..4200, any::<u64>()],
        opcode: u8,
        padding: [u8; 7],
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        thread_local!(static NODE: Node = Node::new());
        NODE.with(|node| {
            // One allocation, of which the middle page only is open to peers.
            let memory = te_memory::Memory::allocate(3 * 4096).unwrap();
            let middle = memory.address() + 4096;
            let region = node.context.regions.reserve(memory, Access::LOCAL, te_segment::Location::Any).unwrap();
            let region = region.commit();
            let open = node.region(4096, Access::REMOTE_WRITE);
            region.fill(0xaa).unwrap();
            let addr = if opcode & 1 == 0 { middle } else { open.range().start() }.wrapping_add_signed(offset);
            let mut request = Vec::new();
            request.extend(len.to_le_bytes());
            request.extend(addr.to_le_bytes());
            request.push(opcode);
            request.extend(padding);
            request.extend(&body);
            let mut stream = connect(node);
            // The target may have closed already.
            let _ = stream.write_all(&request).and_then(|()| stream.shutdown(Shutdown::Write));
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            // READ is allowed nowhere, so no answer is longer than two statuses.
            assert!(answer.len() <= 16, "{} bytes", answer.len());
            assert_eq!(bytes(&region, 0, 3 * 4096), vec![0xaa; 3 * 4096]);
            for region in [region, open] {
                region.block();
                region.wait_drained(Instant::now() + Duration::from_secs(5)).unwrap();
                assert_eq!(region.release().unwrap().len() % 4096, 0);
            }
        });
    }
}
