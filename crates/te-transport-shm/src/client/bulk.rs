//! Large submissions, copied by several threads at once: whoever is free takes the next piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use te_transport::{FailureKind, Slice};

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
    /// Whoever submitted it works too, so that it is done if nobody helps.
    attended: bool,
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
    pub(super) fn new(ready: Vec<(Slice, Arc<Attached>)>, group: Arc<Group>, attended: bool) -> Self {
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
        Self { parts, pieces, next: AtomicUsize::new(0), group, attended }
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Nobody helps. What nobody attends fails, as far as it has not been taken.
    pub(super) fn unhelped(&self, peer: &Peer, kind: FailureKind, cause: &'static str) {
        if self.attended {
            return;
        }
        for part in &self.parts {
            part.stop_with(transfer::stop(kind, cause, false));
        }
        self.work(peer, &mut || {});
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
                self.stop_with(stop);
            }
        }
    }

    /// Begins no more of its pieces. The first reason is the one that is told.
    fn stop_with(&self, stop: Stop) {
        self.stop.lock().get_or_insert(stop);
        self.failed.store(true, Ordering::Release);
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
    use te_testkit::node::{Move, Node, bytes, outcomes};
    use te_transport::{CancelScope, Comparing, Op, Outcome, RemoteEffect, SubmitMode, Threads};

    use super::super::{Common, Peers};
    use super::*;
    use crate::{Shm, ShmConfig};

    #[test]
    fn small_submissions_are_worth_one_thread_and_large_ones_all_cores() {
        assert!(threads(0, 8) < 2);
        assert!(threads(2 * WORTHWHILE - 1, 8) < 2);
        assert_eq!(threads(2 * WORTHWHILE, 8), 2);
        assert_eq!(threads(1 << 40, 8), 8);
        assert_eq!(threads(1 << 40, 1), 1);
    }
    /// What is submitted in the background must not become work of whoever submits it.
    #[test]
    fn without_threads_only_a_caller_copies() {
        let node = || Node::start(|context| Shm::new(ShmConfig::default()).start(context));
        let (near, far) = (node(), node());
        let peers = Peers::new(Common {
            incarnation: near.context.incarnation,
            config: Arc::default(),
            comparing: Comparing::default(),
            counters: Arc::default(),
            threads: Arc::new(Threads::new("te-shm")),
            closing: AtomicBool::new(false),
            cores: 4,
        });
        let len = 4 * usize::try_from(WORTHWHILE).unwrap();
        let (local, remote) = (near.local(len), far.shared(len));
        let path = peers.path(&far.published()).unwrap();
        // The buffer is attached from here on.
        Move::new(Op::Read, &local, &remote).done(&path);
        path.peer.pool().close();
        local.fill(7).unwrap();
        let write = Move::new(Op::Write, &local, &remote);
        let Outcome::Failed(failure) = write.run(&path) else { panic!("no thread could copy") };
        assert!(failure.cause().contains("no thread can be had"), "{failure}");
        assert_eq!(failure.effect(), RemoteEffect::None);
        assert!(bytes(&remote).iter().all(|byte| *byte == 0));
        let called = write.begin(&path, SubmitMode::CallerRuns, &CancelScope::new());
        assert!(outcomes(&called)[0].is_done());
        assert!(bytes(&remote).iter().all(|byte| *byte == 7));
        peers.close();
    }
}
