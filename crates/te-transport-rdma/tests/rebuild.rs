//! Devices that fail and come back: what is under way, what is registered, and what peers are told.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use devices::{Batch, Bench, LARGE, OPS, Peer, check, config, first_failure, prepare};
use te_memory::Region;
use te_segment::{MemoryKey, SegmentDescriptor, TransportKind, Via};
use te_sys_verbs::fake::{Fault, Live, Record};
use te_sys_verbs::{Call, EventKind, Gid};
use te_testkit::node::{outcomes, until};
use te_transport::{CancelScope, FailureKind, Op, Outcome, Path, Transport};

/// Two engines whose rails are apart.
fn railed() -> (Bench, Peer, Peer) {
    Bench::pair_with(&config(&[("rail_map", "a0=b0;a1=b1;b0=a0;b1=a1")]))
}

/// The keys of a buffer as it is published.
fn keys(descriptor: &SegmentDescriptor, buffer: &Region) -> BTreeMap<String, MemoryKey> {
    let mut all = descriptor.buffers().iter();
    let found = all.find(|described| described.range() == buffer.range()).unwrap();
    let Some(Via::Rdma { keys }) = found.via_transport(&TransportKind::RDMA) else { panic!("no keys") };
    keys.iter().map(|(nic, key)| (nic.to_string(), *key)).collect()
}

/// Transfers until the NIC has a part in it, each of which brings the right bytes.
fn until_used(bench: &Bench, nic: &str, batch: &Batch<'_>, path: impl Fn() -> std::sync::Arc<dyn Path>) {
    let before = bench.bytes_of(nic);
    let mut seed = 0_u8;
    until(&format!("{nic} is used"), || {
        seed = seed.wrapping_add(1);
        prepare(batch, seed);
        if batch.works(&*path()) {
            check(batch, seed);
        }
        bench.bytes_of(nic) > before
    });
}

/// FO-16, EP-06: a device that is lost under a transfer costs it nothing but time, and once it is back it is used again: for
/// what was registered before and for what was registered while it was away.
#[test]
fn a_device_that_comes_back_is_used_again() {
    for (op, seed) in OPS.into_iter().zip(1..) {
        let (bench, a, b) = railed();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 4);
        batch.done(&*path);
        prepare(&batch, seed);
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        bench.fabric.unplug("a0");
        assert!(outcomes(&ledger).iter().all(Outcome::is_done), "{op}: {:?}", ledger.failures());
        check(&batch, seed);
        bench.fabric.release();
        let carried = bench.bytes_of("a0");

        let (later, offered) = (a.local(LARGE), a.offered(4096));
        assert!(!keys(&a.published(), &offered).contains_key("a0"));
        let next = Batch { local: &later, ..batch };
        prepare(&next, 9);
        next.done(&*path);
        check(&next, 9);
        assert_eq!((bench.bytes_of("a0"), a.told()), (carried, 0), "{op}");

        bench.fabric.plug("a0");
        // The same path: nothing has changed at the peer.
        until_used(&bench, "a0", &batch, || path.clone());
        until_used(&bench, "a0", &next, || path.clone());
        until("peers are told", || a.told() > 0);
        assert!(keys(&a.published(), &offered).contains_key("a0"));
    }
}

/// RDMA-10: a device of the peer is lost under a transfer, which goes on over the other one. With its return come other keys;
/// who knows them uses it again, and nobody starts anew.
#[test]
fn a_device_of_the_peer_that_comes_back_is_used_again() {
    for (op, seed) in OPS.into_iter().zip(1..) {
        let (bench, a, b) = railed();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let (first, path) = (b.published(), a.path_to(&b));
        let batch = Batch::new(op, &local, &remote, 4);
        batch.done(&*path);
        prepare(&batch, seed);
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        bench.fabric.unplug("b0");
        bench.fabric.release();
        assert!(outcomes(&ledger).iter().all(Outcome::is_done), "{op}: {:?}", ledger.failures());
        check(&batch, seed);

        bench.fabric.plug("b0");
        until("peers are told", || b.told() > 0);
        let (old, new) = (keys(&first, &remote), keys(&b.published(), &remote));
        assert!(old["b0"] != new["b0"] && old["b1"] == new["b1"], "{old:?} {new:?}");
        // Its rail goes from a0 alone.
        until_used(&bench, "a0", &batch, || a.path_to(&b));
        // With the earlier keys nothing is written anywhere else.
        prepare(&batch, 50);
        match path_outcome(&batch, &*path) {
            None => check(&batch, 50),
            Some(failure) => assert_eq!(failure, FailureKind::Rejected),
        }
    }
}

