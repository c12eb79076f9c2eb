//! Contract 4 over native connections: which life, which registration, and what a refusal costs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::time::{Duration, Instant};

use common::{ATTEMPT, Batch, Node, bytes, failed, pattern, transfer_of};
use te_memory::{Memory, Region};
use te_segment::{Access, Generation, Incarnation, Location};
use te_transport::{FailureKind, Fencing, Op, Outcome, RemoteEffect, SubmitMode, Transport};
use te_transport_tcp::{FramingChoice, TcpConfig};

const BOTH: [Op; 2] = [Op::Read, Op::Write];

fn refused(outcome: &Outcome, kind: FailureKind) {
    let failure = failed(outcome);
    assert_eq!((failure.kind(), failure.effect()), (kind, RemoteEffect::None), "{failure}");
    assert!(!failure.kind().retry_can_help());
}

#[test]
fn te_peers_are_reached_natively_and_others_as_before() {
    let (initiator, target) = (Node::new(), Node::new());
    let native = initiator.native_path_to(&target);
    assert!(native.label().to_string().ends_with(" native"), "{}", native.label());
    assert_eq!(native.fencing(), Fencing::Target);
    let reference = initiator.path_to(&target);
    assert!(reference.label().to_string().ends_with(" v2"), "{}", reference.label());
    assert_eq!(reference.fencing(), Fencing::LocalOnly);
    for (choice, word) in [(FramingChoice::V2, " v2"), (FramingChoice::V1, " v1")] {
        let mut config = TcpConfig::default();
        config.framing = choice;
        let path = Node::with(config).native_path_to(&target);
        assert!(path.label().to_string().ends_with(word), "{}", path.label());
    }
}

/// Contract 8: what is asked for explicitly is never replaced by something else.
#[test]
fn explicit_framing_is_an_error_where_the_peer_does_not_know_it() {
    let target = Node::new();
    for (word, framing) in [("native", te_segment::TcpFraming::V2), ("v2", te_segment::TcpFraming::V1)] {
        let mut config = TcpConfig::default();
        config.set("framing", word).unwrap();
        let node = Node::with(config);
        let peer = target.descriptor_with(framing);
        let reason = node.transport.path(&peer).err().unwrap();
        assert!(reason.contains(&format!("framing = {word}")), "{reason}");
        assert_eq!(node.transport.assess(&peer).reason(), reason);
    }
}

#[test]
fn bytes_arrive_in_both_directions_and_sizes() {
    let (initiator, target) = (Node::new(), Node::new());
    let len = 5 << 20;
    let remote = target.region(len, Access::REMOTE);
    let local = initiator.region(len, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    let mut batch = Batch::new(Duration::from_secs(30));
    local.write_at(0, &pattern(len, 1)).unwrap();
    let mut at = 0;
    for size in [1, 7, 48, 4096, 65_536, 65_537, 1 << 20, 2 << 20] {
        for _ in 0..3 {
            if at + size < len as u64 {
                let hold = local.hold(at, size).unwrap();
                batch.add_of(Op::Write, hold, remote.range().start() + at, remote.generation(), ATTEMPT);
                at += size;
            }
        }
    }
    let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
    assert!(outcomes.iter().all(Outcome::is_done), "{outcomes:?}");
    assert!(bytes(&remote, 0, at as usize) == pattern(len, 1)[..at as usize]);
    remote.write_at(0, &pattern(len, 2)).unwrap();
    let hold = local.hold(0, len as u64).unwrap();
    let outcome = transfer_of(&path, Op::Read, hold, remote.range().start(), remote.generation());
    assert!(outcome.is_done(), "{outcome:?}");
    assert!(bytes(&local, 0, len) == pattern(len, 2));
}

/// META-01, META-02: a handle of an earlier life at the same address and port.
#[test]
fn another_life_refuses_before_anything_is_asked() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    remote.fill(0x55).unwrap();
    let local = initiator.region(4096, Access::LOCAL);
    local.fill(0x11).unwrap();
    let path = initiator.transport.path(&target.published_as(Incarnation::from_bits(1))).unwrap();
    for op in BOTH {
        let hold = local.hold(0, 4096).unwrap();
        let outcome = transfer_of(&path, op, hold, remote.range().start(), remote.generation());
        refused(&outcome, FailureKind::StaleIncarnation);
        let now = target.context.incarnation.to_string();
        assert!(failed(&outcome).cause().contains(&now), "{outcome:?}");
    }
    let counters = target.transport.counters();
    assert_eq!((counters.served, counters.refused), (0, 0));
    assert_eq!(bytes(&remote, 0, 4096), [0x55; 4096]);
    assert_eq!(bytes(&local, 0, 4096), [0x11; 4096]);
}

