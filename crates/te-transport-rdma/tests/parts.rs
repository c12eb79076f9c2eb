//! Regions of several registrations, here and at the peer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::sync::Arc;

use devices::{Batch, Bench, Peer, check, config, fill, prepare};
use te_memory::{Memory, Region};
use te_segment::{
    Access, CompatProtocol, EncodeOptions, Location, MAX_PARTS, SegmentDescriptor, TransportKind, Via,
};
use te_sys_verbs::Call;
use te_sys_verbs::fake::{Fabric, Fault, Nic};
use te_testkit::node::{Move, bytes};
use te_testkit::{Switchboard, pattern};
use te_transport::{FailureKind, Op, Path, Registration, Transport};

const MIB: u64 = 1 << 20;
/// No multiple of a page, of a slice, or of the other limit.
const ODD: u64 = 1_500_001;

/// An engine whose regions have parts of 1 MiB by its settings, and one of parts of 1,500,001 bytes by one of its NICs.
fn uneven() -> (Bench, Peer, Peer) {
    let limited = Nic { registration_bytes: ODD, ..Nic::new("b1") };
    let nics = [Nic::new("a0"), Nic::new("a1"), Nic::new("b0"), limited];
    let bench = Bench { fabric: Arc::new(Fabric::new(nics)), switch: Switchboard::default() };
    let a = bench.peer(1, &["a0", "a1"], config(&[("max_mr_size", "1048576"), ("slice_max", "1073741824")]));
    let b = bench.peer(2, &["b0", "b1"], config(&[("slice_max", "1073741824")]));
    (bench, a, b)
}

/// A path by what the peer's record says once it was written and read.
fn path(from: &Peer, to: &Peer) -> Arc<dyn Path> {
    let timestamp = "2026-01-15 09:30:11.004211".to_owned();
    let options = EncodeOptions { compat: CompatProtocol::Rdma, extension: true, timestamp };
    let record = to.published().encode(&options).unwrap();
    let read = SegmentDescriptor::decode(record.as_bytes()).unwrap();
    assert_eq!(read.rejected, []);
    from.transport.path(&Arc::new(read.descriptor)).unwrap()
}

fn parts_of(peer: &Peer, region: &Region) -> usize {
    let published = peer.published();
    let buffer = published.find(region.range()).unwrap();
    buffer.keyed(&TransportKind::RDMA).len()
}

/// MR-05, MR-06, RDMA-11: a buffer of any size is one to peers. Requests cross the registrations of both sides, which end
/// elsewhere here and there.
#[test]
fn requests_cross_the_parts_of_both_sides() {
    let (_bench, a, b) = uneven();
    let len = usize::try_from(7 * MIB + 3).unwrap();
    let (ours, theirs) = (a.offered(len), b.offered(len));
    assert_eq!((parts_of(&a, &ours), parts_of(&b, &theirs)), (8, 5));
    let (there, back) = (path(&a, &b), path(&b, &a));
    for (seed, op) in (1..).zip([Op::Write, Op::Read]) {
        let batch = Batch::new(op, &ours, &theirs, 1);
        prepare(&batch, seed);
        batch.done(&*there);
        check(&batch, seed);
        let batch = Batch::new(op, &theirs, &ours, 1);
        prepare(&batch, seed + 10);
        batch.done(&*back);
        check(&batch, seed + 10);
    }
}

