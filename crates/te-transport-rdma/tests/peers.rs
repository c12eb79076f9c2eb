//! Peers that come, go, are cut off and are too many; and what is left when the transport ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::time::{Duration, Instant};

use devices::{Batch, Bench, Mode, config, expect, fill, first_failure};
use te_sys_verbs::Call;
use te_sys_verbs::fake::Record;
use te_testkit::node::{bytes, outcomes, until};
use te_testkit::pattern;
use te_transport::{CancelReason, CancelScope, FailureKind, Op, Outcome, RemoteEffect, Transport};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Queue pairs of a NIC that exist, and the most that there ever were, as its calls say.
fn pairs(records: &[Record], nic: &str) -> (usize, usize) {
    let (mut now, mut most) = (0, 0_usize);
    for record in records.iter().filter(|record| record.nic == nic && record.errno == 0) {
        match record.call {
            Call::CreateQp => now += 1,
            Call::DestroyQp => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    (now, most)
}

/// EP-01, EP-03: a NIC that has room for two endpoints serves five peers in turn, and never has more.
#[test]
fn few_endpoints_serve_many_peers_in_turn() {
    let there = ["p0", "p1", "p2", "p3", "p4"];
    let bench = Bench::new(&[&["a0"], &there[..]].concat());
    let a = bench.peer(1, &["a0"], config(&[("endpoints", "2")]));
    let peers: Vec<_> =
        (2..).zip(&there).map(|(number, nic)| bench.peer(number, &[nic], config(&[]))).collect();
    let local = a.local(64 << 10);
    let remotes: Vec<_> = peers.iter().map(|peer| peer.offered(64 << 10)).collect();
    let paths: Vec<_> = peers.iter().map(|peer| a.path_to(peer)).collect();
    for round in 0..6 {
        for (at, (path, remote)) in paths.iter().zip(&remotes).enumerate() {
            let batch = Batch::new([Op::Write, Op::Read][round % 2], &local, remote, 4);
            let seed = u8::try_from(16 * round + at).unwrap();
            let from = if batch.op == Op::Write { &local } else { remote };
            fill(from, seed);
            batch.done(&**path);
            expect(&local, seed);
            expect(remote, seed);
        }
    }
    let (now, most) = pairs(&bench.fabric.take_records(), "a0");
    assert!(now <= 4 && most <= 4, "{now} queue pairs at rest, {most} at most");
    assert!(a.transport.counters().evicted >= 3 * 6);

    // Those whose endpoints have gone find out, and open again: in turn here too.
    let far = a.offered(4096);
    for peer in &peers {
        let near = peer.local(4096);
        Batch::new(Op::Write, &near, &far, 1).done(&*peer.path_to(&a));
    }
}

/// EP-05: a path to an earlier life fails as such and touches nothing of the later one, to which a new path leads.
#[test]
fn a_path_to_an_earlier_life_fails_and_a_new_one_works() {
    for op in [Op::Write, Op::Read] {
        let (bench, a, b) = Bench::simple();
        let local = a.local(64 << 10);
        let old = b.offered(64 << 10);
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &old, 4);
        batch.done(&*path);
        b.shutdown();
        b.hang_up();
        let later = bench.peer(2, &["b0"], config(&[]));
        let new = later.offered(64 << 10);
        fill(&new, 1);
        fill(&local, 2);
        for _ in 0..2 {
            let failure = batch.fails(&*path);
            assert_eq!(failure.kind(), FailureKind::StaleIncarnation, "{op}: {failure}");
        }
        expect(&new, 1);
        expect(&local, 2);
        let batch = Batch::new(op, &local, &new, 4);
        batch.done(&*a.path_to(&later));
        expect(&local, if op == Op::Write { 2 } else { 1 });
        expect(&new, if op == Op::Write { 2 } else { 1 });
    }
}

/// What a peer has posted or sent before it is fenced changes nothing afterwards, and it may come again.
#[test]
fn a_fenced_peer_changes_nothing_until_it_connects_anew() {
    for gives_up in [false, true] {
        let (bench, a, b) = Bench::simple();
        let (local, remote) = (a.local(64 << 10), b.offered(64 << 10));
        let path = a.path_to(&b);
        let batch = Batch::new(Op::Write, &local, &remote, 4);
        batch.done(&*path);
        remote.fill(0xee).unwrap();
        let _ = bench.fabric.take_records();
        bench.fabric.hold_nic("a0");
        bench.fabric.linger("a0");
        let scope = CancelScope::new();
        let ledger = batch.begin(&*path, &scope);
        // So that it stays cut off for as long as the test looks.
        a.wire.set(Mode::Dead);
        if gives_up {
            scope.cancel(CancelReason::Cancelled);
            let failure = first_failure(&outcomes(&ledger));
            assert_eq!(failure.effect(), RemoteEffect::MayStillApply, "{failure}");
        }
        b.transport.fence(a.context.incarnation, soon()).unwrap();
        let destroyed =
            |record: &Record| record.call == Call::DestroyQp && record.nic == "b0" && record.errno == 0;
        assert_eq!(bench.fabric.take_records().iter().filter(|record| destroyed(record)).count(), 2);
        bench.fabric.release();
        if !gives_up {
            let failure = first_failure(&outcomes(&ledger));
            assert_eq!(failure.kind(), FailureKind::ConnectionLost, "{failure}");
        }
        assert!(bytes(&remote).iter().all(|byte| *byte == 0xee), "{gives_up}");

        b.transport.fence(a.context.incarnation, soon()).unwrap();
        a.wire.set(Mode::Works);
        fill(&local, 3);
        until("it connects anew", || batch.works(&*path));
        expect(&remote, 3);
    }
}

/// Without a fence, what was given up does arrive: the test above would see it.
#[test]
fn what_was_given_up_arrives_where_nobody_is_fenced() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(64 << 10), b.offered(64 << 10));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 4);
    batch.done(&*path);
    remote.fill(0xee).unwrap();
    bench.fabric.hold_nic("a0");
    bench.fabric.linger("a0");
    let scope = CancelScope::new();
    let ledger = batch.begin(&*path, &scope);
    scope.cancel(CancelReason::Cancelled);
    let _ = outcomes(&ledger);
    bench.fabric.release();
    assert!(bytes(&remote).iter().any(|byte| *byte != 0xee));
}

