//! What goes wrong under a transfer, and what becomes of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::time::{Duration, Instant};

use devices::{Batch, Bench, LARGE, Mode, OPS, Peer, check, config, expect, fill, first_failure, prepare};
use te_segment::TransportKind;
use te_sys_verbs::fake::Fault;
use te_sys_verbs::{Call, EventKind, Gid};
use te_testkit::node::{outcomes, until};
use te_transport::{CancelReason, CancelScope, FailureKind, InstallError, Op, Outcome, Path, RemoteEffect};

/// RDMA-08: NICs that cannot be opened cost their own rails, and every other one is used with its own keys.
#[test]
fn nics_that_do_not_open_are_left_out_and_the_others_carry_everything() {
    let (here, there) = (["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]);
    let calls = [Call::OpenDevice, Call::AllocPd, Call::CreateCq];
    for subset in 0..15_usize {
        let bench = Bench::new(&[here, there].concat());
        let lacks = |at: usize| subset >> at & 1 == 1;
        for at in (0..4).filter(|at| lacks(*at)) {
            let call = calls[(subset + at) % calls.len()];
            bench.fabric.fail(Fault::new(call, libc::ENODEV).on(here[at]));
        }
        let (a, b) = (bench.peer(1, &here, config(&[])), bench.peer(2, &there, config(&[])));
        let names: Vec<_> = a.published().devices().iter().map(|device| device.name().to_string()).collect();
        let expected: Vec<_> = (0..4).filter(|at| !lacks(*at)).map(|at| here[at]).collect();
        assert_eq!(names, expected, "{subset}");
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        for (op, seed) in OPS.into_iter().zip(1..) {
            let batch = Batch::new(op, &local, &remote, 4);
            prepare(&batch, seed);
            batch.done(&*a.path_to(&b));
            check(&batch, seed);
        }
        // From the other side, where keys of NICs are missing.
        let (near, far) = (b.local(1 << 20), a.offered(1 << 20));
        let batch = Batch::new(Op::Write, &near, &far, 4);
        prepare(&batch, 9);
        batch.done(&*b.path_to(&a));
        check(&batch, 9);
        for (at, nic) in here.iter().enumerate() {
            assert_eq!(bench.bytes_of(nic) > 0, !lacks(at), "{subset}: {nic}");
        }
    }
}

/// RDMA-08: without a NIC there is no transport, and every NIC is named with its reason.
#[test]
fn no_nic_at_all_is_an_error_that_names_each() {
    let bench = Bench::new(&["a0", "a1", "a2"]);
    bench.fabric.fail(Fault::new(Call::OpenDevice, libc::EACCES).on("a0"));
    bench.fabric.fail(Fault::new(Call::AllocPd, libc::ENOMEM).on("a1"));
    bench.fabric.set_port("a2", false);
    let error = bench.refused(&["a0", "a1", "a2"]);
    let InstallError::Unavailable { transport, missing } = error else { panic!("{error}") };
    assert_eq!(transport, TransportKind::RDMA);
    for named in ["a0", "a1", "a2", "ibv_alloc_pd", "port 1 is not active"] {
        assert!(missing.contains(named), "{named} is not in: {missing}");
    }
    bench.expect_empty();
}

/// EP-06: a port that goes down under a transfer costs it nothing but time: what is under way goes over the other NIC, no
/// byte is carried twice, and the port is used again when it is up.
#[test]
fn transfers_go_on_over_the_other_nic_when_a_port_goes_down_under_them() {
    for (op, seed) in OPS.into_iter().zip(1..) {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 1);
        batch.done(&*path);
        prepare(&batch, seed);

        let before = ["a0", "a1"].map(|nic| bench.bytes_of(nic));
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        until("the other NIC has done its half", || bench.bytes_of("a1") - before[1] == LARGE as u64 / 2);
        assert_eq!(ledger.resolved(), 0);
        let down = Instant::now();
        bench.fabric.set_port("a0", false);
        assert!(outcomes(&ledger)[0].is_done(), "{op}: {:?}", ledger.outcomes());
        assert!(down.elapsed() < Duration::from_secs(20), "{op}: {:?}", down.elapsed());
        check(&batch, seed);
        let carried = ["a0", "a1"].map(|nic| bench.bytes_of(nic));
        assert_eq!([carried[0] - before[0], carried[1] - before[1]], [0, LARGE as u64], "{op}");
        assert!(a.transport.counters().moved > 0);

        batch.done(&*path);
        assert_eq!(bench.bytes_of("a0"), carried[0], "a port that is down is not used");
        bench.fabric.release();
        bench.fabric.set_port("a0", true);
        until("the port is used again", || {
            batch.done(&*path);
            bench.bytes_of("a0") > carried[0]
        });
    }
}

/// EP-06: the same where it is the peer's port.
#[test]
fn transfers_go_on_over_the_other_nic_when_a_port_of_the_peer_goes_down_under_them() {
    for (op, seed) in OPS.into_iter().zip(1..) {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 1);
        batch.done(&*path);
        prepare(&batch, seed);
        let before: u64 = ["a0", "a1"].map(|nic| bench.bytes_of(nic)).iter().sum();
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        bench.fabric.set_port("b0", false);
        bench.fabric.release();
        assert!(outcomes(&ledger)[0].is_done(), "{op}: {:?}", ledger.outcomes());
        check(&batch, seed);
        let after: u64 = ["a0", "a1"].map(|nic| bench.bytes_of(nic)).iter().sum();
        assert_eq!(after - before, LARGE as u64, "{op}");
    }
}

