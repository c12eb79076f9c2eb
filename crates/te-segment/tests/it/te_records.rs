//! Records of te engines: the golden vectors and the extension.

use std::{collections::BTreeMap, num::NonZeroU16};

use proptest::prelude::*;
use serde_json::{Value, json};
use te_segment::{
    Access, AddressRange, BufferDescriptor, CompatProtocol, DescriptorVersion, DeviceKind, FieldProblem,
    Generation, Identity, Incarnation, Location, MemoryKey, SegmentDescriptor, TcpFraming, TcpService,
    Topology, TransportKind, Via, wire,
};

use crate::support::{buffer, decode, device, keys, name, nic, options, range, rejected, vector, wrong};

const INCARNATION: Incarnation = Incarnation::from_bits(0x8b1f_6f0c_6a3d_4f0d_9c1a_2b3c_4d5e_6f70);

fn identity(control: &str) -> Identity {
    Identity::Te { incarnation: INCARNATION, control: Some(control.parse().unwrap()) }
}

fn service(host: &str, port: u16) -> TcpService {
    let host = Some(host.parse().unwrap());
    TcpService { host, port: NonZeroU16::new(port).unwrap(), framing: TcpFraming::V2 }
}

fn empty() -> SegmentDescriptor {
    SegmentDescriptor::builder(name("10.1.2.3:15021")).identity(identity("10.1.2.3:15021")).build().unwrap()
}

fn tcp() -> SegmentDescriptor {
    let via = || [(TransportKind::TCP, Via::Tcp)];
    SegmentDescriptor::builder(name("decode-7"))
        .identity(identity("[2001:db8::7]:15021"))
        .version(DescriptorVersion::new(3))
        .tcp(service("2001:db8::7", 16020))
        .buffer(buffer(range(140_001_000_001_536, 4_194_304), Access::REMOTE, via()))
        .buffer(buffer(range(140_002_000_001_536, 4096), Access::REMOTE_READ, via()))
        .build()
        .unwrap()
}

/// Every member that version 1 has, and buffers that differ in who reaches them.
fn mixed() -> SegmentDescriptor {
    let mut topology = Topology::new();
    topology.insert(&Location::cpu(0), [nic("mlx5_0")], [nic("mlx5_1")]);
    let described = |start: u64, location: Location, access, generation, via: Vec<(TransportKind, Via)>| {
        let via: BTreeMap<_, _> = via.into_iter().collect();
        BufferDescriptor::new(range(start, 65536), location, access, Some(Generation::new(generation)), via)
            .unwrap()
    };
    let cuda = Location::device(DeviceKind::Cuda, 2);
    let both = keys(&[("mlx5_1", 5121), ("mlx5_0", u64::MAX)]);
    SegmentDescriptor::builder(name("node-é"))
        .identity(identity("10.1.2.3:15021"))
        .version(DescriptorVersion::new(12))
        .tcp(service("10.1.2.4", 16020))
        .device(device("mlx5_1", 2))
        .device(device("mlx5_0", 1))
        .topology(topology)
        .locality(json!({"boot": "5f0c", "numa": [0, 1]}))
        .data(TransportKind::SHM, json!({"socket": "te-1"}))
        .data("later_one".parse().unwrap(), json!([1]))
        .buffers([
            described(
                0x10_0000,
                Location::cpu(0),
                Access::REMOTE,
                1,
                vec![
                    (TransportKind::TCP, Via::Tcp),
                    (TransportKind::RDMA, both.clone()),
                    (TransportKind::SHM, Via::Other(json!({"map": 0, "off": 4096}))),
                ],
            ),
            described(
                0x20_0000,
                Location::Any,
                Access::REMOTE_WRITE,
                2,
                vec![(TransportKind::TCP, Via::Tcp)],
            ),
            described(0x30_0000, Location::cpu(1), Access::REMOTE_READ, 3, vec![(TransportKind::RDMA, both)]),
            described(
                0x40_0000,
                Location::cpu(1),
                Access::REMOTE_READ,
                4,
                vec![(TransportKind::RDMA, keys(&[("mlx5_0", 9)]))],
            ),
            described(
                0x50_0000,
                cuda.clone(),
                Access::REMOTE,
                5,
                vec![
                    (TransportKind::NVLINK, Via::Handle("3F3F".to_owned())),
                    (TransportKind::HIP, Via::Other(json!({"handle": "3F", "fd": 1}))),
                    (TransportKind::CXL, Via::Cxl { offset: 0 }),
                    ("nccl".parse().unwrap(), Via::Nccl { device: 2 }),
                    ("ub".parse().unwrap(), Via::Ub { segments: vec!["0a0b".to_owned()] }),
                ],
            ),
            described(0x60_0000, cuda, Access::REMOTE, 6, vec![]),
            described(0x70_0000, Location::cpu(0), Access::LOCAL, 7, vec![]),
        ])
        .build()
        .unwrap()
}

