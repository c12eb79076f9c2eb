//! What an engine says of what it moved.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::Duration;

use common::pair::Pair;
use te_engine::{Engine, TransportMetrics, block_on};
use te_segment::TransportKind;
use te_testkit::{Fault, Site, When, pattern};
use te_transport::{FailureKind, Fencing, Op, RemoteEffect};

const LEN: usize = 64 << 10;

fn of(engine: &Engine, kind: &TransportKind, op: Op) -> TransportMetrics {
    let all = engine.metrics().transports;
    all.into_iter().find(|of| of.transport == kind.to_string() && of.op == op).unwrap()
}

/// OBS-02: counted where it was moved, failures by what went wrong, and nothing stays in flight.
#[test]
fn requests_are_counted_by_transport_direction_and_end() {
    let pair = Pair::new(Fencing::LocalOnly);
    let (first, second) = (TransportKind::SHM, TransportKind::CXL);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], pattern(3, LEN)).await;
        let engine = &pair.initiator;
        let part = |at: u64| (local.slice(at..at + 1024), range.slice(at, 1024).unwrap());
        let mut batch = engine.batch();
        for index in 0..8 {
            let (here, there) = part(index * 1024);
            batch = if index < 5 { batch.write(here, &there) } else { batch.read(&there, here) };
        }
        batch.run().unwrap();
        let (writes, reads) = (of(engine, &first, Op::Write), of(engine, &first, Op::Read));
        assert_eq!((writes.done, writes.bytes, writes.in_flight), (5, 5 * 1024, 0));
        assert_eq!((reads.done, reads.bytes, reads.in_flight), (3, 3 * 1024, 0));
        assert_eq!(writes.latency.last().unwrap().1, 5);

        // One that goes on over the second path is counted there.
        let broken = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayHaveApplied);
        pair.first.add(Site::Slice, When::Always, broken);
        let (here, there) = part(0);
        engine.batch().read(&there, here).run().unwrap();
        assert_eq!((of(engine, &second, Op::Read).done, of(engine, &first, Op::Read).done), (1, 3));

        // One that fails for good is counted by its kind.
        pair.second.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Rejected));
        let (here, there) = part(0);
        let read = engine.batch().read(&there, here).deadline(Duration::from_secs(5)).run();
        read.unwrap_err();
        let failed: u64 =
            engine.metrics().transports.iter().flat_map(|of| &of.failures).map(|(_, n)| n).sum();
        assert_eq!(failed, 1);
        let metrics = engine.metrics();
        assert!(metrics.transports.iter().all(|of| of.in_flight == 0), "{metrics:?}");
        assert!(metrics.paths.iter().any(|(_, circuit)| !circuit.is_closed()), "the first path failed");
        assert_eq!(metrics.buffers, 1);
        assert!(
            metrics.to_openmetrics().contains("te_requests_done_total{transport=\"cxl\",op=\"read\"} 1\n")
        );
    });
}
