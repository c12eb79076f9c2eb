use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use te_segment::{Access, Location};

use super::*;
use crate::{
    RegionState, RegionTable, ReleaseError,
    testing::{served, watched},
};

fn kept(region: &Region) -> Keep {
    region.keep().unwrap()
}

#[test]
fn keep_crosses_threads() {
    fn assert_thread_safe<T: Send + Sync>() {}
    assert_thread_safe::<Keep>();
}

#[test]
fn kept_region_is_not_released_and_stays_as_it_is() {
    let table = RegionTable::default();
    let region = served(&table, vec![7; 64].into());
    let keep = kept(&region);
    assert_eq!(keep.region(), &region);
    region.block();
    let error = region.release().unwrap_err();
    assert_eq!(error, ReleaseError::Kept);
    assert!(error.to_string().contains("a device may still touch the memory"), "{error}");
    assert_eq!((region.state(), table.len()), (RegionState::Blocked, 1));
    drop(keep);
    assert_eq!(region.release().unwrap().into_vec().unwrap(), [7; 64]);
}

#[test]
fn keep_works_while_reserved_active_and_blocked_and_not_once_released() {
    let table = RegionTable::default();
    let reservation = table.reserve(vec![0; 64].into(), Access::REMOTE, Location::Any).unwrap();
    let reserved = kept(reservation.region());
    let region = reservation.commit();
    let active = kept(&region);
    region.block();
    let blocked = kept(&region);
    for keep in [reserved, active, blocked] {
        assert_eq!(region.release().unwrap_err(), ReleaseError::Kept);
        drop(keep);
    }
    region.release().unwrap();
    assert!(region.keep().is_none());
}

/// A keep that counted as a hold would never let a withdrawal come to the revocation that ends it.
#[test]
fn draining_does_not_wait_for_a_keep() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    let _keep = kept(&region);
    let calls = Arc::new(AtomicUsize::new(0));
    region.on_drained({
        let calls = Arc::clone(&calls);
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert_eq!(region.holds(), Default::default());
    region.block();
    assert_eq!(region.wait_drained(Instant::now()), Ok(()));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// Holds are what ends first in a withdrawal, so they are named first.
#[test]
fn held_and_kept_region_names_its_holds_first() {
    let region = served(&RegionTable::default(), vec![0; 64].into());
    let (_keep, hold) = (kept(&region), region.hold(0, 1).unwrap());
    assert_eq!(region.release().unwrap_err(), ReleaseError::NotBlocked);
    region.block();
    assert_eq!(region.release().unwrap_err(), ReleaseError::StillHeld { local: 1, remote: 0 });
    drop(hold);
    assert_eq!(region.release().unwrap_err(), ReleaseError::Kept);
}

#[test]
fn abandoned_region_is_freed_by_the_last_keep() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let region = served(&table, memory);
    let (first, last) = (kept(&region), kept(&region));
    region.abandon();
    drop(first);
    assert_eq!((region.state(), freed.load(Ordering::SeqCst)), (RegionState::Blocked, false));
    drop(last);
    assert_eq!((region.state(), freed.load(Ordering::SeqCst)), (RegionState::Released, true));
    assert!(table.is_empty());
}

#[test]
fn abandoned_region_waits_for_holds_and_keeps_in_either_order() {
    for hold_first in [false, true] {
        let (memory, freed) = watched(64);
        let region = served(&RegionTable::default(), memory);
        let (keep, hold) = (kept(&region), region.hold(0, 1).unwrap());
        region.abandon();
        if hold_first {
            drop(hold);
            assert!(!freed.load(Ordering::SeqCst));
            drop(keep);
        } else {
            drop(keep);
            assert!(!freed.load(Ordering::SeqCst));
            drop(hold);
        }
        assert!(freed.load(Ordering::SeqCst));
    }
}

/// Only who abandons a region gives its memory up; after a failed release it is still somebody's.
#[test]
fn last_keep_frees_nothing_that_was_not_abandoned() {
    let (memory, freed) = watched(64);
    let region = served(&RegionTable::default(), memory);
    let keep = kept(&region);
    region.block();
    region.release().unwrap_err();
    drop(keep);
    assert_eq!((region.state(), freed.load(Ordering::SeqCst)), (RegionState::Blocked, false));
    region.release().unwrap();
}

/// MR-10: handles and the table do not keep the memory, a keep does.
#[test]
fn memory_outlives_handles_and_table_while_it_is_kept() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let keep = kept(&served(&table, memory));
    drop(table);
    assert!(!freed.load(Ordering::SeqCst));
    drop(keep);
    assert!(freed.load(Ordering::SeqCst));
}

/// MR-10
#[test]
fn forgotten_keep_leaks_memory_and_nothing_else() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let region = served(&table, memory);
    mem::forget(kept(&region));
    drop(kept(&region));
    region.abandon();
    assert_eq!(region.release().unwrap_err(), ReleaseError::Kept);
    drop((region, table));
    assert!(!freed.load(Ordering::SeqCst));
}

/// Keeps come and go on several threads until the release; whoever has one finds the region unreleased.
#[test]
fn nobody_has_a_keep_of_a_released_region() {
    let rounds = if cfg!(miri) { 2 } else { 50 };
    for _ in 0..rounds {
        let (memory, freed) = watched(64);
        let region = served(&RegionTable::default(), memory);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(keep) = region.keep() {
                        assert_ne!(keep.region().state(), RegionState::Released);
                        assert!(!freed.load(Ordering::SeqCst));
                    }
                });
            }
            region.block();
            while let Err(error) = region.release() {
                assert_eq!(error, ReleaseError::Kept);
                thread::yield_now();
            }
        });
        assert!(freed.load(Ordering::SeqCst));
    }
}