/// B-09: the bytes of a version do not change, whatever the build. And each vector is read as what it was made from.
#[test]
fn golden_vectors_are_produced_and_read() {
    let table = [
        ("descriptor-v1-empty.json", empty(), CompatProtocol::Tcp),
        ("descriptor-v1-tcp.json", tcp(), CompatProtocol::Tcp),
        ("descriptor-v1-mixed-tcp.json", mixed(), CompatProtocol::Tcp),
        ("descriptor-v1-mixed-rdma.json", mixed(), CompatProtocol::Rdma),
    ];
    for (file, descriptor, compat) in table {
        let encoded = descriptor.encode(&options(compat)).unwrap();
        assert_eq!(encoded, vector(file).trim_end(), "{file}");
        let decoded = decode(&vector(file));
        assert_eq!((decoded.rejected, decoded.ignored), (vec![], vec![]), "{file}");
        assert!(decoded.descriptor.same_content(&descriptor), "{file}: {:?}", decoded.descriptor);
        assert_eq!(decoded.descriptor.version(), descriptor.version(), "{file}");
        let lossless = wire::Descriptor::decode(encoded.as_bytes()).unwrap();
        assert_eq!(lossless.encode(), encoded, "{file}");
    }
}

/// B-09: a record with members of a later version is read as far as it is understood, and passed on whole.
#[test]
fn record_of_a_later_version_is_read() {
    let text = vector("descriptor-v2-unknown-members.json");
    let decoded = decode(&text);
    assert_eq!(decoded.rejected, vec![]);
    assert_eq!(decoded.descriptor.incarnation(), Some(INCARNATION));
    assert_eq!(decoded.descriptor.buffers().len(), 1);
    let lossless = wire::Descriptor::decode(text.as_bytes()).unwrap();
    assert_eq!(lossless.encode(), text.trim_end());
}

fn addresses(record: &str) -> Vec<u64> {
    let record: Value = serde_json::from_str(record).unwrap();
    record["buffers"].as_array().unwrap().iter().map(|buffer| buffer["addr"].as_u64().unwrap()).collect()
}

#[test]
fn reference_readers_see_the_buffers_that_the_compat_transport_reaches() {
    let tcp = mixed().encode(&options(CompatProtocol::Tcp)).unwrap();
    assert_eq!(addresses(&tcp), [0x10_0000, 0x20_0000]);
    // A key for each device or none: the buffer with one key of two is left out.
    let rdma = mixed().encode(&options(CompatProtocol::Rdma)).unwrap();
    assert_eq!(addresses(&rdma), [0x10_0000, 0x30_0000]);
}

#[test]
fn reference_readers_understand_both_readings() {
    for compat in [CompatProtocol::Tcp, CompatProtocol::Rdma] {
        let mut plain = options(compat);
        plain.extension = false;
        let decoded = decode(&mixed().encode(&plain).unwrap());
        assert_eq!((decoded.rejected, decoded.ignored), (vec![], vec![]), "{compat:?}");
        assert_eq!(decoded.descriptor.identity(), &Identity::Reference);
        assert_eq!(decoded.descriptor.tcp(), mixed().tcp());
        assert!(!decoded.descriptor.buffers().is_empty());
    }
}

#[test]
fn keys_for_reference_readers_are_in_the_order_of_the_devices() {
    let mut plain = options(CompatProtocol::Rdma);
    plain.extension = false;
    let record: Value = serde_json::from_str(&mixed().encode(&plain).unwrap()).unwrap();
    assert_eq!(record["devices"][0]["name"], "mlx5_1");
    assert_eq!(record["buffers"][0]["rkey"], json!([5121, u64::MAX]));
    assert_eq!(record["buffers"][0]["lkey"], json!([0, 0]));
}

#[test]
fn extension_alone_counts_where_there_is_one() {
    let text = json!({
        "name": "n", "protocol": "rdma", "tcp_data_port": "not a port", "devices": 7,
        "buffers": [{"name": "n", "addr": 1, "length": 1, "rkey": [1, 2, 3]}],
        "te": {"v": 1, "incarnation": INCARNATION.to_string()},
    });
    let decoded = decode(&text.to_string());
    assert_eq!((decoded.descriptor.buffers().len(), decoded.rejected), (0, vec![]));
    assert_eq!(decoded.descriptor.tcp(), None);
}

