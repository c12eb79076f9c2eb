//! What a descriptor refuses to be, and what it answers.

use std::{collections::BTreeMap, num::NonZeroU16};

use proptest::prelude::*;
use serde_json::json;
use te_segment::{
    Access, AddressRange, BufferDescriptor, CompatProtocol, DescriptorBuilder, DescriptorError, FieldProblem,
    FindError, Identity, Incarnation, Location, SegmentDescriptor, TcpFraming, TcpService, Topology,
    TransportKind, Via,
};

use crate::support::{buffer, decode, device, keys, name, nic, options, range};

const TCP: (TransportKind, Via) = (TransportKind::TCP, Via::Tcp);

fn builder() -> DescriptorBuilder {
    SegmentDescriptor::builder(name("n"))
        .identity(Identity::Te { incarnation: Incarnation::from_bits(7), control: None })
        .tcp(service("10.0.0.7"))
}

fn service(host: &str) -> TcpService {
    let host = Some(host.parse().unwrap());
    TcpService { host, port: NonZeroU16::new(16411).unwrap(), framing: TcpFraming::V2 }
}

fn refused(builder: DescriptorBuilder) -> (String, FieldProblem) {
    match builder.build() {
        Err(DescriptorError::Invalid { field, problem }) => (field, problem),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn overlapping_buffers_are_refused() {
    let (first, second) = (range(4096, 16), range(4111, 1));
    let builder =
        builder().buffer(buffer(first, Access::REMOTE, [TCP])).buffer(buffer(second, Access::REMOTE, [TCP]));
    let problem = FieldProblem::Overlaps { range: second, existing: first };
    assert_eq!(refused(builder), ("buffers[1]".to_owned(), problem));
}

#[test]
fn buffers_are_sorted_by_address() {
    let at = |start| buffer(range(start, 16), Access::REMOTE, [TCP]);
    let descriptor = builder().buffer(at(8192)).buffer(at(4096)).build().unwrap();
    assert_eq!(descriptor.buffers()[0].range(), range(4096, 16));
}

/// META-11: a key cannot belong to a device that is not listed.
#[test]
fn key_of_an_unlisted_device_is_refused() {
    let buffer = buffer(range(4096, 16), Access::REMOTE, [(TransportKind::RDMA, keys(&[("b", 1)]))]);
    let (field, problem) = refused(builder().device(device("a", 1)).buffer(buffer));
    assert_eq!(field, "buffers[0].via.rdma.keys");
    assert_eq!(problem, FieldProblem::UnknownDevice { name: "b".to_owned() });
}

#[test]
fn topology_of_an_unlisted_device_is_refused() {
    let mut topology = Topology::new();
    topology.insert(&Location::cpu(0), [nic("a")], [nic("b")]);
    assert_eq!(refused(builder().device(device("a", 1)).topology(topology)).0, "topology");
}

#[test]
fn repeated_device_is_refused() {
    assert_eq!(refused(builder().device(device("a", 1)).device(device("a", 2))).0, "devices[1].name");
}

#[test]
fn tcp_entry_without_a_listener_is_refused() {
    let builder = SegmentDescriptor::builder(name("n")).buffer(buffer(range(1, 1), Access::REMOTE, [TCP]));
    assert_eq!(refused(builder).0, "buffers[0].via.tcp");
}

#[test]
fn wildcard_addresses_are_not_advertised() {
    assert_eq!(refused(builder().tcp(service("0.0.0.0"))), ("tcp.host".to_owned(), FieldProblem::Wildcard));
    let identity =
        Identity::Te { incarnation: Incarnation::from_bits(7), control: Some("[::]:1".parse().unwrap()) };
    assert_eq!(refused(builder().identity(identity)), ("control".to_owned(), FieldProblem::Wildcard));
}

#[test]
fn value_nested_too_deep_is_refused() {
    let deep = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    assert_eq!(refused(builder().locality(deep(33))).0, "locality");
    assert_eq!(refused(builder().data(TransportKind::SHM, deep(33))).0, "data.shm");
    let descriptor = builder().locality(deep(32)).data(TransportKind::SHM, deep(32)).build().unwrap();
    let text = descriptor.encode(&options(CompatProtocol::Tcp)).unwrap();
    assert!(decode(&text).descriptor.same_content(&descriptor), "the deepest value is still read");
}

#[test]
fn record_that_no_reader_would_take_is_not_written() {
    let long = "x".repeat(te_segment::MAX_DOCUMENT_BYTES);
    let descriptor = builder().locality(json!(long)).build().unwrap();
    let refused = descriptor.encode(&options(CompatProtocol::Tcp)).unwrap_err();
    assert!(matches!(refused, DescriptorError::TooLarge { limit: te_segment::MAX_DOCUMENT_BYTES, .. }));
}

/// MR-07: a local-only buffer has no key and is not in what peers see.
#[test]
fn local_only_buffer_is_not_in_the_record() {
    let public = buffer(range(4096, 16), Access::REMOTE_READ, [TCP]);
    let private = buffer(range(0x00de_adbe_ef00, 16), Access::LOCAL, []);
    let with = builder().buffer(public.clone()).buffer(private.clone()).build().unwrap();
    assert_eq!(with.find(private.range()), Ok(&private));
    assert_eq!(with.remote_buffers().collect::<Vec<_>>(), [&public]);

    let record = with.encode(&options(CompatProtocol::Tcp)).unwrap();
    assert!(!record.contains(&private.range().start().to_string()), "{record}");
    assert!(with.same_content(&builder().buffer(public).build().unwrap()));
}

/// MR-07
#[test]
fn local_only_buffer_with_a_key_is_refused() {
    let via = BTreeMap::from([(TransportKind::RDMA, keys(&[("a", 1)]))]);
    let error = BufferDescriptor::new(range(1, 1), Location::Any, Access::LOCAL, None, via).unwrap_err();
    assert_eq!((error.field.as_str(), error.problem), ("via.rdma", FieldProblem::LocalOnly));
}

#[test]
fn entry_of_another_transport_is_refused() {
    let table = [
        (TransportKind::TCP, Via::Handle("00".to_owned())),
        (TransportKind::RDMA, Via::Tcp),
        (TransportKind::RDMA, Via::Other(json!({}))),
        (TransportKind::SHM, Via::Tcp),
        (TransportKind::CXL, Via::Nccl { device: 0 }),
        (TransportKind::HIP, keys(&[("a", 1)])),
    ];
    for (kind, via) in table {
        let entry = BTreeMap::from([(kind.clone(), via)]);
        let error =
            BufferDescriptor::new(range(1, 1), Location::Any, Access::REMOTE, None, entry).unwrap_err();
        assert_eq!(error.problem, FieldProblem::TransportMismatch { transport: kind.to_string() });
    }
}

#[test]
fn empty_location_is_refused() {
    let empty = Location::Other(String::new());
    let error = BufferDescriptor::new(range(1, 1), empty, Access::REMOTE, None, BTreeMap::new()).unwrap_err();
    assert_eq!((error.field.as_str(), error.problem), ("location", FieldProblem::Empty));
}

#[test]
fn range_outside_every_buffer_is_answered_with_the_nearest() {
    let at = |start| buffer(range(start, 0x100), Access::REMOTE, [TCP]);
    let descriptor = builder().buffer(at(0x1000)).buffer(at(0x2000)).build().unwrap();
    let nearest = |start| match descriptor.find(range(start, 1)) {
        Err(FindError::OutsideAnyBuffer { nearest, .. }) => nearest.map(|range| range.start()),
        other => panic!("{other:?}"),
    };
    assert_eq!(nearest(0x10), Some(0x1000));
    assert_eq!(nearest(0x1100), Some(0x1000));
    assert_eq!(nearest(0x1f00), Some(0x2000));
    assert_eq!(nearest(0x9000), Some(0x2000));
    let empty = builder().build().unwrap();
    let error = empty.find(range(1, 1)).unwrap_err();
    assert_eq!(error.to_string(), "0x1+1 lies outside every buffer");
}

#[test]
fn range_beyond_the_end_is_answered_with_the_buffer() {
    let whole = range(0x1000, 0x100);
    let descriptor = builder().buffer(buffer(whole, Access::REMOTE, [TCP])).build().unwrap();
    let wanted = range(0x10ff, 2);
    assert_eq!(descriptor.find(wanted), Err(FindError::BeyondEnd { range: wanted, buffer: whole }));
    assert!(descriptor.find(range(0x10ff, 1)).is_ok());
}

#[test]
fn unknown_location_of_the_topology_falls_back_to_any_device() {
    let mut topology = Topology::new();
    topology.insert(&Location::cpu(0), [nic("a")], [nic("b")]);
    let all = topology.resolve(&Location::cpu(9));
    assert_eq!(all.preferred, [nic("a"), nic("b")]);
    assert_eq!(topology.resolve(&Location::cpu(0)).available, [nic("b")]);
}

#[test]
fn device_named_twice_for_a_location_counts_once() {
    let topology = Topology::from_matrix(&json!({"cpu:0": [["a", "a"], ["b", "a"]]})).unwrap();
    let rails = topology.rails(&Location::cpu(0)).unwrap();
    assert_eq!((&rails.preferred[..], &rails.available[..]), (&[nic("a")][..], &[nic("b")][..]));
}

#[test]
fn empty_topology_is_null() {
    assert!(Topology::new().to_matrix().is_null());
    assert_eq!(Topology::from_matrix(&json!(null)), Ok(Topology::new()));
}

proptest! {
    #[test]
    fn find_agrees_with_a_search_of_every_buffer(
        sizes in prop::collection::vec((1_u64..64, 0_u64..64), 0..12),
        start in 1_u64..1600,
        len in 1_u64..80,
    ) {
        let mut at = 1;
        let buffers: Vec<_> = sizes.iter().map(|(size, gap)| {
            let buffer = buffer(range(at, *size), Access::REMOTE, [TCP]);
            at += size + gap;
            buffer
        }).collect();
        let descriptor = builder().buffers(buffers.iter().rev().cloned()).build().unwrap();
        let wanted = range(start, len);
        let found = descriptor.find(wanted).ok();
        prop_assert_eq!(found, buffers.iter().find(|b| b.range().contains_range(&wanted)));
    }

    #[test]
    fn buffers_of_a_descriptor_never_overlap(ranges in prop::collection::vec((1_u64..300, 1_u64..40), 1..12)) {
        let ranges: Vec<AddressRange> = ranges.into_iter().map(|(start, len)| range(start, len)).collect();
        let clash = ranges.iter().enumerate().any(|(i, a)| ranges[..i].iter().any(|b| a.overlaps(b)));
        let built = builder().buffers(ranges.iter().map(|r| buffer(*r, Access::REMOTE, [TCP]))).build();
        prop_assert_eq!(built.is_err(), clash);
    }
}
