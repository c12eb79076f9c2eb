use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::*;
use crate::{
    RegionTable, RemoteOp, copy_between,
    testing::{Arena, served, watched},
};

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn assert_thread_safe<T: Send + Sync>() {}

#[test]
fn everything_crosses_threads() {
    assert_thread_safe::<Hold>();
    assert_thread_safe::<Region>();
    assert_thread_safe::<Memory>();
    assert_thread_safe::<RegionTable>();
    assert_thread_safe::<crate::Reservation>();
}

#[test]
fn blocked_region_refuses_local_and_remote_holds() {
    let table = RegionTable::default();
    let region = served(&table, vec![0; 64].into());
    region.block();
    region.block();
    assert_eq!(region.state(), RegionState::Blocked);
    assert_eq!(region.hold(0, 1).unwrap_err(), Refusal::Withdrawn);
    assert_eq!(region.write_at(0, b"x"), Err(Refusal::Withdrawn));
    let remote = table.remote(region.range().start(), 1, RemoteOp::Read);
    assert_eq!(remote.unwrap_err(), Refusal::Withdrawn);
}

#[test]
fn region_that_is_not_blocked_is_not_released() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    assert_eq!(region.release().unwrap_err(), ReleaseError::NotBlocked);
    assert_eq!(region.state(), RegionState::Active);
    region.fill(1).unwrap();
}

#[test]
fn held_region_says_what_holds_it() {
    let table = RegionTable::default();
    let region = served(&table, vec![0; 64].into());
    let local = region.hold(0, 10).unwrap();
    let remote = table.remote(region.range().start(), 64, RemoteOp::Write).unwrap();
    let part = remote.slice(10, 5).unwrap();
    region.block();
    assert_eq!(region.release().unwrap_err(), ReleaseError::StillHeld { local: 1, remote: 2 });
    assert_eq!(region.wait_drained(soon()), Err(StillHeld { local: 1, remote: 2 }));
    drop((local, remote));
    assert_eq!(region.holds(), HoldCount { local: 0, remote: 1 });
    drop(part);
    assert_eq!(region.wait_drained(soon()), Ok(()));
    assert_eq!(region.release().unwrap().into_vec().unwrap(), [0; 64]);
}

#[test]
fn memory_comes_back_once_and_its_range_is_free() {
    let (arena, table) = (Arena::new(64), RegionTable::default());
    let region = served(&table, arena.part(0, 64));
    let other = region.clone();
    region.block();
    let memory = region.release().unwrap();
    assert_eq!(other.release().unwrap_err(), ReleaseError::Released);
    assert_eq!(other.state(), RegionState::Released);
    assert!(table.is_empty());
    let again = served(&table, memory);
    assert_ne!(again.generation(), other.generation());
    assert_eq!(other.hold(0, 1).unwrap_err(), Refusal::Withdrawn);
}

/// A region whose table is gone still gives its memory back.
#[test]
fn region_outlives_its_table() {
    let region = served(&RegionTable::default(), vec![3; 8].into());
    region.block();
    assert_eq!(region.release().unwrap().into_vec().unwrap(), [3; 8]);
}

#[test]
fn waiter_wakes_when_the_last_hold_goes() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    let hold = region.hold(0, 64).unwrap();
    region.block();
    let waiter = thread::spawn({
        let region = region.clone();
        move || region.wait_drained(later())
    });
    thread::sleep(Duration::from_millis(10));
    drop(hold);
    assert_eq!(waiter.join().unwrap(), Ok(()));
}

#[test]
fn waiting_for_a_region_that_is_not_blocked_ends_at_the_deadline() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    assert_eq!(region.wait_drained(soon()), Err(StillHeld { local: 0, remote: 0 }));
}

#[test]
fn callback_runs_once_whether_added_before_or_after_draining() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    let calls = Arc::new(AtomicUsize::new(0));
    let count = || {
        let calls = Arc::clone(&calls);
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
        }
    };
    let hold = region.hold(0, 1).unwrap();
    region.on_drained(count());
    region.block();
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    drop(hold);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    region.on_drained(count());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    region.release().unwrap();
    region.on_drained(count());
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

/// A callback may use the region, release included: no lock is held while it runs.
#[test]
fn callback_can_release_the_region() {
    let region = served(&RegionTable::default(), vec![9; 4].into());
    let (sender, receiver) = mpsc::channel();
    let hold = region.hold(0, 4).unwrap();
    region.on_drained({
        let region = region.clone();
        move || sender.send(region.release()).unwrap()
    });
    region.block();
    drop(hold);
    assert_eq!(receiver.recv().unwrap().unwrap().into_vec().unwrap(), [9; 4]);
}

/// MR-10: a leaked hold keeps the memory for ever, whoever tries to take it.
#[test]
fn forgotten_hold_leaks_memory_and_nothing_else() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let region = served(&table, memory);
    let hold = region.hold(0, 64).unwrap();
    let address = hold.as_ptr().unwrap();
    mem::forget(hold);
    region.block();
    assert_eq!(region.release().unwrap_err(), ReleaseError::StillHeld { local: 1, remote: 0 });
    drop((region, table));
    assert!(!freed.load(Ordering::SeqCst));
    // SAFETY: what this test is about: the leaked hold's memory is still there.
    unsafe { crate::copy::fill(address, 1, 64) };
}

