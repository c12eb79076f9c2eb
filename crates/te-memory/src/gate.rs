//! The gate of a region: who may enter, how many are inside, and what happens when the last one leaves.
//!
//! Everything that decides is in one 64-bit word, so a decision can never be based on two different moments:
//!
//! ```text
//!   bit 63     62       61 60       59 .. 30          29 .. 0
//!   released | blocked | active | - | remote holds | local holds
//!
//!   reserved --commit--> active --block--> blocked --(holds = 0)--> drained --try_release--> released
//!       \________________block________________/
//! ```
//!
//! `blocked` never goes away, and once it is set a count can only grow from a hold that is already inside. So
//! *drained* (blocked and no holds) is final.

use std::time::Instant;

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};

const COUNT_BITS: u32 = 30;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const COUNTS: u64 = COUNT_MASK | (COUNT_MASK << COUNT_BITS);
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

pub(crate) struct Gate {
    word: AtomicU64,
    /// Called once when the gate is drained. The lock also orders waiters against the notification.
    callbacks: Mutex<Vec<Callback>>,
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
        Self { word: AtomicU64::new(0), callbacks: Mutex::new(Vec::new()), drained: Condvar::new() }
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
            let mut callbacks = self.callbacks.lock();
            self.drained.notify_all();
            std::mem::take(&mut *callbacks)
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
        let mut callbacks = self.callbacks.lock();
        let mut timed_out = false;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if is_drained(word) {
                return Ok(());
            }
            if timed_out {
                return Err(counts(word));
            }
            timed_out = self.drained.wait_until(&mut callbacks, deadline).timed_out();
        }
    }

    /// Calls `callback` once when the gate is drained: now, or on the thread that completes the draining.
    pub(crate) fn on_drained(&self, callback: Callback) {
        let mut callbacks = self.callbacks.lock();
        if is_drained(self.word.load(Ordering::Acquire)) {
            drop(callbacks);
            callback();
        } else {
            callbacks.push(callback);
        }
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
