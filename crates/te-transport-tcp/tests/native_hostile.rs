//! The native target against connections that do not behave.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::{ATTEMPT, Node, bytes, eventually};
use proptest::prelude::*;
use te_memory::Region;
use te_segment::{Access, Generation, Incarnation};
use te_transport::{Op, Transport};
use te_transport_tcp::TcpConfig;
use te_transport_tcp::native::{ANSWER_LEN, Answer, Hello, Request, VERSIONS, Verdict, Why};

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.transport.listening_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn with(settings: &[(&str, &str)]) -> Node {
    let mut config = TcpConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    Node::with(config)
}

fn hello(node: &Node) -> Hello {
    Hello { version: VERSIONS.1, from: Incarnation::from_bits(5), to: node.context.incarnation }
}

fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = [0; ANSWER_LEN];
    stream.read_exact(&mut bytes).unwrap();
    Answer::decode(&bytes).unwrap()
}

fn welcomed(node: &Node) -> TcpStream {
    let mut stream = connect(node);
    stream.write_all(&hello(node).encode()).unwrap();
    assert!(matches!(answer(&mut stream), Answer::Welcome { .. }));
    stream
}

fn request(op: Op, region: &Region, len: u64) -> Request {
    let (addr, generation) = (region.range().start(), Some(region.generation()));
    Request { op, attempt: ATTEMPT, part: 0, addr, len, generation, digest: false }
}

/// Everything until the target closes.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn hello_is_answered_by_what_is_wrong_with_it() {
    let node = Node::new();
    let now = node.context.incarnation;
    let good = hello(&node);
    let stale = Hello { to: Incarnation::from_bits(6), ..good };
    let old = Hello { version: 0, ..good };
    let later = Hello { version: u16::MAX, ..good };
    let (oldest, newest) = VERSIONS;
    for (hello, expected) in [
        (good, Answer::Welcome { version: newest, now }),
        (later, Answer::Welcome { version: newest, now }),
        (stale, Answer::StaleIncarnation { now }),
        (Hello { version: 0, ..stale }, Answer::StaleIncarnation { now }),
        (old, Answer::Version { oldest, newest }),
    ] {
        let mut stream = connect(&node);
        stream.write_all(&hello.encode()).unwrap();
        assert_eq!(answer(&mut stream), expected);
        if !matches!(expected, Answer::Welcome { .. }) {
            assert_eq!(rest(&mut stream), b"", "{expected:?}");
        }
    }
    eventually("refused ones are closed", || node.transport.accepted_connections() <= 2);
}

#[test]
fn hello_and_requests_sent_byte_by_byte_are_served() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let mut stream = connect(&node);
    stream.set_nodelay(true).unwrap();
    let mut trickle = |bytes: &[u8]| {
        for byte in bytes {
            stream.write_all(&[*byte]).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        }
        stream.try_clone().unwrap()
    };
    let mut stream = trickle(&hello(&node).encode());
    assert!(matches!(answer(&mut stream), Answer::Welcome { .. }));
    for round in 1..4_u8 {
        let mut all = request(Op::Write, &region, 10).encode().to_vec();
        all.extend([round; 10]);
        let mut stream = trickle(&all);
        let mut status = [0; 8];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(status, Verdict::Ok.encode());
        assert_eq!(bytes(&region, 0, 10), [round; 10]);
    }
}