fn path_outcome(batch: &Batch<'_>, path: &dyn Path) -> Option<FailureKind> {
    let outcomes = batch.run(path);
    (!outcomes.iter().all(Outcome::is_done)).then(|| first_failure(&outcomes).kind())
}

/// The only device of either side: what is under way ends with a clear error in time, and it works again when it is back.
#[test]
fn the_only_device_fails_clearly_and_works_again_when_it_is_back() {
    for (op, lost) in [(Op::Write, "a0"), (Op::Read, "a0"), (Op::Write, "b0"), (Op::Read, "b0")] {
        let (bench, a, b) = Bench::simple();
        let (local, remote) = (a.local(LARGE), b.offered(LARGE));
        let path = a.path_to(&b);
        let batch = Batch::new(op, &local, &remote, 2);
        batch.done(&*path);
        bench.fabric.hold_nic("a0");
        let ledger = batch.begin(&*path, &CancelScope::new());
        let began = Instant::now();
        bench.fabric.unplug(lost);
        bench.fabric.release();
        let failure = first_failure(&outcomes(&ledger));
        assert!(began.elapsed() < Duration::from_secs(20), "{op} {lost}: {:?}", began.elapsed());
        let kinds = [FailureKind::Unreachable, FailureKind::ConnectionLost];
        assert!(kinds.contains(&failure.kind()), "{op} {lost}: {failure}");
        until("a request says what is down", || {
            let failure = batch.fails(&*path);
            kinds.contains(&failure.kind()) && failure.cause().contains("down")
        });
        bench.fabric.plug(lost);
        until_used(&bench, "a0", &batch, || a.path_to(&b));
    }
}

/// Queue pairs, completion queue, registrations, protection domain, context, in this order, and only then it is opened again.
#[test]
fn a_device_that_tells_of_a_fatal_error_is_closed_in_order_and_opened_again() {
    let (bench, a, b) = railed();
    let (local, remote) = (a.local(LARGE), b.offered(LARGE));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Write, &local, &remote, 4);
    batch.done(&*path);
    let before = bench.fabric.live();
    let _ = bench.fabric.take_records();
    bench.fabric.raise("a0", EventKind::DEVICE_FATAL, 1_000);
    until_used(&bench, "a0", &batch, || path.clone());
    let rank = |record: &Record| match record.call {
        Call::DestroyQp => Some(0),
        Call::DestroyCq => Some(1),
        Call::DeregMr => Some(2),
        Call::DeallocPd => Some(3),
        Call::CloseDevice => Some(4),
        Call::OpenDevice => Some(5),
        Call::RegMr => Some(6),
        _ => None,
    };
    let records = bench.fabric.take_records();
    let of_nic = records.iter().filter(|record| record.nic == "a0" && record.errno == 0);
    let ranks: Vec<_> = of_nic.filter_map(rank).collect();
    assert!(ranks.is_sorted(), "{ranks:?}");
    for (rank, count) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)] {
        assert_eq!(ranks.iter().filter(|found| **found == rank).count(), count, "{rank}: {ranks:?}");
    }
    // The peer's own ends go as these are opened anew.
    until("all is as before", || Live { lists: before.lists, ..bench.fabric.live() } == before);
}

/// What is withdrawn while a device is away is not registered at it when it is back, and memory comes back at any time.
#[test]
fn memory_comes_back_while_a_device_is_away() {
    let (bench, a, _b) = railed();
    let (stays, goes, first) = (a.offered(1 << 20), a.offered(1 << 20), a.offered(1 << 20));
    bench.fabric.unplug("a0");
    let free = |region: &Region| {
        region.block();
        until("the memory is back", || a.transport.unregister(region).is_ok() && region.release().is_ok());
    };
    // At the moment of the loss, or a little later.
    free(&first);
    until("the device is closed", || bench.fabric.live().contexts == 3);
    free(&goes);
    let late = a.offered(4096);
    a.withdraw(&late);
    bench.fabric.plug("a0");
    until("it is back", || a.told() > 0);
    assert_eq!(bench.fabric.live().regions, 2);
    assert!(keys(&a.published(), &stays).contains_key("a0"));
    a.withdraw(&stays);
    assert_eq!(bench.fabric.live().regions, 0);
}

/// A device that never comes back keeps nothing from ending.
#[test]
fn a_transport_ends_whatever_its_devices_do() {
    // Lost, lost and noticed, back, and back without being of use.
    for step in 0..4 {
        let (bench, a, b) = railed();
        let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
        Batch::new(Op::Write, &local, &remote, 4).done(&*a.path_to(&b));
        bench.fabric.unplug("a0");
        if step > 0 {
            until("the device is closed", || bench.fabric.live().contexts == 3);
        }
        if step > 1 {
            if step > 2 {
                bench.fabric.fail(Fault::new(Call::RegMr, libc::ENOMEM).on("a0"));
            }
            bench.fabric.plug("a0");
            until("it is opened again", || {
                bench.fabric.take_records().iter().any(|record| record.call == Call::OpenDevice)
            });
        }
        for peer in [&a, &b] {
            until("it has ended", || {
                peer.transport.shutdown(Instant::now() + Duration::from_secs(60)).is_ok()
            });
        }
        drop((local, remote));
        drop((a, b));
        bench.expect_empty();
    }
}

