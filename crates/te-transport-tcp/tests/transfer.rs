//! Transfers between two transports over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Batch, Node, bytes, pattern, transfer};
use te_segment::{Access, TcpFraming};
use te_transport::{Op, SubmitMode, Transport};
use te_transport_tcp::TcpConfig;

const MODES: [SubmitMode; 2] = [SubmitMode::CallerRuns, SubmitMode::Background];

/// Around every border: of a status, a header, a gathered call, a chunk, a call, a stripe.
const SIZES: [usize; 17] = [
    1,
    2,
    7,
    8,
    9,
    23,
    24,
    25,
    4095,
    4096,
    65_535,
    65_536,
    65_537,
    (1 << 20) + 1,
    (4 << 20) - 3,
    (4 << 20) + 5,
    (8 << 20) + 1,
];

fn round_trip(framing: TcpFraming, mode: SubmitMode) {
    let (initiator, target) = (Node::new(), Node::new());
    let size = SIZES[SIZES.len() - 1];
    let remote = target.region(size + 64, Access::REMOTE);
    let local = initiator.region(size + 64, Access::LOCAL);
    let back = initiator.region(size + 64, Access::LOCAL);
    let path = initiator.transport.path(&target.descriptor_with(framing)).unwrap();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let sent = pattern(size, seed as u8);
        local.write_at(3, &sent).unwrap();
        remote.fill(0xee).unwrap();
        let to = remote.range().start() + 5;
        let outcome = transfer(&path, Op::Write, local.hold(3, size as u64).unwrap(), to, mode);
        assert!(outcome.is_done(), "write {size}: {outcome:?}");
        assert!(bytes(&remote, 5, size) == sent, "write of {size} bytes");
        assert_eq!(bytes(&remote, 0, 5), [0xee; 5]);
        assert_eq!(bytes(&remote, 5 + size as u64, 8), [0xee; 8]);

        back.fill(0xdd).unwrap();
        let outcome = transfer(&path, Op::Read, back.hold(1, size as u64).unwrap(), to, mode);
        assert!(outcome.is_done(), "read {size}: {outcome:?}");
        assert!(bytes(&back, 1, size) == sent, "read of {size} bytes");
        assert_eq!(bytes(&back, 1 + size as u64, 8), [0xdd; 8]);
        assert_eq!(bytes(&back, 0, 1), [0xdd]);
    }
}

#[test]
fn v2_moves_every_size_both_ways_on_the_calling_thread() {
    round_trip(TcpFraming::V2, SubmitMode::CallerRuns);
}

#[test]
fn v2_moves_every_size_both_ways_in_the_background() {
    round_trip(TcpFraming::V2, SubmitMode::Background);
}

#[test]
fn v1_moves_every_size_both_ways_on_the_calling_thread() {
    round_trip(TcpFraming::V1, SubmitMode::CallerRuns);
}

#[test]
fn v1_moves_every_size_both_ways_in_the_background() {
    round_trip(TcpFraming::V1, SubmitMode::Background);
}

#[test]
fn v1_setting_overrides_what_the_peer_advertises() {
    let mut config = TcpConfig::default();
    config.set("framing", "v1").unwrap();
    let (initiator, target) = (Node::with(config), Node::new());
    let path = initiator.path_to(&target);
    assert!(path.label().to_string().ends_with("v1"), "{}", path.label());
    let remote = target.region(64, Access::REMOTE);
    let local = initiator.region(64, Access::LOCAL);
    let hold = local.hold(0, 64).unwrap();
    assert!(transfer(&path, Op::Write, hold, remote.range().start(), SubmitMode::CallerRuns).is_done());
}

/// More slices than fit into a window, of mixed sizes, in both directions at once.
#[test]
fn large_mixed_batch_completes_and_every_byte_is_right() {
    for mode in MODES {
        let (initiator, target) = (Node::new(), Node::new());
        let slot = 20_000_u64;
        let count = 700_u64;
        let remote = target.region((slot * count) as usize, Access::REMOTE);
        let source = initiator.region((slot * count) as usize, Access::LOCAL);
        let sink = initiator.region((slot * count) as usize, Access::LOCAL);
        source.write_at(0, &pattern((slot * count) as usize, 1)).unwrap();
        remote.write_at(0, &pattern((slot * count) as usize, 2)).unwrap();
        let path = initiator.path_to(&target);
        let mut batch = Batch::new(Duration::from_secs(60));
        let size = |index: u64| 1 + (index * 7919) % slot;
        for index in 0..count {
            let at = index * slot;
            let (op, region) = if index % 3 == 0 { (Op::Write, &source) } else { (Op::Read, &sink) };
            batch.add(op, region.hold(at, size(index)).unwrap(), remote.range().start() + at);
        }
        for outcome in batch.submit(&path, mode).wait() {
            assert!(outcome.is_done(), "{outcome:?}");
        }
        let (written, there) = (pattern((slot * count) as usize, 1), pattern((slot * count) as usize, 2));
        for index in 0..count {
            let (at, size) = ((index * slot) as usize, size(index) as usize);
            if index % 3 == 0 {
                assert!(bytes(&remote, at as u64, size) == written[at..at + size], "write {index}");
            } else {
                assert!(bytes(&sink, at as u64, size) == there[at..at + size], "read {index}");
            }
        }
    }
}

