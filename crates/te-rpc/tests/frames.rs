//! The frame decoder, without sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use te_rpc::{
    FrameKind,
    frame::{Frame, FrameDecoder, FrameReject, HEAD_BYTES, MAX_FRAME, Progress, encode},
    message::{ConnectionBody, NULL_BODY, NotifyBody, ProbeReply, notify_success, probe_request},
};

const LIMIT: usize = 1 << 20;

/// Feeds portions until the decoder is done.
fn decode(limit: usize, portions: &[&[u8]]) -> Result<Option<Frame>, FrameReject> {
    let mut decoder = FrameDecoder::new(limit);
    for portion in portions {
        if let Progress::Frame { frame, .. } = decoder.feed(portion)? {
            return Ok(Some(frame));
        }
    }
    Ok(None)
}

fn with_length(length: u64, rest: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes(), rest].concat()
}

#[test]
fn probe_request_is_the_golden_vector() {
    let bytes = encode(FrameKind::Probe, false, &probe_request());
    assert_eq!(bytes, b"\x04\0\0\0\0\0\0\0\x03{}\n");
}

#[test]
fn probe_reply_is_the_golden_vector() {
    let bytes = encode(FrameKind::Probe, false, &ProbeReply::success().encode());
    assert_eq!(bytes, b"\x16\0\0\0\0\0\0\0\x03{\"status\":\"success\"}\n");
}

#[test]
fn notify_request_is_the_golden_vector() {
    let bytes = encode(FrameKind::Notify, false, &NotifyBody::new("note-name", "note-msg").encode());
    assert_eq!(bytes, b"\x2e\0\0\0\0\0\0\0\x02{\"name\":\"note-name\",\"notify_msg\":\"note-msg\"}\n");
}

#[test]
fn notify_reply_is_the_golden_vector() {
    let bytes = encode(FrameKind::Notify, false, &notify_success());
    assert_eq!(bytes, b"\x24\0\0\0\0\0\0\0\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n");
}

#[test]
fn null_reply_is_the_golden_vector() {
    assert_eq!(encode(FrameKind::Metadata, false, NULL_BODY), b"\x06\0\0\0\0\0\0\0\x01null\n");
}

#[test]
fn old_form_reply_has_no_kind_byte() {
    let bytes = encode(FrameKind::Connection, true, &ConnectionBody::default().encode());
    let body = "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\",\"peer_nic_path\":\"\",\
                \"qp_num\":[],\"reply_msg\":\"\"}\n";
    assert_eq!(bytes, with_length(0x6e, body.as_bytes()));
}

#[test]
fn old_form_is_a_connection_whose_body_keeps_its_brace() {
    let frame = decode(LIMIT, &[&with_length(2, b"{}")]).unwrap().unwrap();
    assert_eq!(frame, Frame { kind: FrameKind::Connection, legacy: true, body: b"{}".to_vec() });
}

#[test]
fn a_frame_split_at_any_two_boundaries_is_whole() {
    let bytes = encode(FrameKind::Notify, false, b"{\"name\":\"n\"}\n");
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            let frame =
                decode(LIMIT, &[&bytes[..first], &bytes[first..second], &bytes[second..]]).unwrap().unwrap();
            assert_eq!(frame.body, b"{\"name\":\"n\"}\n");
        }
    }
}

#[test]
fn a_claimed_length_allocates_next_to_nothing() {
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.feed(&with_length(MAX_FRAME as u64, b"\x01{")).unwrap();
    assert!(decoder.allocated() <= 4096, "{} bytes", decoder.allocated());
}

#[test]
fn memory_stays_within_twice_what_arrived_and_within_the_claim() {
    let mut decoder = FrameDecoder::new(LIMIT);
    decoder.feed(&with_length(1_000_000, b"\x01")).unwrap();
    for arrived in 1..900_u32 {
        decoder.feed(&[b' '; 1000]).unwrap();
        assert!(decoder.allocated() <= (2000 * arrived as usize).clamp(4096, 1_000_000));
    }
}

#[test]
fn length_zero_is_refused() {
    assert_eq!(decode(LIMIT, &[&[0; 8]]), Err(FrameReject::ZeroLength));
}

#[test]
fn the_limit_itself_is_accepted_and_one_more_is_not() {
    assert_eq!(decode(LIMIT, &[&with_length(LIMIT as u64, b"\x03")]), Ok(None));
    let length = LIMIT as u64 + 1;
    assert_eq!(
        decode(LIMIT, &[&with_length(length, b"")]),
        Err(FrameReject::TooLong { length, limit: LIMIT })
    );
}

