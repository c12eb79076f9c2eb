//! What the page is told.

use std::{sync::Arc, time::Duration};

use te_segment::{
    Access, AddressRange, BufferDescriptor, EncodeOptions, Endpoint, Generation, Identity, Incarnation,
    TcpFraming, TcpService,
};

use super::*;
use crate::server::{
    contents::{Change, Lease},
    history::History,
};

fn contents(entries: &[(&str, &str, bool)]) -> Contents {
    let mut contents = Contents::new([], 0, History::new(0, 10, 1 << 20));
    for (revision, (key, value, leased)) in (1..).zip(entries) {
        let lease = leased.then(|| Lease { ttl: Duration::from_secs(10), renewed: Instant::now() });
        let record = Record { value: Arc::from(*value), revision, lease, holder: None, changed_ms: 5 };
        contents.apply(Change::Put { key: Arc::from(*key), record });
    }
    contents
}

fn te_record(name: &str) -> String {
    let buffer = |start, len, location: &str| {
        let range = AddressRange::new(start, len).unwrap();
        BufferDescriptor::new(
            range,
            location.parse().unwrap(),
            Access::REMOTE,
            Some(Generation::new(1)),
            [(TransportKind::TCP, te_segment::Via::Tcp)].into(),
        )
        .unwrap()
    };
    let control: Endpoint = "10.0.0.7:15893".parse().unwrap();
    let identity = Identity::Te { incarnation: Incarnation::from_bits(7), control: Some(control) };
    SegmentDescriptor::builder(SegmentName::new(name).unwrap())
        .identity(identity)
        .tcp(TcpService { host: None, port: 16411.try_into().unwrap(), framing: TcpFraming::V2 })
        .buffers([
            buffer(0x1000, 4096, "cpu:0"),
            buffer(0x8000, 4096, "cpu:0"),
            buffer(0x20000, 65536, "cpu:0"),
            buffer(0x90000, 8192, "cuda:1"),
        ])
        .build()
        .unwrap()
        .encode(&EncodeOptions {
            compat: te_segment::CompatProtocol::Tcp,
            extension: true,
            timestamp: "2026-01-15 09:30:11.004211".into(),
        })
        .unwrap()
}

const PLACE: &str = r#"{"ip_or_host_name":"10.0.0.9","rpc_port":15612}"#;
const REFERENCE: &str = r#"{"buffers":[{"addr":94757358125056,"length":65536,"name":"node-a"}],"name":"node-a","protocol":"tcp","tcp_data_host":"10.0.0.9","tcp_data_port":15548,"tcp_proto_version":2,"timestamp":"x"}"#;

#[test]
fn buffers_are_summed_by_location() {
    let contents = contents(&[("mooncake/ram/x", &te_record("x"), true)]);
    let view = view(&contents, Instant::now());
    let [segment] = &view.segments[..] else { panic!("{view:?}") };
    assert_eq!((segment.state, segment.buffers, segment.bytes), ("live", 4, 4096 * 2 + 65536 + 8192));
    let cpu =
        Place { location: "cpu:0".into(), buffers: 3, bytes: 73728, sizes: vec![(4096, 2), (65536, 1)] };
    assert_eq!(segment.locations[0], cpu);
    assert_eq!(segment.locations[1].location, "cuda:1");
    assert_eq!(segment.transports, ["tcp"]);
    assert_eq!(segment.owner.as_deref(), Some("10.0.0.7:15893"));
    assert_eq!(segment.incarnation.as_deref(), Some("00000000000000000000000000000007"));
    assert_eq!(segment.lease.as_ref().map(|lease| lease.ttl_ms), Some(10_000));
}

#[test]
fn reference_segment_is_shown_with_its_place() {
    let entries = [("mooncake/ram/node-a", REFERENCE, false), ("mooncake/rpc_meta/node-a", PLACE, false)];
    let view = view(&contents(&entries), Instant::now());
    let [segment] = &view.segments[..] else { panic!("{view:?}") };
    assert_eq!((segment.state, segment.protocol.as_str()), ("unleased", "tcp"));
    assert_eq!(segment.owner.as_deref(), Some("10.0.0.9:15612"));
    assert_eq!(segment.problem, None);
}

#[test]
fn clusters_and_names_with_slashes_are_told_apart() {
    let entries = [
        ("mooncake/blue/ram/x", REFERENCE, false),
        ("mooncake/blue/rpc_meta/x", PLACE, false),
        ("mooncake/clu/dir/node-c", REFERENCE, false),
        ("mooncake/clu/rpc_meta/dir/node-c", PLACE, false),
    ];
    let view = view(&contents(&entries), Instant::now());
    let [blue, slashed] = &view.segments[..] else { panic!("{view:?}") };
    assert_eq!((blue.name.as_str(), blue.cluster.as_deref()), ("x", Some("blue")));
    assert_eq!(slashed.name, "clu/dir/node-c");
    assert!(blue.owner.is_some() && slashed.owner.is_some());
}

#[test]
fn unreadable_records_say_why() {
    let contents = contents(&[
        ("mooncake/ram/x", "{", false),
        ("mooncake/ram/y", REFERENCE, false),
        ("else", "", false),
    ]);
    let view = view(&contents, Instant::now());
    let [x, y] = &view.segments[..] else { panic!("{view:?}") };
    assert_eq!(x.state, "unreadable");
    assert!(x.problem.is_some());
    assert_eq!(y.problem.as_deref(), Some("its owner's address is not published"));
}

#[test]
fn change_of_a_place_touches_its_segment() {
    let entries = [("mooncake/ram/node-a", REFERENCE, false), ("mooncake/rpc_meta/node-a", PLACE, false)];
    let contents = contents(&entries);
    let keys = ["mooncake/rpc_meta/node-a", "mooncake/ram/node-a", "mooncake/ram/node-b", "else"];
    let told = touched(&contents, keys.into_iter(), Instant::now());
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].0, told[0].1["owner"].as_str()), ("segment", Some("10.0.0.9:15612")));
    assert_eq!((told[1].0, told[1].1.as_str()), ("gone", Some("mooncake/ram/node-b")));
}

#[test]
fn only_renewed_leases_are_told() {
    let contents = contents(&[("mooncake/ram/x", REFERENCE, true), ("mooncake/ram/y", REFERENCE, false)]);
    let now = Instant::now();
    assert_eq!(renewed(&contents, now - Duration::from_secs(1), now).len(), 1);
    assert_eq!(renewed(&contents, now + Duration::from_secs(1), now).len(), 0);
}

#[test]
fn any_key_is_taken_apart() {
    for key in ["", "mooncake/", "mooncake/ram/", "mooncake/rpc_meta/", "mooncake//", "x"] {
        assert_ne!(split(key).map(|split| split.name.is_empty()), Some(true), "{key}");
    }
    let nested = split("mooncake/a/b/rpc_meta/c/d").unwrap();
    assert_eq!(nested, Split { prefix: "mooncake/a/b/", name: "c/d", rpc_meta: true });
}
