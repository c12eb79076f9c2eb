//! Native frames as bytes, without sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use common::unhex;
use proptest::prelude::*;
use te_rpc::{
    frame::{FrameDecoder, FrameReject, MAX_FRAME, Progress},
    native::*,
};
use te_segment::{DescriptorVersion, Generation, Incarnation};

/// One frame of each kind, and each of their variants, by the names of the vectors.
fn frames() -> Vec<(&'static str, ControlFrame)> {
    let id = RequestId::new(0x0102_0304);
    let life = Incarnation::from_bits(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    let version = DescriptorVersion::new(7);
    let refuse = |reason| ControlFrame::Refuse { reason };
    let notify = |outcome| ControlFrame::Notify {
        id,
        batch: 11,
        name: "kv".to_owned(),
        message: "layer 3".to_owned(),
        outcome,
    };
    vec![
        (
            "hello",
            ControlFrame::Hello {
                version: 1,
                from: life,
                name: "a".to_owned(),
                expects: None,
                expects_name: None,
            },
        ),
        (
            "hello_expecting",
            ControlFrame::Hello {
                version: 1,
                from: life,
                name: String::new(),
                expects: Some(Incarnation::from_bits(1)),
                expects_name: Some("b/c".to_owned()),
            },
        ),
        ("welcome", ControlFrame::Welcome { version: 1, incarnation: life, name: "b/c".to_owned() }),
        ("refuse_stale", refuse(RefuseReason::StaleIncarnation { now: life })),
        ("refuse_name", refuse(RefuseReason::NameMismatch)),
        ("refuse_busy", refuse(RefuseReason::Busy)),
        ("refuse_shutdown", refuse(RefuseReason::ShuttingDown)),
        ("refuse_version", refuse(RefuseReason::Version { oldest: 2, newest: 3 })),
        ("interest", ControlFrame::Interest { id, known: version }),
        ("interest_ack", ControlFrame::InterestAck { id, version }),
        (
            "invalidate",
            ControlFrame::Invalidate { id, version, withdrawn: vec![Generation::new(5), Generation::new(6)] },
        ),
        ("invalidate_ack", ControlFrame::InvalidateAck { id }),
        ("fence", ControlFrame::Fence { id, requests: vec![FencedAttempt { request: 0x0a0b, attempt: 2 }] }),
        (
            "fence_ack",
            ControlFrame::FenceAck {
                id,
                stopped: vec![FenceOutcome::Stopped, FenceOutcome::Applied, FenceOutcome::MayStillApply],
            },
        ),
        ("notify_success", notify(BatchOutcome::Success)),
        ("notify_failure", notify(BatchOutcome::Failure)),
        ("notify_taken", ControlFrame::NotifyAck { id, taken: true }),
        ("notify_not_taken", ControlFrame::NotifyAck { id, taken: false }),
        ("probe", ControlFrame::Probe { id }),
        ("probe_ack", ControlFrame::ProbeAck { id }),
        ("goodbye", ControlFrame::goodbye("shutting down")),
    ]
}

fn decode_all(bytes: &[u8], step: usize) -> Result<Vec<ControlFrame>, ControlReject> {
    let mut decoder = ControlDecoder::new();
    decoder.open();
    let mut frames = Vec::new();
    for portion in bytes.chunks(step) {
        decoder.feed(portion);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], body].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn every_frame_is_its_golden_vector() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire/vectors/native-control-v1.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let mut vectors: BTreeMap<&str, &str> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t')).collect();
    assert_eq!(vectors.remove("preamble").map(unhex).as_deref(), Some(&PREAMBLE[..]));
    for (name, frame) in frames() {
        let vector = vectors.remove(name).unwrap_or_else(|| panic!("no vector of {name}"));
        assert_eq!(hex(&encode(&frame).unwrap()), vector, "{name}");
        assert_eq!(decode_all(&unhex(vector), usize::MAX), Ok(vec![frame]), "{name}");
    }
    assert!(vectors.is_empty(), "{vectors:?}");
}

#[test]
fn frames_come_back_however_they_are_cut() {
    let all: Vec<_> = frames().into_iter().map(|(_, frame)| frame).collect();
    let bytes: Vec<u8> = all.iter().flat_map(|frame| encode(frame).unwrap()).collect();
    for step in [1, 2, 3, 5, 7, 64, bytes.len()] {
        assert_eq!(decode_all(&bytes, step).as_ref(), Ok(&all), "{step}");
    }
}

#[test]
fn the_preamble_is_an_impossible_length_to_whoever_does_not_know_it() {
    let length = u64::from_le_bytes(PREAMBLE);
    let rejected = FrameDecoder::new(MAX_FRAME).feed(&PREAMBLE);
    assert_eq!(rejected, Err(FrameReject::TooLong { length, limit: MAX_FRAME }));
}

#[test]
fn the_preamble_is_recognised_in_any_portions() {
    let bytes = [&PREAMBLE[..], b"rest"].concat();
    for at in 1..bytes.len() {
        let mut decoder = FrameDecoder::new(MAX_FRAME).recognising_native();
        let consumed = match decoder.feed(&bytes[..at]).unwrap() {
            Progress::Native { consumed } => consumed,
            _ => match decoder.feed(&bytes[at..]).unwrap() {
                Progress::Native { consumed } => at + consumed,
                other => panic!("{other:?}"),
            },
        };
        assert_eq!(consumed, PREAMBLE.len(), "{at}");
    }
}