/// A pause gives the connection back to the watching thread, in whatever it was.
#[test]
fn pauses_in_the_middle_of_frames_are_served() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    for cut in [1, 23, 24, 25, 55] {
        let mut stream = connect(&node);
        let greeting = hello(&node).encode();
        stream.write_all(&greeting[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        stream.write_all(&greeting[cut..]).unwrap();
        assert!(matches!(answer(&mut stream), Answer::Welcome { .. }), "{cut}");
        let header = request(Op::Read, &region, 8).encode();
        let cut = cut.min(47);
        stream.write_all(&header[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        stream.write_all(&header[cut..]).unwrap();
        let mut answer = [0xff; 16];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], Verdict::Ok.encode(), "{cut}");
    }
}

/// Half a hello is silence.
#[test]
fn half_a_hello_is_closed_in_time_and_a_greeted_connection_stays() {
    let node = with(&[("silent_timeout", "300ms")]);
    let region = node.region(4096, Access::REMOTE);
    let mut greeted = welcomed(&node);
    for cut in [8, 24, 30, 55] {
        let mut half = connect(&node);
        half.write_all(&hello(&node).encode()[..cut]).unwrap();
        assert_eq!(rest(&mut half), b"", "{cut}");
    }
    greeted.write_all(&request(Op::Read, &region, 8).encode()).unwrap();
    greeted.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn damaged_header_closes_and_what_was_served_before_is_acknowledged() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let good = request(Op::Write, &region, 16).encode();
    for (at, value) in [(0, 2), (0, 0xff), (1, 2), (1, 0), (2, 0), (3, 0), (20, 1), (23, 0x80)] {
        let mut stream = welcomed(&node);
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(good);
            all.extend([1; 16]);
        }
        let mut bad = good;
        bad[at] = value;
        all.extend(bad);
        all.extend([0xee; 16]);
        stream.write_all(&all).unwrap();
        assert_eq!(rest(&mut stream), [Verdict::Ok.encode(); 3].as_flattened(), "byte {at} = {value}");
        assert_eq!(bytes(&region, 0, 16), [1; 16]);
    }
}

/// A greeted connection speaks nothing else, and one that speaks something else is not greeted any more.
#[test]
fn framings_are_not_mixed_on_a_connection() {
    let node = Node::new();
    let region = node.region(4096, Access::REMOTE);
    let v2 = te_transport_tcp::frame::Request {
        op: Op::Read,
        framing: te_segment::TcpFraming::V2,
        addr: region.range().start(),
        len: 8,
    };
    let mut stream = welcomed(&node);
    stream.write_all(&v2.encode()).unwrap();
    stream.write_all(&v2.encode()).unwrap();
    assert_eq!(rest(&mut stream), b"");
    let mut stream = connect(&node);
    stream.write_all(&v2.encode()).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
    stream.write_all(&hello(&node).encode()).unwrap();
    assert_eq!(rest(&mut stream), b"");
}

/// SEC-01, SEC-02: outside, crossing an end, empty, wrapping, extreme; the payload is skipped and the next one served.
#[test]
fn every_range_outside_one_region_is_rejected_in_place() {
    let node = Node::new();
    let region = node.region(8192, Access::REMOTE);
    let (start, end) = (region.range().start(), region.range().end());
    let mut stream = welcomed(&node);
    for (addr, len) in
        [(end, 1), (end - 1, 2), (start - 1, 1), (start - 1, 8194), (start, 0), (u64::MAX, 1), (0, 9)]
    {
        let bad = Request { addr, len, ..request(Op::Write, &region, 0) };
        let mut all = bad.encode().to_vec();
        all.extend(vec![0xee; len as usize]);
        all.extend(request(Op::Write, &region, 4).encode());
        all.extend([7; 4]);
        stream.write_all(&all).unwrap();
        let mut verdicts = [0; 16];
        stream.read_exact(&mut verdicts).unwrap();
        let expected = [Verdict::Rejected(Why::OutOfRange).encode(), Verdict::Ok.encode()];
        assert_eq!(verdicts, expected.as_flattened(), "{addr:#x} {len}");
    }
    assert_eq!(bytes(&region, 4, 8188), vec![0; 8188]);
    // Lengths that nobody sends end the connection, soon and with the reason.
    for len in [u64::MAX, u64::MAX - start, 1 << 50] {
        for op in [Op::Read, Op::Write] {
            let mut stream = welcomed(&node);
            let bad = Request { len, ..request(op, &region, 0) };
            stream.write_all(&bad.encode()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest(&mut stream), Verdict::Rejected(Why::OutOfRange).encode_last(), "{op} {len:#x}");
        }
    }
}

