//! Segments under change: several stores, buffers that come and go, handles and batches of an earlier state.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::pair::content;
use common::{World, free_port, on_port, soon};
use te_engine::{Buffer, Engine, ErrorKind, block_on};
use te_segment::{Access, TransportKind};
use te_testkit::{FaultTransport, Script, Site, pattern, verify};

const LEN: usize = 4096;

fn offer(engine: &Engine, seed: u8) -> Buffer {
    let offered = block_on(engine.register(pattern(seed, LEN), Access::REMOTE)).unwrap();
    block_on(engine.published(soon())).unwrap();
    offered
}

/// What the first buffer of a peer contains, by a read.
fn read_first(engine: &Engine, into: &Buffer, peer: &str) -> Vec<u8> {
    let range = block_on(engine.open(peer)).unwrap().buffer(0).unwrap();
    engine.batch().read(&range, into.slice(..)).run().unwrap();
    content(into)
}

/// SEG-05: two engines on one thread, whose peers have the same name in different stores, each resolve their own.
#[test]
fn the_same_name_in_two_stores_is_two_segments() {
    let worlds = [World::new(), World::new()];
    let targets = worlds.each_ref().map(|world| world.engine("target"));
    let initiators = worlds.each_ref().map(|world| world.engine("initiator"));
    let _offered = [offer(&targets[0], 1), offer(&targets[1], 2)];
    let local =
        initiators.each_ref().map(|engine| block_on(engine.register(vec![0; LEN], Access::LOCAL)).unwrap());
    for _ in 0..3 {
        for (at, seed) in [(0, 1), (1, 2)] {
            verify(seed, 0, &read_first(&initiators[at], &local[at], "target")).unwrap();
            let open = block_on(initiators[at].open("target")).unwrap();
            assert_eq!(open.incarnation(), Some(targets[at].incarnation()));
        }
    }
}

/// Pages of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// SEG-05: threads that use an engine leave nothing behind.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_come_and_go_leave_nothing_behind() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let _offered = offer(&target, 1);
    let local = block_on(initiator.register(vec![0; LEN], Access::LOCAL)).unwrap();
    let churn = |threads: usize| {
        for _ in 0..threads {
            let run = || drop(read_first(&initiator, &local, "target"));
            std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        }
    };
    churn(200);
    let before = resident();
    churn(1000);
    // One page for each thread would be a thousand.
    let grown = resident().saturating_sub(before);
    assert!(grown < 500, "{grown} pages more");
    assert_eq!(initiator.peers().len(), 1);
}

/// SEG-07: a batch that was prepared for a life of its peer, or for a buffer of it, is refused when that is over, and
/// nothing of it is sent.
#[test]
fn a_prepared_batch_is_bound_to_what_it_was_prepared_for() {
    let world = World::new();
    let script = Script::new(1);
    let faulty = FaultTransport::new(world.transport(TransportKind::SHM), &script);
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(faulty)]);
    let local = block_on(initiator.register(vec![7; LEN], Access::LOCAL)).unwrap();
    let port = free_port();
    let first = world.mortal(on_port("target", port));
    let gone = offer(&first.engine, 1);
    let address = gone.address();
    let peer = block_on(initiator.open("target")).unwrap();
    let prepare = || {
        let range = peer.range(address, LEN as u64).unwrap();
        let write = initiator.batch().write(local.slice(..), &range);
        (write, initiator.batch().read(&range, local.slice(..)))
    };
    let (for_the_buffer, for_the_life) = (prepare(), prepare());

    // The same memory at the same address again is another buffer.
    let memory = block_on(gone.unregister(soon())).unwrap();
    let again = block_on(first.engine.register(memory, Access::REMOTE)).unwrap();
    assert_eq!(again.address(), address);
    for prepared in [for_the_buffer.0, for_the_buffer.1] {
        assert_eq!(prepared.submit().unwrap_err().kind(), ErrorKind::BufferGone);
    }

    std::mem::forget(again);
    let mut watch = initiator.watch_peer("target").unwrap();
    first.kill();
    let second = world.mortal(on_port("target", port));
    let life = second.engine.incarnation();
    block_on(watch.until(|state| state.life == te_engine::PeerLife::Replaced { by: life })).unwrap();
    for prepared in [for_the_life.0, for_the_life.1] {
        assert_eq!(prepared.submit().unwrap_err().kind(), ErrorKind::StaleIncarnation);
    }
    assert_eq!(script.count(Site::Slice), 0, "nothing was sent");
}

