//! Models of counting a batch down: every interleaving of slices that end, a request that goes on, and whoever gives its
//! first attempt up.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p te-transport --test loom`
#![cfg(loom)]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "sources of the crate, included for the model")]

#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/tally.rs"]
mod tally;

use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use tally::{Opened, Share, SliceEnd, Tally};

const NONE: usize = 0;
const DONE: usize = 1;
const FAILED: usize = 2;

/// A batch of one request, as the engine has it: outcomes that are set once, a share under a lock.
struct Batch {
    slots: Vec<AtomicUsize>,
    tally: Tally,
    share: Mutex<Option<Share>>,
    /// Whether the first failure is not the end.
    goes_on: bool,
    ended: AtomicUsize,
    failed_at_the_end: AtomicUsize,
}

impl Batch {
    fn new(slices: usize, goes_on: bool) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..slices).map(|_| AtomicUsize::new(NONE)).collect(),
            tally: Tally::new(slices),
            share: Mutex::new(None),
            goes_on,
            ended: AtomicUsize::new(0),
            failed_at_the_end: AtomicUsize::new(0),
        })
    }

    fn end(&self) {
        assert_eq!(self.tally.left(), 0);
        assert!(self.slots.iter().all(|slot| slot.load(Ordering::Acquire) != NONE), "a slice is under way");
        self.failed_at_the_end.store(usize::from(self.tally.has_failed()), Ordering::Relaxed);
        assert_eq!(self.ended.fetch_add(1, Ordering::AcqRel), 0, "the batch ended twice");
    }

    fn complete(&self, slice: usize, outcome: usize) {
        self.slots[slice].store(outcome, Ordering::Release);
        let SliceEnd { last, review } = if outcome == DONE {
            self.tally.slice_done()
        } else {
            let opened = if self.goes_on {
                self.share.lock().unwrap().get_or_insert_with(Share::default).open()
            } else {
                Opened::Final
            };
            self.tally.slice_failed(opened)
        };
        if review {
            self.review();
        }
        if last {
            self.end();
        }
    }

    /// The first attempt is given up from outside: its slices are about to end.
    fn give_up(&self) {
        self.share.lock().unwrap().get_or_insert_with(Share::default);
        self.tally.mark_broken();
        self.review();
    }

    /// The attempt is the only one: its end is the end of the request.
    fn review(&self) {
        let (over, failed) = {
            let mut share = self.share.lock().unwrap();
            let Some(share) = share.as_mut() else { return };
            let all = || {
                let slots: Vec<_> = self.slots.iter().map(|slot| slot.load(Ordering::Acquire)).collect();
                (!slots.contains(&NONE)).then(|| slots.contains(&FAILED))
            };
            let Some(failed) = share.judge(all) else { return };
            (share.finish(failed), failed)
        };
        if self.tally.requests_over(over, failed) {
            self.end();
        }
    }

    fn check(&self, failed: bool) {
        assert_eq!(self.ended.load(Ordering::Acquire), 1, "the batch never ended");
        assert_eq!(self.failed_at_the_end.load(Ordering::Relaxed), usize::from(failed));
    }
}

/// All threads at once, the last of them this one.
fn model(goes_on: bool, outcomes: &'static [usize], given_up: bool) {
    let mut model = loom::model::Builder::new();
    if outcomes.len() + usize::from(given_up) > 2 {
        // Three threads: all of the interleavings would take hours.
        model.preemption_bound = Some(2);
    }
    model.check(move || {
        let batch = Batch::new(outcomes.len(), goes_on);
        let mut threads = Vec::new();
        for (slice, outcome) in outcomes.iter().enumerate().skip(1) {
            let batch = batch.clone();
            threads.push(thread::spawn(move || batch.complete(slice, *outcome)));
        }
        if given_up {
            let batch = batch.clone();
            threads.push(thread::spawn(move || batch.give_up()));
        }
        batch.complete(0, outcomes[0]);
        for thread in threads {
            thread.join().unwrap();
        }
        batch.check(outcomes.contains(&FAILED));
    });
}

#[test]
fn batch_ends_once_whatever_its_slices_do() {
    model(false, &[DONE, DONE], false);
    model(false, &[FAILED, DONE], false);
    model(false, &[FAILED, FAILED], false);
}

#[test]
fn request_that_may_go_on_is_counted_once() {
    model(true, &[FAILED, DONE], false);
    model(true, &[FAILED, FAILED], false);
    model(true, &[FAILED, DONE, DONE], false);
}

/// The end of an attempt can be found in the outcomes before its last slice is counted.
#[test]
fn attempt_that_is_given_up_ends_the_batch_once() {
    model(true, &[DONE, DONE], true);
    model(true, &[FAILED, DONE], true);
    model(true, &[FAILED, FAILED], true);
}
