//! The binary codec.

use std::collections::BTreeMap;

use proptest::prelude::*;
use te_segment::{
    Access, AddressRange, Generation, Incarnation,
    codec::{self, CodecError},
};

use crate::support::{range, vector};

/// B-09: the form does not change. One line for each vector: the name, then the bytes.
#[test]
fn golden_bytes_are_produced_and_read() {
    let vectors = vector("codec-v1.tsv");
    let hex = |name: &str| {
        let line = vectors.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t')).unwrap();
        (0..line.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&line[i..i + 2], 16).unwrap())
            .collect::<Vec<u8>>()
    };
    let incarnation = Incarnation::from_bits(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    assert_eq!(codec::encode(&incarnation).unwrap(), hex("incarnation"));
    assert_eq!(codec::decode::<Incarnation>(&hex("incarnation")), Ok(incarnation));

    let ranges = vec![range(0x7f00, 16), range(0x8000, 1)];
    assert_eq!(codec::encode(&ranges).unwrap(), hex("ranges"));
    assert_eq!(codec::decode::<Vec<AddressRange>>(&hex("ranges")), Ok(ranges));

    let mixed = (Access::REMOTE_READ, Some(Generation::new(7)), "cpu:0".to_owned());
    assert_eq!(codec::encode(&mixed).unwrap(), hex("mixed"));
    assert_eq!(codec::decode(&hex("mixed")), Ok(mixed));
}

#[test]
fn hostile_length_prefix_is_an_error() {
    for claimed in [u64::MAX, u64::MAX / 2, 1 << 62, 1 << 40, 1 << 27, 1 << 20, 4096, 2] {
        let bytes = [&claimed.to_le_bytes()[..], b"x"].concat();
        assert_eq!(codec::decode::<String>(&bytes), Err(CodecError::Truncated { len: 9 }), "{claimed}");
        assert!(codec::decode::<Vec<u64>>(&bytes).is_err(), "{claimed}");
        assert!(codec::decode::<BTreeMap<String, u64>>(&bytes).is_err(), "{claimed}");
    }
}

#[test]
fn bytes_behind_the_message_are_an_error() {
    let mut bytes = codec::encode(&7_u32).unwrap();
    bytes.push(0);
    assert_eq!(codec::decode::<u32>(&bytes), Err(CodecError::TrailingBytes { trailing: 1, len: 5 }));
    assert_eq!(codec::decode_prefix::<u32>(&bytes), Ok((7, 4)));
}

#[test]
fn value_that_breaks_a_rule_of_its_type_is_an_error() {
    let wrapping = codec::encode(&(u64::MAX, 2_u64)).unwrap();
    assert!(matches!(codec::decode::<AddressRange>(&wrapping), Err(CodecError::Malformed { .. })));
    assert!(codec::decode::<Access>(&[4]).is_err());
}

#[test]
fn message_larger_than_its_first_step_is_read_whole() {
    for len in [100_usize, 4_097, 65_537, 1 << 20, (1 << 24) + 1] {
        let text = "x".repeat(len);
        let bytes = codec::encode(&text).unwrap();
        assert_eq!(codec::decode::<String>(&bytes).unwrap().len(), len);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = codec::decode::<(Incarnation, Vec<AddressRange>, Option<String>)>(&bytes);
        let _ = codec::decode::<BTreeMap<String, Vec<Vec<u8>>>>(&bytes);
    }

    #[test]
    fn what_was_encoded_is_decoded(value in any::<(u128, Vec<(u64, String)>, Option<bool>)>()) {
        prop_assert_eq!(codec::decode(&codec::encode(&value).unwrap()), Ok(value));
    }
}