/// META-06: control and data address are separate members and stay what they are.
#[test]
fn control_and_data_address_are_separate() {
    let descriptor = SegmentDescriptor::builder(name("n"))
        .identity(identity("127.0.0.1:15001"))
        .tcp(service("127.0.0.2", 16001))
        .build()
        .unwrap();
    let decoded = decode(&descriptor.encode(&options(CompatProtocol::Tcp)).unwrap()).descriptor;
    assert_eq!(decoded.control().unwrap().to_string(), "127.0.0.1:15001");
    assert_eq!(decoded.tcp().unwrap().host.clone().unwrap().bare(), "127.0.0.2");
}

/// META-06
#[test]
fn missing_data_host_is_not_filled_from_the_control_address() {
    let text = json!({"name": "n", "protocol": "tcp", "te": {"v": 1, "incarnation": INCARNATION.to_string(),
        "control": "127.0.0.1:1", "tcp": {"port": 2, "framing": 1}}});
    let tcp = decode(&text.to_string()).descriptor.tcp().cloned().unwrap();
    assert_eq!((tcp.host, tcp.framing), (None, TcpFraming::V1));
}

fn extended(change: impl FnOnce(&mut Value)) -> String {
    let mut record: Value =
        serde_json::from_str(&mixed().encode(&options(CompatProtocol::Tcp)).unwrap()).unwrap();
    change(&mut record["te"]);
    record.to_string()
}

