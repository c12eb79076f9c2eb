//! Threads that copy in the background for one peer, started when there is work and ended when there is none for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_transport::{AbortGuard, CancelScope, Slice};

use super::bulk::Bulk;
use super::line::Attached;
use super::peer::Peer;
use super::transfer::Limits;

/// An idle thread ends after this.
const IDLE: Duration = Duration::from_secs(5);
/// How often a busy thread looks for queued work whose time is over.
const SWEEP: Duration = Duration::from_millis(20);
/// A thread takes work of about so many bytes at a time, one slice at least.
const SHARE: u64 = 256 << 10;

/// What the slices of one submission have in common.
pub(crate) struct Group {
    pub(crate) scope: CancelScope,
    pub(crate) deadline: Instant,
    /// See [`Limits`].
    pub(crate) cold: bool,
    /// Wakes the peer when the submission is cancelled.
    pub(crate) _guard: AbortGuard,
}

impl Group {
    pub(crate) fn limits(&self) -> Limits<'_> {
        Limits { scope: &self.scope, deadline: self.deadline, cold: self.cold }
    }
}

/// What a thread of the pool can take.
pub(crate) enum Work {
    /// All of a slice.
    Slice(Job),
    /// A part in the copying of a large submission.
    Help(Arc<Bulk>),
}

impl Work {
    fn bytes(&self) -> u64 {
        match self {
            Self::Slice(job) => job.slice.local.len(),
            Self::Help(_) => SHARE,
        }
    }

    fn group(&self) -> &Group {
        match self {
            Self::Slice(job) => &job.group,
            Self::Help(bulk) => bulk.group(),
        }
    }

    /// Does it, or what is left of it.
    fn run(self, peer: &Peer, between: &mut dyn FnMut()) {
        match self {
            Self::Slice(Job { slice, attached, group }) => {
                peer.execute(slice, &attached, group.limits(), between);
            }
            Self::Help(bulk) => bulk.work(peer, between),
        }
    }
}

/// A slice that can be copied.
pub(crate) struct Job {
    pub(crate) slice: Slice,
    pub(crate) attached: Arc<Attached>,
    pub(crate) group: Arc<Group>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Work>,
    running: usize,
    idle: usize,
    closed: bool,
}

/// The queue of one peer.
#[derive(Default)]
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    ready: Condvar,
}

impl Pool {
    /// Queues jobs. They come back if the pool is closed, or if no thread can be had.
    pub(crate) fn push(&self, peer: &Arc<Peer>, jobs: Vec<Work>) -> Result<(), Vec<Work>> {
        let threads = peer.common().config.threads;
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(jobs);
        }
        let mut missing = jobs.len().min(threads).saturating_sub(queue.idle);
        queue.jobs.extend(jobs);
        while missing > 0 && queue.running < threads {
            let working = peer.clone();
            let spawned = peer.common().threads.spawn("copy", move || working.pool().work(&working));
            if spawned.is_err() {
                break;
            }
            queue.running += 1;
            missing -= 1;
        }
        if queue.running == 0 {
            return Err(queue.jobs.drain(..).collect());
        }
        drop(queue);
        self.ready.notify_all();
        Ok(())
    }

    /// Takes no more work; what is queued ends as the peer says.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_all();
    }

    fn take(&self, taken: &mut Vec<Work>) -> bool {
        let mut queue = self.queue.lock();
        let mut waited = false;
        loop {
            let mut bytes = 0;
            while bytes < SHARE
                && let Some(job) = queue.jobs.pop_front()
            {
                bytes += job.bytes();
                taken.push(job);
            }
            if !taken.is_empty() {
                return true;
            }
            if queue.closed || waited {
                queue.running -= 1;
                return false;
            }
            queue.idle += 1;
            waited = self.ready.wait_for(&mut queue, IDLE).timed_out();
            queue.idle -= 1;
        }
    }

    fn work(&self, peer: &Peer) {
        let mut taken = Vec::new();
        let mut swept = Instant::now();
        while self.take(&mut taken) {
            for work in taken.drain(..) {
                work.run(peer, &mut || {
                    if peer.waker().take() || swept.elapsed() >= SWEEP {
                        self.sweep(peer);
                        swept = Instant::now();
                    }
                });
            }
        }
    }

    /// Resolves what is queued and need not be done any more.
    fn sweep(&self, peer: &Peer) {
        let mut over = Vec::new();
        {
            let mut queue = self.queue.lock();
            let jobs = std::mem::take(&mut queue.jobs);
            for job in jobs {
                if job.group().limits().over(peer.common()).is_some() {
                    over.push(job);
                } else {
                    queue.jobs.push_back(job);
                }
            }
        }
        // Finds out by itself that its time is over.
        over.into_iter().for_each(|work| work.run(peer, &mut || {}));
    }
}

/// Wakes whoever looks after a peer when a submission is cancelled.
pub(crate) struct Waker {
    bell: crate::socket::Bell,
    rung: AtomicBool,
}

impl Waker {
    pub(crate) fn new(bell: crate::socket::Bell) -> Self {
        Self { bell, rung: AtomicBool::new(false) }
    }

    /// Whether something was cancelled since this was last asked.
    fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel)
    }
}

impl te_transport::Abort for Waker {
    fn abort(&self) {
        self.rung.store(true, Ordering::Release);
        self.bell.ring();
    }
}
