//! Models of the hold protocol: every interleaving of copying against withdrawing.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p te-transport-shm --test loom`
#![cfg(loom)]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "sources of the crate, included for the model")]

#[path = "../src/hold.rs"]
mod hold;
#[path = "../src/sync.rs"]
mod sync;

use hold::{Barred, Words};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::AtomicU32;

/// The shared words, and the bytes of two buffers. Loom reports accesses to a cell that are not ordered.
struct Page {
    slots: Vec<AtomicU32>,
    revoked: Vec<AtomicU32>,
    closed: AtomicU32,
    bytes: [UnsafeCell<u64>; 2],
}

// SAFETY: the cells are what loom checks accesses to; it panics rather than let two of them race.
unsafe impl Sync for Page {}

impl Words for Page {
    fn slots(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, index: usize) -> &AtomicU32 {
        &self.slots[index]
    }

    fn revoked(&self, buffer: u32) -> &AtomicU32 {
        &self.revoked[buffer as usize]
    }

    fn closed(&self) -> &AtomicU32 {
        &self.closed
    }
}

fn page(slots: usize) -> Arc<Page> {
    let words = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
    let bytes = [UnsafeCell::new(0), UnsafeCell::new(0)];
    Arc::new(Page { slots: words(slots), revoked: words(2), closed: AtomicU32::new(0), bytes })
}

/// Copies once, as an initiator does.
fn copy(page: &Page, start: usize, buffer: u32) -> Result<(), Barred> {
    let mark = hold::mark(page, start, buffer)?;
    page.bytes[buffer as usize].with_mut(|bytes| {
        // SAFETY: loom has checked that no other access is under way.
        unsafe { *bytes += 1 };
    });
    drop(mark);
    Ok(())
}

/// What the owner of a buffer does with it once it is back.
fn use_as_owner(page: &Page, buffer: usize) -> u64 {
    // SAFETY: loom has checked that no other access is under way.
    page.bytes[buffer].with_mut(|bytes| unsafe { *bytes })
}

fn wait(page: &Page, buffer: Option<u32>) {
    while hold::copying(page, buffer) > 0 {
        thread::yield_now();
    }
}

#[test]
fn a_withdrawn_buffer_is_touched_by_nobody() {
    loom::model(|| {
        let page = page(1);
        let initiator = {
            let page = page.clone();
            thread::spawn(move || copy(&page, 0, 0))
        };
        hold::revoke(&*page, 0);
        wait(&page, Some(0));
        let seen = use_as_owner(&page, 0);
        let copied = initiator.join().unwrap();
        assert_eq!(seen, u64::from(copied.is_ok()), "copied after the withdrawal");
        assert!(copied.is_ok() || copied == Err(Barred::Revoked));
        assert_eq!(copy(&page, 0, 0), Err(Barred::Revoked));
        assert_eq!(copy(&page, 0, 1), Ok(()), "another buffer");
    });
}

#[test]
fn two_copies_and_a_withdrawal_of_one_buffer() {
    loom::model(|| {
        let page = page(2);
        let other = {
            let page = page.clone();
            thread::spawn(move || copy(&page, 0, 1))
        };
        let initiator = {
            let page = page.clone();
            thread::spawn(move || copy(&page, 1, 0))
        };
        hold::revoke(&*page, 0);
        wait(&page, Some(0));
        use_as_owner(&page, 0);
        initiator.join().unwrap().ok();
        assert_eq!(other.join().unwrap(), Ok(()), "the other buffer was not withdrawn");
    });
}

#[test]
fn a_closed_connection_touches_nothing() {
    loom::model(|| {
        let page = page(1);
        let initiator = {
            let page = page.clone();
            thread::spawn(move || copy(&page, 0, 1))
        };
        hold::close(&*page);
        wait(&page, None);
        let seen = use_as_owner(&page, 1);
        let copied = initiator.join().unwrap();
        assert_eq!(seen, u64::from(copied.is_ok()));
        assert_eq!(copy(&page, 0, 1), Err(Barred::Closed));
    });
}

/// The number of a buffer serves the next one once the initiator has forgotten the first.
#[test]
fn a_number_is_used_again() {
    loom::model(|| {
        let page = page(1);
        assert_eq!(copy(&page, 0, 0), Ok(()));
        hold::revoke(&*page, 0);
        wait(&page, Some(0));
        hold::renew(&*page, 0);
        let initiator = {
            let page = page.clone();
            thread::spawn(move || copy(&page, 0, 0))
        };
        assert_eq!(initiator.join().unwrap(), Ok(()));
        assert_eq!(use_as_owner(&page, 0), 2);
    });
}

/// A slot that somebody else has marked is not taken.
#[test]
fn a_full_page_is_busy() {
    loom::model(|| {
        let page = page(1);
        let mark = hold::mark(&*page, 0, 0).ok().unwrap();
        assert_eq!(hold::mark(&*page, 0, 1).err(), Some(Barred::Busy));
        drop(mark);
        assert_eq!(copy(&page, 0, 1), Ok(()));
    });
}

/// The model can fail: without the check after the mark, bytes are touched after the withdrawal.
#[test]
#[should_panic]
fn copying_without_the_check_is_found() {
    loom::model(|| {
        let page = page(1);
        let initiator = {
            let page = page.clone();
            thread::spawn(move || {
                page.slots[0].store(1, sync::Ordering::Relaxed);
                page.bytes[0].with_mut(|bytes| {
                    // SAFETY: loom has checked that no other access is under way.
                    unsafe { *bytes += 1 };
                });
                page.slots[0].store(0, sync::Ordering::Release);
            })
        };
        hold::revoke(&*page, 0);
        wait(&page, Some(0));
        use_as_owner(&page, 0);
        initiator.join().unwrap();
    });
}
