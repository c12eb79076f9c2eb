//! How the two threads of a NIC are woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};

use super::link::Link;
use super::setup::Errand;

/// What submitters and both threads of a NIC tell each other.
pub(crate) struct Signals {
    errands: Sender<Errand>,
    wake: OwnedFd,
    /// The polling thread sleeps without an end, as nothing is under way.
    idle: AtomicBool,
    /// Pieces at this NIC that wait or are posted.
    work: AtomicUsize,
    /// Something under way has been stopped: look which.
    review: AtomicBool,
    closing: AtomicBool,
    /// Callers that take completions themselves.
    callers: AtomicUsize,
    /// The set-up thread has ended, or is about to: nothing is carried out any more.
    over: AtomicBool,
    /// Work requests that may still be posted before the completion queue could overrun.
    room: AtomicUsize,
    /// Links with pieces for which there was no room.
    starved: Mutex<Vec<Arc<Link>>>,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Signals {
    pub(crate) fn new(errands: Sender<Errand>) -> Result<Self, Errno> {
        Ok(Self {
            errands,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            idle: AtomicBool::new(false),
            work: AtomicUsize::new(0),
            review: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            room: AtomicUsize::new(0),
            starved: Mutex::default(),
        })
    }

    /// Hands something to the set-up thread. Once that has ended, nothing is left that it would be for.
    pub(crate) fn errand(&self, errand: Errand) {
        let _ = self.errands.send(errand);
    }

    /// So many pieces more are under way. To be called before they can end.
    pub(crate) fn begin(&self, pieces: usize) {
        self.work.fetch_add(pieces, Ordering::SeqCst);
        // Either this sees that the thread sleeps, or that thread sees the work before it does. A caller that looks itself
        // wakes it when it leaves.
        if self.callers() == 0 && self.idle.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// So many have ended, or have gone elsewhere.
    pub(crate) fn end(&self, pieces: usize) {
        self.work.fetch_sub(pieces, Ordering::SeqCst);
    }

    /// Room for at most so many work requests; it is given back when they have completed.
    pub(crate) fn take_room(&self, wanted: usize) -> usize {
        let mut taken = 0;
        let take = |room: usize| {
            taken = room.min(wanted);
            (taken > 0).then(|| room - taken)
        };
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => taken,
            Err(_) => 0,
        }
    }

    /// A completion queue holds so many. Nothing is under way.
    pub(crate) fn set_room(&self, requests: usize) {
        self.room.store(requests, Ordering::SeqCst);
    }

    pub(crate) fn give_room(&self, requests: usize) {
        self.room.fetch_add(requests, Ordering::SeqCst);
    }

    /// A link has pieces for which there was no room: there is some when others have completed.
    pub(crate) fn starve(&self, link: &Arc<Link>) {
        let mut starved = self.starved.lock();
        if !starved.iter().any(|known| Arc::ptr_eq(known, link)) {
            starved.push(link.clone());
        }
    }

    /// Those links.
    pub(crate) fn take_starved(&self) -> Vec<Arc<Link>> {
        std::mem::take(&mut *self.starved.lock())
    }

    /// Whether nothing is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.work.load(Ordering::SeqCst) == 0
    }

    /// A caller takes completions itself from now on.
    pub(crate) fn caller_comes(&self) {
        self.callers.fetch_add(1, Ordering::SeqCst);
    }

    /// It does not any more: the polling thread takes over.
    pub(crate) fn caller_leaves(&self) {
        if self.callers.fetch_sub(1, Ordering::SeqCst) == 1 && !self.is_at_rest() {
            self.wake();
        }
    }

    pub(crate) fn callers(&self) -> usize {
        self.callers.load(Ordering::SeqCst)
    }

    /// Announces a sleep without an end; false if there is a reason against it.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.idle.store(true, Ordering::SeqCst);
        let may = self.is_at_rest() && !self.is_closing() && !self.review.load(Ordering::SeqCst);
        if !may {
            self.idle.store(false, Ordering::SeqCst);
        }
        may
    }

    /// The sleep is over.
    pub(crate) fn end_sleep(&self) {
        self.idle.store(false, Ordering::SeqCst);
    }

    /// Has the polling thread look soon for what has been stopped.
    pub(crate) fn review(&self) {
        if !self.review.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Has the polling thread see that the device has failed, or is back.
    pub(crate) fn rouse(&self) {
        self.wake();
    }

    /// Whether it was asked to, once.
    pub(crate) fn take_review(&self) -> bool {
        self.review.swap(false, Ordering::SeqCst)
    }

    /// Nothing is taken over from now on. To be called before the last look at what is left: each link is locked for both, so
    /// that nothing comes to it between them.
    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Ends the polling thread.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Makes its descriptor, which is readable when the polling thread is to look, unreadable again.
    pub(crate) fn clear(&self) {
        // Empty is as good as read.
        let _ = read(&self.wake, &mut [0; 8]);
    }

    fn wake(&self) {
        // A counter that is full is readable, which is all that is wanted.
        let _ = write(&self.wake, &1_u64.to_ne_bytes());
    }
}