#[test]
fn a_later_version_of_the_preamble_is_not_taken_for_this_one() {
    let mut other = PREAMBLE;
    other[6] = 2;
    let rejected = FrameDecoder::new(MAX_FRAME).recognising_native().feed(&other);
    assert!(matches!(rejected, Err(FrameReject::TooLong { .. })), "{rejected:?}");
}

#[test]
fn an_unknown_kind_is_named() {
    let bytes = framed(&99_u32.to_le_bytes());
    assert_eq!(decode_all(&bytes, usize::MAX), Err(ControlReject::UnknownKind { kind: 99 }));
}

#[test]
fn a_handshake_of_a_later_version_may_say_more() {
    for (name, frame) in frames().into_iter().filter(|(name, _)| name.starts_with("hello")) {
        let mut body = encode(&frame).unwrap().split_off(4);
        body.extend_from_slice(b"more");
        assert_eq!(decode_all(&framed(&body), usize::MAX), Ok(vec![frame]), "{name}");
    }
}

#[test]
fn bytes_behind_any_other_frame_are_refused() {
    let mut body = encode(&ControlFrame::Probe { id: RequestId::new(1) }).unwrap().split_off(4);
    body.push(0);
    let rejected = decode_all(&framed(&body), usize::MAX);
    assert!(matches!(rejected, Err(ControlReject::Malformed { .. })), "{rejected:?}");
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
    let mut decoder = ControlDecoder::new();
    decoder.feed(&u32::try_from(MAX_HANDSHAKE_FRAME + 1).unwrap().to_le_bytes());
    let rejected = decoder.next_frame();
    assert!(
        matches!(rejected, Err(ControlReject::TooLong { limit: MAX_HANDSHAKE_FRAME, .. })),
        "{rejected:?}"
    );
    decoder.feed(&[0; 64]);
    assert_eq!(decoder.next_frame(), rejected, "an error stays");
    assert_eq!(decoder.allocated(), 0);
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let mut decoder = ControlDecoder::new();
    decoder.open();
    decoder.feed(&u32::try_from(MAX_CONTROL_FRAME).unwrap().to_le_bytes());
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.allocated() < 64, "{}", decoder.allocated());
}

#[test]
fn a_member_over_its_bound_is_refused_by_both_sides() {
    let notify = ControlFrame::Notify {
        id: RequestId::new(1),
        batch: 1,
        name: "n".repeat(MAX_NAME + 1),
        message: String::new(),
        outcome: BatchOutcome::Success,
    };
    let bound = OverBound { member: "name", len: MAX_NAME + 1, limit: MAX_NAME };
    assert_eq!(encode(&notify), Err(ControlReject::OverBound(bound)));
    let body = te_segment::codec::encode(&notify).unwrap();
    assert_eq!(decode_all(&framed(&body), usize::MAX), Err(ControlReject::OverBound(bound)));
}

#[test]
fn the_largest_frame_of_every_kind_fits() {
    let id = RequestId::new(u64::MAX);
    let largest = [
        ControlFrame::Invalidate {
            id,
            version: DescriptorVersion::new(1),
            withdrawn: vec![Generation::new(1); MAX_ITEMS],
        },
        ControlFrame::Fence { id, requests: vec![FencedAttempt { request: 1, attempt: 1 }; MAX_ITEMS] },
        ControlFrame::FenceAck { id, stopped: vec![FenceOutcome::Applied; MAX_ITEMS] },
        ControlFrame::Notify {
            id,
            batch: 1,
            name: "n".repeat(MAX_NAME),
            message: "m".repeat(MAX_MESSAGE),
            outcome: BatchOutcome::Failure,
        },
    ];
    for frame in largest {
        let bytes = encode(&frame).unwrap();
        assert_eq!(decode_all(&bytes, 16 << 10), Ok(vec![frame]));
    }
}

#[test]
fn the_largest_hello_fits_before_the_handshake() {
    let hello = ControlFrame::Hello {
        version: u16::MAX,
        from: Incarnation::from_bits(u128::MAX),
        name: "n".repeat(MAX_NAME),
        expects: Some(Incarnation::from_bits(0)),
        expects_name: Some("e".repeat(MAX_NAME)),
    };
    let mut decoder = ControlDecoder::new();
    decoder.feed(&encode(&hello).unwrap());
    assert_eq!(decoder.next_frame(), Ok(Some(hello)));
}

#[test]
fn a_long_goodbye_is_cut_between_characters() {
    let ControlFrame::Goodbye { reason } = ControlFrame::goodbye(&"ü€".repeat(200)) else {
        unreachable!()
    };
    assert!(reason.len() <= MAX_REASON && reason.len() > MAX_REASON - 4);
}

proptest! {
    /// Any bytes are frames or an error, the same in any portions, and what is read is written the same.
    #[test]
    fn any_bytes_are_read_alike_in_any_portions(
        start in prop::sample::select(frames()),
        cut in 0_usize..80,
        noise in prop::collection::vec(any::<u8>(), 0..80),
        step in 1_usize..40,
    ) {
        let mut bytes = encode(&start.1).unwrap();
        bytes.truncate(cut);
        bytes.extend(noise);
        let whole = decode_all(&bytes, usize::MAX);
        prop_assert_eq!(&whole, &decode_all(&bytes, step));
        for frame in whole.into_iter().flatten() {
            let again = encode(&frame).unwrap();
            prop_assert_eq!(decode_all(&again, usize::MAX), Ok(vec![frame]));
        }
    }
}