/// A request large enough to be cut into stripes completes once, with all bytes.
#[test]
fn striped_request_completes_once_with_all_bytes() {
    let mut config = TcpConfig::default();
    config.set("stripe_threshold", "65536").unwrap();
    let size = (24 << 20) + 13_usize;
    let (initiator, target) = (Node::with(config), Node::new());
    let remote = target.region(size, Access::REMOTE);
    let local = initiator.region(size, Access::LOCAL);
    let sent = pattern(size, 9);
    local.write_at(0, &sent).unwrap();
    let path = initiator.path_to(&target);
    for mode in MODES {
        remote.fill(0).unwrap();
        let hold = local.hold(0, size as u64).unwrap();
        let outcome = transfer(&path, Op::Write, hold, remote.range().start(), mode);
        assert!(matches!(outcome, te_transport::Outcome::Done(bytes) if bytes == size as u64), "{outcome:?}");
        assert!(bytes(&remote, 0, size) == sent);
    }
}

/// TCP-01: when a WRITE is reported complete, another thread finds all of it at the destination.
#[test]
fn ten_thousand_writes_are_never_torn_at_completion() {
    const LEN: usize = 2400;
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(LEN, Access::REMOTE_WRITE);
    let local = initiator.region(LEN, Access::LOCAL);
    let path = initiator.path_to(&target);
    let (report, reported) = std::sync::mpsc::channel::<u8>();
    let (checked, go_on) = std::sync::mpsc::channel();
    let watched = remote.clone();
    let checker = std::thread::spawn(move || {
        let mut torn = 0;
        while let Ok(expected) = reported.recv() {
            torn += usize::from(bytes(&watched, 0, LEN) != [expected; LEN]);
            checked.send(()).unwrap();
        }
        torn
    });
    for count in 0..10_000_u32 {
        let byte = count as u8;
        local.fill(byte).unwrap();
        let mode = MODES[usize::from(count % 8 == 0)];
        let hold = local.hold(0, LEN as u64).unwrap();
        assert!(transfer(&path, Op::Write, hold, remote.range().start(), mode).is_done());
        report.send(byte).unwrap();
        go_on.recv().unwrap();
    }
    drop(report);
    assert_eq!(checker.join().unwrap(), 0, "torn writes");
}

/// TCP-10: headers and statuses are all that is added to the payload.
#[test]
fn wire_bytes_stay_within_one_percent_of_the_payload() {
    let (initiator, target) = (Node::new(), Node::new());
    let size = 8_u64 << 20;
    let remote = target.region(size as usize, Access::REMOTE);
    let local = initiator.region(size as usize, Access::LOCAL);
    let path = initiator.path_to(&target);
    for op in [Op::Write, Op::Read] {
        let hold = local.hold(0, size).unwrap();
        assert!(transfer(&path, op, hold, remote.range().start(), SubmitMode::CallerRuns).is_done());
    }
    // The target counts after it has answered.
    common::eventually("counted", || target.transport.counters().payload_sent == size);
    for counters in [initiator.transport.counters(), target.transport.counters()] {
        assert_eq!(counters.payload_sent, size);
        assert_eq!(counters.payload_received, size);
        let wire = counters.wire_sent + counters.wire_received;
        assert!(wire > 2 * size && wire <= 2 * size + 2 * size / 100 + 4096, "{counters:?}");
    }
}

/// Contract 2: both ends write and read the same bytes at the same time, and every transfer still completes.
#[test]
fn concurrent_batches_of_many_threads_complete() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(1 << 20, Access::REMOTE);
    let local = initiator.region(1 << 20, Access::LOCAL);
    let path = initiator.path_to(&target);
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|threads| {
        for thread in 0..8_u64 {
            let (path, local, remote, stop) = (&path, &local, &remote, &stop);
            threads.spawn(move || {
                let mode = MODES[(thread % 2) as usize];
                for round in 0..30_u64 {
                    let mut batch = Batch::new(Duration::from_secs(60));
                    for part in 0..5_u64 {
                        let len = 1 + (thread * 131 + round * 17 + part * 4099) % 100_000;
                        let op = if part % 2 == 0 { Op::Write } else { Op::Read };
                        batch.add(op, local.hold(thread, len).unwrap(), remote.range().start() + thread);
                    }
                    for outcome in batch.submit(path, mode).wait() {
                        assert!(outcome.is_done(), "{outcome:?}");
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(path.health().in_flight, 0);
    assert!(path.health().connections <= 4, "{:?}", path.health());
}

#[test]
fn two_thousand_slices_at_once_wait_instead_of_being_refused() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.path_to(&target);
    let batches: Vec<_> = (0..500)
        .map(|_| {
            let mut batch = Batch::new(Duration::from_secs(60));
            for _ in 0..5 {
                batch.add(Op::Write, local.hold(0, 8).unwrap(), remote.range().start());
            }
            batch.submit(&path, SubmitMode::Background)
        })
        .collect();
    for batch in batches {
        assert!(batch.wait().iter().all(te_transport::Outcome::is_done));
    }
    assert!(path.health().connections <= 4);
}

#[test]
fn different_lengths_of_the_two_sides_are_a_local_failure() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(64, Access::REMOTE);
    let local = initiator.region(64, Access::LOCAL);
    let path = initiator.path_to(&target);
    let mut batch = Batch::new(Duration::from_secs(5));
    batch.add(Op::Write, local.hold(0, 32).unwrap(), remote.range().start());
    batch.slices[0].remote = remote.range();
    let outcome = batch.submit(&path, SubmitMode::CallerRuns).wait().remove(0);
    assert_eq!(common::failed(&outcome).kind(), te_transport::FailureKind::LocalMemory);
}
