//! Requests that carry a digest of their payload.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use common::{ATTEMPT, Batch, FakePeer, Node, bytes, failed, pattern, transfer_of};
use te_memory::Region;
use te_segment::{Access, Generation, Incarnation};
use te_transport::{FailureKind, Op, Outcome, RemoteEffect, SubmitMode};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::native::{
    ANSWER_LEN, Answer, DIGEST_LEN, DIGEST_SINCE, HELLO_LEN, Hello, List, REQUEST_LEN, Request, Verdict,
};

const LIFE: Incarnation = Incarnation::from_bits(77);

fn node(digest: &str) -> Node {
    let mut config = TcpConfig::default();
    config.set("digest", digest).unwrap();
    config.set("connections_per_peer", "1").unwrap();
    Node::with(config)
}

fn greet(stream: &mut TcpStream, version: u16) {
    stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
    stream.write_all(&Answer::Welcome { version, now: LIFE }.encode()).unwrap();
}

/// FO-01: every size, one by one and in batches, fits.
#[test]
fn intact_payloads_fit_their_digests() {
    const LEN: usize = 10 << 20;
    for choice in ["always", "sampled"] {
        let (initiator, target) = (node(choice), Node::new());
        let (local, remote) = (initiator.region(LEN, Access::LOCAL), target.region(LEN, Access::REMOTE));
        let path = initiator.native_path_to(&target);
        for op in [Op::Write, Op::Read] {
            let (from, to) = if op == Op::Write { (&local, &remote) } else { (&remote, &local) };
            from.write_at(0, &pattern(LEN, 5)).unwrap();
            to.fill(0).unwrap();
            let mut batch = Batch::new(Duration::from_secs(60));
            let mut at = 0;
            for size in [1, 17, 4096, 65_536, 65_537, 100, 5 << 20, 4096, 3].into_iter().chain([1000; 200]) {
                let (hold, start) = (local.hold(at, size).unwrap(), remote.range().start() + at);
                batch.add_of(op, hold, start, remote.generation(), ATTEMPT);
                at += size;
            }
            let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
            assert!(outcomes.iter().all(Outcome::is_done), "{choice} {op}: {outcomes:?}");
            assert!(bytes(to, 0, at as usize) == pattern(LEN, 5)[..at as usize], "{choice} {op}");
        }
    }
}