#[test]
fn no_limit_goes_beyond_the_maximum() {
    let length = MAX_FRAME as u64 + 1;
    let refused = Err(FrameReject::TooLong { length, limit: MAX_FRAME });
    assert_eq!(decode(usize::MAX, &[&with_length(length, b"")]), refused);
}

#[test]
fn the_largest_length_is_refused_before_its_first_byte() {
    assert!(matches!(decode(LIMIT, &[&[0xff; 8]]), Err(FrameReject::TooLong { length: u64::MAX, .. })));
}

#[test]
fn http_is_refused_at_the_eighth_byte() {
    let result = decode(MAX_FRAME, &[b"GET / HT"]);
    assert!(matches!(result, Err(FrameReject::TooLong { .. })), "{result:?}");
}

#[test]
fn a_tls_hello_is_refused_at_the_eighth_byte() {
    let result = decode(MAX_FRAME, &[b"\x16\x03\x01\x02\x00\x01\x00\x01"]);
    assert!(matches!(result, Err(FrameReject::TooLong { .. })), "{result:?}");
}

/// Bytes from 0x80 up depend on the signedness of `char` in the reference engine; white space passes there.
#[test]
fn only_four_kinds_and_a_brace_open_a_payload() {
    for first in 0..=u8::MAX {
        let result = decode(LIMIT, &[&with_length(3, &[first, b'{', b'}'])]);
        match first {
            0..=3 => assert_eq!(result.unwrap().unwrap().kind.byte(), first),
            b'{' => assert!(result.unwrap().unwrap().legacy),
            _ => assert_eq!(result, Err(FrameReject::UnknownKind { first })),
        }
    }
}

#[test]
fn a_kind_without_a_body_is_refused() {
    assert_eq!(decode(LIMIT, &[&with_length(1, b"\x01")]), Err(FrameReject::NoBody));
}

#[test]
fn nothing_is_decoded_after_a_frame() {
    let mut decoder = FrameDecoder::new(LIMIT);
    let bytes = encode(FrameKind::Probe, false, b"{}\n{}\n");
    assert!(matches!(decoder.feed(&bytes), Ok(Progress::Frame { .. })));
    assert_eq!(decoder.feed(&bytes), Err(FrameReject::Finished));
}

#[test]
fn nothing_is_decoded_after_an_error() {
    let mut decoder = FrameDecoder::new(LIMIT);
    assert!(decoder.feed(&[0; 8]).is_err());
    assert_eq!(decoder.feed(b"{"), Err(FrameReject::Finished));
}

fn portions(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

/// Mostly heads that pass, followed by anything.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let plausible =
        (0..64_u64, prop_oneof![0..5_u8, Just(b'{'), any::<u8>()], prop::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(length, first, rest)| [&length.to_le_bytes(), &[first][..], &rest].concat());
    prop_oneof![plausible, prop::collection::vec(any::<u8>(), 0..80)]
}

proptest! {
    #[test]
    fn every_frame_round_trips_in_any_portions(
        kind in 0..4_u8,
        body in prop::collection::vec(any::<u8>(), 1..5000),
        trailing in prop::collection::vec(any::<u8>(), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let kind = FrameKind::from_byte(kind).unwrap();
        let bytes = [encode(kind, false, &body), trailing].concat();
        let portions = portions(&bytes, &cuts);
        let portions: Vec<&[u8]> = portions.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(decode(LIMIT, &portions), Ok(Some(Frame { kind, legacy: false, body })));
    }

    #[test]
    fn the_result_does_not_depend_on_the_portions(
        bytes in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let portions = portions(&bytes, &cuts);
        let portions: Vec<&[u8]> = portions.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(decode(48, &portions), decode(48, &[&bytes]));
    }

    #[test]
    fn a_decoded_frame_encodes_to_the_bytes_it_took(bytes in stream()) {
        if let Ok(Progress::Frame { frame, consumed }) = FrameDecoder::new(LIMIT).feed(&bytes) {
            prop_assert_eq!(encode(frame.kind, frame.legacy, &frame.body), &bytes[..consumed]);
        }
    }

    #[test]
    fn what_is_refused_is_refused_within_the_head_or_not_at_all(bytes in stream()) {
        let head = decode(LIMIT, &[&bytes[..bytes.len().min(HEAD_BYTES)]]);
        prop_assert_eq!(head.err(), decode(LIMIT, &[&bytes]).err());
    }
}
