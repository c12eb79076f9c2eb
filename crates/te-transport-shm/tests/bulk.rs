//! Large submissions, which several threads copy at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

#[path = "common/node.rs"]
mod node;

use std::sync::Arc;

use node::{bytes, outcomes, submit};
use te_memory::{Memory, Region};
use te_segment::{Access, AddressRange};
use te_testkit::Ledger;
use te_transport::{
    AttemptId, CancelReason, CancelScope, FailureKind, Op, Outcome, RemoteEffect, Slice, SubmitMode,
};

const MIB: u64 = 1 << 20;

/// Offset and length of the slices, not all of which are multiples of anything.
const SLICES: [(u64, u64); 4] =
    [(3, 11 * MIB + 5), (11 * MIB + 9, MIB), (12 * MIB + 9, 1), (12 * MIB + 64, 9 * MIB - 1)];
const LEN: u64 = 22 * MIB;

fn slice(op: Op, local: &Region, remote: &Region, at: (u64, u64), log: &Arc<Ledger>, index: u32) -> Slice {
    let start = remote.range().start() + at.0;
    Slice {
        op,
        local: local.hold(at.0, at.1).unwrap(),
        remote: AddressRange::new(start, at.1).unwrap(),
        generation: Some(remote.generation()),
        attempt: AttemptId { request: 1, attempt: 1 },
        token: log.token(index),
    }
}

/// Bytes that differ from place to place.
fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8 ^ seed).collect()
}

fn write(region: &Region, bytes: &[u8]) {
    region.write_at(0, bytes).unwrap();
}

fn big() -> usize {
    usize::try_from(LEN).unwrap()
}

#[test]
fn every_byte_arrives_and_no_other_changes() {
    let (near, far) = (node::new(), node::new());
    let local = near.local(big());
    for shareable in [true, false] {
        let remote = if shareable {
            far.shared(big())
        } else {
            far.register(Memory::allocate(big()).unwrap(), Access::REMOTE)
        };
        let path = near.path_to(&far);
        for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
            for op in [Op::Read, Op::Write] {
                let (here, there) = (pattern(LEN, 1), pattern(LEN, 2));
                write(&local, &here);
                write(&remote, &there);
                let log = Ledger::new(SLICES.len());
                let slices = SLICES.iter().zip(0..).map(|(at, i)| slice(op, &local, &remote, *at, &log, i));
                submit(&*path, slices.collect(), mode, &CancelScope::new());
                for (outcome, (_, len)) in outcomes(&log).iter().zip(SLICES) {
                    assert!(matches!(outcome, Outcome::Done(bytes) if *bytes == len), "{outcome:?}");
                }
                let (from, mut to, arrived) = match op {
                    Op::Read => (there, here, bytes(&local)),
                    Op::Write => (here, there, bytes(&remote)),
                };
                for (at, len) in SLICES {
                    let range = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
                    to[range.clone()].copy_from_slice(&from[range]);
                }
                assert!(arrived == to, "{op} {mode:?} shareable {shareable}");
            }
        }
        far.withdraw(&remote);
    }
}

/// One slice that is wrong fails, and only it.
#[test]
fn a_slice_outside_its_buffer_fails_alone() {
    let (near, far) = (node::new(), node::new());
    let (local, remote) = (near.local(big()), far.shared(big()));
    let path = near.path_to(&far);
    let log = Ledger::new(SLICES.len());
    let mut slices: Vec<_> =
        SLICES.iter().zip(0..).map(|(at, i)| slice(Op::Write, &local, &remote, *at, &log, i)).collect();
    slices[1].remote = AddressRange::new(remote.range().end(), SLICES[1].1).unwrap();
    submit(&*path, slices, SubmitMode::CallerRuns, &CancelScope::new());
    let outcomes = outcomes(&log);
    assert!(matches!(&outcomes[1], Outcome::Failed(failure) if failure.kind() == FailureKind::Rejected));
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_done()).count(), SLICES.len() - 1);
}

/// Cancelled or withdrawn at whatever moment: every slice ends once, and then nothing touches the memory.
#[test]
fn large_copies_stop_when_cancelled_or_withdrawn() {
    let (near, far) = (node::new(), node::new());
    for round in 0..60_u32 {
        let (local, remote) = (near.local(big()), far.shared(big()));
        write(&local, &vec![7; big()]);
        let path = near.path_to(&far);
        let (log, scope) = (Ledger::new(SLICES.len()), CancelScope::new());
        let slices: Vec<_> =
            SLICES.iter().zip(0..).map(|(at, i)| slice(Op::Write, &local, &remote, *at, &log, i)).collect();
        submit(&*path, slices, SubmitMode::Background, &scope);
        // From at once to after the end.
        (0..round * 40).for_each(|_| std::thread::yield_now());
        let expected = if round % 2 == 0 {
            scope.cancel(CancelReason::Cancelled);
            FailureKind::Cancelled
        } else {
            drop(far.withdraw(&remote));
            FailureKind::BufferGone
        };
        for outcome in outcomes(&log) {
            match outcome {
                Outcome::Done(_) => {}
                Outcome::Failed(failure) => assert_eq!(failure.kind(), expected, "{failure}"),
                other => panic!("{other:?}"),
            }
        }
        if round % 2 == 0 {
            let before = bytes(&remote);
            write(&local, &vec![8; big()]);
            assert!(before == bytes(&remote), "bytes were moved after the end");
            drop(far.withdraw(&remote));
        }
        near.withdraw(&local);
    }
}

/// Memory that the kernel cannot reach in the middle of a call: what is whole is done, what is not says that some of it may be
/// there.
#[test]
fn a_call_that_ends_inside_a_slice_tells_what_it_may_have_done() {
    const PAGE: u64 = 4096;
    let (near, far) = (node::new(), node::new());
    let len = usize::try_from(16 * PAGE).unwrap();
    let (local, remote) = (near.local(len), far.register(Memory::allocate(len).unwrap(), Access::REMOTE));
    let path = near.path_to(&far);
    write(&local, &vec![5; len]);
    // Slices of four pages; of the second one, the last page cannot be reached.
    let gap = std::ptr::without_provenance_mut(usize::try_from(remote.range().start() + 7 * PAGE).unwrap());
    let protect = |rights| {
        // SAFETY: a page inside of memory that the region keeps; nobody else accesses it meanwhile.
        let outcome = unsafe { libc::mprotect(gap, usize::try_from(PAGE).unwrap(), rights) };
        assert_eq!(outcome, 0);
    };
    protect(libc::PROT_NONE);
    let log = Ledger::new(SLICES.len());
    let slices =
        (0..4_u32).map(|i| slice(Op::Write, &local, &remote, (u64::from(i) * 4 * PAGE, 4 * PAGE), &log, i));
    submit(&*path, slices.collect(), SubmitMode::CallerRuns, &CancelScope::new());
    let outcomes = outcomes(&log);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    for (index, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Outcome::Done(bytes) => assert!(index != 1 && *bytes == 4 * PAGE),
            Outcome::Failed(failure) => {
                assert_eq!((index, failure.effect()), (1, RemoteEffect::MayHaveApplied), "{failure}");
            }
            other => panic!("{other:?}"),
        }
    }
    let arrived = bytes(&remote);
    assert!(arrived[..7 * 4096].iter().all(|byte| *byte == 5));
    assert!(arrived[8 * 4096..].iter().all(|byte| *byte == 5));
    assert!(arrived[7 * 4096..8 * 4096].iter().all(|byte| *byte == 0));
}
