//! Members and buffers that come and go: nobody reaches bytes that are not meant, and nobody who is not in the group.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use te_memory::{Memory, RegionTable};
use te_segment::{Access, DeviceKind, Incarnation, Location};
use te_testkit::Ledger;
use te_testkit::node::{Move, Node, PATIENCE, bytes, outcomes, submit};
use te_transport::{Assessment, FailureKind, Op, Registration, SubmitMode, Transport};
use te_transport_local::{Local, LocalConfig, LocalGroup, LocalTransport, PIECE};

/// Three pieces and a bit.
const LEN: usize = 3 * PIECE as usize + 5;

fn member(group: &LocalGroup) -> Node<LocalTransport> {
    member_with(group, LocalConfig::default())
}

fn member_with(group: &LocalGroup, config: LocalConfig) -> Node<LocalTransport> {
    Node::start(|context| Local::new(group, config).start(context))
}

#[test]
fn members_of_other_groups_do_not_know_of_each_other() {
    let (near, far) = (member(&LocalGroup::new()), member(&LocalGroup::new()));
    let published = far.published();
    let reason = "that life of the peer is not in the local group".to_owned();
    assert_eq!(near.transport.assess(&published), Assessment::Unusable(reason.clone()));
    assert_eq!(near.transport.path(&published).err(), Some(reason.clone()));
    assert_eq!(near.transport.prove(&published, Instant::now() + PATIENCE), Err(reason));
    assert!(!near.transport.has_proven(&published));
}

#[test]
fn being_in_the_group_is_the_proof() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let published = far.published();
    assert!(near.transport.has_proven(&published));
    near.transport.prove(&published, Instant::now()).unwrap();
    assert!(!near.transport.has_proven(&far.published_as(Incarnation::from_bits(5))));
    drop(far);
    assert!(!near.transport.has_proven(&published));
    assert_eq!(group.len(), 1);
}

/// SEG-01: a range that is registered again, with other bytes, is another buffer.
#[test]
fn a_handle_of_an_earlier_registration_finds_the_buffer_gone() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let path = near.path_to(&far);
    let (local, first) = (near.local(LEN), far.offered(LEN));
    first.fill(1).unwrap();
    let early = Move::new(Op::Read, &local, &first);
    early.done(&*path);
    assert_eq!(bytes(&local), vec![1; LEN]);

    let memory = far.withdraw(&first);
    assert_eq!(early.fails(&*path).0, FailureKind::BufferGone);
    let second = far.register(memory, Access::REMOTE);
    assert_eq!(second.range(), early.remote);
    second.fill(2).unwrap();
    local.fill(9).unwrap();
    for op in [Op::Read, Op::Write] {
        let (kind, text) = Move { op, ..early.clone() }.fails(&*path);
        assert_eq!(kind, FailureKind::BufferGone, "{text}");
    }
    assert_eq!((bytes(&local), bytes(&second)), (vec![9; LEN], vec![2; LEN]));
    Move::new(Op::Read, &local, &second).done(&*path);
    assert_eq!(bytes(&local), vec![2; LEN]);
}

/// SEG-01: what was opened of a member that has ended reaches nothing of the next one, even with the same memory.
#[test]
fn the_next_life_is_not_reached_by_a_path_to_the_one_before() {
    let group = LocalGroup::new();
    let (near, first) = (member(&group), member(&group));
    let (local, remote) = (near.local(LEN), first.offered(LEN));
    let (path, published) = (near.path_to(&first), first.published());
    let early = Move::new(Op::Write, &local, &remote);
    early.done(&*path);
    let memory = first.withdraw(&remote);
    first.shutdown();

    let second = member(&group);
    let remote = second.register(memory, Access::REMOTE);
    assert_eq!((remote.range(), remote.generation()), (early.remote, early.generation));
    remote.fill(7).unwrap();
    let (kind, text) = early.fails(&*path);
    assert_eq!(kind, FailureKind::Unreachable, "{text}");
    assert!(near.transport.path(&published).is_err());
    assert_eq!(bytes(&remote), vec![7; LEN]);
    Move::new(Op::Write, &local, &remote).done(&*near.path_to(&second));
}

/// Handles that others still have do not keep the memory of an engine that has ended.
#[test]
fn a_member_that_has_left_is_kept_by_nobody() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let (local, remote) = (near.local(LEN), far.offered(LEN));
    let path = near.path_to(&far);
    Move::new(Op::Read, &local, &remote).done(&*path);
    let bytes: Arc<[AtomicU8]> = (0..64).map(|_| AtomicU8::new(0)).collect();
    let freed = Arc::downgrade(&bytes);
    drop(far.register(Memory::from_shared(bytes), Access::REMOTE));
    assert_eq!(freed.strong_count(), 1);
    drop((far, remote));
    assert_eq!(freed.strong_count(), 0);
    drop(path);
}

