//! The gate of a region: who may enter, how many are inside, and what happens when the last one leaves.
//!
//! Everything that decides is in one 64-bit word, so a decision can never be based on two different moments:
//!
//! ```text
//!   bit 63     62        61       60     59 .. 30       29 .. 0
//!   released | blocked | active | kept | remote holds | local holds
//!
//!   reserved --commit--> active --block--> blocked --(holds = 0)--> drained --try_release--> released
//!       \________________block________________/                        unless kept
//! ```
//!
//! `blocked` never goes away, and once it is set a count can only grow from a hold that is already inside. So
//! *drained* (blocked and no holds) is final.
//!
//! *Kept* is for devices, which nobody can count while they use the memory. It has no part in draining, because a
//! device is told to stop only after that. It comes and goes until the release, and only one of the two can win:
//! `keep` sets the bit if the region is not released, `try_release` releases if the bit is not set, each in one exchange of
//! the word. How many keeps there are is counted beside the word, and the bit changes with that count under its lock.

use std::time::Instant;

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};

const COUNT_BITS: u32 = 30;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const COUNTS: u64 = COUNT_MASK | (COUNT_MASK << COUNT_BITS);
const KEPT: u64 = 1 << 60;
const ACTIVE: u64 = 1 << 61;
const BLOCKED: u64 = 1 << 62;
const RELEASED: u64 = 1 << 63;

/// Which of the two counts a hold belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Remote,
}

impl Side {
    const fn shift(self) -> u32 {
        match self {
            Self::Local => 0,
            Self::Remote => COUNT_BITS,
        }
    }

    const fn unit(self) -> u64 {
        1 << self.shift()
    }

    const fn count(self, word: u64) -> u64 {
        (word >> self.shift()) & COUNT_MASK
    }
}

/// Why nobody may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Reserved only: remote requests do not see it yet.
    NotActive,
    /// Blocked or released.
    Blocked,
    /// The count has reached its limit.
    Full,
}

/// Why the memory cannot be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleasable {
    NotBlocked,
    Held { local: u32, remote: u32 },
    Kept,
    Released,
}

/// The phase a region is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Reserved,
    Active,
    Blocked,
    Released,
}

type Callback = Box<dyn FnOnce() + Send>;

/// What is beside the word, under one lock. Holding and releasing go without it.
#[derive(Default)]
struct Beside {
    /// Called once when the gate is drained. The lock also orders waiters against the notification.
    callbacks: Vec<Callback>,
    /// `KEPT` is set while this is not 0. Both change under the lock alone.
    keeps: u64,
    /// Whether the last keep to go has to release, because who gave the region up found it kept.
    abandoned: bool,
}

pub(crate) struct Gate {
    word: AtomicU64,
    beside: Mutex<Beside>,
    drained: Condvar,
}

const fn is_drained(word: u64) -> bool {
    word & BLOCKED != 0 && word & COUNTS == 0
}

