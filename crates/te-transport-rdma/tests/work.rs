//! Work that is refused, fails or is given up, and what that costs the work beside it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::time::{Duration, Instant};

use devices::{Batch, Bench, OPS, check, config, first_failure, prepare};
use te_sys_verbs::fake::Fault;
use te_sys_verbs::{Call, Status};
use te_testkit::node::{Move, outcomes, until};
use te_transport::{CancelReason, CancelScope, FailureKind, Op, Outcome, RemoteEffect, Transport};

/// A queue pair that does not take a list as a whole: every slice ends once and well.
#[test]
fn lists_that_are_refused_in_the_middle_are_carried_out_once() {
    for errno in [libc::ENOMEM, libc::EINVAL] {
        for (op, seed) in OPS.into_iter().zip(1..) {
            for place in [0, 1, 5, 15, 16, 31] {
                let (bench, a, b) = Bench::simple();
                let (local, remote) = (a.local(64 * 4096), b.offered(64 * 4096));
                let path = a.path_to(&b);
                let batch = Batch::new(op, &local, &remote, 64);
                batch.done(&*path);
                prepare(&batch, seed);
                bench.fabric.refuse_request("a0", place, errno);
                let begun = Instant::now();
                batch.done(&*path);
                check(&batch, seed);
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "{errno} {op} {place}: {:?}",
                    begun.elapsed()
                );
            }
        }
    }
}

/// EP-07: a peer whose first work always fails is tried less and less often.
#[test]
fn a_peer_whose_first_work_always_fails_is_tried_less_and_less_often() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(4096), b.offered(4096));
    let path = a.path_to(&b);
    bench.fabric.complete_with("a0", "b0", Status::RETRY_EXC_ERR, u64::MAX);
    let batch = Batch::new(Op::Read, &local, &remote, 1).within(Duration::from_secs(3));
    let begun = Instant::now();
    let mut opens = Vec::new();
    let mut seen = 0;
    while begun.elapsed() < Duration::from_millis(3_500) {
        let _ = batch.run(&*path);
        let now = a.wire.opens();
        opens.extend((seen..now).map(|_| begun.elapsed()));
        seen = now;
        std::thread::sleep(Duration::from_millis(5));
    }
    // At 0, 1 and 3 s, each a quarter earlier or later; the next is at 7 s at the earliest three quarters of that.
    assert!((2..=3).contains(&a.wire.opens()), "{opens:?}");
    assert!(a.transport.counters().endpoints <= 3);
    assert_eq!(b.wire.opens(), 0);
}

/// EP-07: failures are forgotten after work has gone well for a while.
#[test]
fn what_broke_long_ago_does_not_lengthen_the_next_pause() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(4096), b.offered(4096));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Read, &local, &remote, 1);
    let break_once = || {
        bench.fabric.complete_with("a0", "b0", Status::RETRY_EXC_ERR, 1);
        let begun = Instant::now();
        batch.done(&*path);
        begun.elapsed()
    };
    batch.done(&*path);
    break_once();
    // A first pause has a quarter more than a second at most, a second one never so little. A machine that is busy makes any
    // of them longer, so one that is short is enough.
    let mut pauses = (0..3).map(|_| {
        let well = Instant::now();
        while well.elapsed() < Duration::from_millis(5_200) {
            batch.done(&*path);
            std::thread::sleep(Duration::from_millis(50));
        }
        break_once()
    });
    assert!(pauses.any(|pause| pause < Duration::from_millis(1_450)));
}

/// EP-07: one break is one failure, however many queue pairs the endpoint has.
#[test]
fn an_endpoint_of_many_queue_pairs_breaks_once() {
    let bench = Bench::new(&["a0", "b0"]);
    let many = config(&[("queue_pairs", "8"), ("slice_min", "4096")]);
    let (a, b) = (bench.peer(1, &["a0"], many.clone()), bench.peer(2, &["b0"], many));
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Read, &local, &remote, 1);
    batch.done(&*path);
    bench.fabric.hold();
    let ledger = batch.begin(&*path, &CancelScope::new());
    bench.fabric.complete_with("a0", "b0", Status::RETRY_EXC_ERR, 8);
    let begun = Instant::now();
    bench.fabric.release();
    assert!(outcomes(&ledger)[0].is_done(), "{:?}", ledger.outcomes());
    // Eight failures would make a pause of many times that.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// RDMA-04: a request that the peer refuses costs those behind it nothing, however many there are.
