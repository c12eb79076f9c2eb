//! Whichever handle is dropped first: things are destroyed in order, once, and all of them.

#![allow(clippy::unwrap_used, reason = "in tests a failure is a panic")]

mod common;

use common::{Area, Side, connect};
use te_sys_verbs::fake::{Fabric, Fault, Live, Nic, Record};
use te_sys_verbs::{Access, Call, EventKind};

type Handle = Option<Box<dyn Send>>;

/// The place of a call in the order of destruction. A channel has to outlive its queues only, and a context everything.
fn rank(record: &Record) -> Option<u32> {
    Some(match record.call {
        Call::DestroyQp => 0,
        Call::DestroyCq => 1,
        Call::DeregMr => 2,
        Call::DeallocPd => 3,
        Call::CloseDevice => 4,
        Call::FreeDeviceList => 5,
        _ => return None,
    })
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let shorter = permutations(count - 1);
    let insert = |p: &Vec<usize>, at: usize| {
        let mut longer = p.clone();
        longer.insert(at, count - 1);
        longer
    };
    shorter.iter().flat_map(|p| (0..count).map(move |at| insert(p, at))).collect()
}

#[test]
fn every_order_of_drops_destroys_in_the_same_order() {
    let fabric = Fabric::new([Nic::new("fake0")]);
    let orders = permutations(6);
    assert_eq!(orders.len(), 720);
    for order in orders {
        let verbs = fabric.verbs();
        let side = Side::open(&verbs, "fake0", 1);
        let Area { region, .. } = Area::new(&side, 64, 0);
        let Side { context, domain, queue, pair, .. } = side;
        let channel = queue.channel().unwrap().clone();
        let mut handles: [Handle; 6] = [
            Some(Box::new(context)),
            Some(Box::new(domain)),
            Some(Box::new(channel)),
            Some(Box::new(queue)),
            Some(Box::new(pair)),
            Some(Box::new(region)),
        ];
        let _ = fabric.take_records();
        for at in &order {
            handles[*at] = None;
        }
        let records = fabric.take_records();
        assert!(records.iter().all(|record| record.errno == 0), "{order:?}: {records:?}");
        let ranks: Vec<_> = records.iter().filter_map(rank).collect();
        assert_eq!(ranks, [0, 1, 2, 3, 4, 5], "{order:?}");
        assert_eq!((fabric.live(), verbs.undestroyed()), (Live::default(), 0), "{order:?}");
    }
}

#[test]
fn a_dropped_region_waits_for_the_last_queue_pair_of_its_device() {
    let fabric = Fabric::new([Nic::new("fake0")]);
    let a = Side::open(&fabric.verbs(), "fake0", 1);
    let size = te_sys_verbs::PairSize { requests: 1, receives: 0, ranges: 1, inline: 0 };
    let second = a.domain.queue_pair(size, &a.queue, &a.queue, 2).unwrap();
    drop(Area::new(&a, 64, 0));
    drop(a);
    assert_eq!((fabric.live().regions, fabric.live().queue_pairs), (1, 1));
    drop(second);
    assert_eq!(fabric.live(), Live::default());
}

#[test]
fn a_region_without_queues_ends_when_it_is_dropped() {
    let fabric = Fabric::new([Nic::new("fake0")]);
    let domain = fabric.verbs().open("fake0").unwrap().protection_domain().unwrap();
    drop(Area::register(&domain, vec![0; 8], Access::LOCAL_WRITE).unwrap());
    assert_eq!((fabric.live().regions, fabric.live().domains), (0, 1));
}

#[test]
fn a_thousand_cycles_leave_nothing() {
    let fabric = Fabric::new([Nic::new("fake0"), Nic::new("fake1")]);
    let verbs = fabric.verbs();
    for cycle in 0..1000 {
        let (a, b) = (Side::open(&verbs, "fake0", 1), Side::open(&verbs, "fake1", 1));
        connect(&a, &b).unwrap();
        let areas = [Area::new(&a, 64, 0), Area::new(&b, 64, 0)];
        assert_eq!(fabric.live().regions, 2);
        // Half of them in the wrong order.
        if cycle % 2 == 0 {
            drop(areas);
        }
    }
    assert_eq!((fabric.live(), verbs.undestroyed()), (Live::default(), 0));
}

