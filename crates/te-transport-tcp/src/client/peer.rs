//! One peer as described by one descriptor snapshot: its queue, its connections, its threads.
//!
//! # Threads
//!
//! A connection is used by whoever has checked it out: a caller, or a worker. Workers are started on demand and end
//! when idle. There may be one worker more than connections: whenever work is queued, at least one worker waits for a
//! free connection, and resolves what expires or is cancelled meanwhile.
//!
//! # Locking
//!
//! One lock per peer. Nothing is resolved, no connection closed and no system call made that could wait while it is
//! held.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_segment::{DescriptorVersion, Endpoint, Incarnation, TransportKind};
use te_transport::{
    Abort, CancelReason, Failure, FailureKind, Op, PathHealth, PathLabel, RemoteEffect, Submission, Threads,
    stopped,
};

use super::exchange::Link;
use super::unit::{Job, Train, Unit};
use crate::config::TcpConfig;
use crate::counters::Counters;
use crate::error::failure;
use crate::framing::Framing;
use crate::io::Interrupter;

/// What a connection is pinned to. Idle connections pass to a new path only if all of it is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) endpoint: Endpoint,
    pub(crate) framing: Framing,
    pub(crate) incarnation: Option<Incarnation>,
    /// `None` where each request says what it means.
    pub(crate) version: Option<DescriptorVersion>,
}

/// What all peers of a transport share.
#[derive(Clone)]
pub(crate) struct Common {
    /// This life.
    pub(crate) incarnation: Incarnation,
    pub(crate) config: Arc<TcpConfig>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) threads: Arc<Threads>,
    /// Connections that are worth using at once for one batch.
    pub(crate) parallel: usize,
}

/// A request that is cut goes in pieces of about this many bytes, each of which keeps its connection busy for a millisecond
/// or a few. Two of them are asked for ahead of their arrival, so that there is no pause between pieces.
const PIECE: u64 = super::read::AHEAD_BYTES / 2;
/// Into so many pieces at most: those of a huge request are larger.
const MAX_PIECES: u64 = 16_384;

/// See the module.
pub(crate) struct Peer {
    own: Weak<Self>,
    pub(super) identity: Identity,
    pub(super) label: Arc<PathLabel>,
    pub(super) common: Common,
    pub(super) state: Mutex<State>,
    /// Work, a free connection, or an end has come.
    pub(super) wake: Condvar,
    /// Resolved addresses, forgotten when connecting fails.
    pub(super) addresses: Mutex<Option<Arc<[SocketAddr]>>>,
    unresolved: AtomicUsize,
    last_failure: Mutex<Option<String>>,
    failing: AtomicBool,
    pub(super) closed: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) jobs: VecDeque<Job>,
    pub(super) next_seq: u64,
    pub(super) idle: Vec<Link>,
    /// Connections: idle, checked out, or being made.
    pub(super) open: usize,
    /// Those checked out.
    pub(super) active: Vec<Arc<Interrupter>>,
    pub(super) workers: usize,
    /// Workers that wait or are starting.
    pub(super) waiting: usize,
    /// No new connections before this: one could not be made while others work.
    pub(super) barred: Option<Instant>,
    /// Paths that use this peer.
    pub(super) paths: usize,
    /// A path to the same endpoint with another identity exists: connections are not kept.
    pub(super) replaced: bool,
}