#[test]
fn refused_requests_do_not_use_up_the_tries_of_others() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(64 * 4096), b.offered(64 * 4096));
    let path = a.path_to(&b);
    let gone = b.offered(4096);
    let published = b.published();
    let both = a.transport.path(&published).unwrap();
    let _ = b.withdraw(&gone);
    let batch = Batch::new(Op::Write, &local, &remote, 64);
    batch.done(&*path);
    prepare(&batch, 5);
    bench.fabric.hold();
    let bad_local = a.local(4096);
    let refused = Batch::new(Op::Write, &bad_local, &gone, 1);
    let bad: Vec<_> = (0..10).map(|_| refused.begin(&*both, &CancelScope::new())).collect();
    let ledger = batch.begin(&*both, &CancelScope::new());
    bench.fabric.release();
    assert!(outcomes(&ledger).iter().all(Outcome::is_done), "{:?}", ledger.failures());
    for ledger in bad {
        assert_eq!(first_failure(&outcomes(&ledger)).kind(), FailureKind::Rejected);
    }
    check(&batch, 5);
}

/// Work of this side on queue pairs that a refused request of the peer has broken goes on.
#[test]
fn work_on_queue_pairs_that_the_peer_has_broken_goes_on() {
    for op in OPS {
        let (bench, a, b) = Bench::simple();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let (near, far) = (b.local(4096), a.offered(4096));
        let (path, back) = (a.path_to(&b), b.path_to(&a));
        let batch = Batch::new(op, &local, &remote, 4);
        batch.done(&*path);
        let _ = a.withdraw(&far);
        prepare(&batch, 6);
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        let bad = Move::new(Op::Write, &near, &far);
        // Refused by each of its queue pairs in turn.
        for _ in 0..2 {
            assert_eq!(bad.fails(&*back).0, FailureKind::Rejected);
        }
        bench.fabric.release();
        assert!(outcomes(&ledger).iter().all(Outcome::is_done), "{:?}", ledger.failures());
        check(&batch, 6);
    }
}

/// A batch that is cancelled while its work is held ends soon, touches nothing afterwards, and costs a batch beside it on the
/// same queue pairs nothing, however often that happens.
#[test]
fn cancelled_work_ends_soon_and_its_neighbours_go_on() {
    for (op, expires) in [(Op::Read, false), (Op::Read, true), (Op::Write, false), (Op::Write, true)] {
        let (bench, a, b) = Bench::simple();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let other = a.local(1 << 20);
        let path = a.path_to(&b);
        let stays = Batch::new(op, &local, &remote, 4);
        stays.done(&*path);
        prepare(&stays, 7);
        bench.fabric.hold_nic("a0");
        let neighbour = stays.begin(&*path, &CancelScope::new());
        other.fill(0xdd).unwrap();
        for _ in 0..6 {
            let scope = CancelScope::new();
            let within = if expires { Duration::from_millis(60) } else { Duration::from_secs(60) };
            let ledger = Batch::new(Op::Read, &other, &remote, 4).within(within).begin(&*path, &scope);
            let requests = a.transport.counters().requests;
            until("the work is posted", || expires || requests > 0 && a.transport.counters().requests >= 8);
            let stopped = Instant::now();
            if !expires {
                scope.cancel(CancelReason::Cancelled);
            }
            let failure = first_failure(&outcomes(&ledger));
            let kind = if expires { FailureKind::TimedOut } else { FailureKind::Cancelled };
            assert_eq!(failure.kind(), kind, "{failure}");
            assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
        }
        assert_eq!(neighbour.resolved(), 0, "{:?}", neighbour.failures());
        bench.fabric.release();
        assert!(outcomes(&neighbour).iter().all(Outcome::is_done), "{:?}", neighbour.failures());
        check(&stays, 7);
        assert!(te_testkit::node::bytes(&other).iter().all(|byte| *byte == 0xdd), "{op} {expires}");
    }
}

/// FO-16: what has worked for one path is known to work, to every other one: a rail is not fenced for having never worked.
#[test]
fn a_rail_that_works_is_not_fenced_on_behalf_of_another_path() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(4096), b.offered(4096));
    let batch = Batch::new(Op::Read, &local, &remote, 1);
    batch.done(&*a.path_to(&b));
    let path = a.path_to(&b);
    bench.fabric.complete_with("a0", "b0", Status::RETRY_EXC_ERR, 3);
    let failure = batch.fails(&*path);
    assert!(!failure.cause().contains("never worked"), "{failure}");
}

/// EP-07: a device that takes no work at all is not given queue pairs over and over.
#[test]
fn a_device_that_takes_no_work_is_tried_less_and_less_often() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(4096), b.offered(4096));
    let path = a.path_to(&b);
    bench.fabric.fail(Fault::new(Call::PostSend, libc::ENOMEM).on("a0"));
    let batch = Batch::new(Op::Write, &local, &remote, 1);
    let failure = batch.fails(&*path);
    let kinds = [FailureKind::Unreachable, FailureKind::ConnectionLost];
    assert!(kinds.contains(&failure.kind()), "{failure}");
    assert_eq!(failure.effect(), RemoteEffect::None);
    // Pauses of one and of two seconds, each a quarter shorter or longer, were waited for.
    assert!(a.wire.opens() <= 3, "{}", a.wire.opens());
    bench.fabric.heal();
    until("it works", || batch.works(&*path));
}