/// SEG-09: open, close, the peer registers anew, open: what is current is seen without a flush.
#[test]
fn opening_again_sees_current_buffers() {
    let world = World::new();
    let (target, initiator) = (world.engine("target"), world.engine("initiator"));
    let local = block_on(initiator.register(vec![0; LEN], Access::LOCAL)).unwrap();
    let mut kept = None;
    for seed in 0..20_u8 {
        let offered = offer(&target, seed);
        let peer = block_on(initiator.open("target")).unwrap();
        let current: Vec<_> = peer.descriptor().buffers().iter().map(|buffer| buffer.range()).collect();
        assert_eq!(current, [offered.range()]);
        verify(seed, 0, &read_first(&initiator, &local, "target")).unwrap();
        // Every other time a handle is still there when the segment is opened anew.
        kept = (seed % 2 == 0).then_some(peer);
        block_on(offered.unregister(soon())).unwrap();
    }
    drop(kept);
}

/// SEG-06: a descriptor that is made while buffers come and go is whole: one content per version, and what was registered
/// before is in it.
#[test]
fn a_descriptor_made_during_registrations_is_whole() {
    let world = World::new();
    let engine = world.engine("target");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = BTreeMap::new();
                    let mut newest = 0;
                    while !stop.load(Ordering::Acquire) {
                        let descriptor = engine.descriptor().unwrap();
                        let version = descriptor.version().unwrap().value();
                        assert!(version >= newest, "{version} after {newest}");
                        newest = version;
                        let buffers: Vec<_> =
                            descriptor.buffers().iter().filter_map(|buffer| buffer.generation()).collect();
                        let known = seen.entry(version).or_insert_with(|| buffers.clone());
                        assert_eq!(*known, buffers, "version {version}");
                    }
                    seen
                })
            })
            .collect();
        let owners: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let buffer = block_on(engine.register(vec![0_u8; 64], Access::REMOTE)).unwrap();
                        let offers = || {
                            let descriptor = engine.descriptor().unwrap();
                            descriptor.buffers().iter().any(|b| b.generation() == Some(buffer.generation()))
                        };
                        assert!(offers(), "registered and not offered");
                        let generation = buffer.generation();
                        block_on(buffer.unregister(soon())).unwrap();
                        let descriptor = engine.descriptor().unwrap();
                        let left = descriptor.buffers().iter().any(|b| b.generation() == Some(generation));
                        assert!(!left, "withdrawn and offered");
                    }
                })
            })
            .collect();
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        stop.store(true, Ordering::Release);
        let mut all = BTreeMap::new();
        for seen in lookers.into_iter().flat_map(|looker| looker.join().unwrap()) {
            let known = all.entry(seen.0).or_insert_with(|| seen.1.clone());
            assert_eq!(*known, seen.1, "version {}", seen.0);
        }
    });
}

/// META-09: 64 threads open, close, register and look up at the same time; each look-up finds a whole descriptor.
#[test]
fn opens_and_registrations_at_the_same_time_see_whole_descriptors() {
    let world = World::new();
    let targets: Vec<_> = (0..4).map(|number| world.engine(&format!("target-{number}"))).collect();
    let initiator = world.engine("initiator");
    // One of a length of its own that is always there, and some that come and go.
    let _offered: Vec<_> = targets
        .iter()
        .enumerate()
        .map(|(number, target)| {
            let offered = block_on(target.register(vec![0_u8; 1000 + number], Access::REMOTE)).unwrap();
            block_on(target.published(soon())).unwrap();
            offered
        })
        .collect();
    let (looked, rounds) = (AtomicUsize::new(0), 15);
    std::thread::scope(|scope| {
        for thread in 0..64_usize {
            let (targets, initiator, looked) = (&targets, &initiator, &looked);
            scope.spawn(move || {
                for round in 0..rounds {
                    let number = (thread + round) % targets.len();
                    if thread % 4 == 0 {
                        let buffer =
                            block_on(targets[number].register(vec![0_u8; 64], Access::REMOTE)).unwrap();
                        block_on(buffer.unregister(soon())).unwrap();
                        continue;
                    }
                    let peer = block_on(initiator.open(&format!("target-{number}"))).unwrap();
                    let descriptor = peer.descriptor();
                    assert_eq!(descriptor.name().as_str(), format!("target-{number}"));
                    assert_eq!(descriptor.incarnation(), Some(targets[number].incarnation()));
                    let lengths: Vec<_> =
                        descriptor.buffers().iter().map(|buffer| buffer.range().len()).collect();
                    let own = lengths.iter().filter(|length| **length == 1000 + number as u64).count();
                    assert!(own == 1 && lengths.iter().all(|length| *length == 64 || *length >= 1000));
                    looked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(looked.into_inner(), 48 * rounds);
}
