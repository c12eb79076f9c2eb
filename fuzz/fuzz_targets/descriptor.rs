//! Descriptors of the reference engine, in both models.
//!
//! The first byte chooses a record to be damaged, or none; then comes where, how much is replaced, and by what.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_segment::{
    CompatProtocol, DecodeLimits, DecodeOptions, EncodeOptions, RpcLocation, SegmentDescriptor, wire,
};

/// One record a line, after its name.
const RECORDS: &str = include_str!("../../tests/fixtures/wire/variants.tsv");

fn damaged(data: &[u8]) -> Option<Vec<u8>> {
    let [which, at_low, at_high, replaced, with @ ..] = data else { return None };
    let records: Vec<&str> = RECORDS.lines().skip(1).filter_map(|line| line.split('\t').nth(1)).collect();
    let Some(record) = records.get(usize::from(*which)) else { return Some(data[1..].to_vec()) };
    let mut bytes = record.as_bytes().to_vec();
    let at = usize::from(u16::from_le_bytes([*at_low, *at_high])).min(bytes.len());
    let end = at.saturating_add((*replaced).into()).min(bytes.len());
    bytes.splice(at..end, with.iter().copied());
    Some(bytes)
}

fn lossless(bytes: &[u8]) {
    if let Ok(record) = wire::Descriptor::decode(bytes) {
        let encoded = record.encode();
        assert_eq!(wire::Descriptor::decode(encoded.as_bytes()), Ok(record));
    }
    if let Ok(location) = RpcLocation::decode(bytes) {
        assert_ne!(location.port(), 0);
        assert_eq!(RpcLocation::decode(location.encode().as_bytes()), Ok(location));
    }
}

fn consistent(bytes: &[u8]) {
    let limits = DecodeLimits { max_bytes: 1 << 20, max_buffers: 100, ..DecodeLimits::default() };
    let Ok(decoded) = SegmentDescriptor::decode_with(bytes, &DecodeOptions { limits, opened_as: None })
    else {
        return;
    };
    let descriptor = decoded.descriptor;
    for pair in descriptor.buffers().windows(2) {
        assert!(pair[0].range().end() <= pair[1].range().start(), "buffers overlap");
    }
    for buffer in descriptor.buffers() {
        assert_eq!(descriptor.find(buffer.range()), Ok(buffer));
        assert!(buffer.access().is_remote());
    }
    for nic in descriptor.topology().nics() {
        assert!(descriptor.device(nic).is_some(), "the topology names a device that is not listed");
    }
    for compat in [CompatProtocol::Tcp, CompatProtocol::Rdma] {
        let options = EncodeOptions { compat, extension: true, timestamp: String::new() };
        if let Ok(record) = descriptor.encode(&options) {
            assert!(record.is_ascii());
            let again = SegmentDescriptor::decode(record.as_bytes()).expect("what we write we read");
            assert_eq!(again.rejected, vec![]);
            if descriptor.incarnation().is_some() {
                assert!(again.descriptor.same_content(&descriptor));
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = damaged(data) {
        lossless(&bytes);
        consistent(&bytes);
    }
});