/// EP-06: no port is a clear failure in time, and one port is enough to go on.
#[test]
fn no_port_at_all_fails_clearly_and_one_that_comes_up_is_used() {
    for (op, seed) in OPS.into_iter().zip(1..) {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 2);
        batch.done(&*path);
        bench.fabric.hold();
        let ledger = batch.begin(&*path, &CancelScope::new());
        let down = Instant::now();
        ["a0", "a1"].iter().for_each(|nic| bench.fabric.set_port(nic, false));
        let outcomes = outcomes(&ledger);
        let failure = first_failure(&outcomes);
        assert!(down.elapsed() < Duration::from_secs(20), "{op}: {:?}", down.elapsed());
        let kinds = [FailureKind::Unreachable, FailureKind::ConnectionLost];
        assert!(kinds.contains(&failure.kind()), "{op}: {failure}");
        assert!(outcomes.iter().all(|outcome| !outcome.is_done()));
        until("a request is refused at once", || {
            let failure = batch.fails(&*path);
            failure.kind() == FailureKind::Unreachable && failure.cause().contains("down")
        });

        bench.fabric.release();
        bench.fabric.set_port("a1", true);
        prepare(&batch, seed);
        until("it works again", || batch.works(&*path));
        check(&batch, seed);
    }
}

/// A WRITE in the network, of a rail that is down, with the peer's queue pairs of it intact. Returns once it is flushed here.
fn lost_write(bench: &Bench, batch: &Batch<'_>, path: &dyn Path) -> std::sync::Arc<te_testkit::Ledger> {
    batch.done(path);
    fill(batch.local, 1);
    bench.fabric.hold_nic("a0");
    bench.fabric.linger("a0");
    let before = bench.bytes_of("a1");
    let ledger = batch.begin(path, &CancelScope::new());
    until("the other NIC has done its half", || bench.bytes_of("a1") > before);
    bench.fabric.set_port("a0", false);
    ledger
}

/// EP-06: a WRITE goes on over another rail only once the peer has taken the first one out of service: what of it is still
/// in the network arrives nowhere.
#[test]
fn a_write_goes_on_after_the_peer_has_cut_the_rail_and_nothing_of_it_comes_late() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 1);
    let ledger = lost_write(&bench, &batch, &*path);
    assert!(outcomes(&ledger)[0].is_done(), "{:?}", ledger.outcomes());
    expect(&remote, 1);
    assert!(a.transport.counters().cuts > 0 && a.wire.cuts() > 0);
    fill(&local, 2);
    batch.done(&*path);
    bench.fabric.release();
    expect(&remote, 2);
}

/// EP-06: where the peer cannot be asked, the WRITE fails and says that it may still be applied; and so it may.
#[test]
fn a_write_whose_rail_cannot_be_cut_fails_and_says_that_it_may_come_late() {
    for mode in [Mode::Dead, Mode::Mute] {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let path = a.path_to(&b);
        let batch = Batch::new(Op::Write, &local, &remote, 1);
        a.wire.set_cuts(mode);
        let ledger = lost_write(&bench, &batch, &*path);
        let failure = first_failure(&outcomes(&ledger));
        assert_eq!(failure.kind(), FailureKind::ConnectionLost, "{failure}");
        assert_eq!(failure.effect(), RemoteEffect::MayStillApply);
        assert_eq!(a.transport.counters().cuts, 0);
        fill(&local, 2);
        until("it works over the other NIC", || batch.works(&*path));
        bench.fabric.release();
        let (now, of) = (te_testkit::node::bytes(&remote), |seed| te_testkit::pattern(seed, 1 << 20));
        assert!(now != of(2), "{mode:?}: nothing came late, so the test above proves nothing");
    }
}