/// The counts have 30 bits, so the conversion loses nothing.
fn counts(word: u64) -> (u32, u32) {
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    (narrow(Side::Local.count(word)), narrow(Side::Remote.count(word)))
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), beside: Mutex::new(Beside::default()), drained: Condvar::new() }
    }

    /// Makes the region visible to remote requests, unless it has been blocked before.
    pub(crate) fn activate(&self) {
        self.word.fetch_or(ACTIVE, Ordering::AcqRel);
    }

    /// Counts one more hold.
    pub(crate) fn enter(&self, side: Side) -> Result<(), Closed> {
        self.add(side, |word| {
            if word & (BLOCKED | RELEASED) != 0 {
                Err(Closed::Blocked)
            } else if side == Side::Remote && word & ACTIVE == 0 {
                Err(Closed::NotActive)
            } else {
                Ok(())
            }
        })
    }

    /// Counts one more hold on behalf of one that is inside and stays inside during the call. Works while blocked.
    pub(crate) fn enter_again(&self, side: Side) -> Result<(), Closed> {
        self.add(side, |_| Ok(()))
    }

    fn add(&self, side: Side, allowed: impl Fn(u64) -> Result<(), Closed>) -> Result<(), Closed> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            allowed(word)?;
            if side.count(word) == COUNT_MASK {
                return Err(Closed::Full);
            }
            // Acquire pairs with `activate`. A failed exchange only gives a newer word to judge.
            match self.word.compare_exchange_weak(
                word,
                word + side.unit(),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(newer) => word = newer,
            }
        }
    }

    /// Uncounts one hold; the caller has entered before and touches the memory no more.
    pub(crate) fn leave(&self, side: Side) {
        // Release: everything the holder did to the memory happens before the release of the region, which acquires
        // the word. Later decrements are read-modify-writes, so they continue the release sequence.
        let before = self.word.fetch_sub(side.unit(), Ordering::AcqRel);
        debug_assert!(side.count(before) > 0, "left a gate that was not entered");
        if is_drained(before - side.unit()) {
            self.notify();
        }
    }

    /// Refuses everybody from now on. Idempotent.
    pub(crate) fn block(&self) {
        let before = self.word.fetch_or(BLOCKED, Ordering::AcqRel);
        if before & BLOCKED == 0 && is_drained(before | BLOCKED) {
            self.notify();
        }
    }

    /// Wakes everybody who waits for the drained state, which has been reached.
    ///
    /// No wake-up is lost: who waits or adds a callback looks at the word under the lock. If it is not yet drained
    /// then, the lock is taken here only after the waiter sleeps or the callback is in the list.
    fn notify(&self) {
        let callbacks = {
            let mut beside = self.beside.lock();
            self.drained.notify_all();
            std::mem::take(&mut beside.callbacks)
        };
        for callback in callbacks {
            callback();
        }
    }

    /// Waits until the gate is blocked and nobody is inside; the counts at the deadline if that does not happen.
    pub(crate) fn wait_drained(&self, deadline: Instant) -> Result<(), (u32, u32)> {
        if is_drained(self.word.load(Ordering::Acquire)) {
            return Ok(());
        }
        let mut beside = self.beside.lock();
        let mut timed_out = false;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if is_drained(word) {
                return Ok(());
            }
            if timed_out {
                return Err(counts(word));
            }
            timed_out = self.drained.wait_until(&mut beside, deadline).timed_out();
        }
    }

    /// Calls `callback` once when the gate is drained: now, or on the thread that completes the draining.
    pub(crate) fn on_drained(&self, callback: Callback) {
        let mut beside = self.beside.lock();
        if is_drained(self.word.load(Ordering::Acquire)) {
            drop(beside);
            callback();
        } else {
            beside.callbacks.push(callback);
        }
    }

    /// Counts one more keep, whatever the phase; false once the region is released.
    pub(crate) fn keep(&self) -> bool {
        let mut beside = self.beside.lock();
        let mut word = self.word.load(Ordering::Relaxed);
        // With the bit set, by a keep that is there, the region cannot have been released.
        while word & KEPT == 0 {
            if word & RELEASED != 0 {
                return false;
            }
            match self.word.compare_exchange_weak(word, word | KEPT, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        beside.keeps += 1;
        true
    }

    /// Uncounts one keep; no device touches the memory on its account any more. True if that released an abandoned
    /// region: then the caller has to free the memory.
    #[must_use]
    pub(crate) fn unkeep(&self) -> bool {
        let mut beside = self.beside.lock();
        debug_assert!(beside.keeps > 0, "ended a keep that was not counted");
        beside.keeps -= 1;
        if beside.keeps > 0 {
            return false;
        }
        // Release: as in `leave`. What other keeps did happens before, by the lock.
        self.word.fetch_and(!KEPT, Ordering::AcqRel);
        beside.abandoned && self.try_release().is_ok()
    }

    /// Releases a drained gate, or leaves that to the last keep. True if it is done: then the caller has to free the
    /// memory.
    #[must_use]
    pub(crate) fn abandon(&self) -> bool {
        // Under the lock no keep comes or goes, so either the last one is still to go and sees the mark, or none is there.
        let mut beside = self.beside.lock();
        let released = self.try_release();
        beside.abandoned |= released == Err(NotReleasable::Kept);
        released.is_ok()
    }

    /// Ends the life of the region. Succeeds for exactly one caller.
    pub(crate) fn try_release(&self) -> Result<(), NotReleasable> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & RELEASED != 0 {
                return Err(NotReleasable::Released);
            }
            if word & BLOCKED == 0 {
                return Err(NotReleasable::NotBlocked);
            }
            if word & COUNTS != 0 {
                let (local, remote) = counts(word);
                return Err(NotReleasable::Held { local, remote });
            }
            if word & KEPT != 0 {
                return Err(NotReleasable::Kept);
            }
            match self.word.compare_exchange_weak(word, word | RELEASED, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(()),
                Err(newer) => word = newer,
            }
        }
    }

    pub(crate) fn counts(&self) -> (u32, u32) {
        counts(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.word.load(Ordering::Acquire) {
            word if word & RELEASED != 0 => Phase::Released,
            word if word & BLOCKED != 0 => Phase::Blocked,
            word if word & ACTIVE != 0 => Phase::Active,
            _ => Phase::Reserved,
        }
    }

    /// Whether the region has ever been visible to remote requests.
    pub(crate) fn was_active(&self) -> bool {
        self.word.load(Ordering::Acquire) & ACTIVE != 0
    }
}

// The path is spelt out because the model's test includes this file from elsewhere.
#[cfg(all(test, not(loom)))]
#[path = "gate/tests.rs"]
mod tests;