/// Everything that waits for the same answer gets it.
#[test]
fn queued_batches_to_another_life_all_fail_as_stale() {
    let (initiator, target) = (Node::new(), Node::new());
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.transport.path(&target.published_as(Incarnation::from_bits(1))).unwrap();
    let pending: Vec<_> = (0..40)
        .map(|_| {
            let mut batch = Batch::new(Duration::from_secs(30));
            batch.add_of(Op::Write, local.hold(0, 64).unwrap(), 4096, Generation::new(1), ATTEMPT);
            batch.submit(&path, SubmitMode::Background)
        })
        .collect();
    for batch in pending {
        refused(&batch.wait()[0], FailureKind::StaleIncarnation);
    }
}

/// Registers the same bytes again, as a program does that frees and allocates.
fn again(node: &Node, region: &Region) -> Region {
    region.block();
    region.wait_drained(Instant::now() + Duration::from_secs(5)).unwrap();
    let memory: Memory = region.release().unwrap();
    node.context.regions.reserve(memory, Access::REMOTE, Location::Any).unwrap().commit()
}

/// SEG-01, META-02: the next owner of the addresses is not touched.
#[test]
fn memory_registered_again_is_not_touched_by_requests_for_the_earlier_registration() {
    let (initiator, target) = (Node::new(), Node::new());
    let first = target.region(64 << 10, Access::REMOTE);
    let (start, earlier) = (first.range().start(), first.generation());
    let local = initiator.region(64 << 10, Access::LOCAL);
    local.fill(0x11).unwrap();
    let path = initiator.native_path_to(&target);
    assert!(transfer_of(&path, Op::Write, local.hold(0, 4096).unwrap(), start, earlier).is_done());
    let second = again(&target, &first);
    assert_eq!(second.range(), first.range());
    second.fill(0x22).unwrap();
    for op in BOTH {
        for len in [1, 4096, 64 << 10] {
            let outcome = transfer_of(&path, op, local.hold(0, len).unwrap(), start, earlier);
            refused(&outcome, FailureKind::BufferGone);
        }
    }
    assert_eq!(bytes(&second, 0, 64 << 10), vec![0x22; 64 << 10]);
    assert_eq!(bytes(&local, 0, 64 << 10), vec![0x11; 64 << 10]);
    let now = transfer_of(&path, Op::Read, local.hold(0, 4096).unwrap(), start, second.generation());
    assert!(now.is_done(), "{now:?}");
}

#[test]
fn withdrawn_and_released_buffers_are_gone_and_other_refusals_are_not() {
    let (initiator, target) = (Node::new(), Node::new());
    let region = target.region(4096, Access::REMOTE);
    let read_only = target.region(4096, Access::REMOTE_READ);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    let ask = |op, at, of| transfer_of(&path, op, local.hold(0, 64).unwrap(), at, of);
    let (start, end, of) = (region.range().start(), region.range().end(), region.generation());
    refused(&ask(Op::Write, end - 1, of), FailureKind::Rejected);
    let only = (read_only.range().start(), read_only.generation());
    refused(&ask(Op::Write, only.0, only.1), FailureKind::Rejected);
    region.block();
    refused(&ask(Op::Write, start, of), FailureKind::BufferGone);
    region.wait_drained(Instant::now() + Duration::from_secs(5)).unwrap();
    drop(region.release().unwrap());
    for op in BOTH {
        refused(&ask(op, start, of), FailureKind::BufferGone);
    }
}

/// A request that does not say which registration it means is refused, whatever is at its range.
#[test]
fn request_without_a_generation_is_refused() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    for op in BOTH {
        let hold = local.hold(0, 64).unwrap();
        let outcome = common::transfer(&path, op, hold, remote.range().start(), SubmitMode::CallerRuns);
        refused(&outcome, FailureKind::Rejected);
        assert!(failed(&outcome).cause().contains("no registration"), "{outcome:?}");
    }
}

