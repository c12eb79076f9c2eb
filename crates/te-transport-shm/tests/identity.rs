//! Buffers that come and go: nobody reaches bytes that are not meant.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

#[path = "common/node.rs"]
mod node;

use node::{Move, bytes, outcomes, submit, until};
use te_memory::{Memory, Sharing};
use te_segment::{Access, Incarnation};
use te_testkit::Ledger;
use te_transport::{FailureKind, Op, SubmitMode, Transport};

const LEN: usize = 300_000;

/// SEG-01: a range that is registered again, with other bytes, is another buffer.
#[test]
fn a_handle_of_an_earlier_registration_finds_the_buffer_gone() {
    let (near, far) = (node::new(), node::new());
    let path = near.path_to(&far);
    let local = near.local(LEN);
    for shareable in [true, false] {
        let memory = if shareable {
            Memory::allocate_shareable(LEN, Sharing::ReadWrite).unwrap()
        } else {
            Memory::allocate(LEN).unwrap()
        };
        let first = far.register(memory, Access::REMOTE);
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
        far.withdraw(&second);
    }
}

/// SEG-01
#[test]
fn another_life_at_the_same_socket_is_stale() {
    let (near, far) = (node::new(), node::new());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    remote.fill(7).unwrap();
    let path = near.transport.path(&far.published_as(Incarnation::from_bits(5))).unwrap();
    let (kind, text) = Move::new(Op::Write, &local, &remote).fails(&*path);
    assert_eq!(kind, FailureKind::StaleIncarnation, "{text}");
    assert_eq!(bytes(&remote), vec![7; LEN]);
}

/// SEG-02: however many threads use a buffer, it is mapped once, and not any more when it is withdrawn.
#[test]
fn many_threads_share_one_mapping() {
    let (near, far) = (node::new(), node::new());
    let remote = far.shared(LEN);
    remote.fill(3).unwrap();
    let path = near.path_to(&far);
    let locals: Vec<_> = (0..32).map(|_| near.local(LEN)).collect();
    std::thread::scope(|scope| {
        for (number, local) in locals.iter().enumerate() {
            let (path, remote) = (&path, &remote);
            scope.spawn(move || {
                let mode = if number % 2 == 0 { SubmitMode::Background } else { SubmitMode::CallerRuns };
                for _ in 0..4 {
                    let log = Move::new(Op::Read, local, remote).begin(&**path, mode, &Default::default());
                    assert!(outcomes(&log)[0].is_done());
                }
                assert_eq!(bytes(local), vec![3; LEN]);
            });
        }
    });
    assert_eq!((near.transport.mappings(), near.transport.counters().mappings), (1, 1));
    assert_eq!(near.transport.counters().connected, 1);
    far.withdraw(&remote);
    until("the mapping of a withdrawn buffer is dropped", || near.transport.mappings() == 0);
    // The number of the withdrawn buffer serves the next one.
    let next = far.shared(LEN);
    next.fill(4).unwrap();
    Move::new(Op::Read, &locals[0], &next).done(&*path);
    assert_eq!(bytes(&locals[0]), vec![4; LEN]);
}

/// A peer that is cut off can connect anew, and the buffers are attached again.
#[test]
fn a_fenced_peer_connects_anew() {
    let (near, far) = (node::new(), node::new());
    let (local, remote) = (near.local(LEN), far.shared(LEN));
    let path = near.path_to(&far);
    for round in 1..4 {
        Move::new(Op::Read, &local, &remote).done(&*path);
        assert_eq!(near.transport.counters().connected, round);
        let deadline = std::time::Instant::now() + node::PATIENCE;
        far.transport.fence(near.context.incarnation, deadline).unwrap();
        until("the connection is gone", || far.transport.accepted_connections() == 0);
    }
    far.transport.fence(Incarnation::from_bits(1), std::time::Instant::now()).unwrap();
}

/// What must not be written is not mapped to write, and what cannot be mapped so is reached by the kernel.
#[test]
fn memory_is_mapped_only_with_its_access() {
    let (near, far) = (node::new(), node::new());
    let local = near.local(LEN);
    let path = near.path_to(&far);
    let memory = |sharing| Memory::allocate_shareable(LEN, sharing).unwrap();
    let read_only = far.register(memory(Sharing::ReadOnly), Access::REMOTE_READ);
    Move::new(Op::Read, &local, &read_only).done(&*path);
    assert_eq!(near.transport.mappings(), 1);
    assert_eq!(Move::new(Op::Write, &local, &read_only).fails(&*path).0, FailureKind::Rejected);
    // The kernel cannot keep a peer from reading what it maps to write, or from writing what it could map to write.
    for (sharing, access) in
        [(Sharing::ReadWrite, Access::REMOTE_WRITE), (Sharing::ReadWrite, Access::REMOTE_READ)]
    {
        let region = far.register(memory(sharing), access);
        let op = if access.allows_read() { Op::Read } else { Op::Write };
        let other = if access.allows_read() { Op::Write } else { Op::Read };
        Move::new(op, &local, &region).done(&*path);
        assert_eq!(Move::new(other, &local, &region).fails(&*path).0, FailureKind::Rejected);
    }
    assert_eq!(near.transport.mappings(), 1);
    assert_eq!(near.transport.counters().process_bytes, 2 * LEN as u64);
}