#[test]
fn what_fails_half_way_leaves_nothing() {
    let calls = [
        Call::OpenDevice,
        Call::AllocPd,
        Call::CreateCompChannel,
        Call::CreateCq,
        Call::CreateQp,
        Call::ModifyQp,
        Call::RegMr,
    ];
    for call in calls {
        let fabric = Fabric::new([Nic::new("fake0")]);
        let verbs = fabric.verbs();
        fabric.fail(Fault::new(call, libc::ENOMEM));
        let attempt = || -> Result<(), Box<dyn std::error::Error>> {
            let context = verbs.open("fake0")?;
            let domain = context.protection_domain()?;
            let channel = context.completion_channel()?;
            let size = te_sys_verbs::QueueSize { entries: 4, vector: 0 };
            let queue = context.completion_queue(size, Some(&channel), 1)?;
            let size = te_sys_verbs::PairSize { requests: 1, receives: 0, ranges: 1, inline: 0 };
            let pair = domain.queue_pair(size, &queue, &queue, 1)?;
            pair.to_error()?;
            Area::register(&domain, vec![0; 8], Access::LOCAL_WRITE)?;
            Ok(())
        };
        let error = attempt().unwrap_err().to_string();
        assert!(error.contains("Cannot allocate memory"), "{error}");
        assert_eq!((fabric.live(), verbs.undestroyed()), (Live::default(), 0), "{call:?}");
    }
}

#[test]
fn memory_that_the_device_does_not_let_go_of_is_kept() {
    let fabric = Fabric::new([Nic::new("fake0")]);
    let verbs = fabric.verbs();
    let context = verbs.open("fake0").unwrap();
    let domain = context.protection_domain().unwrap();
    let kept = std::sync::Arc::new(());
    let mut bytes = [0u8; 8];
    let start = std::ptr::NonNull::from(&mut bytes).cast();
    // SAFETY: nothing is posted, so nothing touches the bytes.
    let region = unsafe { domain.register(start, 8, Access::LOCAL_WRITE, Some(Box::new(kept.clone()))) };
    fabric.fail(Fault::new(Call::DeregMr, libc::EBUSY));
    let error = region.unwrap().deregister().unwrap_err();
    assert_eq!((error.call, error.errno), (Call::DeregMr, libc::EBUSY));
    drop((domain, context));
    assert_eq!(std::sync::Arc::strong_count(&kept), 2);
    // The registration, and with it the domain and the context.
    assert_eq!(verbs.undestroyed(), 3);
}

/// A device that is gone takes back nothing, but closing it does. Were that to fail, the memory would be kept for ever.
#[test]
fn memory_at_a_device_that_is_gone_is_kept_until_it_is_closed() {
    for closes in [true, false] {
        let fabric = Fabric::new([Nic::new("fake0"), Nic::new("fake1")]);
        let verbs = fabric.verbs();
        let (side, other) = (Side::open(&verbs, "fake0", 1), Side::open(&verbs, "fake1", 1));
        let kept = std::sync::Arc::new(());
        let mut bytes = [0u8; 8];
        let start = std::ptr::NonNull::from(&mut bytes).cast();
        // SAFETY: nothing is posted, so nothing touches the bytes.
        let region =
            unsafe { side.domain.register(start, 8, Access::LOCAL_WRITE, Some(Box::new(kept.clone()))) };
        let region = region.unwrap();
        fabric.unplug("fake0");
        assert_eq!(side.context.next_event().unwrap().unwrap().kind, EventKind::DEVICE_FATAL);
        assert_eq!(side.context.next_event().unwrap_err().errno, libc::EIO);
        assert_eq!(side.context.port(1).unwrap_err().errno, libc::EIO);
        assert_eq!(region.deregister().unwrap_err().errno, libc::EIO);
        assert_eq!(verbs.devices().unwrap().len(), 1);
        verbs.open("fake0").unwrap_err();
        assert_eq!(std::sync::Arc::strong_count(&kept), 2);
        if !closes {
            fabric.fail(Fault::new(Call::CloseDevice, libc::EIO));
        }
        drop(side);
        assert_eq!(std::sync::Arc::strong_count(&kept), if closes { 1 } else { 2 });
        fabric.plug("fake0");
        let again = Side::open(&verbs, "fake0", 1);
        connect(&again, &other).unwrap();
    }
}

#[test]
fn what_keeps_memory_is_dropped_after_its_registration() {
    struct Witness(std::sync::Weak<Fabric>);
    impl Drop for Witness {
        fn drop(&mut self) {
            let fabric = self.0.upgrade().unwrap();
            assert_eq!(fabric.live().regions, 0);
        }
    }
    let fabric = std::sync::Arc::new(Fabric::new([Nic::new("fake0")]));
    let side = Side::open(&fabric.verbs(), "fake0", 1);
    let witness = Witness(std::sync::Arc::downgrade(&fabric));
    let mut bytes = [0u8; 8];
    let start = std::ptr::NonNull::from(&mut bytes).cast();
    // SAFETY: nothing is posted, so nothing touches the bytes.
    let region = unsafe { side.domain.register(start, 8, Access::LOCAL_WRITE, Some(Box::new(witness))) };
    drop(region.unwrap());
    assert_eq!(fabric.live().regions, 1);
    drop(side);
    assert_eq!(fabric.live(), Live::default());
}