/// MR-09: a withdrawal under copies ends soon, and nothing touches the memory afterwards.
#[test]
fn a_withdrawal_waits_for_pieces_and_not_for_requests() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let path = near.path_to(&far);
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        let remote = far.offered(LEN);
        let started = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let traffic: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let local = near.local(LEN);
                        local.fill(1).unwrap();
                        loop {
                            let log = Move::new(Op::Write, &local, &remote).begin(
                                &*path,
                                mode,
                                &Default::default(),
                            );
                            match outcomes(&log).remove(0) {
                                te_transport::Outcome::Done(_) => started.store(true, Ordering::Release),
                                te_transport::Outcome::Failed(failure) => return failure.kind(),
                                other => panic!("{other:?}"),
                            }
                        }
                    })
                })
                .collect();
            while !started.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let memory = far.withdraw(&remote);
            // In a table that no transport knows, so that whatever still wrote would be seen.
            let kept = RegionTable::new(1).reserve(memory, Access::LOCAL, Location::Any).unwrap().commit();
            kept.fill(0).unwrap();
            for thread in traffic {
                assert_eq!(thread.join().unwrap(), FailureKind::BufferGone);
            }
            assert!(bytes(&kept).iter().all(|byte| *byte == 0));
        });
    }
}

#[test]
fn a_member_that_is_cut_off_goes_on_with_its_next_request() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let (local, remote) = (near.local(LEN), far.offered(LEN));
    let path = near.path_to(&far);
    for _ in 0..3 {
        Move::new(Op::Read, &local, &remote).done(&*path);
        far.transport.fence(near.context.incarnation, Instant::now() + PATIENCE).unwrap();
    }
    far.transport.fence(Incarnation::from_bits(1), Instant::now()).unwrap();
}

#[test]
fn access_is_checked_before_a_byte_moves() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let path = near.path_to(&far);
    for (access, op) in [(Access::REMOTE_READ, Op::Write), (Access::REMOTE_WRITE, Op::Read)] {
        let remote = far.register(Memory::allocate(LEN).unwrap(), access);
        let (kind, text) = Move::new(op, &near.local(LEN), &remote).fails(&*path);
        assert_eq!(kind, FailureKind::Rejected, "{text}");
    }
    assert_eq!(near.transport.counters().copied_bytes, 0);
    assert_eq!(near.transport.counters().refused, 2);
}

/// SEL-08: device memory is somebody else's, and what is larger than the transport says it takes is refused.
#[test]
fn what_the_transport_does_not_serve_is_said_at_once() {
    let group = LocalGroup::new();
    let (near, far) = (member(&group), member(&group));
    let device = Location::Device { kind: DeviceKind::Cuda, index: 0 };
    let reserved =
        far.context.regions.reserve(Memory::allocate(64).unwrap(), Access::REMOTE, device).unwrap();
    let registered = far.transport.register(reserved.region()).unwrap();
    assert!(matches!(registered, Registration::NotMine(why) if why.contains("cuda:0")));

    let largest = usize::try_from(near.transport.capabilities().max_slice).unwrap();
    // Address space only: nothing of it is touched.
    let memory = |len| Memory::from_mmap(memmap2::MmapMut::map_anon(len).unwrap());
    let local = near.register(memory(largest + 1), Access::LOCAL);
    let remote = far.register(memory(largest + 1), Access::REMOTE);
    let (kind, text) = Move::new(Op::Read, &local, &remote).fails(&*near.path_to(&far));
    assert_eq!(kind, FailureKind::Unsupported, "{text}");
}

/// FO-01: what is at the destination is compared with its source. Ranges that overlap stand for memory that somebody writes
/// meanwhile: the copy itself changes its source.
#[test]
fn copies_that_do_not_fit_their_source_are_damaged() {
    let group = LocalGroup::new();
    for (choice, caught) in [("off", false), ("sampled", true), ("always", true)] {
        let mut config = LocalConfig::default();
        config.set("compare", choice).unwrap();
        let node = member_with(&group, config);
        let region = node.offered(8192);
        let pattern: Vec<u8> = (0..8192_u32).map(|at| (at / 7) as u8).collect();
        region.write_at(0, &pattern).unwrap();
        let path = node.path_to(&node);
        let shifted = |op, to| {
            let remote = region.range().slice(to, 4096).unwrap();
            let other = node.local(4096);
            let (intact, log) = (Move::new(op, &other, &region), Ledger::new(1));
            let slice = te_transport::Slice {
                op,
                local: region.hold(0, 4096).unwrap(),
                remote,
                generation: Some(region.generation()),
                attempt: te_transport::AttemptId { request: 1, attempt: 1 },
                token: log.token(0),
            };
            submit(&*path, vec![slice], SubmitMode::CallerRuns, &Default::default());
            let outcome = outcomes(&log).remove(0);
            // Others are not harmed.
            intact.done(&*path);
            outcome
        };
        let outcome = shifted(Op::Write, 1);
        let damaged = matches!(&outcome, te_transport::Outcome::Failed(failure) if failure.kind() == FailureKind::Damaged
                && failure.effect() == te_transport::RemoteEffect::MayHaveApplied);
        assert_eq!((damaged, outcome.is_done()), (caught, !caught), "{choice}: {outcome:?}");
    }
}
