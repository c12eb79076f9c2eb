//! The hold protocol: how a target takes a buffer back from peers that copy it themselves.
//!
//! Both sides share words, and nothing else. The initiator owns the *slots*, the target the *revoked* words, one for each
//! buffer, and the *closed* word, which revokes all of them:
//!
//! ```text
//!  initiator                                target
//!  mark:  slot = buffer + 1                 revoke: revoked[buffer] = 1
//!         ------- full fence -------                ------- full fence -------
//!  check: revoked[buffer] or closed?        wait:   until no slot is buffer + 1
//!  copy, unless revoked
//!  clear: slot = 0
//! ```
//!
//! Either the initiator's check sees the revocation, and nothing is copied, or the target's first look sees the slot, and
//! it waits: the two fences leave no third case. `tests/loom.rs` tries every interleaving.

use crate::sync::{AtomicU32, Ordering, fence};

/// The words that both sides share.
pub(crate) trait Words {
    /// How many slots there are.
    fn slots(&self) -> usize;
    /// One slot; `index` is below [`slots`](Self::slots).
    fn slot(&self, index: usize) -> &AtomicU32;
    /// The revoked word of one buffer.
    fn revoked(&self, buffer: u32) -> &AtomicU32;
    /// The word that revokes all buffers.
    fn closed(&self) -> &AtomicU32;
}

/// Why a copy must not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// All slots are taken: try again.
    Busy,
    /// The buffer is withdrawn.
    Revoked,
    /// The target has cut this peer off, or shuts down.
    Closed,
}

/// A marked slot: the right to copy one buffer until it is dropped.
pub(crate) struct Mark<'a> {
    slot: &'a AtomicU32,
}

/// Marks a slot for a buffer, then checks that the buffer may still be used. `start` is where the search for a free slot
/// begins, different for each thread at best.
pub(crate) fn mark<W: Words + ?Sized>(words: &W, start: usize, buffer: u32) -> Result<Mark<'_>, Barred> {
    let slots = words.slots();
    let free = (0..slots).map(|step| words.slot(start.wrapping_add(step) % slots)).find(|slot| {
        slot.compare_exchange(0, buffer.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    let Some(slot) = free else { return Err(Barred::Busy) };
    let mark = Mark { slot };
    fence(Ordering::SeqCst);
    if words.closed().load(Ordering::Acquire) != 0 {
        return Err(Barred::Closed);
    }
    if words.revoked(buffer).load(Ordering::Acquire) != 0 {
        return Err(Barred::Revoked);
    }
    Ok(mark)
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // Release: what was copied happens before whatever the target does once it sees the slot free.
        self.slot.store(0, Ordering::Release);
    }
}

/// No copy of the buffer begins any more.
pub(crate) fn revoke<W: Words + ?Sized>(words: &W, buffer: u32) {
    words.revoked(buffer).store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// The number of a buffer is used for another one. Only after the initiator has said that it forgot the old one.
pub(crate) fn renew<W: Words + ?Sized>(words: &W, buffer: u32) {
    words.revoked(buffer).store(0, Ordering::Release);
}

/// No copy of any buffer begins any more.
pub(crate) fn close<W: Words + ?Sized>(words: &W) {
    words.closed().store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// How many copies of the buffer are under way; of any buffer if none is given. After a revocation the number only falls.
pub(crate) fn copying<W: Words + ?Sized>(words: &W, buffer: Option<u32>) -> usize {
    let marked = |index: &usize| {
        // Acquire pairs with the clearing store.
        let word = words.slot(*index).load(Ordering::Acquire);
        buffer.map_or(word != 0, |buffer| word == buffer.wrapping_add(1))
    };
    (0..words.slots()).filter(marked).count()
}
