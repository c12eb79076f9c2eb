//! Native data frames as bytes, without sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use te_segment::{Generation, Incarnation, codec};
use te_transport::{AttemptId, Op};
use te_transport_tcp::frame::{self, HEADER_LEN, STATUS_LEN, Status};
use te_transport_tcp::native::{ANSWER_LEN, Answer, HELLO_LEN, Hello, REQUEST_LEN, Request, Verdict, Why};

fn life(low: u128) -> Incarnation {
    Incarnation::from_bits(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f00 | low)
}

fn request(op: Op) -> Request {
    Request {
        op,
        attempt: AttemptId { request: 0x0a0b, attempt: 2 },
        part: 7,
        addr: 0x0000_7f00_0000_1000,
        len: 4096,
        generation: Some(Generation::new(5)),
    }
}

fn hello() -> Hello {
    Hello { version: 1, from: life(0x10), to: life(0x20) }
}

const ANSWERS: [(&str, Answer); 5] = [
    ("welcome", Answer::Welcome { version: 1, now: Incarnation::from_bits(0x20) }),
    ("refuse_stale", Answer::StaleIncarnation { now: Incarnation::from_bits(0x21) }),
    ("refuse_shutdown", Answer::ShuttingDown),
    ("refuse_busy", Answer::Busy),
    ("refuse_version", Answer::Version { oldest: 2, newest: 3 }),
];

const VERDICTS: [(&str, Verdict); 8] = [
    ("ok", Verdict::Ok),
    ("rejected_range", Verdict::Rejected(Why::OutOfRange)),
    ("rejected_access", Verdict::Rejected(Why::Access)),
    ("rejected_gone", Verdict::Rejected(Why::Gone)),
    ("rejected_withdrawn", Verdict::Rejected(Why::Withdrawn)),
    ("rejected_unnamed", Verdict::Rejected(Why::Unnamed)),
    ("rejected_overload", Verdict::Rejected(Why::Overload)),
    ("fenced", Verdict::Fenced),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn every_frame_is_its_golden_vector() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire/vectors/native-data-v1.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut vectors: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('\t')).collect();
    let unnamed = Request { generation: None, ..request(Op::Read) };
    let mut frames = vec![
        ("hello", hex(&hello().encode())),
        ("read", hex(&request(Op::Read).encode())),
        ("write", hex(&request(Op::Write).encode())),
        ("read_unnamed", hex(&unnamed.encode())),
    ];
    frames.extend(ANSWERS.iter().map(|(name, answer)| (*name, hex(&answer.encode()))));
    frames.extend(VERDICTS.iter().map(|(name, verdict)| (*name, hex(&verdict.encode()))));
    frames.push(("rejected_gone_last", hex(&Verdict::Rejected(Why::Gone).encode_last())));
    for (name, bytes) in frames {
        assert_eq!(vectors.remove(name), Some(bytes.as_str()), "{name}");
    }
    assert!(vectors.is_empty(), "{vectors:?}");
}

#[test]
fn frames_come_back() {
    assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    for (name, answer) in ANSWERS {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer), "{name}");
    }
    for op in [Op::Read, Op::Write] {
        for generation in [None, Some(Generation::new(0)), Some(Generation::new(u64::MAX))] {
            let request = Request { generation, ..request(op) };
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
    }
    for (name, verdict) in VERDICTS {
        assert_eq!(Verdict::from_code(verdict.code()), Ok(verdict), "{name}");
        // Verdicts are read as statuses first.
        let expected = if verdict == Verdict::Ok { Status::Ok } else { Status::Rejected(verdict.code()) };
        assert_eq!(Status::decode(verdict.encode()), Ok(expected), "{name}");
        assert!(!Verdict::is_last(verdict.code()), "{name}");
        if let Ok(Status::Rejected(code)) = Status::decode(verdict.encode_last()) {
            assert_eq!((Verdict::from_code(code), Verdict::is_last(code)), (Ok(verdict), true), "{name}");
        }
    }
}

/// Numbers are laid out as the codec of control messages lays them out.
#[test]
fn numbers_are_those_of_the_native_codec() {
    let Hello { version, from, to } = hello();
    let bytes = hello().encode();
    assert_eq!(codec::decode::<u16>(&bytes[8..10]), Ok(version));
    assert_eq!(codec::decode::<u128>(&bytes[24..40]), Ok(from.bits()));
    assert_eq!(codec::decode::<u128>(&bytes[40..56]), Ok(to.bits()));
    let request = request(Op::Write);
    let numbers = (request.part, request.attempt.request, request.attempt.attempt, 0_u32, request.addr);
    let rest = (request.len, request.generation.map(Generation::value).unwrap());
    assert_eq!(codec::encode(&(numbers, rest)).unwrap(), request.encode()[4..]);
}

/// An engine that does not know the framing closes: the reference refuses the range, older te engines the opcode.
#[test]
fn no_other_framing_serves_a_hello() {
    let bytes = hello().encode();
    let header = bytes.first_chunk::<HEADER_LEN>().unwrap();
    assert!(frame::Request::decode(header).is_err());
    let len = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    assert!(len > 1 << 57, "{len:#x} fits into an address space");
}

proptest! {
    #[test]
    fn every_request_decodes_to_what_encodes_the_same_or_is_refused(
        mut bytes: [u8; REQUEST_LEN], likely: bool, op in 0_u8..3, flags in 0_u8..3,
    ) {
        if likely {
            bytes[..4].copy_from_slice(&[op, flags, b't', b'e']);
            bytes[20..24].fill(0);
        }
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode(), bytes);
        }
    }

    #[test]
    fn every_hello_and_answer_decodes_to_what_decodes_the_same(
        mut hello: [u8; HELLO_LEN], mut answer: [u8; ANSWER_LEN], likely: bool,
    ) {
        if likely {
            hello[..8].copy_from_slice(b"te-data\n");
            hello[16] = 0x7f;
            answer[..8].copy_from_slice(b"te-data\n");
        }
        if let Ok(decoded) = Hello::decode(&hello) {
            prop_assert_eq!(Hello::decode(&decoded.encode()), Ok(decoded));
        }
        if let Ok(decoded) = Answer::decode(&answer) {
            prop_assert_eq!(Answer::decode(&decoded.encode()), Ok(decoded));
        }
        prop_assert!(!likely || (Hello::decode(&hello).is_ok() && Answer::decode(&answer).is_ok()));
    }

    #[test]
    fn every_verdict_has_one_code(
        code in prop_oneof![0_u32..0x900, 0x1_0000_u32..0x1_0900, any::<u32>()],
    ) {
        match Verdict::from_code(code) {
            Ok(verdict) => prop_assert_eq!(verdict.code(), code & !0x1_0000),
            Err(_) => prop_assert!(Verdict::is_last(code)),
        }
    }
}

#[test]
fn verdicts_have_the_length_of_a_status() {
    assert_eq!(Verdict::Ok.encode().len(), STATUS_LEN);
    assert_eq!(Verdict::Ok.encode(), Status::Ok.encode());
}