/// Locality is proven by an exchange: a socket that nobody listens at proves nothing.
#[test]
fn nothing_is_proven_of_a_peer_that_is_not_there() {
    let (near, far) = (node::new(), node::new());
    let published = far.published();
    let soon = || std::time::Instant::now() + node::PATIENCE;
    assert!(!near.transport.has_proven(&published));
    near.transport.prove(&published, soon()).unwrap();
    assert!(near.transport.has_proven(&published));
    let reason = near.transport.assess(&published).reason().to_owned();
    assert_eq!(reason, format!("process {} of this host, proven", std::process::id()));

    let gone = node::new();
    let published = gone.published();
    gone.shutdown();
    drop(gone);
    let reason = near.transport.prove(&published, soon()).unwrap_err();
    assert!(reason.contains("nobody on this host"), "{reason}");
    assert!(!near.transport.has_proven(&published));
    assert_eq!(near.transport.assess(&published), te_transport::Assessment::Unusable(reason));
    assert!(near.transport.path(&published).is_err());
}

/// SEL-08: what is larger than the transport says it takes is refused before a byte moves.
#[test]
fn slices_have_a_largest_size() {
    let (near, far) = (node::new(), node::new());
    let largest = usize::try_from(near.transport.capabilities().max_slice).unwrap();
    // Address space only: nothing of it is touched.
    let memory = |len| Memory::from_mmap(memmap2::MmapMut::map_anon(len).unwrap());
    let local = near.register(memory(largest + 1), Access::LOCAL);
    let remote = far.register(memory(largest + 1), Access::REMOTE);
    let (kind, text) = Move::new(Op::Read, &local, &remote).fails(&*near.path_to(&far));
    assert_eq!(kind, FailureKind::Unsupported, "{text}");
}

/// SEL-08: not a failure, so that others may serve it.
#[test]
fn device_memory_is_not_ours() {
    let node = node::new();
    let location = te_segment::Location::Device { kind: te_segment::DeviceKind::Cuda, index: 0 };
    let memory = Memory::allocate(4096).unwrap();
    let reserved = node.context.regions.reserve(memory, Access::REMOTE, location).unwrap();
    let answer = node.transport.register(reserved.region()).unwrap();
    assert!(matches!(answer, te_transport::Registration::NotMine(why) if why.contains("cuda:0")));
}

/// FO-01: what is at the destination is compared with its source, in memory that is mapped and in memory that is not.
/// Ranges that overlap stand for memory that somebody writes meanwhile: the copy itself changes its source, whose first
/// bytes are read before.
#[test]
fn copies_that_do_not_fit_their_source_are_damaged() {
    const HALF: u64 = 4096;
    for (choice, caught) in [("off", false), ("sampled", true), ("always", true)] {
        for shareable in [true, false] {
            let mut config = te_transport_shm::ShmConfig::default();
            config.set("compare", choice).unwrap();
            let node = node::with(config);
            let memory = |len| match shareable {
                true => Memory::allocate_shareable(len, Sharing::ReadWrite).unwrap(),
                false => Memory::allocate(len).unwrap(),
            };
            let region = node.register(memory(LEN), Access::REMOTE);
            let pattern: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
            region.write_at(0, &pattern).unwrap();
            let path = node.path_to(&node);
            let log = Ledger::new(1);
            let slice = te_transport::Slice {
                op: Op::Write,
                local: region.hold(HALF, 2 * HALF).unwrap(),
                remote: region.range().slice(0, 2 * HALF).unwrap(),
                generation: Some(region.generation()),
                attempt: te_transport::AttemptId { request: 1, attempt: 1 },
                token: log.token(0),
            };
            submit(&*path, vec![slice], SubmitMode::Background, &Default::default());
            let outcome = outcomes(&log).remove(0);
            let damaged = matches!(&outcome, te_transport::Outcome::Failed(failure)
                if failure.kind() == FailureKind::Damaged);
            assert_eq!((damaged, outcome.is_done()), (caught, !caught), "{choice} {shareable}: {outcome:?}");
            // What nobody writes fits.
            for op in [Op::Read, Op::Write] {
                Move::new(op, &node.local(LEN), &region).done(&*path);
            }
        }
    }
}