/// A device that is back is not used before all that is registered is registered at it; of what could not be, nothing is left.
#[test]
fn a_device_at_which_not_all_can_be_registered_is_not_used_yet() {
    let (bench, a, b) = Bench::pair_with(&config(&[("max_mr_size", "1048576")]));
    let (local, remote) = (a.local(LARGE), b.offered(1 << 20));
    let path = a.path_to(&b);
    let near = a.local(1 << 20);
    let batch = Batch::new(Op::Write, &near, &remote, 4);
    batch.done(&*path);
    let before = bench.fabric.live();
    bench.fabric.unplug("a0");
    until("the device is closed", || bench.fabric.live().contexts == before.contexts - 1);
    bench.fabric.limit_keys("a0", 4, libc::ENOMEM);
    bench.fabric.plug("a0");
    let mut refused = 0;
    until("it was tried more than once", || {
        let records = bench.fabric.take_records();
        refused += records.iter().filter(|record| record.call == Call::RegMr && record.errno != 0).count();
        batch.done(&*path);
        refused > 2
    });
    assert_eq!(a.told(), 0);
    bench.fabric.heal();
    until_used(&bench, "a0", &batch, || path.clone());
    drop(path);
    until("all is as before", || bench.fabric.live().regions == before.regions);
    a.withdraw(&local);
}

/// A device that comes back with its port down is used once that is up.
#[test]
fn a_port_that_is_down_when_the_device_comes_back_is_waited_for() {
    let (bench, a, b) = Bench::simple();
    let (local, remote) = (a.local(1 << 20), b.offered(1 << 20));
    let path = a.path_to(&b);
    let batch = Batch::new(Op::Read, &local, &remote, 4);
    batch.done(&*path);
    bench.fabric.unplug("a0");
    bench.fabric.set_port("a0", false);
    bench.fabric.plug("a0");
    until("the device is back", || a.told() > 0);
    assert!(batch.fails(&*path).cause().contains("down"));
    bench.fabric.set_port("a0", true);
    until_used(&bench, "a0", &batch, || path.clone());
}

/// RDMA-10: the engine is told when what peers need has changed, and only then.
#[test]
fn the_engine_is_told_of_a_new_address_and_not_of_a_burst_without_one() {
    let (bench, a, _b) = Bench::simple();
    let address = |last| Gid(std::net::Ipv4Addr::new(10, 99, 7, last).to_ipv6_mapped().octets());
    for told in 1..=2 {
        let handled = a.transport.counters().events;
        for kind in [EventKind::GID_CHANGE, EventKind::LID_CHANGE, EventKind::PORT_ACTIVE] {
            bench.fabric.raise("a0", kind, 333);
        }
        bench.fabric.set_gid("a0", 1, address(told));
        // FO-16: every one of them.
        until("all are handled", || a.transport.counters().events == handled + 1_000);
        assert_eq!(a.told(), usize::from(told));
        assert_eq!(a.published().devices()[0].gid().unwrap().bytes(), address(told).0);
    }
}

/// Both sides lose their devices one after the other, again and again, under traffic both ways.
#[test]
fn traffic_both_ways_survives_devices_that_come_and_go() {
    let (bench, a, b) = railed();
    let run = |here: &Peer, there: &Peer, (local, remote): &(Region, Region), seed: u8| {
        for round in 0..40 {
            let batch = Batch::new(OPS[round % 2], local, remote, 4);
            prepare(&batch, seed);
            until("a transfer works", || batch.works(&*here.path_to(there)));
            check(&batch, seed);
        }
    };
    let (there, back) = ((a.local(1 << 20), b.offered(1 << 20)), (b.local(1 << 20), a.offered(1 << 20)));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&a, &b, &there, 1));
        let second = scope.spawn(|| run(&b, &a, &back, 2));
        for nic in ["a0", "b1", "a1", "b0"].into_iter().cycle() {
            if first.is_finished() && second.is_finished() {
                break;
            }
            let told = a.told() + b.told();
            bench.fabric.unplug(nic);
            bench.fabric.plug(nic);
            until("it is back", || a.told() + b.told() > told);
        }
    });
    for peer in [&a, &b] {
        peer.shutdown();
    }
}
