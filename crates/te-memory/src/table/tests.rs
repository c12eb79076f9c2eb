use std::{
    sync::{Barrier, atomic::Ordering},
    thread,
};

use super::*;
use crate::{
    region::RegionState,
    testing::{Arena, served, watched},
};

fn reserve_error(table: &RegionTable, memory: Memory) -> RegisterError {
    table.reserve(memory, Access::REMOTE, Location::Any).unwrap_err().error
}

#[test]
fn empty_memory_is_refused_as_empty_and_comes_back() {
    let table = RegionTable::default();
    let rejected = table.reserve(Memory::from_vec(Vec::new()), Access::LOCAL, Location::Any).unwrap_err();
    assert!(matches!(rejected.error, RegisterError::Empty { .. }));
    assert_eq!(rejected.memory.into_vec().unwrap(), Vec::<u8>::new());
}

#[test]
fn null_memory_is_refused_as_null() {
    // SAFETY: null is allowed and is never accessed.
    let memory = unsafe { Memory::from_raw_ptr(std::ptr::null_mut(), 4096, Box::new(())) };
    assert_eq!(reserve_error(&RegionTable::default(), memory), RegisterError::Null { len: 4096 });
}

/// SEC-02
#[test]
fn memory_that_wraps_is_refused_as_wrapping() {
    let ptr = std::ptr::without_provenance_mut(usize::MAX - 100);
    // SAFETY: the range cannot be registered, so it is never accessed.
    let memory = unsafe { Memory::from_raw_ptr(ptr, 4096, Box::new(())) };
    let error = reserve_error(&RegionTable::default(), memory);
    assert_eq!(error, RegisterError::Wraps { address: u64::MAX - 100, len: 4096 });
}

/// The hole is a single page, too small for what other threads of the test program map meanwhile.
#[cfg(not(miri))]
#[test]
fn raw_memory_with_a_hole_is_refused_as_unmapped() {
    let page = crate::memory::page_size();
    let mut map = memmap2::MmapMut::map_anon(3 * page).unwrap();
    let start = map.as_mut_ptr();
    let table = RegionTable::default();
    let reserve = |offset: usize, len: usize| {
        // SAFETY: only registered, never accessed.
        let memory = unsafe { Memory::from_raw_ptr(start.wrapping_add(offset), len, Box::new(())) };
        table.reserve(memory, Access::LOCAL, Location::Any).map(drop).map_err(|rejected| rejected.error)
    };
    assert_eq!(reserve(1, 3 * page - 1), Ok(()));
    // The mapping does not unmap the hole again, when it may be somebody else's.
    std::mem::forget(map);
    // SAFETY: the page is part of our mapping, which nobody accesses any more.
    unsafe { rustix::mm::munmap(start.wrapping_add(page).cast(), page) }.unwrap();
    assert_eq!(reserve(1, page - 1), Ok(()));
    assert_eq!(reserve(2 * page, page), Ok(()));
    for (offset, len) in [(1, page), (0, 3 * page), (page, 1), (2 * page - 1, 2)] {
        assert!(matches!(reserve(offset, len), Err(RegisterError::Unmapped { .. })), "{offset} + {len}");
    }
}

#[cfg(not(miri))]
#[test]
fn raw_memory_at_an_address_that_no_process_has_is_refused_as_unmapped() {
    for address in [4096_usize, 0xdead_0000_0000_0000, usize::MAX - 5000] {
        // SAFETY: the range cannot be registered, so it is never accessed.
        let memory =
            unsafe { Memory::from_raw_ptr(std::ptr::without_provenance_mut(address), 9, Box::new(())) };
        assert!(matches!(reserve_error(&RegionTable::default(), memory), RegisterError::Unmapped { .. }));
    }
}

/// MR-13: crossing, nested, containing and identical ranges are refused and name what was there first.
#[test]
fn every_kind_of_overlap_is_refused_with_the_existing_range() {
    let (arena, table) = (Arena::new(1000), RegionTable::default());
    let existing = served(&table, arena.part(400, 200)).range();
    for (offset, len) in [(300, 101), (599, 100), (450, 10), (100, 800), (400, 200), (400, 1), (599, 1)] {
        let memory = arena.part(offset, len);
        let range = memory.range().unwrap();
        assert_eq!(reserve_error(&table, memory), RegisterError::Overlaps { range, existing });
    }
    assert_eq!(table.len(), 1);
}