/// MR-03, MR-05: what lies around a border of both sides is written where it belongs, and nothing beside it.
#[test]
fn ranges_around_every_border_are_exact() {
    let (_bench, a, b) = uneven();
    let len = 4 * MIB;
    let (ours, theirs) = (a.offered(4 << 20), b.offered(4 << 20));
    let there = path(&a, &b);
    let borders = [MIB, 2 * MIB, 3 * MIB, ODD, 2 * ODD];
    let mut expected = vec![0xee; 4 << 20];
    theirs.fill(0xee).unwrap();
    fill(&ours, 3);
    let source = pattern(3, 4 << 20);
    for (at, border) in borders.into_iter().enumerate() {
        // Another range here, so that the borders of the two sides do not meet.
        let (near, from, to) = (100 + at as u64, border - 50, (border + MIB / 2) % (len - 300));
        for (start, target) in [(from, to), (to, from)] {
            let ledger = te_testkit::Ledger::new(1);
            let slice = te_transport::Slice {
                op: Op::Write,
                local: ours.hold(start, near).unwrap(),
                remote: theirs.range().slice(target, near).unwrap(),
                generation: Some(theirs.generation()),
                attempt: te_transport::AttemptId { request: 1, attempt: 1 },
                token: ledger.token(0),
            };
            let (mode, scope) = (te_transport::SubmitMode::Background, te_transport::CancelScope::new());
            te_testkit::node::submit(&*there, vec![slice], mode, &scope);
            assert!(te_testkit::node::outcomes(&ledger)[0].is_done());
            let at = |offset: u64| usize::try_from(offset).unwrap();
            expected[at(target)..at(target + near)].copy_from_slice(&source[at(start)..at(start + near)]);
        }
    }
    assert!(bytes(&theirs) == expected, "only what was written has changed");
}

/// MR-11, MR-14: whichever part fails at whichever NIC, nothing of the region stays anywhere, and the next try works.
#[test]
fn a_part_that_fails_leaves_nothing_of_the_others() {
    let (bench, a, _b) = uneven();
    let before = bench.fabric.live();
    for nic in ["a0", "a1"] {
        for part in 0..4 {
            bench.fabric.fail(Fault::new(Call::RegMr, libc::ENOMEM).on(nic).after(part).times(1));
            let memory = Memory::allocate(4 << 20).unwrap();
            let reservation = a.context.regions.reserve(memory, Access::REMOTE, Location::Any).unwrap();
            let error = a.transport.register(reservation.region()).unwrap_err();
            assert!(error.retryable && error.to_string().contains(nic), "{error}");
            assert_eq!(bench.fabric.live(), before, "{nic} {part}");
            drop(reservation);
            bench.fabric.heal();
        }
    }
    let region = a.offered(4 << 20);
    assert_eq!(bench.fabric.live().regions, before.regions + 8);
    let _ = a.withdraw(&region);
    assert_eq!(bench.fabric.live(), before);
}

/// MR-09, MR-12: a withdrawal gives the keys of every part back, and peers are refused at each.
#[test]
fn no_part_can_be_reached_after_a_withdrawal() {
    let (bench, a, b) = uneven();
    let before = bench.fabric.live().regions;
    let (ours, theirs) = (a.local(4 << 20), b.offered(4 << 20));
    let there = path(&a, &b);
    Batch::new(Op::Write, &ours, &theirs, 1).done(&*there);
    let _ = b.withdraw(&theirs);
    for op in [Op::Write, Op::Read] {
        let (kind, cause) = Move::new(op, &ours, &theirs).fails(&*there);
        assert_eq!(kind, FailureKind::Rejected, "{cause}");
    }
    let _ = a.withdraw(&ours);
    assert_eq!(bench.fabric.live().regions, before);
}

/// More parts than a descriptor may carry are not registered at all, and the reason says what helps.
#[test]
fn more_parts_than_peers_are_told_of_are_refused_with_the_reason() {
    let limited = Nic { registration_bytes: 16, ..Nic::new("a0") };
    let bench = Bench { fabric: Arc::new(Fabric::new([limited])), switch: Switchboard::default() };
    let a = bench.peer(1, &["a0"], config(&[]));
    let memory = Memory::allocate(16 * (MAX_PARTS + 1)).unwrap();
    let reservation = a.context.regions.reserve(memory, Access::REMOTE, Location::Any).unwrap();
    let Registration::NotMine(reason) = a.transport.register(reservation.region()).unwrap() else {
        panic!("registered")
    };
    assert!(reason.contains("65536 parts at most") && reason.contains("max_mr_size"), "{reason}");
    assert_eq!(bench.fabric.live().regions, 0);
    // What fits is registered.
    let whole = a.offered(4096);
    assert!(matches!(
        a.published().find(whole.range()).unwrap().via_transport(&TransportKind::RDMA),
        Some(Via::RdmaParts { lengths, .. }) if lengths.len() == 256
    ));
}
