//! Large submissions, copied by several threads at once: whoever is free takes the next piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use te_transport::Slice;

use super::line::Attached;
use super::peer::Peer;
use super::pool::Group;
use super::transfer::{self, PIECE, Stop};

/// A thread more is worth its wake-up when each gets at least this much.
const WORTHWHILE: u64 = 4 << 20;

/// How many threads a submission of so many bytes is worth, on a host with so many cores.
pub(super) fn threads(bytes: u64, cores: usize) -> usize {
    usize::try_from(bytes / WORTHWHILE).unwrap_or(usize::MAX).min(cores)
}

/// The slices of one submission.
pub(crate) struct Bulk {
    parts: Vec<Part>,
    /// Of all slices, one after the other.
    pieces: usize,
    /// The first that nobody has taken.
    next: AtomicUsize,
    group: Arc<Group>,
}

struct Part {
    /// Until it has ended; then nothing touches its memory any more.
    slice: RwLock<Option<Slice>>,
    attached: Arc<Attached>,
    /// The number of its first piece.
    first: usize,
    /// Pieces of it that have not ended.
    left: AtomicUsize,
    /// Whether bytes may have been moved.
    begun: AtomicBool,
    failed: AtomicBool,
    stop: Mutex<Option<Stop>>,
}

impl Bulk {
    pub(super) fn new(ready: Vec<(Slice, Arc<Attached>)>, group: Arc<Group>) -> Self {
        let mut pieces = 0;
        let part = |(slice, attached): (Slice, Arc<Attached>)| {
            let first = pieces;
            // One at least, which finds out what is wrong with a slice that has none.
            let count = slice.local.len().div_ceil(PIECE as u64).max(1);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            pieces += count;
            Part {
                slice: RwLock::new(Some(slice)),
                attached,
                first,
                left: AtomicUsize::new(count),
                begun: AtomicBool::new(false),
                failed: AtomicBool::new(false),
                stop: Mutex::default(),
            }
        };
        let parts = ready.into_iter().map(part).collect();
        Self { parts, pieces, next: AtomicUsize::new(0), group }
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Copies pieces until there is none that nobody has taken. The last piece of a slice to end, here or elsewhere, resolves
    /// the slice.
    pub(super) fn work(&self, peer: &Peer, between: &mut dyn FnMut()) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.pieces {
                return;
            }
            let at = self.parts.partition_point(|part| part.first <= number);
            let Some(part) = at.checked_sub(1).and_then(|at| self.parts.get(at)) else { return };
            part.copy(peer, number - part.first, &self.group, between);
            if part.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                part.resolve(peer);
            }
        }
    }
}

impl Part {
    fn copy(&self, peer: &Peer, piece: usize, group: &Group, between: &mut dyn FnMut()) {
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        let slice = self.slice.read();
        let Some(slice) = &*slice else { return };
        let step =
            |_| transfer::step(peer.common(), &self.attached, slice, piece * PIECE, group.limits(), between);
        match transfer::check(&self.attached, slice).and_then(step) {
            Ok(_) => self.begun.store(true, Ordering::Release),
            Err(stop) => {
                if stop.begun {
                    // Another stop may be the one that is told.
                    self.begun.store(true, Ordering::Release);
                }
                self.stop.lock().get_or_insert(stop);
                self.failed.store(true, Ordering::Release);
            }
        }
    }

    fn resolve(&self, peer: &Peer) {
        let Some(slice) = self.slice.write().take() else { return };
        let bytes = slice.local.len();
        match self.stop.lock().take() {
            None => peer.ended(slice, Ok(bytes)),
            Some(stop) => {
                let begun = stop.begun || self.begun.load(Ordering::Acquire);
                peer.ended(slice, Err(Stop { begun, ..stop }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_submissions_are_worth_one_thread_and_large_ones_all_cores() {
        assert!(threads(0, 8) < 2);
        assert!(threads(2 * WORTHWHILE - 1, 8) < 2);
        assert_eq!(threads(2 * WORTHWHILE, 8), 2);
        assert_eq!(threads(1 << 40, 8), 8);
        assert_eq!(threads(1 << 40, 1), 1);
    }
}
