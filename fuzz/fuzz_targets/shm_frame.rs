//! The packets on the Unix socket of a shared-memory connection, alone and as a stream of them.
//!
//! The first byte says which kind each packet is made of, if any, so that more than the kind is looked at.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_transport_shm::frame::{Frame, FrameError, MAX_FRAME};

/// Every kind, with the length of its frame.
const KINDS: [(u8, usize); 10] =
    [(1, 41), (2, 17), (3, 26), (4, 13), (16, 19), (17, 2), (18, 17), (19, 32), (20, 10), (21, 9)];

fuzz_target!(|data: &[u8]| {
    let [help, data @ ..] = data else { return };
    for bytes in data.chunks(MAX_FRAME + 1) {
        check(bytes);
    }
    let Some((kind, len)) = KINDS.get(usize::from(*help) % (KINDS.len() + 1)) else { return };
    for bytes in data.chunks_exact(len - 1) {
        let mut packet = [&[*kind], bytes].concat();
        if *kind == 1 {
            packet[1..5].copy_from_slice(b"tesh");
        }
        check(&packet);
        // The length is right, so that only a value can be wrong.
        assert!(!matches!(Frame::decode(&packet), Err(FrameError::Length { .. } | FrameError::Magic)));
    }
});

/// What is accepted comes back the same when it is written again, and no part of it is a frame of its own.
fn check(packet: &[u8]) {
    let Ok(frame) = Frame::decode(packet) else { return };
    assert!(packet.len() <= MAX_FRAME);
    assert_eq!(frame.encode(), packet);
    assert!((0..packet.len()).all(|len| Frame::decode(&packet[..len]).is_err()));
}
