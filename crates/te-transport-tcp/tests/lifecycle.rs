//! Installation, advertisement, paths and their connections.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::sync::Arc;

use common::{Node, context, descriptor, transfer};
use te_segment::{
    Access, Endpoint, Identity, Incarnation, SegmentDescriptor, SegmentName, TcpFraming, TcpService,
};
use te_transport::{InstallError, Op, Path, PortRange, SubmitMode, Transport};
use te_transport_tcp::{Tcp, TcpConfig};

const V2: TcpFraming = TcpFraming::V2;

/// SEC-04: the listener is bound to the address it was given and nothing else.
#[test]
fn listener_is_bound_to_the_given_address() {
    let node = Node::new();
    assert_eq!(node.transport.listening_on().ip().to_string(), "127.0.0.1");
    let other = std::net::SocketAddr::from(([127, 0, 0, 2], node.transport.listening_on().port()));
    assert!(std::net::TcpStream::connect(other).is_err());
}

#[test]
fn ipv6_address_serves_and_is_reached() {
    let context = context("::1", 77);
    let target = Tcp::default().start(&context).unwrap();
    let memory = te_memory::Memory::allocate(64).unwrap();
    let location = te_segment::Location::Any;
    let remote = context.regions.reserve(memory, Access::REMOTE, location).unwrap().commit();
    let node = Node::new();
    let path = node.transport.path(&descriptor("::1", target.listening_on().port(), V2, None)).unwrap();
    let local = node.region(64, Access::LOCAL);
    let hold = local.hold(0, 64).unwrap();
    assert!(transfer(&path, Op::Write, hold, remote.range().start(), SubmitMode::CallerRuns).is_done());
    assert!(path.label().to_string().contains("[::1]:"), "{}", path.label());
}

#[test]
fn advertisement_is_the_advertised_host_the_port_and_version_2() {
    let mut context = context("0.0.0.0", 78);
    context.advertise = "127.0.0.1".parse().unwrap();
    let transport = Tcp::default().start(&context).unwrap();
    let builder = SegmentDescriptor::builder(SegmentName::new("node").unwrap());
    let descriptor = transport.advertise(builder).build().unwrap();
    let service = descriptor.tcp().unwrap();
    assert_eq!(service.host.as_ref().unwrap().to_string(), "127.0.0.1");
    assert_eq!(service.port.get(), transport.listening_on().port());
    assert_eq!(service.framing, V2);
    assert!(transport.assess(&descriptor).is_usable());
}

#[test]
fn full_port_range_is_an_error_that_names_it() {
    let first = Node::new();
    let port = first.transport.listening_on().port();
    let mut context = context("127.0.0.1", 79);
    context.ports = PortRange { min: port, max: port };
    let error = Tcp::default().start(&context).unwrap_err();
    assert!(matches!(error, InstallError::Failed { .. }));
    assert!(error.to_string().contains(&format!("from {port} to {port}")), "{error}");
}

#[test]
fn setting_out_of_range_is_a_config_error() {
    let mut config = TcpConfig::default();
    config.pipeline = 0;
    let error = Tcp::new(config).start(&context("127.0.0.1", 80)).unwrap_err();
    assert!(matches!(error, InstallError::Config { key: "pipeline", .. }), "{error}");
}

fn named(name: &str, identity: Identity, host: Option<&str>) -> SegmentDescriptor {
    let service =
        TcpService { host: host.map(|host| host.parse().unwrap()), port: 9.try_into().unwrap(), framing: V2 };
    SegmentDescriptor::builder(SegmentName::new(name).unwrap())
        .identity(identity)
        .tcp(service)
        .build()
        .unwrap()
}

/// The data host is the one beside the port, else that of the control endpoint, else that of the name.
#[test]
fn data_host_is_looked_for_in_three_places() {
    let node = Node::new();
    let control: Endpoint = "10.0.0.2:12001".parse().unwrap();
    let te = || Identity::Te { incarnation: Incarnation::from_bits(1), control: Some(control.clone()) };
    for (peer, expected) in [
        (named("10.0.0.3:5", te(), Some("10.0.0.1")), "10.0.0.1:9"),
        (named("10.0.0.3:5", te(), None), "10.0.0.2:9"),
        (named("10.0.0.3:5", Identity::Reference, None), "10.0.0.3:9"),
        (named("[fe80::1]:5", Identity::Reference, None), "[fe80::1]:9"),
    ] {
        let assessment = node.transport.assess(&peer);
        let expected = format!("data port {expected}, framing v2");
        assert_eq!((assessment.is_usable(), assessment.reason()), (true, expected.as_str()));
    }
}

#[test]
fn peers_without_a_reachable_data_port_are_unusable_with_a_reason() {
    let node = Node::new();
    let none = SegmentDescriptor::builder(SegmentName::new("node-a").unwrap()).build().unwrap();
    for (peer, reason) in [
        (none, "no tcp data port"),
        (named("node-a", Identity::Reference, None), "no host"),
        (named("0.0.0.0:5", Identity::Reference, None), "wildcard"),
    ] {
        let assessment = node.transport.assess(&peer);
        assert!(!assessment.is_usable() && assessment.reason().contains(reason), "{assessment:?}");
        assert!(node.transport.path(&Arc::new(peer)).is_err());
    }
}

fn write(node: &Node, path: &Arc<dyn Path>, remote: u64) {
    let local = node.region(64, Access::LOCAL);
    let outcome = transfer(path, Op::Write, local.hold(0, 64).unwrap(), remote, SubmitMode::CallerRuns);
    assert!(outcome.is_done(), "{outcome:?}");
}

/// Contract 4: connections are pinned to a snapshot. An unchanged peer keeps them, another life does not get them.
#[test]
fn idle_connections_pass_to_a_new_path_only_if_the_peer_is_unchanged() {
    let (node, target) = (Node::new(), Node::new());
    let remote = target.region(64, Access::REMOTE).range().start();
    let port = target.transport.listening_on().port();
    let life = |bits| descriptor("127.0.0.1", port, V2, Some(Incarnation::from_bits(bits)));
    let first = node.transport.path(&life(1)).unwrap();
    write(&node, &first, remote);
    let same = node.transport.path(&life(1)).unwrap();
    write(&node, &same, remote);
    assert_eq!(node.transport.counters().connected, 1);
    let other = node.transport.path(&life(2)).unwrap();
    assert_eq!(first.health().connections, 0, "given up when another life took the endpoint over");
    write(&node, &other, remote);
    assert_eq!(node.transport.counters().connected, 2);
    // The old path still works for requests planned with it, and keeps nothing.
    write(&node, &first, remote);
    assert_eq!(first.health().connections, 0);
    assert_eq!(other.health().connections, 1);
}

#[test]
fn last_path_takes_its_connections_with_it() {
    let (node, target) = (Node::new(), Node::new());
    let remote = target.region(64, Access::REMOTE).range().start();
    let path = node.path_to(&target);
    write(&node, &path, remote);
    assert_eq!(target.transport.accepted_connections(), 1);
    drop(path);
    common::eventually("closed", || target.transport.accepted_connections() == 0);
}

/// TCP-03: one caller uses one connection, however often it comes.
#[test]
fn connections_are_reused() {
    let (node, target) = (Node::new(), Node::new());
    let remote = target.region(64, Access::REMOTE).range().start();
    let path = node.path_to(&target);
    for _ in 0..300 {
        write(&node, &path, remote);
    }
    assert_eq!(node.transport.counters().connected, 1);
    // The target counts after it has answered.
    common::eventually("counted", || target.transport.counters().served == 300);
}
