//! What an engine counts without being asked to, over each transport of this build.
#![cfg(all(feature = "tcp", feature = "shm", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::time::Duration;

use support::stop;
use te::{Access, ErrorKind, LocalGroup, Location, Op, TransportMetrics, blocking};

const LEN: u64 = 64 << 10;

fn of(engine: &blocking::Engine, transport: &str, op: Op) -> TransportMetrics {
    let all = engine.metrics().transports;
    all.into_iter().find(|of| of.transport == transport && of.op == op).unwrap()
}

/// OBS-02: bytes, requests, failures by kind, latency, what is in flight and how the paths stand, by default.
fn counted(transport: &str) {
    let group = LocalGroup::new();
    let build = || {
        let builder = te::builder("127.0.0.1").local_group(&group).set("transports", transport);
        blocking::build(builder).unwrap()
    };
    let (owner, engine) = (build(), build());
    let _offered = owner.allocate(LEN as usize, Location::Any, Access::REMOTE).unwrap();
    let local = engine.allocate(LEN as usize, Location::Any, Access::LOCAL).unwrap();
    let segment = engine.open(owner.name().as_str()).unwrap();
    let remote = segment.buffer(0).unwrap();
    let part = |at: u64| (local.slice(at..at + 1024), remote.slice(at, 1024).unwrap());
    let mut batch = engine.batch();
    for index in 0..8 {
        let (here, there) = part(index * 1024);
        batch = if index < 5 { batch.write(here, &there) } else { batch.read(&there, here) };
    }
    batch.submit().unwrap().wait().unwrap();
    let (writes, reads) = (of(&engine, transport, Op::Write), of(&engine, transport, Op::Read));
    assert_eq!((writes.done, writes.bytes, writes.in_flight), (5, 5 * 1024, 0));
    assert_eq!((reads.done, reads.bytes, reads.in_flight), (3, 3 * 1024, 0));
    assert_eq!((writes.latency.last().unwrap().1, reads.latency.last().unwrap().1), (5, 3));
    let paths = engine.metrics().paths;
    assert!(paths.iter().all(|(_, circuit)| circuit.is_closed()) && !paths.is_empty(), "{paths:?}");

    let (here, there) = part(0);
    let late = engine.batch().deadline(Duration::from_nanos(1)).write(here, &there).run().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late:#}");
    let writes = of(&engine, transport, Op::Write);
    let failures: Vec<_> = writes.failures.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!((writes.done, failures), (5, vec![("timed out", 1)]));
    let metrics = engine.metrics();
    let text = metrics.to_openmetrics();
    let line = format!(r#"te_requests_done_total{{transport="{transport}",op="write"}} 5"#);
    assert!(text.contains(&line), "{text}");
    assert!(metrics.transports.iter().all(|of| of.in_flight == 0), "{metrics:?}");
    stop(&engine);
    stop(&owner);
}

#[test]
fn what_moves_over_tcp_is_counted() {
    counted("tcp");
}

#[test]
fn what_moves_in_shared_memory_is_counted() {
    counted("shm");
}

#[test]
fn what_moves_within_a_local_group_is_counted() {
    counted("local");
}