/// EP-06: with the control plane dead altogether, as after the peer's end.
#[test]
fn a_write_that_broke_under_a_dead_control_plane_may_still_apply() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 1);
    batch.done(&*path);
    bench.fabric.hold();
    let ledger = batch.begin(&*path, &CancelScope::new());
    b.hang_up();
    bench.fabric.set_port("a0", false);
    bench.fabric.release();
    let failure = first_failure(&outcomes(&ledger));
    assert_eq!(failure.kind(), FailureKind::ConnectionLost, "{failure}");
    assert_eq!(failure.effect(), RemoteEffect::MayStillApply);
}

/// EP-06: a request that waits for the peer to cut a rail ends with its deadline, and when it is cancelled.
#[test]
fn a_write_that_waits_for_a_cut_ends_when_its_time_is_over() {
    for cancels in [false, true] {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let path = a.path_to(&b);
        let batch = Batch::new(Op::Write, &local, &remote, 1);
        batch.done(&*path);
        a.wire.set_cuts(Mode::Mute);
        bench.fabric.hold_nic("a0");
        let scope = CancelScope::new();
        let batch = batch.within(if cancels { Duration::from_secs(60) } else { Duration::from_millis(300) });
        let begun = Instant::now();
        let ledger = batch.begin(&*path, &scope);
        bench.fabric.set_port("a0", false);
        until("the peer is asked to cut", || a.wire.cuts() > 0);
        if cancels {
            scope.cancel(CancelReason::Cancelled);
        }
        let failure = first_failure(&outcomes(&ledger));
        let kind = if cancels { FailureKind::Cancelled } else { FailureKind::TimedOut };
        assert_eq!(failure.kind(), kind, "{failure}");
        assert_eq!(failure.effect(), RemoteEffect::MayStillApply);
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}

/// EP-06: a peer whose device does not flush takes the rail out of service nevertheless before it says so.
#[test]
fn a_cut_holds_where_the_peers_device_does_not_flush() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    // So that the peer has work of its own on the rail, which it has to flush.
    let (near, far) = (b.local(1 << 20), a.offered(1 << 20));
    let (path, back) = (a.path_to(&b), b.path_to(&a));
    let batch = Batch::new(Op::Write, &local, &remote, 1);
    batch.done(&*path);
    bench.fabric.hold_nic("b0");
    let read = Batch::new(Op::Read, &near, &far, 1).begin(&*back, &CancelScope::new());
    bench.fabric.fail(Fault::new(Call::ModifyQp, libc::EIO).on("b0"));
    let ledger = lost_write(&bench, &batch, &*path);
    assert!(outcomes(&ledger)[0].is_done(), "{:?}", ledger.outcomes());
    fill(&local, 2);
    batch.done(&*path);
    bench.fabric.heal();
    bench.fabric.release();
    expect(&remote, 2);
    assert!(outcomes(&read)[0].is_done(), "{:?}", read.outcomes());
}

/// FO-16: a burst of events under traffic neither stops it for good nor keeps the transport from ending.
#[test]
fn a_burst_of_events_under_traffic_is_survived() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 4);
    batch.done(&*path);
    let closed = a.transport.counters().closed;
    for round in 0..10 {
        for kind in [EventKind::GID_CHANGE, EventKind::PORT_ACTIVE, EventKind::LID_CHANGE] {
            bench.fabric.raise("a0", kind, 34);
        }
        prepare(&batch, round);
        batch.done(&*path);
        check(&batch, round);
    }
    // Nothing has changed, whatever the device says.
    assert_eq!(a.transport.counters().closed, closed);
    let events = [EventKind::PORT_ERR, EventKind::PORT_ACTIVE];
    (0..1_000).for_each(|at| bench.fabric.raise("a0", events[at % 2], 1));
    until("all are handled", || a.transport.counters().events == 10 * 3 * 34 + 1_000);
    until("it works again", || batch.works(&*path));
    let before = bench.bytes_of("a0");
    until("the NIC is used again", || {
        batch.done(&*path);
        bench.bytes_of("a0") > before
    });
    a.shutdown();
    b.shutdown();
    drop((path, local, remote));
    drop((a, b));
    bench.expect_empty();
}