/// MR-13
#[test]
fn adjacent_ranges_are_two_regions() {
    let (arena, table) = (Arena::new(300), RegionTable::default());
    let regions = [(100, 100), (200, 100), (0, 100)].map(|(at, len)| served(&table, arena.part(at, len)));
    assert_eq!(table.regions(), [regions[2].clone(), regions[0].clone(), regions[1].clone()]);
}

/// MR-13: the loser of a race gets the winner's range and its memory back.
#[test]
fn of_racing_overlapping_reservations_exactly_one_wins() {
    const THREADS: usize = 8;
    let rounds = if cfg!(miri) { 3 } else { 200 };
    let (arena, table) = (Arena::new(1000), RegionTable::default());
    for _ in 0..rounds {
        let barrier = Barrier::new(THREADS);
        let results: Vec<_> = thread::scope(|scope| {
            let race = |i: usize| {
                let (memory, table, barrier) = (arena.part(i * 10, 500), &table, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    table.reserve(memory, Access::REMOTE, Location::Any)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(race).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
        assert_eq!(winners.len(), 1);
        let winner = winners[0].region().range();
        for lost in results.iter().filter_map(|result| result.as_ref().err()) {
            let range = lost.memory.range().unwrap();
            assert_eq!(lost.error, RegisterError::Overlaps { range, existing: winner });
        }
        drop(results);
        assert!(table.is_empty());
    }
}

#[test]
fn reservations_count_against_the_limit_until_they_end() {
    let (arena, table) = (Arena::new(30), RegionTable::new(2));
    let first = table.reserve(arena.part(0, 10), Access::LOCAL, Location::Any).unwrap();
    served(&table, arena.part(10, 10));
    assert_eq!(reserve_error(&table, arena.part(20, 10)), RegisterError::LimitReached { limit: 2 });
    first.abort().unwrap();
    served(&table, arena.part(20, 10));
}

#[test]
fn generation_is_new_when_a_range_is_registered_again() {
    let (arena, table) = (Arena::new(10), RegionTable::default());
    let mut last = None;
    for _ in 0..5 {
        let reservation = table.reserve(arena.part(0, 10), Access::LOCAL, Location::Any).unwrap();
        let generation = reservation.region().generation();
        assert!(last < Some(generation));
        last = Some(generation);
        reservation.abort().unwrap();
    }
}

#[test]
fn reserved_region_is_usable_here_and_invisible_to_peers() {
    let table = RegionTable::default();
    let reservation = table.reserve(Memory::from_vec(vec![0; 8]), Access::REMOTE, Location::Any).unwrap();
    let region = reservation.region().clone();
    region.write_at(0, b"local").unwrap();
    assert_eq!(region.state(), RegionState::Reserved);
    let remote = || table.remote(region.range().start(), 5, RemoteOp::Read);
    assert_eq!(remote().unwrap_err(), Refusal::OutsideAnyRegion);
    assert!(table.regions().is_empty());
    reservation.commit();
    assert_eq!(region.state(), RegionState::Active);
    let mut bytes = [0; 5];
    remote().unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"local");
}

#[test]
fn dropped_reservation_frees_range_and_memory() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    drop(table.reserve(memory, Access::REMOTE, Location::Any).unwrap());
    assert!(table.is_empty());
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn aborted_reservation_returns_the_memory() {
    let table = RegionTable::default();
    let reservation = table.reserve(vec![7; 16].into(), Access::REMOTE, Location::Any).unwrap();
    let region = reservation.region().clone();
    assert_eq!(reservation.abort().unwrap().into_vec().unwrap(), [7; 16]);
    assert_eq!(region.state(), RegionState::Released);
    assert_eq!(region.hold(0, 1).unwrap_err(), Refusal::Withdrawn);
}

/// The range stays taken while the memory is in use, so nobody can register it in between.
#[test]
fn reservation_aborted_while_held_ends_with_the_last_hold() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let reservation = table.reserve(memory, Access::REMOTE, Location::Any).unwrap();
    let hold = reservation.region().hold(0, 8).unwrap();
    assert_eq!(reservation.abort().unwrap_err(), ReleaseError::StillHeld { local: 1, remote: 0 });
    assert_eq!(table.len(), 1);
    hold.write_at(0, b"in place").unwrap();
    assert!(!freed.load(Ordering::SeqCst));
    drop(hold);
    assert!(table.is_empty());
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn reservation_aborted_while_kept_ends_with_the_last_keep() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let reservation = table.reserve(memory, Access::REMOTE, Location::Any).unwrap();
    let keep = reservation.region().keep().unwrap();
    assert_eq!(reservation.abort().unwrap_err(), ReleaseError::Kept);
    assert_eq!((table.len(), freed.load(Ordering::SeqCst)), (1, false));
    drop(keep);
    assert_eq!((table.len(), freed.load(Ordering::SeqCst)), (0, true));
}

/// MR-07
#[test]
fn local_only_region_refuses_peers_and_serves_this_process() {
    let table = RegionTable::default();
    let region = table.reserve(vec![0; 64].into(), Access::LOCAL, Location::Any).unwrap().commit();
    for op in [RemoteOp::Read, RemoteOp::Write] {
        let refusal = table.remote(region.range().start(), 64, op).unwrap_err();
        assert_eq!(refusal, Refusal::PermissionDenied);
    }
    region.fill(1).unwrap();
}

/// MR-07
#[test]
fn each_operation_needs_its_own_permission() {
    use Access as A;
    use RemoteOp::{Read, Write};
    for (access, op, allowed) in [
        (A::REMOTE_READ, Read, true),
        (A::REMOTE_READ, Write, false),
        (A::REMOTE_WRITE, Read, false),
        (A::REMOTE_WRITE, Write, true),
        (A::REMOTE, Read, true),
        (A::REMOTE, Write, true),
    ] {
        let table = RegionTable::default();
        let region = table.reserve(vec![0; 8].into(), access, Location::Any).unwrap().commit();
        let result = table.remote(region.range().start(), 8, op).map(drop);
        assert_eq!(result, if allowed { Ok(()) } else { Err(Refusal::PermissionDenied) });
    }
}

/// A transport that confuses the operations cannot write through what was checked for reading.
#[test]
fn hold_for_a_remote_read_refuses_to_write() {
    let table = RegionTable::default();
    let region = served(&table, vec![0; 8].into());
    let start = region.range().start();
    let read = table.remote(start, 8, RemoteOp::Read).unwrap();
    assert_eq!(read.write_at(0, b"x"), Err(Refusal::PermissionDenied));
    assert_eq!(read.fill(1), Err(Refusal::PermissionDenied));
    let write = table.remote(start, 8, RemoteOp::Write).unwrap();
    assert_eq!(crate::copy_between(&read, &write), Err(crate::CopyError::PermissionDenied));
    assert_eq!(crate::copy_between(&write, &read), Ok(()));
}

#[test]
fn remote_range_over_two_adjacent_regions_is_refused_as_crossing() {
    let (arena, table) = (Arena::new(200), RegionTable::default());
    served(&table, arena.part(0, 100));
    served(&table, arena.part(100, 100));
    let result = table.remote(arena.base() + 90, 20, RemoteOp::Read);
    assert_eq!(result.unwrap_err(), Refusal::CrossesRegions);
}

/// SEC-02: extremes of address and length are refused, never wrapped.
#[test]
fn extreme_ranges_never_wrap() {
    let table = RegionTable::default();
    let region = served(&table, Memory::allocate(4096).unwrap());
    let (start, end) = (region.range().start(), region.range().end());
    let edges =
        [0, 1, 2, 4095, 4096, 4097, 1 << 31, 1 << 32, 1 << 63, u64::MAX - 4096, u64::MAX - 1, u64::MAX];
    let near = [start - 1, start, start + 1, end - 1, end, end + 1, 0_u64.wrapping_sub(start)];
    let values: Vec<u64> = edges.into_iter().chain(near).collect();
    for &addr in &values {
        for &len in &values {
            let sum = u128::from(addr) + u128::from(len);
            let inside = len > 0 && addr >= start && sum <= u128::from(end);
            let result = table.remote(addr, len, RemoteOp::Write);
            assert_eq!(result.is_ok(), inside, "{addr:#x} + {len:#x}");
            match result {
                _ if len == 0 => assert_eq!(result.unwrap_err(), Refusal::EmptyRange),
                _ if sum > u128::from(u64::MAX) => {
                    assert!(matches!(result.unwrap_err(), Refusal::Wraps | Refusal::OutsideAnyRegion))
                }
                _ => {}
            }
            // The local way in has the same arithmetic, relative to the region.
            let inside = len > 0 && u128::from(addr) + u128::from(len) <= 4096;
            assert_eq!(region.hold(addr, len).is_ok(), inside, "{addr:#x} + {len:#x}");
        }
    }
    assert_eq!(region.holds(), Default::default());
}

#[test]
fn find_gives_the_region_that_contains_the_range() {
    let (arena, table) = (Arena::new(200), RegionTable::default());
    let first = served(&table, arena.part(0, 100));
    served(&table, arena.part(100, 100));
    let range = |at, len| AddressRange::new(arena.base() + at, len).unwrap();
    assert_eq!(table.find(&range(10, 90)), Some(first));
    assert_eq!(table.find(&range(10, 91)), None);
}

#[test]
fn memory_outlives_the_table_while_it_is_held() {
    let table = RegionTable::default();
    let (memory, freed) = watched(64);
    let hold = served(&table, memory).hold(0, 64).unwrap();
    drop(table);
    hold.fill(1).unwrap();
    assert!(!freed.load(Ordering::SeqCst));
    drop(hold);
    assert!(freed.load(Ordering::SeqCst));
}

#[test]
fn errors_are_one_lower_case_line() {
    let existing = AddressRange::new(0x1000, 16).unwrap();
    let text = RegisterError::Overlaps { range: existing, existing }.to_string();
    assert_eq!(text, format!("range {existing} overlaps the registered range {existing}"));
    assert_eq!(ReleaseError::StillHeld { local: 1, remote: 2 }.to_string(), "still held: 1 local, 2 remote");
}

/// META-02, SEG-01
#[test]
fn a_later_registration_is_not_reached_by_the_generation_of_an_earlier_one() {
    let (arena, table) = (Arena::new(4096), RegionTable::default());
    let first = served(&table, arena.part(0, 1000));
    let (start, earlier) = (first.range().start(), first.generation());
    assert!(table.remote_of(start, 1000, RemoteOp::Write, earlier).is_ok());
    first.block();
    let while_blocked = table.remote_of(start, 1000, RemoteOp::Write, earlier);
    assert_eq!(while_blocked.unwrap_err(), Refusal::Withdrawn);
    drop(first.release().unwrap());
    assert_eq!(table.remote_of(start, 1, RemoteOp::Read, earlier).unwrap_err(), Refusal::Gone);

    let second = served(&table, arena.part(0, 2000));
    for op in [RemoteOp::Read, RemoteOp::Write] {
        assert_eq!(table.remote_of(start, 1000, op, earlier).unwrap_err(), Refusal::Gone);
        assert!(table.remote_of(start, 2000, op, second.generation()).is_ok());
    }
    let never = Generation::new(u64::MAX);
    assert_eq!(table.remote_of(start, 1, RemoteOp::Read, never).unwrap_err(), Refusal::Gone);
}

#[test]
fn a_range_beside_a_registration_that_lives_is_outside_and_not_gone() {
    let (arena, table) = (Arena::new(4096), RegionTable::default());
    let region = served(&table, arena.part(100, 1000));
    let (range, of) = (region.range(), region.generation());
    for (addr, len) in [(range.start() - 1, 1), (range.end(), 1), (range.end() - 1, 2)] {
        assert_eq!(table.remote_of(addr, len, RemoteOp::Read, of).unwrap_err(), Refusal::OutsideAnyRegion);
    }
    let local = table.reserve(arena.part(2000, 100), Access::LOCAL, Location::Any).unwrap().commit();
    let refused = table.remote_of(local.range().start(), 100, RemoteOp::Read, local.generation());
    assert_eq!(refused.unwrap_err(), Refusal::PermissionDenied);
}
