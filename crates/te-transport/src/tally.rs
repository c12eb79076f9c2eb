//! Counting a batch down: every slice and every request that goes on after its first attempt, each exactly once.
//!
//! A batch has ended when nothing of it is left. A slice counts until it has ended. A request whose first attempt failed
//! and that may go on takes over the count of one of its slices, and gives it back when it is over. Slices end on any
//! thread, while others look whether an attempt has ended; [`Share`] is under a lock of the batch, [`Tally`] is not.

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// What is left of a batch, and whether any of it has failed.
#[derive(Debug)]
pub struct Tally {
    /// Slices that have not ended, and one for each request that ended its first attempt but goes on.
    left: AtomicUsize,
    failed: AtomicBool,
    /// Some request may go on after its first attempt.
    broken: AtomicBool,
}

/// What follows from the end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a batch whose last slice has ended must be told"]
pub struct SliceEnd {
    /// Nothing of the batch is left: this is said once.
    pub last: bool,
    /// Look whether the first attempt of the slice's request has ended.
    pub review: bool,
}

/// What became of the request of a failed slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It cannot go on.
    Final,
    /// It may go on, as of now: it takes over the count of the slice.
    Now,
    /// It may go on, as was known before: it has a count.
    Before,
    /// It is over: its end was found in the outcomes before this slice was counted.
    Over {
        /// Whether it failed; whoever found its end may not have said so yet.
        failed: bool,
    },
}

impl Tally {
    /// Nothing has ended.
    #[must_use]
    pub fn new(slices: usize) -> Self {
        Self {
            left: AtomicUsize::new(slices),
            failed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    /// What is left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Whether anything has failed for good.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Something has failed for good. Whoever says so after the last count has been given back is too late for whom that
    /// was told to.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// From now on the end of a slice may be the end of an attempt. Who calls this looks at the outcomes afterwards: either
    /// it sees the outcome of a slice, or the one who ends that slice sees this mark.
    pub fn mark_broken(&self) {
        self.broken.store(true, Ordering::Release);
        // Ordered with the counting of slices.
        self.left.fetch_add(0, Ordering::AcqRel);
    }

    /// Whether some request may have gone on after its first attempt.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// A slice, whose outcome is noted, is done.
    pub fn slice_done(&self) -> SliceEnd {
        let last = self.give_back(1);
        SliceEnd { last, review: self.broken.load(Ordering::Acquire) }
    }

    /// A slice, whose outcome is noted, has failed, and its request is [opened](Share::open).
    pub fn slice_failed(&self, opened: Opened) -> SliceEnd {
        if matches!(opened, Opened::Final | Opened::Over { failed: true }) {
            self.fail();
        }
        let goes_on = matches!(opened, Opened::Now | Opened::Before);
        if goes_on {
            self.mark_broken();
        }
        // Even behind a count of the request's own it can be the last: the end of the request may be found, and that count
        // given back, before this.
        let last = opened != Opened::Now && self.give_back(1);
        SliceEnd { last, review: goes_on && !last }
    }

    /// So many requests that went on after their first attempt are over; whether nothing of the batch is left.
    #[must_use = "a batch whose last request is over must be told"]
    pub fn requests_over(&self, count: usize, failed: bool) -> bool {
        if failed {
            self.fail();
        }
        count > 0 && self.give_back(count)
    }

    fn give_back(&self, count: usize) -> bool {
        self.left.fetch_sub(count, Ordering::AcqRel) == count
    }
}

/// The share that a request which may go on has in the count. It changes under a lock of the batch.
#[derive(Debug, Default)]
pub struct Share {
    counted: bool,
    judged: bool,
    over: Option<bool>,
}

impl Share {
    /// A slice of the first attempt has failed.
    pub fn open(&mut self) -> Opened {
        match self.over {
            Some(failed) if !self.counted => Opened::Over { failed },
            _ if std::mem::replace(&mut self.counted, true) => Opened::Before,
            _ => Opened::Now,
        }
    }

    /// Takes the end of the first attempt, once, if all of its slices have one.
    pub fn judge<T>(&mut self, end: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.judged {
            return None;
        }
        let end = end()?;
        self.judged = true;
        Some(end)
    }

    /// The request is over. Returns what it gives back.
    pub fn finish(&mut self, failed: bool) -> usize {
        self.over = Some(failed);
        usize::from(self.counted)
    }

    /// Whether it has taken over a count.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// Whether the first attempt has been judged.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.judged
    }
}