/// What must have gone before a thing of each kind may go. At a shutdown memory is given back while the transport is still
/// there to be looked at, with its completion queues.
fn expect_order(records: &[Record], nics: &[&str], shuts_down: bool) {
    for nic in nics {
        let of = |call: Call| {
            let places = records.iter().enumerate();
            places.filter(move |(_, record)| record.nic == *nic && record.call == call).map(|(at, _)| at)
        };
        let last = |call| of(call).max().unwrap_or_else(|| panic!("{nic}: no {call:?}"));
        let first = |call| of(call).min().unwrap_or_else(|| panic!("{nic}: no {call:?}"));
        for (before, after) in [
            (Call::DestroyQp, Call::DestroyCq),
            (if shuts_down { Call::DestroyQp } else { Call::DestroyCq }, Call::DeregMr),
            (Call::DestroyCq, Call::DestroyCompChannel),
            (Call::DestroyCq, Call::CloseDevice),
            (Call::DeregMr, Call::DeallocPd),
            (Call::DeallocPd, Call::CloseDevice),
        ] {
            assert!(last(before) < first(after), "{nic}: {before:?} after {after:?}: {records:#?}");
        }
    }
    let failed: Vec<_> = records.iter().filter(|record| record.errno != 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// EP-02, EP-08: everything goes, and in its order, whether the transport is shut down or dropped with work under way.
#[test]
fn everything_goes_in_order() {
    for (shuts_down, held) in [(true, false), (true, true), (false, false), (false, true)] {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        // So that both sides have posted something.
        let (near, far) = (b.local(1 << 20), a.offered(1 << 20));
        let (path, back) = (a.path_to(&b), b.path_to(&a));
        let batches = [Batch::new(Op::Write, &local, &remote, 4), Batch::new(Op::Read, &near, &far, 4)];
        batches[0].done(&*path);
        batches[1].done(&*back);
        if held {
            bench.fabric.hold();
        }
        let ledgers =
            [batches[0].begin(&*path, &CancelScope::new()), batches[1].begin(&*back, &CancelScope::new())];
        let begun = Instant::now();
        if shuts_down {
            a.shutdown();
            b.shutdown();
        }
        drop((path, back, a, b));
        for ledger in &ledgers {
            for outcome in outcomes(ledger) {
                assert_eq!(outcome.is_done(), !held, "{shuts_down} {held}: {outcome:?}");
            }
        }
        drop((local, remote, near, far));
        bench.expect_empty();
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        expect_order(&bench.fabric.take_records(), &["a0", "a1", "b0", "b1"], shuts_down);
    }
}

/// EP-08: whatever is submitted while the transport ends has an end itself.
#[test]
fn whatever_is_submitted_during_a_shutdown_ends() {
    for round in 0..20 {
        let (bench, a, b) = Bench::pair();
        let (local, remote) = (a.local(64 << 10), b.offered(64 << 10));
        let path = a.path_to(&b);
        let batch = Batch::new([Op::Write, Op::Read][round % 2], &local, &remote, 16);
        batch.done(&*path);
        std::thread::scope(|scope| {
            let submitting = || {
                loop {
                    let failures = batch.run(&*path).into_iter().filter(|outcome| !outcome.is_done());
                    let failures: Vec<_> = failures.collect();
                    if let Some(Outcome::Failed(failure)) = failures.first() {
                        assert_eq!(failure.kind(), FailureKind::Shutdown, "{failure}");
                        return;
                    }
                }
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(submitting)).collect();
            std::thread::sleep(Duration::from_micros(300 * round as u64));
            a.transport.shutdown(soon()).unwrap();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        drop((path, a, b, local, remote));
        bench.expect_empty();
    }
}

/// EP-02: a peer that ends while work is under way in both directions leaves nothing behind.
#[test]
fn a_peer_that_ends_under_work_leaves_nothing_behind() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 4);
    batch.done(&*path);
    bench.fabric.hold();
    let ledger = batch.begin(&*path, &CancelScope::new());
    b.shutdown();
    b.hang_up();
    drop(b);
    bench.fabric.release();
    let failure = first_failure(&outcomes(&ledger));
    let kinds = [FailureKind::ConnectionLost, FailureKind::Unreachable];
    assert!(kinds.contains(&failure.kind()), "{failure}");
    until("its endpoints are gone", || bench.fabric.live().queue_pairs == 0);
    assert!(local.write_at(0, &pattern(1, 16)).is_ok());
}
