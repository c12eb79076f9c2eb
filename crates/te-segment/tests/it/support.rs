//! What several subjects need.

use std::{collections::BTreeMap, fs, path::PathBuf};

use te_segment::{
    Access, AddressRange, BufferDescriptor, CompatProtocol, DescriptorError, Device, EncodeOptions,
    FieldProblem, Generation, Gid, Location, MemoryKey, NicName, SegmentDescriptor, SegmentName,
    TransportKind, Via,
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of a table in `tests/fixtures/wire`, split at tabs.
pub(crate) fn table(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join("tests/fixtures/wire").join(name)).unwrap();
    let rows: Vec<Vec<String>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect();
    assert!(rows.len() > 1, "{name} has rows");
    rows
}

/// A golden vector of the wire reference.
pub(crate) fn vector(name: &str) -> String {
    fs::read_to_string(root().join("docs/wire/vectors").join(name)).unwrap()
}

pub(crate) fn range(start: u64, len: u64) -> AddressRange {
    AddressRange::new(start, len).unwrap()
}

pub(crate) fn name(text: &str) -> SegmentName {
    SegmentName::new(text).unwrap()
}

pub(crate) fn nic(text: &str) -> NicName {
    NicName::new(text).unwrap()
}

pub(crate) fn device(text: &str, last: u8) -> Device {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, last);
    Device::rdma(nic(text), 0, Gid::from_bytes(gid))
}

pub(crate) fn keys(pairs: &[(&str, u64)]) -> Via {
    Via::Rdma { keys: pairs.iter().map(|(name, key)| (nic(name), MemoryKey::new(*key))).collect() }
}

pub(crate) fn buffer(
    range: AddressRange,
    access: Access,
    via: impl IntoIterator<Item = (TransportKind, Via)>,
) -> BufferDescriptor {
    let via: BTreeMap<_, _> = via.into_iter().collect();
    BufferDescriptor::new(range, Location::cpu(0), access, Some(Generation::new(1)), via).unwrap()
}

pub(crate) fn options(compat: CompatProtocol) -> EncodeOptions {
    EncodeOptions { compat, extension: true, timestamp: "2026-02-03 04:05:06.000789".to_owned() }
}

pub(crate) fn decode(text: &str) -> te_segment::Decoded {
    SegmentDescriptor::decode(text.as_bytes()).unwrap()
}

/// The member that an error names, and what is wrong with it.
pub(crate) fn wrong(text: &str) -> (String, FieldProblem) {
    match SegmentDescriptor::decode(text.as_bytes()) {
        Err(DescriptorError::Invalid { field, problem }) => (field, problem),
        other => panic!("expected a wrong member, got {other:?}"),
    }
}

/// The members of the rejected buffers.
pub(crate) fn rejected(text: &str) -> Vec<String> {
    decode(text).rejected.into_iter().map(|rejected| rejected.field).collect()
}