#[test]
fn wrong_members_of_the_extension_are_named() {
    let table: [(&str, Value, &str); 19] = [
        ("/v", json!(0), "te.v"),
        ("/v", json!("1"), "te.v"),
        ("/v", json!(null), "te.v"),
        ("/incarnation", json!(null), "te.incarnation"),
        ("/incarnation", json!("8b1f"), "te.incarnation"),
        ("/version", json!(-1), "te.version"),
        ("/control", json!("::1"), "te.control"),
        ("/control", json!("0.0.0.0:1"), "te.control"),
        ("/control", json!("a:0"), "te.control"),
        ("/tcp", json!([]), "te.tcp"),
        ("/tcp/port", json!(65536), "te.tcp.port"),
        ("/tcp/port", json!(0), "te.tcp.port"),
        ("/tcp/host", json!("a:1"), "te.tcp.host"),
        ("/devices/1/name", json!("mlx5_1"), "te.devices[1].name"),
        ("/devices/0/gid", json!("xx"), "te.devices[0].gid"),
        ("/topology/cpu:0", json!([["a"]]), "te.topology.cpu:0"),
        ("/data", json!(7), "te.data"),
        ("/data", json!({"UPPER": 1}), "te.data.UPPER"),
        ("/buffers", json!({}), "te.buffers"),
    ];
    for (pointer, value, field) in table {
        let text = extended(|te| *te.pointer_mut(pointer).unwrap() = value.clone());
        assert_eq!(wrong(&text).0, field, "{pointer} = {value}");
    }
    assert_eq!(wrong(r#"{"name":"n","protocol":"tcp","te":7}"#).0, "te");
    assert_eq!(wrong(r#"{"protocol":"tcp","te":{"v":1}}"#).0, "name");
}

#[test]
fn wrong_buffers_of_the_extension_are_rejected_by_name() {
    let table: [(&str, Value, &str); 17] = [
        ("/addr", json!(0), "te.buffers[0]"),
        ("/addr", json!(null), "te.buffers[0].addr"),
        ("/addr", json!(u64::MAX), "te.buffers[0]"),
        ("/length", json!(-5), "te.buffers[0].length"),
        ("/length", json!(0), "te.buffers[0]"),
        ("/gen", json!("1"), "te.buffers[0].gen"),
        ("/access", json!("local"), "te.buffers[0].access"),
        ("/access", json!("all"), "te.buffers[0].access"),
        ("/access", json!(null), "te.buffers[0].access"),
        ("/location", json!(""), "te.buffers[0].location"),
        ("/via", json!([]), "te.buffers[0].via"),
        ("/via", json!({"tcp": 1}), "te.buffers[0].via.tcp"),
        ("/via", json!({"rdma": {}}), "te.buffers[0].via.rdma.keys"),
        ("/via", json!({"rdma": {"keys": {}}}), "te.buffers[0].via.rdma"),
        ("/via", json!({"rdma": {"keys": {"other": 1}}}), "te.buffers[0].via.rdma.keys"),
        ("/via", json!({"rdma": {"keys": {"mlx5_0": "1"}}}), "te.buffers[0].via.rdma.keys.mlx5_0"),
        ("/via", json!({"cxl": {"offset": -1}}), "te.buffers[0].via.cxl.offset"),
    ];
    for (pointer, value, field) in table {
        let text = extended(|te| *te["buffers"][0].pointer_mut(pointer).unwrap() = value.clone());
        assert_eq!(rejected(&text), [field], "{pointer} = {value}");
        assert_eq!(decode(&text).descriptor.buffers().len(), 5, "the others stay");
    }
}

#[test]
fn overlapping_buffer_of_the_extension_is_rejected() {
    let decoded = decode(&extended(|te| te["buffers"][1]["addr"] = json!(0x10_0001)));
    assert_eq!(decoded.rejected[0].index, 1);
    assert!(matches!(decoded.rejected[0].reason, FieldProblem::Overlaps { .. }));
}

#[test]
fn same_content_ignores_when_and_for_whom_a_record_was_written() {
    let mut later = options(CompatProtocol::Rdma);
    later.timestamp = "2027-01-01 00:00:00.000000".to_owned();
    let (a, b) = (mixed().encode(&options(CompatProtocol::Tcp)).unwrap(), mixed().encode(&later).unwrap());
    assert!(decode(&a).descriptor.same_content(&decode(&b).descriptor));
    assert!(!decode(&a).descriptor.same_content(&tcp()));
}

#[test]
fn fractions_in_uninterpreted_values_are_exact() {
    let values = json!([
        0.1,
        1.0e-308,
        2.2250738585072014e-308,
        f64::MAX,
        -0.0,
        9007199254740993.0_f64,
        u64::MAX,
        i64::MIN
    ]);
    let text = extended(|te| te["locality"] = values.clone());
    let once = decode(&text).descriptor;
    assert_eq!(once.locality(), Some(&values));
    let twice = decode(&once.encode(&options(CompatProtocol::Tcp)).unwrap()).descriptor;
    assert_eq!(twice.locality(), Some(&values));
}

#[test]
fn record_is_one_line_of_ascii() {
    let record = mixed().encode(&options(CompatProtocol::Rdma)).unwrap();
    assert!(record.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{record}");
}

fn any_buffer(index: u64) -> impl Strategy<Value = BufferDescriptor> {
    let access = prop_oneof![Just(Access::REMOTE), Just(Access::REMOTE_READ), Just(Access::REMOTE_WRITE)];
    let location = prop_oneof![
        Just(Location::Any),
        any::<u32>().prop_map(Location::cpu),
        "\\PC{1,12}".prop_map(Location::Other)
    ];
    let via = prop::collection::vec(
        prop_oneof![
            Just((TransportKind::TCP, Via::Tcp)),
            any::<u64>().prop_map(|key| (TransportKind::RDMA, keys(&[("mlx5_0", key)]))),
            "\\PC{1,8}".prop_map(|handle| (TransportKind::NVLINK, Via::Handle(handle))),
            any::<u64>().prop_map(|offset| (TransportKind::CXL, Via::Cxl { offset })),
            any::<i64>().prop_map(|n| (TransportKind::SHM, Via::Other(json!({ "n": n })))),
        ],
        0..4,
    );
    (1_u64..4096, access, location, any::<Option<u64>>(), via, any::<Option<u64>>()).prop_map(
        move |(len, access, location, generation, via, cut)| {
            let range = AddressRange::new((index + 1) * 4096, len).unwrap();
            let mut via: BTreeMap<_, _> = via.into_iter().collect();
            if let Some(key) = cut {
                let cut = key % len;
                let lengths = [cut, len - cut].into_iter().filter(|length| *length > 0).collect::<Vec<_>>();
                let keys = (0..lengths.len() as u64).map(|part| MemoryKey::new(key ^ part)).collect();
                let keys = BTreeMap::from([(nic("mlx5_0"), keys)]);
                via.insert(TransportKind::RDMA, Via::RdmaParts { lengths, keys });
            }
            BufferDescriptor::new(range, location, access, generation.map(Generation::new), via).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn what_was_built_is_decoded(
        bits: u128,
        version: u64,
        buffers in (0_u64..8).prop_flat_map(|n| (0..n).map(any_buffer).collect::<Vec<_>>()),
        rdma: bool,
    ) {
        let descriptor = SegmentDescriptor::builder(name("n"))
            .identity(Identity::Te { incarnation: Incarnation::from_bits(bits), control: None })
            .version(DescriptorVersion::new(version))
            .tcp(service("10.1.2.3", 1))
            .device(device("mlx5_0", 1))
            .buffers(buffers)
            .build()
            .unwrap();
        let compat = if rdma { CompatProtocol::Rdma } else { CompatProtocol::Tcp };
        let record = descriptor.encode(&options(compat)).unwrap();
        let decoded = decode(&record);
        prop_assert_eq!(decoded.rejected, vec![]);
        prop_assert!(decoded.descriptor.same_content(&descriptor));
        prop_assert_eq!(decoded.descriptor.version(), descriptor.version());
        let again = decoded.descriptor.encode(&options(compat)).unwrap();
        prop_assert_eq!(again, record);
    }
}