/// The payload is thrown away in place: those beside it go on, on the same connection.
#[test]
fn refused_write_costs_its_neighbours_nothing() {
    let mut config = TcpConfig::default();
    config.set("connections_per_peer", "1").unwrap();
    let (initiator, target) = (Node::with(config), Node::new());
    let remote = target.region(64 << 10, Access::REMOTE);
    let local = initiator.region(64 << 10, Access::LOCAL);
    local.fill(0x33).unwrap();
    let path = initiator.native_path_to(&target);
    for len in [16, 1024] {
        let mut batch = Batch::new(Duration::from_secs(30));
        for index in 0..60 {
            let gone = index % 7 == 3;
            let of = if gone { Generation::new(u64::MAX) } else { remote.generation() };
            let at = remote.range().start() + index * len;
            batch.add_of(Op::Write, local.hold(0, len).unwrap(), at, of, ATTEMPT);
        }
        let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
        for (index, outcome) in outcomes.iter().enumerate() {
            let written = bytes(&remote, index as u64 * len, len as usize);
            if index % 7 == 3 {
                refused(outcome, FailureKind::BufferGone);
                assert!(written.iter().all(|byte| *byte == 0), "{index}");
            } else {
                assert!(outcome.is_done(), "{index}: {outcome:?}");
                assert!(written.iter().all(|byte| *byte == 0x33), "{index}");
            }
        }
        remote.fill(0).unwrap();
    }
    assert_eq!(initiator.transport.counters().connected, 1);
}

/// A refused READ ends the connection, and the others are read over the next one.
#[test]
fn refused_read_fails_alone() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(64 << 10, Access::REMOTE);
    remote.write_at(0, &pattern(64 << 10, 4)).unwrap();
    let local = initiator.region(64 << 10, Access::LOCAL);
    let path = initiator.native_path_to(&target);
    let mut batch = Batch::new(Duration::from_secs(30));
    for index in 0..40 {
        let of = if index == 11 { Generation::new(u64::MAX) } else { remote.generation() };
        let hold = local.hold(index * 1024, 1024).unwrap();
        batch.add_of(Op::Read, hold, remote.range().start() + index * 1024, of, ATTEMPT);
    }
    let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
    for (index, outcome) in outcomes.iter().enumerate() {
        let here = bytes(&local, index as u64 * 1024, 1024);
        if index == 11 {
            refused(outcome, FailureKind::BufferGone);
            assert_eq!(here, [0; 1024]);
        } else {
            assert!(outcome.is_done(), "{index}: {outcome:?}");
            assert!(here == pattern(64 << 10, 4)[index * 1024..][..1024], "{index}");
        }
    }
}

/// What the target would have to read and forget is more than it will: it says why and closes.
#[test]
fn refused_write_beyond_the_drain_limit_ends_the_connection_with_its_reason() {
    let mut config = TcpConfig::default();
    config.set("reject_drain_bytes", "65536").unwrap();
    let (initiator, target) = (Node::new(), Node::with(config));
    let local = initiator.region(32 << 20, Access::LOCAL);
    let remote = target.region(4096, Access::REMOTE);
    let path = initiator.native_path_to(&target);
    let gone = Generation::new(u64::MAX);
    let mut batch = Batch::new(Duration::from_secs(30));
    batch.add_of(Op::Write, local.hold(0, 3 << 20).unwrap(), 4096, gone, ATTEMPT);
    let (start, of) = (remote.range().start(), remote.generation());
    batch.add_of(Op::Write, local.hold(0, 4096).unwrap(), start, of, ATTEMPT);
    let outcomes = batch.submit(&path, SubmitMode::CallerRuns).wait();
    refused(&outcomes[0], FailureKind::BufferGone);
    // Not served behind it, and the initiator knows.
    assert!(outcomes[1].is_done(), "{outcomes:?}");
}

/// A new version of the descriptor keeps the connections: each request says what it means.
#[test]
fn connections_outlive_a_descriptor_version() {
    let (initiator, target) = (Node::new(), Node::new());
    let remote = target.region(4096, Access::REMOTE);
    let local = initiator.region(4096, Access::LOCAL);
    let versions = [1, 2].map(|version| {
        let name = te_segment::SegmentName::new("peer").unwrap();
        let identity = te_segment::Identity::Te { incarnation: target.context.incarnation, control: None };
        let builder = te_segment::SegmentDescriptor::builder(name).identity(identity);
        let builder = builder.version(te_segment::DescriptorVersion::new(version));
        std::sync::Arc::new(target.transport.advertise(builder).build().unwrap())
    });
    let paths = versions.map(|peer| initiator.transport.path(&peer).unwrap());
    for path in &paths {
        let hold = local.hold(0, 64).unwrap();
        let outcome = transfer_of(path, Op::Write, hold, remote.range().start(), remote.generation());
        assert!(outcome.is_done(), "{outcome:?}");
    }
    assert_eq!(initiator.transport.counters().connected, 1);
}