/// FO-16: events are heard while completions come without a pause.
#[test]
fn events_are_heard_under_traffic_without_a_pause() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(64 << 10), b.offered(64 << 10));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Read, &local, &remote, 16);
    batch.done(&*path);
    let changed = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 77]);
    bench.fabric.set_gid("a0", 0, changed);
    bench.fabric.set_gid("a0", 1, Gid(std::net::Ipv4Addr::new(10, 99, 7, 7).to_ipv6_mapped().octets()));
    let before = a.published();
    let asked = Instant::now();
    let heard = || a.published().devices() != before.devices();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !heard() && asked.elapsed() < Duration::from_secs(10) {
                    batch.works(&*path);
                }
            });
        }
    });
    assert!(asked.elapsed() < Duration::from_secs(10), "never");
}

/// RDMA-10: after a NIC has got another address, transfers work again within two attempts, in both directions, and the new
/// address is what peers are told.
#[test]
fn a_new_address_is_used_within_two_attempts() {
    for nic in ["a0", "b0"] {
        let (bench, a, b) = Bench::simple();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let path = a.path_to(&b);
        let batch = Batch::new(Op::Write, &local, &remote, 1);
        batch.done(&*path);
        let address = Gid(std::net::Ipv4Addr::new(10, 99, 7, 7).to_ipv6_mapped().octets());
        bench.fabric.set_gid(nic, 1, address);
        prepare(&batch, 3);
        assert!((0..2).any(|_| batch.works(&*path)), "{nic}: {}", batch.fails(&*path));
        check(&batch, 3);
        let changed = if nic == "a0" { &a } else { &b };
        let told = || changed.published().devices()[0].gid().unwrap().bytes();
        until("peers are told", || told() == address.0);
    }
}

/// FO-16: a device that is gone costs its own rails: what it had under way goes on, and memory can still be registered.
#[test]
fn a_device_that_has_failed_costs_its_own_rails_only() {
    for op in OPS {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 4);
        batch.done(&*path);
        prepare(&batch, 8);
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        for call in [Call::RegMr, Call::PollCq, Call::CreateQp, Call::QueryPort] {
            bench.fabric.fail(Fault::new(call, libc::EIO).on("a0"));
        }
        let failed = Instant::now();
        bench.fabric.raise("a0", EventKind::DEVICE_FATAL, 1);
        assert!(outcomes(&ledger).iter().all(Outcome::is_done), "{:?}", ledger.failures());
        assert!(failed.elapsed() < Duration::from_secs(15), "{:?}", failed.elapsed());
        check(&batch, 8);
        let later = a.local(1 << 20);
        Batch::new(op, &later, &remote, 4).done(&*path);
    }
}

/// Two engines that both open, break and cut at the same time.
#[test]
fn traffic_both_ways_survives_ports_that_go_up_and_down() {
    let (bench, a, b) = Bench::pair();
    let run = |here: &Peer, there: &Peer, seed: u8| {
        let (local, remote) = (here.local(1 << 20), there.offered(1 << 20));
        let path = here.path_to(there);
        for round in 0..20 {
            let batch = Batch::new(OPS[round % 2], &local, &remote, 4);
            prepare(&batch, seed);
            until("a transfer works", || batch.works(&*path));
            check(&batch, seed);
        }
    };
    std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(|| run(&a, &b, 1)), scope.spawn(|| run(&b, &a, 2)));
        let mut turn = 0;
        while !first.is_finished() || !second.is_finished() {
            let nic = ["a0", "b1", "a1", "b0"][turn % 4];
            bench.fabric.set_port(nic, false);
            std::thread::sleep(Duration::from_millis(3));
            bench.fabric.set_port(nic, true);
            std::thread::sleep(Duration::from_millis(20));
            turn += 1;
        }
    });
    for peer in [&a, &b] {
        peer.shutdown();
    }
}

/// EP-06: what failed while the port was down says nothing about it once it is up.
#[test]
fn a_port_that_comes_up_is_used_at_once() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Read, &local, &remote, 4);
    batch.done(&*path);
    // More failures than there would be pauses that are waited for.
    for _ in 0..5 {
        bench.fabric.hold();
        let ledger = batch.begin(&*path, &CancelScope::new());
        bench.fabric.set_port("a0", false);
        bench.fabric.release();
        let _ = outcomes(&ledger);
        bench.fabric.set_port("a0", true);
        until("it works again", || {
            let outcomes = batch.run(&*path);
            let works = outcomes.iter().all(Outcome::is_done);
            let cause = if works { String::new() } else { first_failure(&outcomes).to_string() };
            assert!(!cause.contains("not tried again"), "{cause}");
            works
        });
    }
}
