//! Native data frames as bytes, without sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use te_segment::{Generation, Incarnation, codec};
use te_transport::{AttemptId, Op};
use te_transport_tcp::frame::{self, HEADER_LEN, STATUS_LEN, Status};
use te_transport_tcp::native::{
    ANSWER_LEN, Answer, ENTRY_LEN, ENTRY_MAX, Entry, HELLO_LEN, Hello, LIST_MAX, List, REQUEST_LEN, Request,
    Verdict, Why,
};

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
        digest: false,
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

const VERDICTS: [(&str, Verdict); 9] = [
    ("ok", Verdict::Ok),
    ("rejected_range", Verdict::Rejected(Why::OutOfRange)),
    ("rejected_access", Verdict::Rejected(Why::Access)),
    ("rejected_gone", Verdict::Rejected(Why::Gone)),
    ("rejected_withdrawn", Verdict::Rejected(Why::Withdrawn)),
    ("rejected_unnamed", Verdict::Rejected(Why::Unnamed)),
    ("rejected_overload", Verdict::Rejected(Why::Overload)),
    ("fenced", Verdict::Fenced),
    ("damaged", Verdict::Damaged),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The frames of a vector file are these, by name.
fn are_golden(file: &str, frames: Vec<(&str, String)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire/vectors").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut vectors: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('\t')).collect();
    for (name, bytes) in frames {
        assert_eq!(vectors.remove(name), Some(bytes.as_str()), "{name}");
    }
    assert!(vectors.is_empty(), "{vectors:?}");
}

fn list(op: Op) -> List {
    List { op, part: 8, count: 2, len: 4096 + 100 }
}

fn entry() -> Entry {
    let attempt = AttemptId { request: 0x0a0b, attempt: 2 };
    Entry { attempt, len: 4096, addr: 0x0000_7f00_0000_1000, generation: Generation::new(5) }
}

#[test]
fn every_frame_of_the_second_version_is_its_golden_vector() {
    let frames = vec![
        ("read_list", hex(&list(Op::Read).encode())),
        ("write_list", hex(&list(Op::Write).encode())),
        ("entry", hex(&entry().encode())),
        ("read_digest", hex(&Request { digest: true, ..request(Op::Read) }.encode())),
        ("write_digest", hex(&Request { digest: true, ..request(Op::Write) }.encode())),
        ("damaged", hex(&Verdict::Damaged.encode())),
    ];
    are_golden("native-data-v2.tsv", frames);
}

#[test]
fn lists_come_back_within_their_bounds() {
    for op in [Op::Read, Op::Write] {
        assert_eq!(List::decode(&list(op).encode()), Ok(Some(list(op))));
        assert_eq!(List::decode(&request(op).encode()), Ok(None));
        // An engine of the first version knows no such operation.
        assert!(Request::decode(&list(op).encode()).is_err());
        let largest = List { count: LIST_MAX, len: LIST_MAX as u64 * ENTRY_MAX, ..list(op) };
        assert_eq!(List::decode(&largest.encode()), Ok(Some(largest)));
        for beyond in [
            List { count: LIST_MAX + 1, ..largest },
            List { len: largest.len + 1, ..largest },
            List { count: 0, ..largest },
        ] {
            assert!(List::decode(&beyond.encode()).is_err(), "{beyond:?}");
        }
    }
    assert_eq!(Entry::decode(&entry().encode()), Ok(entry()));
    for len in [0, ENTRY_MAX as u32 + 1, u32::MAX] {
        assert!(Entry::decode(&Entry { len, ..entry() }.encode()).is_err(), "{len}");
    }
}

#[test]
fn every_frame_is_its_golden_vector() {
    let unnamed = Request { generation: None, ..request(Op::Read) };
    let mut frames = vec![
        ("hello", hex(&hello().encode())),
        ("read", hex(&request(Op::Read).encode())),
        ("write", hex(&request(Op::Write).encode())),
        ("read_unnamed", hex(&unnamed.encode())),
    ];
    frames.extend(ANSWERS.iter().map(|(name, answer)| (*name, hex(&answer.encode()))));
    frames.extend(
        VERDICTS
            .iter()
            .filter(|(_, verdict)| *verdict != Verdict::Damaged)
            .map(|(name, verdict)| (*name, hex(&verdict.encode()))),
    );
    frames.push(("rejected_gone_last", hex(&Verdict::Rejected(Why::Gone).encode_last())));
    are_golden("native-data-v1.tsv", frames);
}

#[test]
fn frames_come_back() {
    assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    for (name, answer) in ANSWERS {
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer), "{name}");
    }
    for op in [Op::Read, Op::Write] {
        for generation in [None, Some(Generation::new(0)), Some(Generation::new(u64::MAX))] {
            for digest in [false, true] {
                let request = Request { generation, digest, ..request(op) };
                assert_eq!(Request::decode(&request.encode()), Ok(request));
            }
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
    fn every_list_and_entry_decodes_to_what_encodes_the_same_or_is_refused(
        mut head: [u8; REQUEST_LEN], mut entry: [u8; ENTRY_LEN], likely: bool, op in 2_u8..4,
    ) {
        if likely {
            head[..4].copy_from_slice(&[op, 0, b't', b'e']);
            head[8..16].fill(0);
            head[17..32].fill(0);
            head[34..].fill(0);
            entry[14..16].fill(0);
        }
        if let Ok(Some(list)) = List::decode(&head) {
            prop_assert_eq!(list.encode(), head);
        }
        if let Ok(decoded) = Entry::decode(&entry) {
            prop_assert_eq!(decoded.encode(), entry);
        }
    }

    #[test]
    fn every_request_decodes_to_what_encodes_the_same_or_is_refused(
        mut bytes: [u8; REQUEST_LEN], likely: bool, op in 0_u8..3, flags in 0_u8..5,
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
