use proptest::prelude::*;

use super::*;

fn any_denial() -> impl Strategy<Value = Denial> {
    prop::sample::select(Denial::ALL.to_vec())
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let life = || any::<u128>().prop_map(Incarnation::from_bits);
    prop_oneof![
        (any::<u16>(), any::<u16>(), life(), life()).prop_map(|(oldest, newest, from, to)| Frame::Hello {
            oldest,
            newest,
            from,
            to
        }),
        (any::<u16>(), any::<u32>(), any::<u32>(), any::<u64>()).prop_map(
            |(version, slots, buffers, witness)| Frame::Welcome { version, slots, buffers, witness }
        ),
        any_denial().prop_map(|denial| Frame::Refused { denial }),
        any::<[u8; 16]>().prop_map(|nonce| Frame::Proof { nonce }),
        any::<[u8; 16]>().prop_map(|nonce| Frame::Proven { nonce }),
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>())
            .prop_map(|(generation, address, len, write)| Frame::Attach { generation, address, len, write }),
        (any::<(u64, u32, u64, u64)>(), any::<(bool, bool, bool)>()).prop_map(
            |((generation, buffer, address, len), (read, write, file))| Frame::Attached {
                generation,
                buffer,
                address,
                len,
                read,
                write,
                file
            }
        ),
        (any::<u64>(), any_denial()).prop_map(|(generation, denial)| Frame::Denied { generation, denial }),
        any::<(u64, u32)>().prop_map(|(generation, buffer)| Frame::Detach { generation, buffer }),
        any::<u64>().prop_map(|generation| Frame::Withdrawn { generation }),
    ]
}

proptest! {
    #[test]
    fn frames_round_trip(frame in any_frame()) {
        let packet = frame.encode();
        prop_assert!(packet.len() <= MAX_FRAME);
        prop_assert_eq!(Frame::decode(&packet), Ok(frame));
    }

    #[test]
    fn no_other_length_is_a_frame(frame in any_frame(), extra in 1_usize..8) {
        let mut packet = frame.encode();
        for len in 0..packet.len() {
            prop_assert!(Frame::decode(&packet[..len]).is_err());
        }
        packet.extend(vec![0; extra]);
        prop_assert!(Frame::decode(&packet).is_err());
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(packet in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(frame) = Frame::decode(&packet) {
            prop_assert_eq!(frame.encode(), packet);
        }
    }
}

/// Every kind, with the length of its frame.
const KINDS: [(u8, usize); 10] =
    [(1, 41), (2, 17), (3, 26), (4, 13), (16, 19), (17, 2), (18, 17), (19, 32), (20, 10), (21, 9)];

proptest! {
    /// Bytes that get past kind and length: only a value can be wrong then, and what is right comes back the same.
    #[test]
    fn any_bytes_of_the_right_length_are_a_frame_or_a_wrong_value(
        (kind, len) in prop::sample::select(KINDS.to_vec()),
        bytes in prop::collection::vec(any::<u8>(), MAX_FRAME),
        small in any::<bool>(),
    ) {
        let mut packet: Vec<u8> = bytes.iter().map(|byte| if small { byte % 7 } else { *byte }).collect();
        packet.truncate(len);
        packet[0] = kind;
        if kind == 1 {
            packet[1..5].copy_from_slice(&MAGIC);
        }
        match Frame::decode(&packet) {
            Ok(frame) => prop_assert_eq!(frame.encode(), packet),
            Err(error) => prop_assert!(matches!(error, FrameError::Value { .. }), "{}", error),
        }
    }
}

/// The bytes are a contract: these do not change.
#[test]
fn golden_frames() {
    let hex = |frame: Frame| frame.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (from, to) = (Incarnation::from_bits(0x1122), Incarnation::from_bits(0x33));
    assert_eq!(
        hex(Frame::Hello { oldest: 1, newest: 2, from, to }),
        "01746573680100020022110000000000000000000000000000330000000000000000000000000000\
         00"
    );
    assert_eq!(
        hex(Frame::Attach { generation: 5, address: 0x1000, len: 0x20, write: true }),
        "03050000000000000000100000000000002000000000000000\
         01"
    );
    assert_eq!(hex(Frame::Denied { generation: 5, denial: Denial::Gone }), "14050000000000000003");
    assert_eq!(hex(Frame::Withdrawn { generation: 5 }), "150500000000000000");
}
