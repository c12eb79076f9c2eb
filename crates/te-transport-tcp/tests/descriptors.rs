//! File descriptors and threads. One test in a process of its own, because it counts those of the process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::time::Duration;

use common::{Batch, FakePeer, Node, eventually};
use te_segment::{Access, TcpFraming};
use te_transport::{Op, SubmitMode};

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

/// TCP-11: after shutdown, and after a drop without one, descriptors and threads are back where they were.
#[test]
fn descriptors_and_threads_return_to_the_baseline() {
    let (descriptors, threads) = (count("fd"), count("task"));
    for round in 0..6 {
        let (initiator, target) = (Node::new(), Node::new());
        let remote = target.region(1 << 20, Access::REMOTE);
        let local = initiator.region(1 << 20, Access::LOCAL);
        let path = initiator.path_to(&target);
        let unreachable = FakePeer::new(|_, stream| drop(stream)).path(&initiator, TcpFraming::V2);
        let mut pending = Vec::new();
        for count in 0..20 {
            let mut batch = Batch::new(Duration::from_secs(30));
            for _ in 0..10 {
                batch.add(Op::Write, local.hold(0, 1 << 18).unwrap(), remote.range().start());
                // Refused ones cost connections.
                batch.add(Op::Read, local.hold(0, 8).unwrap(), remote.range().end());
            }
            let path = if count % 5 == 4 { &unreachable } else { &path };
            pending.push(batch.submit(path, SubmitMode::Background));
        }
        if round % 2 == 0 {
            for batch in &pending {
                batch.wait();
            }
            initiator.shutdown();
            target.shutdown();
            // Each of the two keeps what its idle connections were watched with.
            assert!(count("fd") <= descriptors + 4, "{} of {descriptors}", count("fd"));
        }
        drop((path, unreachable, initiator, target));
        for batch in &pending {
            batch.wait();
        }
    }
    eventually("descriptors back", || count("fd") <= descriptors);
    eventually("threads back", || count("task") <= threads);
}