/// Whether each of the units carried a digest, in the order in which they went out.
fn digests(choice: &str, version: u16, units: u64) -> Vec<bool> {
    let (seen, sees) = mpsc::channel();
    let peer = FakePeer::new(move |_, mut stream| {
        greet(&mut stream, version);
        let mut header = [0; REQUEST_LEN];
        while stream.read_exact(&mut header).is_ok() {
            let (count, digest, rest) = match List::decode(&header).unwrap() {
                Some(list) => (list.count, false, 32 * list.count as u64 + list.len),
                None => {
                    let request = Request::decode(&header).unwrap();
                    let trailer = if request.digest { DIGEST_LEN as u64 } else { 0 };
                    (1, request.digest, request.len + trailer)
                }
            };
            stream.read_exact(&mut vec![0; rest as usize]).unwrap();
            (0..count).for_each(|_| seen.send(digest).unwrap());
            stream.write_all(&Verdict::Ok.encode()).unwrap();
        }
    });
    let node = node(choice);
    let local = node.region(64, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    let mut batch = Batch::new(Duration::from_secs(30));
    for _ in 0..units {
        batch.add_of(Op::Write, local.hold(0, 64).unwrap(), 4096, Generation::new(9), ATTEMPT);
    }
    assert!(batch.submit(&path, SubmitMode::CallerRuns).wait().iter().all(Outcome::is_done));
    sees.try_iter().collect()
}

#[test]
fn one_in_sixty_four_is_sampled() {
    let sampled: Vec<_> = (0..200).map(|at| at % 64 == 0).collect();
    assert_eq!(digests("sampled", DIGEST_SINCE, 200), sampled);
    assert_eq!(digests("always", DIGEST_SINCE, 20), [true; 20]);
    assert_eq!(digests("off", DIGEST_SINCE, 200), [false; 200]);
    // An older peer knows none.
    assert_eq!(digests("always", DIGEST_SINCE - 1, 20), [false; 20]);
}

fn request(op: Op, region: &Region, len: u64) -> Request {
    let (addr, generation) = (region.range().start(), Some(region.generation()));
    Request { op, attempt: ATTEMPT, part: 0, addr, len, generation, digest: true }
}

fn welcomed(node: &Node) -> TcpStream {
    let mut stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let to = node.context.incarnation;
    stream.write_all(&Hello { version: DIGEST_SINCE, from: Incarnation::from_bits(5), to }.encode()).unwrap();
    stream.read_exact(&mut [0; ANSWER_LEN]).unwrap();
    stream
}

/// FO-01: damage on the way is not called a success, and the next request is served.
#[test]
fn damaged_write_is_noticed_by_the_target() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = welcomed(&node);
    // XXH3 of no bytes, which these are not; then of four bytes, as another implementation computes it.
    let wrong = 0x2d06_8005_38d3_94c2_u64.to_le_bytes();
    for _ in 0..2 {
        let frame = [&request(Op::Write, &region, 4).encode()[..], b"abcd", &wrong].concat();
        stream.write_all(&frame).unwrap();
        let mut verdict = [0; 8];
        stream.read_exact(&mut verdict).unwrap();
        assert_eq!(verdict, Verdict::Damaged.encode());
    }
    // Refused before the payload: the digest behind it is thrown away with it.
    let gone = Request { generation: Some(Generation::new(u64::MAX)), ..request(Op::Write, &region, 4) };
    stream.write_all(&[&gone.encode()[..], b"abcd", &wrong].concat()).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    stream.write_all(&request(Op::Read, &region, 4).encode()).unwrap();
    let mut answer = [0; 8 + DIGEST_LEN + 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[..8], &answer[16..]), (&Verdict::Ok.encode()[..], &b"abcd"[..]));
    let digest: [u8; DIGEST_LEN] = answer[8..16].try_into().unwrap();
    stream.write_all(&[&request(Op::Write, &region, 4).encode()[..], b"abcd", &digest].concat()).unwrap();
    let mut verdict = [0; 8];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict, Verdict::Ok.encode());
}

/// FO-01: both directions, as the initiator reports it.
#[test]
fn damage_is_a_failure_of_its_own_kind() {
    let peer = FakePeer::new(|_, mut stream| {
        greet(&mut stream, DIGEST_SINCE);
        let mut header = [0; REQUEST_LEN];
        while stream.read_exact(&mut header).is_ok() {
            let request = Request::decode(&header).unwrap();
            if request.op == Op::Write {
                stream.read_exact(&mut vec![0; request.len as usize + DIGEST_LEN]).unwrap();
                stream.write_all(&Verdict::Damaged.encode()).unwrap();
            } else {
                let answer = [&Verdict::Ok.encode()[..], &[0; DIGEST_LEN], &vec![7; request.len as usize]];
                stream.write_all(&answer.concat()).unwrap();
            }
        }
    });
    let node = node("always");
    let local = node.region(100_000, Access::LOCAL);
    let path = peer.native_path(&node, LIFE);
    for (op, effect) in [(Op::Write, RemoteEffect::MayHaveApplied), (Op::Read, RemoteEffect::None)] {
        for len in [1, 4096, 100_000] {
            let outcome = transfer_of(&path, op, local.hold(0, len).unwrap(), 1 << 30, Generation::new(9));
            let failure = failed(&outcome);
            assert_eq!((failure.kind(), failure.effect()), (FailureKind::Damaged, effect), "{failure}");
            assert!(failure.cause().contains("digest") && failure.kind().retry_can_help(), "{failure}");
        }
    }
    assert_eq!(peer.connections(), 1, "the connection goes on");
}
