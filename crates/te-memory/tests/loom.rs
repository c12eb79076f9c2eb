//! Models of the gate: every interleaving of holding, keeping, blocking, draining and releasing.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p te-memory --test loom`
#![cfg(loom)]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "sources of the crate, included for the model")]

#[path = "../src/gate.rs"]
mod gate;
#[path = "../src/sync.rs"]
mod sync;

use std::time::Instant;

use gate::{Closed, Gate, NotReleasable, Phase, Side};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A gate and the memory it guards. Loom reports every access to the cell that is not ordered after another.
struct Guarded {
    gate: Gate,
    memory: UnsafeCell<u64>,
}

// SAFETY: the cell is what loom checks accesses to; it panics rather than let two of them race.
unsafe impl Sync for Guarded {}

fn guarded() -> Arc<Guarded> {
    let guarded = Guarded { gate: Gate::new(), memory: UnsafeCell::new(0) };
    guarded.gate.activate();
    Arc::new(guarded)
}

/// The memory as its owner sees it after release: exclusive, so any use that is not over is a data race.
fn use_as_owner(guarded: &Guarded) -> u64 {
    // SAFETY: loom checks that the access is exclusive; nothing else depends on it.
    guarded.memory.with_mut(|memory| unsafe {
        *memory += 100;
        *memory
    })
}

fn use_as_holder(guarded: &Guarded) {
    // SAFETY: loom checks that the access is exclusive; the models have one holder that writes.
    guarded.memory.with_mut(|memory| unsafe { *memory += 1 });
}

/// N-02: a hold is either refused, or everything it does happens before the memory is given back: nobody fills a buffer
/// anew while the transfer before still reads it.
#[test]
fn hold_against_block_and_release_never_overlaps_the_owner() {
    loom::model(|| {
        let shared = guarded();
        let holder = thread::spawn({
            let shared = Arc::clone(&shared);
            move || match shared.gate.enter(Side::Remote) {
                Ok(()) => {
                    use_as_holder(&shared);
                    shared.gate.leave(Side::Remote);
                    1
                }
                Err(closed) => {
                    assert_eq!(closed, Closed::Blocked);
                    0
                }
            }
        });
        shared.gate.block();
        // Without a time-out: a lost wake-up is a deadlock, which loom reports.
        shared.gate.wait_drained(Instant::now()).unwrap();
        shared.gate.try_release().unwrap();
        let seen = use_as_owner(&shared);
        assert_eq!(seen, 100 + holder.join().unwrap());
        assert_eq!(shared.gate.enter(Side::Local), Err(Closed::Blocked));
    });
}

/// Releasing without waiting fails while anybody is inside, and gives exclusive memory otherwise.
#[test]
fn release_without_waiting_succeeds_only_when_nobody_is_inside() {
    loom::model(|| {
        let shared = guarded();
        let holder = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if shared.gate.enter(Side::Local).is_ok() {
                    use_as_holder(&shared);
                    shared.gate.leave(Side::Local);
                }
            }
        });
        shared.gate.block();
        match shared.gate.try_release() {
            Ok(()) => {
                use_as_owner(&shared);
            }
            Err(error) => assert_eq!(error, NotReleasable::Held { local: 1, remote: 0 }),
        }
        holder.join().unwrap();
    });
}

/// Of two threads that release, exactly one gets the memory.
#[test]
fn two_releases_give_the_memory_once() {
    loom::model(|| {
        let shared = guarded();
        shared.gate.block();
        let release = |shared: Arc<Guarded>| {
            move || match shared.gate.try_release() {
                Ok(()) => {
                    use_as_owner(&shared);
                    1
                }
                Err(error) => {
                    assert_eq!(error, NotReleasable::Released);
                    0
                }
            }
        };
        let other = thread::spawn(release(Arc::clone(&shared)));
        let ours = release(Arc::clone(&shared))();
        assert_eq!(ours + other.join().unwrap(), 1);
        assert_eq!(shared.gate.phase(), Phase::Released);
    });
}

/// A callback that is added while the gate drains runs exactly once.
#[test]
fn callback_added_during_draining_runs_exactly_once() {
    loom::model(|| {
        let shared = guarded();
        shared.gate.enter(Side::Remote).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let holder = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.gate.leave(Side::Remote)
        });
        let blocker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.gate.block()
        });
        shared.gate.on_drained({
            let (shared, calls) = (Arc::clone(&shared), Arc::clone(&calls));
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
                shared.gate.try_release().unwrap();
            })
        });
        holder.join().unwrap();
        blocker.join().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

