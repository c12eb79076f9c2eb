//! Lists of small requests between te engines.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{ATTEMPT, Batch, FakePeer, Node, bytes, eventually, failed, pattern};
use te_memory::Region;
use te_segment::{Access, Generation, Incarnation};
use te_transport::{AttemptId, FailureKind, Op, Outcome, Path, RemoteEffect, SubmitMode, Transport};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::native::{
    ANSWER_LEN, Answer, ENTRY_LEN, Entry, HELLO_LEN, Hello, LIST_MAX, LIST_SINCE, List, REQUEST_LEN, Request,
    Verdict,
};

const BOTH: [Op; 2] = [Op::Write, Op::Read];
const LIFE: Incarnation = Incarnation::from_bits(77);

/// A node with one connection to a peer, so that a refusal is seen to cost it or not.
fn one_connection() -> Node {
    let mut config = TcpConfig::default();
    config.set("connections_per_peer", "1").unwrap();
    Node::with(config)
}

fn greet(stream: &mut TcpStream, version: u16) {
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    stream.write_all(&Answer::Welcome { version, now: LIFE }.encode()).unwrap();
}

enum Frame {
    One(Request),
    List(List, Vec<Entry>),
}

/// Reads a request or a list and its payload, if it has one.
fn next(stream: &mut TcpStream) -> Option<Frame> {
    let mut header = [0; REQUEST_LEN];
    stream.read_exact(&mut header).ok()?;
    let (frame, op, len) = match List::decode(&header).unwrap() {
        None => {
            let request = Request::decode(&header).unwrap();
            (Frame::One(request), request.op, request.len)
        }
        Some(list) => {
            let mut entries = vec![0; list.count * ENTRY_LEN];
            stream.read_exact(&mut entries).ok()?;
            let entries = entries.as_chunks().0.iter().map(|bytes| Entry::decode(bytes).unwrap()).collect();
            (Frame::List(list, entries), list.op, list.len)
        }
    };
    if op == Op::Write {
        stream.read_exact(&mut vec![0; len as usize]).ok()?;
    }
    Some(frame)
}

/// `count` requests of `len` bytes, one behind the other at both ends.
fn batch(op: Op, local: &Region, at: u64, of: Generation, count: u64, len: u64) -> Batch {
    let mut batch = Batch::new(Duration::from_secs(30));
    for index in 0..count {
        let attempt = AttemptId { request: 100 + index, attempt: 1 };
        batch.add_of(op, local.hold(index * len, len).unwrap(), at + index * len, of, attempt);
    }
    batch
}