/// MR-10
#[test]
fn forgotten_reservation_keeps_its_range_and_memory() {
    let (arena, table) = (Arena::new(64), RegionTable::default());
    mem::forget(table.reserve(arena.part(0, 64), Access::REMOTE, Location::Any).unwrap());
    let rejected = table.reserve(arena.part(10, 1), Access::REMOTE, Location::Any).unwrap_err();
    assert!(matches!(rejected.error, crate::RegisterError::Overlaps { .. }));
    assert_eq!(table.remote(arena.base(), 1, RemoteOp::Read).unwrap_err(), Refusal::OutsideAnyRegion);
}

/// MR-10
#[test]
fn dropped_and_forgotten_region_handles_do_not_end_the_registration() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let region = served(&table, memory);
    let start = region.range().start();
    mem::forget(region.clone());
    drop(region);
    table.remote(start, 64, RemoteOp::Write).unwrap().fill(1).unwrap();
    assert!(!freed.load(Ordering::SeqCst));
}

/// MR-10: memory that was given back and forgotten is nobody's.
#[test]
fn forgotten_memory_is_leaked() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let region = served(&table, memory);
    region.block();
    mem::forget(region.release().unwrap());
    drop((region, table));
    assert!(!freed.load(Ordering::SeqCst));
}

#[test]
fn reads_and_writes_reach_exactly_their_part() {
    let arena = Arena::new(64);
    let region = served(&RegionTable::default(), arena.part(8, 32));
    region.write_at(30, b"ab").unwrap();
    region.hold(4, 8).unwrap().slice(2, 3).unwrap().fill(7).unwrap();
    let bytes: Vec<u8> = (0..64).map(|i| arena.load(i)).collect();
    let mut expected = [0; 64];
    expected[38..40].copy_from_slice(b"ab");
    expected[14..17].fill(7);
    assert_eq!(bytes, expected);
    let mut tail = [1; 4];
    region.read_at(28, &mut tail).unwrap();
    assert_eq!(&tail, b"\0\0ab");
}

/// SEC-02
#[test]
fn parts_that_do_not_exist_are_refused() {
    let region = served(&RegionTable::default(), vec![0; 32].into());
    let hold = region.hold(8, 16).unwrap();
    assert_eq!(hold.write_at(16, b"x"), Err(Refusal::OutsideRange));
    assert_eq!(hold.read_at(15, &mut [0; 2]), Err(Refusal::OutsideRange));
    assert_eq!(hold.write_at(u64::MAX, b"x"), Err(Refusal::Wraps));
    assert_eq!(hold.write_at(16, b""), Ok(()));
    assert_eq!(hold.write_at(17, b""), Err(Refusal::OutsideRange));
    assert_eq!(hold.slice(8, 9).unwrap_err(), Refusal::OutsideRange);
    assert_eq!(hold.slice(u64::MAX, 2).unwrap_err(), Refusal::Wraps);
    assert_eq!(hold.slice(0, 0).unwrap_err(), Refusal::EmptyRange);
    assert_eq!(region.holds(), HoldCount { local: 1, remote: 0 });
}

#[test]
fn copy_between_overlapping_holds_moves_the_bytes() {
    let region = served(&RegionTable::default(), (0..32).collect::<Vec<u8>>().into());
    let (low, high) = (region.hold(0, 24).unwrap(), region.hold(8, 24).unwrap());
    copy_between(&high, &low).unwrap();
    let mut bytes = [0; 32];
    region.read_at(0, &mut bytes).unwrap();
    let expected: Vec<u8> = (0..8).chain(0..24).collect();
    assert_eq!(bytes.as_slice(), expected);
    let short = region.hold(0, 1).unwrap();
    assert!(copy_between(&high, &short).is_err());
}

/// Holders on several threads write until they are refused; after release not one byte changes.
#[test]
fn nobody_touches_the_memory_after_release() {
    let rounds = if cfg!(miri) { 2 } else { 50 };
    for _ in 0..rounds {
        let (arena, table) = (Arena::new(256), RegionTable::default());
        let region = served(&table, arena.part(0, 256));
        let start = region.range().start();
        let released = AtomicBool::new(false);
        thread::scope(|scope| {
            for i in 0..3_u8 {
                let (region, table, released) = (&region, &table, &released);
                scope.spawn(move || {
                    let mut pass = 0_u64;
                    loop {
                        pass += 1;
                        let hold = match pass % 2 {
                            0 => region.hold(0, 256),
                            _ => table.remote(start, 256, RemoteOp::Write),
                        };
                        let Ok(hold) = hold else { break };
                        assert!(!released.load(Ordering::SeqCst));
                        hold.fill(i).unwrap();
                    }
                });
            }
            thread::sleep(Duration::from_micros(200));
            region.block();
            region.wait_drained(later()).unwrap();
            let memory = region.release().unwrap();
            released.store(true, Ordering::SeqCst);
            let again = served(&RegionTable::default(), memory);
            again.fill(0xee).unwrap();
        });
        assert!((0..256).all(|i| arena.load(i) == 0xee));
    }
}

/// SEC-01: what is read while others write is some mix of their bytes, and nothing else happens.
#[test]
fn concurrent_writers_and_readers_see_only_bytes_that_were_written() {
    let region = served(&RegionTable::default(), vec![1; 4096].into());
    let rounds = if cfg!(miri) { 2 } else { 500 };
    thread::scope(|scope| {
        for byte in [1, 2] {
            let region = &region;
            scope.spawn(move || {
                for _ in 0..rounds {
                    region.write_at(0, &[byte; 4096]).unwrap();
                }
            });
        }
        let mut seen = [0; 4096];
        for _ in 0..rounds {
            region.read_at(0, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| [1, 2].contains(byte)));
        }
    });
}