/// A part of a hold that outlives the hold keeps the gate from draining, blocked or not.
#[test]
fn slice_of_a_hold_keeps_the_gate_held_after_the_hold_is_gone() {
    loom::model(|| {
        let shared = guarded();
        shared.gate.enter(Side::Local).unwrap();
        let holder = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.gate.enter_again(Side::Local).unwrap();
                shared.gate.leave(Side::Local);
                use_as_holder(&shared);
                shared.gate.leave(Side::Local);
            }
        });
        shared.gate.block();
        if shared.gate.try_release().is_ok() {
            assert_eq!(use_as_owner(&shared), 101);
        }
        holder.join().unwrap();
    });
}

/// A remote hold sees what was prepared before the region was served.
#[test]
fn remote_hold_happens_after_activation() {
    loom::model(|| {
        let shared = Arc::new(Guarded { gate: Gate::new(), memory: UnsafeCell::new(0) });
        let peer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || match shared.gate.enter(Side::Remote) {
                Ok(()) => {
                    use_as_holder(&shared);
                    shared.gate.leave(Side::Remote);
                }
                Err(closed) => assert_eq!(closed, Closed::NotActive),
            }
        });
        use_as_owner(&shared);
        shared.gate.activate();
        peer.join().unwrap();
    });
}

/// A device is either refused, or all it does happens before the memory is given back: keep and release never both
/// succeed, and a release that a keep has refused succeeds after it.
#[test]
fn keep_against_release_never_lets_both_succeed() {
    loom::model(|| {
        let shared = guarded();
        shared.gate.block();
        let keeper = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let kept = shared.gate.keep();
                if kept {
                    use_as_holder(&shared);
                    assert!(!shared.gate.unkeep(), "released without being abandoned");
                }
                kept
            }
        });
        let refused = match shared.gate.try_release() {
            Ok(()) => {
                use_as_owner(&shared);
                false
            }
            Err(error) => {
                assert_eq!(error, NotReleasable::Kept);
                true
            }
        };
        let kept = keeper.join().unwrap();
        assert!(kept || !refused, "refused for nobody");
        if refused {
            shared.gate.try_release().unwrap();
            assert_eq!(use_as_owner(&shared), 101);
        }
        assert!(!shared.gate.keep());
    });
}

/// Of two keeps that begin and end on their own, the first to end does not let the release through.
#[test]
fn release_waits_for_the_last_of_two_keeps() {
    loom::model(|| {
        let shared = guarded();
        shared.gate.block();
        assert!(shared.gate.keep());
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if shared.gate.keep() {
                    use_as_holder(&shared);
                    assert!(!shared.gate.unkeep());
                }
            }
        });
        assert_eq!(shared.gate.try_release(), Err(NotReleasable::Kept));
        assert!(!shared.gate.unkeep());
        if shared.gate.try_release().is_ok() {
            use_as_owner(&shared);
        }
        other.join().unwrap();
    });
}

/// An abandoned region is freed exactly once, by whoever goes last: a hold or a keep.
#[test]
fn abandoned_gate_is_freed_exactly_once_by_whoever_goes_last() {
    loom::model(|| {
        let shared = guarded();
        let frees = Arc::new(AtomicUsize::new(0));
        assert!(shared.gate.keep());
        shared.gate.enter(Side::Remote).unwrap();
        let free = {
            let (shared, frees) = (Arc::clone(&shared), Arc::clone(&frees));
            move |released: bool| {
                if released {
                    frees.fetch_add(1, Ordering::Relaxed);
                    use_as_owner(&shared);
                }
            }
        };
        shared.gate.block();
        shared.gate.on_drained({
            let (shared, free) = (Arc::clone(&shared), free.clone());
            Box::new(move || free(shared.gate.abandon()))
        });
        let holder = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                use_as_holder(&shared);
                shared.gate.leave(Side::Remote);
            }
        });
        free(shared.gate.unkeep());
        holder.join().unwrap();
        assert_eq!((frees.load(Ordering::Relaxed), shared.gate.phase()), (1, Phase::Released));
    });
}

/// One more keep may come while an abandoned gate loses its last one: then that one frees.
#[test]
fn keep_that_comes_late_to_an_abandoned_gate_is_refused_or_frees_it() {
    loom::model(|| {
        let shared = guarded();
        assert!(shared.gate.keep());
        shared.gate.block();
        assert!(!shared.gate.abandon());
        let late = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if !shared.gate.keep() {
                    return 0;
                }
                use_as_holder(&shared);
                let released = shared.gate.unkeep();
                if released {
                    use_as_owner(&shared);
                }
                u32::from(released)
            }
        });
        let ours = shared.gate.unkeep();
        if ours {
            use_as_owner(&shared);
        }
        assert_eq!(u32::from(ours) + late.join().unwrap(), 1);
    });
}