#[test]
fn small_requests_go_as_lists_that_name_all_they_mean() {
    let (seen, sees) = mpsc::channel();
    let peer = FakePeer::new(move |_, mut stream| {
        greet(&mut stream, LIST_SINCE);
        while let Some(frame) = next(&mut stream) {
            seen.send(frame).unwrap();
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let node = one_connection();
    let local = node.region(1 << 20, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let outcomes = batch(Op::Write, &local, 1 << 30, Generation::new(9), 10, 100)
        .submit(&path, SubmitMode::CallerRuns)
        .wait();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(100))), "{outcomes:?}");
    let Frame::List(list, entries) = sees.recv().unwrap() else { panic!("no list") };
    assert_eq!(list, List { op: Op::Write, part: 0, count: 10, len: 1000 });
    for (index, entry) in (0..).zip(entries) {
        let attempt = AttemptId { request: 100 + index, attempt: 1 };
        let addr = (1 << 30) + index * 100;
        assert_eq!(entry, Entry { attempt, len: 100, addr, generation: Generation::new(9) });
    }
    // One alone is no list.
    let outcomes = batch(Op::Write, &local, 1 << 30, Generation::new(9), 1, 100)
        .submit(&path, SubmitMode::CallerRuns)
        .wait();
    assert!(outcomes[0].is_done());
    let Frame::One(request) = sees.recv().unwrap() else { panic!("a list of one") };
    assert_eq!((request.part, request.len), (1, 100));
}

#[test]
fn peers_of_the_first_version_get_no_lists() {
    let (seen, sees) = mpsc::channel();
    let peer = FakePeer::new(move |_, mut stream| {
        greet(&mut stream, LIST_SINCE - 1);
        while let Some(frame) = next(&mut stream) {
            seen.send(matches!(frame, Frame::One(_))).unwrap();
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let node = one_connection();
    let local = node.region(4096, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let outcomes = batch(Op::Write, &local, 4096, Generation::new(9), 20, 100)
        .submit(&path, SubmitMode::CallerRuns)
        .wait();
    assert!(outcomes.iter().all(Outcome::is_done), "{outcomes:?}");
    assert_eq!(sees.try_iter().collect::<Vec<_>>(), [true; 20]);
}

/// Sizes around the borders of what is listed, mixed, both ways.
#[test]
fn mixed_sizes_arrive() {
    const LEN: usize = 3 << 20;
    let (initiator, target) = (one_connection(), Node::new());
    let (local, remote) = (initiator.region(LEN, Access::LOCAL), target.region(LEN, Access::REMOTE));
    let path = initiator.native_path_to(&target);
    for op in BOTH {
        let (from, to) = if op == Op::Write { (&local, &remote) } else { (&remote, &local) };
        from.write_at(0, &pattern(LEN, 7)).unwrap();
        to.fill(0).unwrap();
        let mut batch = Batch::new(Duration::from_secs(30));
        let (mut at, start) = (0, remote.range().start());
        for round in 0..200_u64 {
            let size =
                [1, 4096, 32_768, 32_769, 65_536, 17, 3, 4096][(round % 8) as usize].min(LEN as u64 - at);
            if size == 0 {
                break;
            }
            batch.add_of(op, local.hold(at, size).unwrap(), start + at, remote.generation(), ATTEMPT);
            at += size;
        }
        let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
        assert!(outcomes.iter().all(Outcome::is_done), "{outcomes:?}");
        assert!(bytes(to, 0, at as usize) == pattern(LEN, 7)[..at as usize], "{op}");
        assert!(bytes(to, at, LEN - at as usize).iter().all(|byte| *byte == 0), "{op}");
    }
    let counters = target.transport.counters();
    assert_eq!(counters.payload_received, counters.payload_sent);
}

/// FO-18: a refusal is that of the request it is for, whatever it was sent with.
#[test]
fn refused_request_costs_those_it_was_listed_with_nothing() {
    for op in BOTH {
        for bad in [0, 1, 62, 63, 64, 99] {
            let (initiator, target) = (one_connection(), Node::new());
            let local = initiator.region(100 * 64, Access::LOCAL);
            let remote = target.region(100 * 64, Access::REMOTE);
            let path = initiator.native_path_to(&target);
            let (from, to) = if op == Op::Write { (&local, &remote) } else { (&remote, &local) };
            from.write_at(0, &pattern(6400, 3)).unwrap();
            let mut batch = batch(op, &local, remote.range().start(), remote.generation(), 100, 64);
            batch.slices[bad].generation = Some(Generation::new(u64::MAX));
            let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
            for (index, outcome) in outcomes.iter().enumerate() {
                if index == bad {
                    let failure = failed(outcome);
                    assert_eq!(
                        (failure.kind(), failure.effect()),
                        (FailureKind::BufferGone, RemoteEffect::None)
                    );
                    assert!(bytes(to, 64 * bad as u64, 64) == [0; 64], "{op} {bad}");
                } else {
                    assert!(outcome.is_done(), "{op} {bad}: {index} is {outcome:?}");
                    let expected = &pattern(6400, 3)[64 * index..][..64];
                    assert!(bytes(to, 64 * index as u64, 64) == expected, "{op} {bad}: {index}");
                }
            }
        }
    }
}

/// A refused list of WRITEs is thrown away in place: the connection goes on.
#[test]
fn refused_list_of_writes_does_not_cost_the_connection() {
    let (initiator, target) = (one_connection(), Node::new());
    let local = initiator.region(4096, Access::LOCAL);
    let remote = target.region(4096, Access::REMOTE_READ);
    let path = initiator.native_path_to(&target);
    let outcomes = batch(Op::Write, &local, remote.range().start(), remote.generation(), 16, 256)
        .submit(&path, SubmitMode::CallerRuns)
        .wait();
    assert!(outcomes.iter().all(|outcome| failed(outcome).kind() == FailureKind::Rejected), "{outcomes:?}");
    assert_eq!(initiator.transport.counters().connected, 1);
}

/// A connection that breaks in a list: nobody knows how much of a WRITE is applied, and all of a READ is asked for again.
#[test]
fn list_that_is_cut_off_fails_all_it_has() {
    let peer = FakePeer::new(|_, mut stream| {
        greet(&mut stream, LIST_SINCE);
        let _ = stream.read_exact(&mut [0; REQUEST_LEN + 10 * ENTRY_LEN + 50]);
    });
    let node = one_connection();
    let local = node.region(4096, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let outcomes = batch(Op::Write, &local, 4096, Generation::new(9), 10, 100)
        .submit(&path, SubmitMode::CallerRuns)
        .wait();
    for outcome in &outcomes {
        let failure = failed(outcome);
        assert_eq!(failure.kind(), FailureKind::ConnectionLost, "{failure}");
        assert_ne!(failure.effect(), RemoteEffect::None, "{failure}");
    }
}

fn welcomed(node: &Node) -> TcpStream {
    let mut stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let hello = Hello { version: LIST_SINCE, from: Incarnation::from_bits(5), to: node.context.incarnation };
    stream.write_all(&hello.encode()).unwrap();
    let mut answer = [0; ANSWER_LEN];
    stream.read_exact(&mut answer).unwrap();
    assert!(matches!(Answer::decode(&answer), Ok(Answer::Welcome { version: LIST_SINCE, .. })));
    stream
}

fn entry(region: &Region, offset: u64, len: u32) -> Entry {
    Entry { attempt: ATTEMPT, len, addr: region.range().start() + offset, generation: region.generation() }
}

#[test]
fn lists_that_make_no_sense_close_the_connection_and_nothing_else() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let list = List { op: Op::Write, part: 0, count: 2, len: 20 };
    let good = [entry(&region, 0, 10).encode(), entry(&region, 10, 10).encode()].concat();
    let zero = [entry(&region, 0, 20).encode(), entry(&region, 10, 0).encode()].concat();
    let long = [entry(&region, 0, u32::MAX).encode(), entry(&region, 10, 10).encode()].concat();
    let mut reserved = list.encode();
    reserved[44] = 1;
    for (header, entries) in [
        (List { count: 0, ..list }.encode(), &good),
        (List { count: LIST_MAX + 1, ..list }.encode(), &good),
        (List { len: 19, ..list }.encode(), &good),
        (List { len: u64::MAX, ..list }.encode(), &good),
        (list.encode(), &zero),
        (list.encode(), &long),
        (reserved, &good),
    ] {
        let mut stream = welcomed(&node);
        stream.write_all(&header).unwrap();
        // The target may have closed by now.
        let _ = stream.write_all(entries);
        let _ = stream.write_all(&[1; 20]);
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        assert_eq!(answers, b"", "{header:?}");
    }
    assert_eq!(bytes(&region, 0, 4096), [0; 4096]);
    let mut stream = welcomed(&node);
    stream.write_all(&[&list.encode()[..], &good, &[7; 20]].concat()).unwrap();
    let mut verdict = [0; 8];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!((verdict, bytes(&region, 0, 20)), (Verdict::Ok.encode(), vec![7; 20]));
}

/// Lists that come byte by byte, pipelined behind each other.
#[test]
fn trickled_lists_are_served() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = welcomed(&node);
    stream.set_nodelay(true).unwrap();
    let list = |fill: u8| {
        let header = List { op: Op::Write, part: 0, count: 2, len: 12 }.encode();
        let entries = [entry(&region, 0, 4).encode(), entry(&region, 100, 8).encode()];
        [&header[..], &entries.concat(), &[fill; 12]].concat()
    };
    for byte in [list(1), list(2)].concat() {
        stream.write_all(&[byte]).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut verdicts = [0; 16];
    stream.read_exact(&mut verdicts).unwrap();
    assert_eq!(verdicts, [Verdict::Ok.encode(), Verdict::Ok.encode()].concat()[..]);
    assert_eq!(
        (bytes(&region, 0, 5), bytes(&region, 100, 9)),
        (vec![2, 2, 2, 2, 0], [vec![2; 8], vec![0]].concat())
    );
}

/// META-23: whoever withdraws a buffer finds every list that uses it, wherever in the list it is.
#[test]
fn withdrawal_stops_a_list_that_uses_the_buffer() {
    let node = Node::new();
    let (first, second) = (node.region(4096, Access::REMOTE), node.region(4096, Access::REMOTE));
    let mut stream = welcomed(&node);
    let header = List { op: Op::Write, part: 0, count: 2, len: 8192 }.encode();
    let entries = [entry(&first, 0, 4096).encode(), entry(&second, 0, 4096).encode()].concat();
    stream.write_all(&[&header[..], &entries, &[9; 5000]].concat()).unwrap();
    eventually("some of it is in place", || bytes(&second, 903, 1) == [9]);
    second.block();
    eventually("it is cut", || node.transport.unregister(&second).is_ok());
    second.wait_drained(Instant::now() + Duration::from_secs(5)).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "cut");
    eventually("the other buffer is free as well", || first.holds().remote == 0);
    drop(second.release().unwrap());
}

#[test]
fn many_threads_share_lists_and_connections() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(64 * 4096, Access::REMOTE);
    let path = initiator.native_path_to(&target);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (initiator, remote, path) = (&initiator, &remote, path.clone());
            scope.spawn(move || writes_and_reads_back(initiator, remote, &path, thread * 16 * 4096));
        }
    });
}

fn writes_and_reads_back(node: &Node, remote: &Region, path: &std::sync::Arc<dyn Path>, base: u64) {
    let local = node.region(16 * 4096, Access::LOCAL);
    for round in 0..50_u8 {
        let expected = pattern(16 * 4096, round);
        local.write_at(0, &expected).unwrap();
        let start = remote.range().start() + base;
        for op in BOTH {
            let batch = batch(op, &local, start, remote.generation(), 16, 4096);
            let outcomes = batch.submit(path, SubmitMode::CallerRuns).wait();
            assert!(outcomes.iter().all(Outcome::is_done), "{outcomes:?}");
            if op == Op::Write {
                assert!(bytes(remote, base, 16 * 4096) == expected);
                local.fill(0).unwrap();
            }
        }
        assert!(bytes(&local, 0, 16 * 4096) == expected);
    }
}