/// A rejected payload that does not come is waited for within the drain time, and holds nothing.
#[test]
fn rejected_payload_that_does_not_come_is_given_up() {
    let node = with(&[("reject_drain_time", "200ms")]);
    let region = node.region(4096, Access::REMOTE);
    let mut stream = welcomed(&node);
    let gone = Request { generation: Some(Generation::new(9)), ..request(Op::Write, &region, 4096) };
    stream.write_all(&gone.encode()).unwrap();
    assert_eq!(rest(&mut stream), Verdict::Rejected(Why::Gone).encode());
    assert_eq!(region.holds().remote, 0);
    eventually("closed", || node.transport.accepted_connections() == 0);
}

/// Beyond the limit a newcomer learns why, if it can be told; others are closed at their first request.
#[test]
fn connections_beyond_the_limit_are_told_so() {
    let node = with(&[("max_connections", "2")]);
    let region = node.region(4096, Access::REMOTE);
    let mut served = [welcomed(&node), welcomed(&node)];
    let mut surplus = connect(&node);
    surplus.write_all(&hello(&node).encode()).unwrap();
    assert_eq!(answer(&mut surplus), Answer::Busy);
    assert_eq!(rest(&mut surplus), b"");
    let mut surplus = connect(&node);
    surplus.write_all(&[0; 24]).unwrap();
    assert_eq!(rest(&mut surplus), b"");
    for stream in &mut served {
        stream.write_all(&request(Op::Read, &region, 8).encode()).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
    }
    eventually("the surplus is gone", || node.transport.accepted_connections() == 2);
    drop(served);
    eventually("there is room", || node.transport.accepted_connections() == 0);
    welcomed(&node);
}

/// Parked connections have no thread that would notice.
#[test]
fn fencing_closes_hundreds_of_idle_connections_at_once() {
    let node = Node::new();
    let crowd: Vec<_> = (0..400).map(|_| welcomed(&node)).collect();
    assert_eq!(node.transport.accepted_connections(), 400);
    node.transport.fence(Incarnation::from_bits(5), Instant::now() + Duration::from_secs(10)).unwrap();
    assert_eq!(node.transport.accepted_connections(), 0);
    drop(crowd);
    node.shutdown();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever follows a hello, what is not open to peers does not change, and nothing is held afterwards.
    #[test]
    fn random_requests_touch_only_what_is_registered(
        greeting in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        offset in -40_i64..4200,
        len in prop_oneof![0_u64..4200, any::<u64>()],
        op: bool,
        generation in prop_oneof![3 => Just(0_u64), 1 => any::<u64>()],
        damage in proptest::option::of((0_usize..48, any::<u8>())),
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        thread_local!(static NODE: (Node, Region, Region) = {
            let node = Node::new();
            let closed = node.region(4096, Access::LOCAL);
            closed.fill(0xaa).unwrap();
            let open = node.region(4096, Access::REMOTE_WRITE);
            (node, closed, open)
        });
        NODE.with(|(node, closed, open)| {
            let aim = if op { closed } else { open };
            let op = if generation & 1 == 0 { Op::Write } else { Op::Read };
            let of = if generation == 0 { aim.generation() } else { Generation::new(generation) };
            let addr = aim.range().start().wrapping_add_signed(offset);
            let mut header =
                Request { op, attempt: ATTEMPT, part: 0, addr, len, generation: Some(of), digest: false }.encode();
            if let Some((at, byte)) = damage {
                header[at] = byte;
            }
            let mut stream = connect(node);
            let greeting = greeting.unwrap_or_else(|| hello(node).encode().to_vec());
            let all = [&greeting[..], &header, &body].concat();
            let _ = stream.write_all(&all).and_then(|()| stream.shutdown(Shutdown::Write));
            let answer = rest(&mut stream);
            // READ is allowed nowhere: an answer to the hello and verdicts on what can be requests of the body.
            assert!(answer.len() <= ANSWER_LEN + 8 * 8, "{} bytes", answer.len());
            assert_eq!(bytes(closed, 0, 4096), vec![0xaa; 4096]);
            eventually("nothing is held", || closed.holds().remote == 0 && open.holds().remote == 0);
        });
    }
}