impl Peer {
    pub(crate) fn new(identity: Identity, common: Common) -> Arc<Self> {
        let detail = format!("{} {}", identity.endpoint, identity.framing.as_str());
        let label = PathLabel::new(TransportKind::TCP, detail);
        Arc::new_cyclic(|own| Self {
            own: own.clone(),
            identity,
            label: Arc::new(label),
            common,
            state: Mutex::default(),
            wake: Condvar::new(),
            addresses: Mutex::new(None),
            unresolved: AtomicUsize::new(0),
            last_failure: Mutex::new(None),
            failing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn label(&self) -> &Arc<PathLabel> {
        &self.label
    }

    pub(super) fn framing(&self) -> Framing {
        self.identity.framing
    }

    pub(super) fn config(&self) -> &TcpConfig {
        &self.common.config
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.common.counters
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn health(&self) -> PathHealth {
        PathHealth {
            connections: self.state.lock().open,
            in_flight: self.unresolved.load(Ordering::Relaxed),
            last_failure: self.last_failure.lock().clone(),
        }
    }

    /// Counts a path that uses this peer.
    pub(crate) fn attach(&self) {
        self.state.lock().paths += 1;
    }

    /// Uncounts a path. The last one takes the idle connections with it.
    pub(crate) fn detach(&self) {
        let mut state = self.state.lock();
        state.paths -= 1;
        let idle = if state.paths == 0 { state.take_idle() } else { Vec::new() };
        drop(state);
        self.wake.notify_all();
        drop(idle);
    }

    /// A path with another identity has taken over the endpoint: closes the idle connections and keeps no more.
    pub(crate) fn replace(&self) {
        let mut state = self.state.lock();
        state.replaced = true;
        let idle = state.take_idle();
        drop(state);
        drop(idle);
    }

    /// Closes idle connections whose peer is gone.
    pub(crate) fn reap(&self) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let mut at = 0;
        while at < state.idle.len() {
            // Does not wait; a connection in use is not looked at.
            if matches!(state.idle[at].wire.peek(), Ok(crate::io::Step::Quiet)) {
                at += 1;
            } else {
                gone.push(state.idle.swap_remove(at));
                state.open -= 1;
            }
        }
        drop(state);
    }

    /// Ends everything: what is queued fails, what is in flight is interrupted. Does not wait.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut state = self.state.lock();
        let jobs = std::mem::take(&mut state.jobs);
        let idle = state.take_idle();
        for active in &state.active {
            active.interrupt();
        }
        drop(state);
        self.wake.notify_all();
        drop(idle);
        for job in jobs {
            self.fail_job(job, FailureKind::Shutdown, "the transport is shutting down");
        }
    }

    /// Cuts a submission into units. What cannot be sent is resolved here.
    pub(super) fn accept(&self, submission: Submission) -> Job {
        let Submission { slices, deadline, scope } = submission;
        let count = |op| slices.iter().filter(|slice| slice.op == op).count();
        let reads = VecDeque::with_capacity(count(Op::Read));
        let writes = VecDeque::with_capacity(count(Op::Write));
        let mut job = Job { seq: 0, reads, writes, deadline, scope, guard: None, leases: 0 };
        let threshold = self.config().stripe_threshold;
        for slice in slices {
            let (local, remote) = (slice.local.len(), slice.remote.len());
            let wrong = if local != remote {
                Some(format!("the local range has {local} bytes, the remote range {remote}"))
            } else {
                let device = slice.local.region().device();
                device.map(|device| format!("the local range is memory of {}", device.location()))
            };
            if let Some(text) = wrong {
                let unit = Unit::whole(slice);
                unit.fail(failure(&self.label, FailureKind::LocalMemory, text, RemoteEffect::None));
                continue;
            }
            let units = match slice.op {
                Op::Read => &mut job.reads,
                Op::Write => &mut job.writes,
            };
            let stripes = self.stripes(remote, threshold);
            if stripes > 1 {
                units.extend(Unit::stripes(slice, stripes));
            } else {
                units.push_back(Unit::whole(slice));
            }
        }
        self.unresolved.fetch_add(job.len(), Ordering::Relaxed);
        job
    }

    /// In how many stripes a request is cut: one for each connection, and bounded ones where the peer takes many requests at
    /// a time, so that no other batch waits for the whole of it.
    fn stripes(&self, len: u64, threshold: u64) -> u64 {
        if len < threshold {
            return 1;
        }
        let pieces = match self.framing() {
            Framing::Native => len.div_ceil(PIECE).min(MAX_PIECES),
            Framing::V1 | Framing::V2 => 1,
        };
        pieces.max(self.common.parallel as u64)
    }

    /// Resolves a unit as done.
    pub(super) fn done(&self, unit: Unit) {
        self.unresolved.fetch_sub(1, Ordering::Relaxed);
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            *self.last_failure.lock() = None;
        }
        unit.done();
    }

    /// Resolves a unit as failed.
    pub(super) fn fail(&self, unit: Unit, failure: Failure) {
        self.unresolved.fetch_sub(1, Ordering::Relaxed);
        *self.last_failure.lock() = Some(format!("{}: {}", failure.kind(), failure.cause()));
        self.failing.store(true, Ordering::Relaxed);
        unit.fail(failure);
    }

    /// Resolves a unit that the target has refused with this code: before a byte was applied.
    pub(super) fn refused(&self, op: Op, unit: Unit, code: u32) {
        let (start, len) = (unit.remote(), unit.len());
        let end = start.saturating_add(len);
        let (kind, why) = self.framing().refusal(code);
        let text = format!("the peer refused to {op} {len} bytes at {start:#x} to {end:#x} ({why})");
        let damaged = kind == FailureKind::Damaged;
        let effect = if damaged { RemoteEffect::MayHaveApplied } else { RemoteEffect::None };
        self.fail(unit, failure(&self.label, kind, text, effect));
    }

    /// Resolves a READ whose bytes do not fit the digest that came with them.
    pub(super) fn damaged(&self, unit: Unit) {
        let (start, len) = (unit.remote(), unit.len());
        let end = start.saturating_add(len);
        let text = format!("the {len} bytes read at {start:#x} to {end:#x} do not fit their digest");
        self.fail(unit, failure(&self.label, FailureKind::Damaged, text, RemoteEffect::None));
    }

    pub(super) fn fail_units(&self, units: impl IntoIterator<Item = Unit>, failure: &Failure) {
        for unit in units {
            self.fail(unit, failure.clone());
        }
    }

    /// Fails units that were never sent.
    pub(super) fn fail_job(&self, job: Job, kind: FailureKind, cause: &str) {
        let failure = failure(&self.label, kind, cause, RemoteEffect::None);
        self.fail_units(job.into_units(), &failure);
    }

    /// Why a batch ends before its work is done, from the outside: its scope, the transport, or its deadline.
    pub(super) fn reason(&self, scope: &te_transport::CancelScope) -> (FailureKind, &'static str) {
        match scope.cancelled() {
            None if self.is_closed() => stopped(Some(CancelReason::Shutdown)),
            reason => stopped(reason),
        }
    }

    /// Moves more units of its batch to a train, unless others are due.
    pub(super) fn refill(&self, train: &mut Train) {
        if train.job.is_none() {
            return;
        }
        let limit = self.config().connections_per_peer;
        let finished = self.state.lock().refill(train, limit, Instant::now());
        drop(finished);
    }

    /// The peer itself, to be given to threads.
    pub(super) fn own(&self) -> Option<Arc<Self>> {
        self.own.upgrade()
    }
}

impl State {
    pub(super) fn take_idle(&mut self) -> Vec<Link> {
        self.open -= self.idle.len();
        std::mem::take(&mut self.idle)
    }

    /// Takes out the jobs that are over.
    pub(super) fn take_over(&mut self, now: Instant) -> Vec<Job> {
        let mut over = Vec::new();
        let mut at = 0;
        while at < self.jobs.len() {
            if self.jobs[at].is_over(now) {
                over.extend(self.jobs.remove(at));
            } else {
                at += 1;
            }
        }
        over
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.jobs.iter().map(|job| job.deadline).min()
    }

    /// Whether a connection is free or may be made.
    pub(super) fn has_slot(&self, limit: usize, now: Instant) -> bool {
        !self.idle.is_empty() || (self.open < limit && self.barred.is_none_or(|until| until <= now))
    }
}

/// A queued batch was cancelled: the waiting worker resolves it.
impl Abort for Peer {
    fn abort(&self) {
        // A worker that has looked at the queue before the cancellation must be waiting by now to be woken.
        drop(self.state.lock());
        self.wake.notify_all();
    }
}

/// How long a worker without work stays.
pub(super) const WORKER_IDLE: Duration = Duration::from_secs(5);
