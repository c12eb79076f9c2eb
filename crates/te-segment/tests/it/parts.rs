//! Buffers in parts that have keys of their own.

use std::{collections::BTreeMap, num::NonZeroU16};

use serde_json::{Value, json};
use te_segment::{
    Access, AddressRange, BufferDescriptor, CompatProtocol, DecodeLimits, DecodeOptions, FieldProblem,
    Generation, Identity, Incarnation, Location, MAX_PARTS, MemoryKey, SegmentDescriptor, TcpFraming,
    TcpService, TransportKind, Via,
};

use crate::support::{decode, device, keys, name, nic, options, range, rejected, vector};

const START: u64 = 140_001_000_001_536;
const MIB: u64 = 1 << 20;

fn parts(lengths: &[u64], by_nic: &[(&str, &[u64])]) -> Via {
    let keys = |numbers: &[u64]| numbers.iter().copied().map(MemoryKey::new).collect();
    Via::RdmaParts {
        lengths: lengths.to_vec(),
        keys: by_nic.iter().map(|(name, numbers)| (nic(name), keys(numbers))).collect(),
    }
}

fn buffer(range: AddressRange, rdma: Via) -> Result<BufferDescriptor, te_segment::FieldError> {
    let via = BTreeMap::from([(TransportKind::TCP, Via::Tcp), (TransportKind::RDMA, rdma)]);
    BufferDescriptor::new(range, Location::cpu(0), Access::REMOTE, Some(Generation::new(1)), via)
}

fn described(buffers: impl IntoIterator<Item = BufferDescriptor>) -> SegmentDescriptor {
    let identity = Identity::Te { incarnation: Incarnation::from_bits(7), control: None };
    let (host, port) = (Some("10.1.2.3".parse().unwrap()), NonZeroU16::new(16020).unwrap());
    SegmentDescriptor::builder(name("decode-7"))
        .identity(identity)
        .tcp(TcpService { host, port, framing: TcpFraming::V2 })
        .device(device("mlx5_1", 2))
        .device(device("mlx5_0", 1))
        .buffers(buffers)
        .build()
        .unwrap()
}

/// A buffer of 5 MiB in parts of at most 2, and one that is whole.
fn segment() -> SegmentDescriptor {
    let large =
        parts(&[2 * MIB, 2 * MIB, MIB], &[("mlx5_0", &[10, 11, 12]), ("mlx5_1", &[20, 21, u64::MAX])]);
    let small = keys(&[("mlx5_0", 13), ("mlx5_1", 23)]);
    described([
        buffer(range(START, 5 * MIB), large).unwrap(),
        buffer(range(START + 8 * MIB, MIB), small).unwrap(),
    ])
}

#[test]
fn golden_vectors_are_produced_and_read() {
    for (file, compat) in [
        ("descriptor-v2-parts-tcp.json", CompatProtocol::Tcp),
        ("descriptor-v2-parts-rdma.json", CompatProtocol::Rdma),
    ] {
        assert_eq!(segment().encode(&options(compat)).unwrap(), vector(file).trim_end(), "{file}");
        let decoded = decode(&vector(file));
        assert_eq!((decoded.rejected, decoded.ignored), (vec![], vec![]), "{file}");
        assert!(decoded.descriptor.same_content(&segment()), "{file}");
    }
}

#[test]
fn each_part_has_its_range_and_its_key_at_each_device() {
    let descriptor = segment();
    let (rdma, large) = (TransportKind::RDMA, &descriptor.buffers()[0]);
    let found = large.keyed(&rdma);
    let due = [(START, 2), (START + 2 * MIB, 2), (START + 4 * MIB, 1)].map(|(at, len)| range(at, len * MIB));
    assert_eq!(found, due);
    assert_eq!(large.keys(&rdma, &nic("mlx5_1")).last(), Some(&MemoryKey::new(u64::MAX)));
    assert_eq!(large.keys(&rdma, &nic("mlx5_2")), []);
    assert_eq!(large.keyed(&TransportKind::TCP), []);
    let small = &descriptor.buffers()[1];
    assert_eq!(small.keyed(&rdma), [small.range()]);
    assert_eq!(small.keys(&rdma, &nic("mlx5_0")), [MemoryKey::new(13)]);
}

