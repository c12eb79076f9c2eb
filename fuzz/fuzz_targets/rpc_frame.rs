//! Control frames in any portions, and the bodies in them.
//!
//! The first byte chooses the limit, the second how the rest is cut; the rest is what a peer sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_rpc::{
    FrameKind,
    frame::{Frame, FrameDecoder, FrameReject, MAX_FRAME, Progress, encode},
    message::{ConnectionBody, NotifyBody, ProbeReply, check_json},
};

/// Decodes in portions of `step` bytes. Memory must follow what arrived, not what was claimed.
fn decode(limit: usize, bytes: &[u8], step: usize) -> Result<Option<(Frame, usize)>, FrameReject> {
    let mut decoder = FrameDecoder::new(limit);
    let mut fed = 0;
    for portion in bytes.chunks(step) {
        match decoder.feed(portion)? {
            Progress::Frame { frame, consumed } => return Ok(Some((frame, fed + consumed))),
            Progress::NeedMore => fed += portion.len(),
            Progress::Native { .. } => unreachable!("not asked for"),
        }
        assert!(decoder.allocated() <= (2 * fed).max(4096));
    }
    Ok(None)
}

fn check_body(kind: FrameKind, body: &[u8]) {
    let json = check_json(body).is_ok();
    match kind {
        FrameKind::Connection => {
            if let Ok(message) = ConnectionBody::decode(body) {
                assert!(json);
                assert_eq!(ConnectionBody::decode(&message.encode()).ok(), Some(message));
            }
        }
        FrameKind::Notify => {
            if let Ok(message) = NotifyBody::decode(body) {
                assert!(json);
                assert_eq!(NotifyBody::decode(&message.encode()).ok(), Some(message));
            }
        }
        FrameKind::Metadata | FrameKind::Probe => {
            if let Ok(message) = ProbeReply::decode(body) {
                assert!(json);
                assert_eq!(ProbeReply::decode(&message.encode()).ok(), Some(message));
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [limit, step, bytes @ ..] = data else { return };
    let limit = if *limit == u8::MAX { MAX_FRAME } else { usize::from(*limit) * 16 };
    let step = usize::from(*step) + 1;

    let whole = decode(limit, bytes, bytes.len().max(1));
    assert_eq!(whole, decode(limit, bytes, step));
    if let Ok(Some((frame, consumed))) = whole {
        assert_eq!(encode(frame.kind, frame.legacy, &frame.body), &bytes[..consumed]);
        check_body(frame.kind, &frame.body);
    }
    // Bodies are rarely reached through a frame, so they are also tried directly.
    for kind in FrameKind::ALL {
        check_body(kind, bytes);
    }
});
