//! The extension member of te engines: what is built from it is consistent and comes back the same.
//!
//! The first byte chooses whether the rest is a whole extension or damages one; then comes where, how much is replaced,
//! and by what.

#![no_main]

use libfuzzer_sys::fuzz_target;
use te_segment::{CompatProtocol, EncodeOptions, SegmentDescriptor};

const RECORDS: [&str; 3] = [
    include_str!("../../docs/wire/vectors/descriptor-v1-mixed-rdma.json"),
    include_str!("../../docs/wire/vectors/descriptor-v1-tcp.json"),
    include_str!("../../docs/wire/vectors/descriptor-v2-unknown-members.json"),
];

fn record(data: &[u8]) -> Option<Vec<u8>> {
    let [which, at_low, at_high, replaced, with @ ..] = data else { return None };
    let Some(record) = RECORDS.get(usize::from(*which)) else {
        let mut bytes = br#"{"name":"n","protocol":"tcp","te":"#.to_vec();
        bytes.extend_from_slice(&data[1..]);
        bytes.push(b'}');
        return Some(bytes);
    };
    let mut bytes = record.as_bytes().to_vec();
    let at = usize::from(u16::from_le_bytes([*at_low, *at_high])).min(bytes.len());
    let end = at.saturating_add((*replaced).into()).min(bytes.len());
    bytes.splice(at..end, with.iter().copied());
    Some(bytes)
}

fuzz_target!(|data: &[u8]| {
    let Some(bytes) = record(data) else { return };
    let Ok(decoded) = SegmentDescriptor::decode(&bytes) else { return };
    let descriptor = decoded.descriptor;
    let options =
        EncodeOptions { compat: CompatProtocol::Rdma, extension: true, timestamp: "now".to_owned() };
    let Ok(encoded) = descriptor.encode(&options) else { return };
    let again = SegmentDescriptor::decode(encoded.as_bytes()).expect("what we write we read");
    assert_eq!(again.rejected, vec![]);
    if descriptor.incarnation().is_some() {
        assert!(again.descriptor.same_content(&descriptor));
        assert_eq!(again.descriptor.version(), descriptor.version());
        assert_eq!(again.descriptor.encode(&options).as_deref(), Ok(encoded.as_str()));
    }
});