#[test]
fn a_single_part_is_written_as_a_whole_buffer() {
    let one = |via| described([buffer(range(START, MIB), via).unwrap()]);
    let (part, whole) = (one(parts(&[MIB], &[("mlx5_0", &[9])])), one(keys(&[("mlx5_0", 9)])));
    assert_eq!(part, whole);
    let record = part.encode(&options(CompatProtocol::Rdma)).unwrap();
    assert!(record.contains(r#""v":1"#) && !record.contains("parts"), "{record}");
}

/// A reference engine resolves a request inside one entry, and looks for keys in each.
#[test]
fn reference_readers_see_an_entry_for_each_part_by_rdma_and_one_by_tcp() {
    let entries = |compat| {
        let record: Value = serde_json::from_str(&segment().encode(&options(compat)).unwrap()).unwrap();
        record["buffers"].as_array().unwrap().clone()
    };
    let rdma = entries(CompatProtocol::Rdma);
    let member = |name: &str| rdma.iter().map(|entry| entry[name].clone()).collect::<Vec<_>>();
    assert_eq!(
        member("addr"),
        [START, START + 2 * MIB, START + 4 * MIB, START + 8 * MIB].map(|at| json!(at))
    );
    assert_eq!(member("length"), [2 * MIB, 2 * MIB, MIB, MIB].map(|len| json!(len)));
    // In the order of the devices.
    assert_eq!(member("rkey"), [json!([20, 10]), json!([21, 11]), json!([u64::MAX, 12]), json!([23, 13])]);
    assert!(rdma.iter().all(|entry| entry["name"] == "cpu:0" && entry["lkey"] == json!([0, 0])));
    let tcp = entries(CompatProtocol::Tcp);
    assert_eq!(tcp.len(), 2);
    assert_eq!((&tcp[0]["addr"], &tcp[0]["length"]), (&json!(START), &json!(5 * MIB)));
    assert!(tcp[0].get("rkey").is_none() && tcp[1]["rkey"] == json!([23, 13]));
    // And they read what they see.
    for compat in [CompatProtocol::Rdma, CompatProtocol::Tcp] {
        let mut plain = options(compat);
        plain.extension = false;
        let decoded = decode(&segment().encode(&plain).unwrap());
        assert_eq!((decoded.rejected, decoded.ignored), (vec![], vec![]), "{compat:?}");
    }
}

/// B-09: version 1 knows no parts. It must not find the keys of one where it looks for those of the buffer, and goes on
/// with the other transports.
#[test]
fn a_reader_without_parts_uses_the_other_transports() {
    let mut record: Value =
        serde_json::from_str(&segment().encode(&options(CompatProtocol::Rdma)).unwrap()).unwrap();
    assert_eq!(record["te"]["v"], json!(2));
    assert_eq!(record["te"]["buffers"][0]["via"], json!({"tcp": {}}));
    let members = record["te"]["buffers"][0].as_object_mut().unwrap();
    members.remove("parts").unwrap();
    let decoded = decode(&record.to_string());
    assert_eq!(decoded.rejected, vec![]);
    let offered: Vec<_> = decoded.descriptor.buffers()[0].via().keys().cloned().collect();
    assert_eq!(offered, [TransportKind::TCP]);
}

#[test]
fn wrong_parts_cost_their_buffer_and_are_named() {
    let good = json!({"lengths": [2 * MIB, 3 * MIB], "keys": {"mlx5_0": [1, 2]}});
    let table = [
        (json!([]), "te.buffers[0].parts"),
        (json!({"rdma": []}), "te.buffers[0].parts.rdma"),
        (json!({"rdma": {"lengths": [5 * MIB]}}), "te.buffers[0].parts.rdma.keys"),
        (json!({"rdma": {"keys": {"mlx5_0": [1]}}}), "te.buffers[0].parts.rdma.lengths"),
        (json!({"rdma": {"lengths": [5 * MIB], "keys": {}}}), "te.buffers[0].parts.rdma"),
        (json!({"rdma": {"lengths": [], "keys": {"mlx5_0": []}}}), "te.buffers[0].parts.rdma"),
        (json!({"rdma": {"lengths": [5 * MIB, 0], "keys": {"mlx5_0": [1, 2]}}}), "te.buffers[0].parts.rdma"),
        (json!({"rdma": {"lengths": [5 * MIB, 1], "keys": {"mlx5_0": [1, 2]}}}), "te.buffers[0].parts.rdma"),
        (
            json!({"rdma": {"lengths": [u64::MAX, 5 * MIB + 1], "keys": {"mlx5_0": [1, 2]}}}),
            "te.buffers[0].parts.rdma",
        ),
        (json!({"rdma": {"lengths": [-1], "keys": {"mlx5_0": [1]}}}), "te.buffers[0].parts.rdma.lengths[0]"),
        (
            json!({"rdma": {"lengths": [2 * MIB, 3 * MIB], "keys": {"mlx5_0": [1]}}}),
            "te.buffers[0].parts.rdma",
        ),
        (
            json!({"rdma": {"lengths": [2 * MIB, 3 * MIB], "keys": {"mlx5_0": [1, "2"]}}}),
            "te.buffers[0].parts.rdma.keys.mlx5_0[1]",
        ),
        (
            json!({"rdma": {"lengths": [5 * MIB], "keys": {"other": [1]}}}),
            // One part is a buffer that is whole.
            "te.buffers[0].via.rdma.keys",
        ),
        (
            json!({"rdma": {"lengths": [2 * MIB, 3 * MIB], "keys": {"other": [1, 2]}}}),
            "te.buffers[0].parts.rdma.keys",
        ),
    ];
    let record = |change: &dyn Fn(&mut Value)| {
        let mut record: Value =
            serde_json::from_str(&segment().encode(&options(CompatProtocol::Tcp)).unwrap()).unwrap();
        change(&mut record["te"]["buffers"][0]);
        record.to_string()
    };
    for (value, field) in table {
        let text = record(&|buffer| buffer["parts"] = value.clone());
        assert_eq!(rejected(&text), [field], "{value}");
        assert_eq!(decode(&text).descriptor.buffers().len(), 1, "the other one stays");
    }
    // What is not understood is skipped, and what is said twice refused.
    let later = json!({"rdma": good, "later": 7, "cxl": {"a": []}, "efa": null});
    assert_eq!(rejected(&record(&|buffer| buffer["parts"] = later.clone())), Vec::<String>::new());
    let twice = record(&|buffer| buffer["via"]["rdma"] = json!({"keys": {"mlx5_0": 1}}));
    assert_eq!(rejected(&twice), ["te.buffers[0].parts"]);
}

#[test]
fn a_buffer_has_a_bounded_number_of_parts() {
    let many = |count: usize| {
        let numbers = vec![1; count];
        buffer(range(START, count as u64), parts(&numbers, &[("mlx5_0", &numbers)]))
    };
    assert!(many(MAX_PARTS).is_ok());
    let error = many(MAX_PARTS + 1).unwrap_err();
    assert_eq!(error.problem, FieldProblem::TooLong { len: MAX_PARTS + 1, limit: MAX_PARTS });
    let limits = DecodeLimits { max_parts: 2, ..DecodeLimits::default() };
    let options = DecodeOptions { limits, opened_as: None };
    let decoded =
        SegmentDescriptor::decode_with(vector("descriptor-v2-parts-rdma.json").as_bytes(), &options).unwrap();
    assert_eq!(decoded.rejected[0].field, "te.buffers[0].parts.rdma.lengths");
    assert_eq!(decoded.rejected[0].reason, FieldProblem::TooLong { len: 3, limit: 2 });
}
