//! Memory that NICs register, or do not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use devices::{Batch, Bench, config, expect, fill};
use te_memory::Memory;
use te_segment::{Access, Location};
use te_sys_verbs::Call;
use te_sys_verbs::fake::Fault;
use te_testkit::node::Move;
use te_transport::{FailureKind, Op, Registration, Transport, TransportError};

const NICS: [&str; 4] = ["a0", "a1", "a2", "a3"];

fn try_register(peer: &devices::Peer, len: usize, access: Access) -> Result<(), TransportError> {
    let memory = Memory::allocate(len).unwrap();
    let reservation = peer.context.regions.reserve(memory, access, Location::Any).unwrap();
    let registered = peer.transport.register(reservation.region())?;
    assert!(matches!(registered, Registration::Registered(_)));
    let region = reservation.commit();
    peer.withdraw(&region);
    Ok(())
}

/// MR-14: a registration that fails at one NIC of four is undone at the others, says whether it is worth another try, and
/// works when it is tried again.
#[test]
fn a_registration_that_fails_at_one_nic_leaves_nothing_at_the_others() {
    // The larger one is registered at all NICs at the same time.
    for len in [64 << 10, 16 << 20] {
        for (errno, retryable) in
            [(libc::EAGAIN, true), (libc::ENOMEM, true), (libc::EFAULT, false), (libc::EINVAL, false)]
        {
            for nic in NICS {
                let bench = Bench::new(&NICS);
                let a = bench.peer(1, &NICS, config(&[]));
                let kept = a.offered(4096);
                let before = bench.fabric.live();
                bench.fabric.fail(Fault::new(Call::RegMr, errno).on(nic).times(1));
                let error = try_register(&a, len, Access::REMOTE).unwrap_err();
                assert_eq!(error.retryable, retryable, "{errno} {nic}: {error}");
                assert!(error.to_string().contains(nic), "{error}");
                assert_eq!(bench.fabric.live(), before, "{errno} {nic}");
                try_register(&a, len, Access::REMOTE).unwrap();
                assert_eq!(bench.fabric.live(), before, "{errno} {nic}");
                a.withdraw(&kept);
            }
        }
    }
}

/// MR-14: keys that run out at one NIC in the middle of a region of several parts.
#[test]
fn keys_that_run_out_leave_nothing_of_a_region_of_several_parts() {
    let bench = Bench::new(&NICS);
    let a = bench.peer(1, &NICS, config(&[("max_mr_size", "1048576")]));
    let before = bench.fabric.live();
    for keys in 0..4 {
        bench.fabric.limit_keys("a2", keys, libc::ENOMEM);
        let error = try_register(&a, 4 << 20, Access::LOCAL).unwrap_err();
        assert!(error.retryable && error.to_string().contains("a2"), "{error}");
        assert_eq!(bench.fabric.live(), before, "{keys}");
    }
    bench.fabric.heal();
    try_register(&a, 4 << 20, Access::LOCAL).unwrap();
    assert_eq!(bench.fabric.live(), before);
}

/// MR-14: what cannot be undone is said, and does not keep the next registration from working.
#[test]
fn what_cannot_be_undone_is_said() {
    let bench = Bench::new(&NICS);
    let a = bench.peer(1, &NICS, config(&[]));
    bench.fabric.fail(Fault::new(Call::RegMr, libc::EFAULT).on("a3").times(1));
    bench.fabric.fail(Fault::new(Call::DeregMr, libc::EBUSY).on("a1").times(1));
    let error = try_register(&a, 4096, Access::REMOTE).unwrap_err();
    assert!(error.to_string().contains("1 registrations could not be undone"), "{error}");
    assert_eq!(bench.fabric.live().regions, 1);
    try_register(&a, 4096, Access::REMOTE).unwrap();
    assert_eq!(bench.fabric.live().regions, 1);
}

/// RDMA-11: a local region of several parts is written and read across their borders.
#[test]
fn requests_cross_the_parts_of_a_region() {
    let bench = Bench::new(&["a0", "b0"]);
    let a = bench.peer(1, &["a0"], config(&[("max_mr_size", "1048576")]));
    let b = bench.peer(2, &["b0"], config(&[]));
    let (local, remote) = (a.local(5 << 20), b.offered(5 << 20));
    let path = a.path_to(&b);
    fill(&local, 1);
    Batch::new(Op::Write, &local, &remote, 3).done(&*path);
    // What is not a third of it was not written.
    let whole = Move::new(Op::Write, &local, &remote);
    whole.done(&*path);
    expect(&remote, 1);
    fill(&remote, 2);
    Move::new(Op::Read, &local, &remote).done(&*path);
    expect(&local, 2);
}

/// MR-10: a peer that uses a key after the memory was taken back is refused, and its path goes on.
#[test]
fn a_key_that_was_taken_back_is_refused() {
    let (_bench, a, b) = Bench::pair();
    let (local, gone, stays) = (a.local(4096), b.offered(4096), b.offered(4096));
    let path = a.path_to(&b);
    let _ = b.withdraw(&gone);
    for op in [Op::Write, Op::Read] {
        let (kind, cause) = Move::new(op, &local, &gone).fails(&*path);
        assert_eq!(kind, FailureKind::Rejected, "{cause}");
        Move::new(op, &local, &stays).done(&*path);
    }
}

/// MR-14: engines that come and go leave nothing, however many there were.
#[test]
fn a_thousand_lives_leave_nothing() {
    let bench = Bench::new(&["a0", "b0"]);
    let b = bench.peer(2, &["b0"], config(&[]));
    let remote = b.offered(4096);
    let before = bench.fabric.live();
    for life in 0..1_000 {
        let a = bench.peer(1, &["a0"], config(&[]));
        let local = a.local(4096);
        if life % 10 == 0 {
            Batch::new(Op::Write, &local, &remote, 1).done(&*a.path_to(&b));
        }
        a.shutdown();
        a.hang_up();
        if life % 100 == 0 {
            assert_eq!(bench.fabric.live().regions, before.regions);
        }
    }
    // Its own end of each endpoint goes when the next life opens one, or with its own end.
    assert!(bench.fabric.live().queue_pairs <= 2, "{:?}", bench.fabric.live());
    b.shutdown();
    drop((b, remote));
    bench.expect_empty();
}
