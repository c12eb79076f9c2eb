//! One life of a member, as the others use it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use te_segment::TransportKind;
use te_transport::{FailureKind, PathHealth, PathLabel, Slice, Submission, SubmitMode};

use super::Common;
use super::pool::{Batch, Pool};
use super::transfer::{self, Limits, Stop};
use crate::error::{effect, failure};
use crate::group::{Member, Tie};

/// A submission of at most so many bytes is copied by the submitting thread in any mode: that takes less than handing it to
/// another.
const AT_ONCE: u64 = 64 << 10;

pub(super) struct Peer {
    common: Arc<Common>,
    member: Arc<Member>,
    label: Arc<PathLabel>,
    tie: RwLock<Option<Arc<Tie>>>,
    pool: Pool,
    /// Paths that lead here.
    users: Mutex<usize>,
    in_flight: AtomicUsize,
    last_failure: Mutex<Option<String>>,
}

impl Peer {
    pub(super) fn new(common: Arc<Common>, member: Arc<Member>) -> Self {
        let short: String = member.life().to_string().chars().take(8).collect();
        Self {
            common,
            member,
            label: Arc::new(PathLabel::new(TransportKind::LOCAL, short)),
            tie: RwLock::new(None),
            pool: Pool::new(),
            users: Mutex::new(0),
            in_flight: AtomicUsize::new(0),
            last_failure: Mutex::default(),
        }
    }

    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    pub(super) fn label(&self) -> &Arc<PathLabel> {
        &self.label
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Counts one more path.
    pub(super) fn used(self: Arc<Self>) -> Arc<Self> {
        let mut users = self.users.lock();
        *users += 1;
        self.pool.set_left(false);
        drop(users);
        self
    }

    pub(super) fn unused(&self) {
        let mut users = self.users.lock();
        *users -= 1;
        self.pool.set_left(*users == 0);
    }

    /// What copies that begin now are counted by; none if the member has left the group.
    fn tie(&self) -> Option<Arc<Tie>> {
        if let Some(tie) = self.tie.read().as_ref().filter(|tie| !tie.is_lost()) {
            return Some(tie.clone());
        }
        let fresh = self.member.tie(self.common.incarnation)?;
        *self.tie.write() = Some(fresh.clone());
        Some(fresh)
    }

    pub(super) fn submit(self: &Arc<Self>, submission: Submission, mode: SubmitMode) {
        let Submission { slices, deadline, scope } = submission;
        self.in_flight.fetch_add(slices.len(), Ordering::Relaxed);
        // Counted before looking whether the transport is closing, which waits for callers after saying so.
        let caller = self.common.threads.caller();
        let limits = Limits { scope: &scope, deadline };
        if let Some((kind, cause)) = limits.over(&self.common) {
            return slices.into_iter().for_each(|slice| self.fail(slice, kind, cause, false));
        }
        let Some(tie) = self.tie() else {
            let cause = "the peer has left the local group: its engine has shut down";
            return slices
                .into_iter()
                .for_each(|slice| self.fail(slice, FailureKind::Unreachable, cause, false));
        };
        let bytes: u64 = slices.iter().map(|slice| slice.local.len()).fold(0, u64::saturating_add);
        if mode == SubmitMode::CallerRuns || bytes <= AT_ONCE {
            for slice in slices {
                let mut next = Some((slice, 0));
                while let Some((slice, done)) = next {
                    next = self.step(slice, done, &tie, limits);
                }
            }
            return;
        }
        drop(caller);
        let guard = scope.attach(self.pool.hook());
        let batch = Arc::new(Batch { scope, deadline, tie, _guard: guard });
        let Err(refused) = self.pool.push(self, batch, slices) else { return };
        let (kind, cause) = if self.common.is_closing() {
            (FailureKind::Shutdown, "the transport is shutting down")
        } else {
            (FailureKind::Unsupported, "no thread can be had to copy in the background")
        };
        refused.into_iter().for_each(|slice| self.fail(slice, kind, cause, false));
    }

    /// Copies the next piece of a slice and reports the outcome if that was the last; else the slice comes back.
    pub(super) fn step(
        &self,
        slice: Slice,
        done: u64,
        tie: &Tie,
        limits: Limits<'_>,
    ) -> Option<(Slice, u64)> {
        match transfer::step(&self.common, tie, &slice, done, limits) {
            Ok(done) if done < slice.local.len() => return Some((slice, done)),
            Ok(done) => {
                if self.last_failure.lock().take().is_some() {
                    tracing::debug!(target: "te::local", path = %self.label, "works again");
                }
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
                let Slice { local, token, .. } = slice;
                // Whoever is told may withdraw the memory at once.
                drop(local);
                token.done(done);
            }
            Err(Stop { kind, cause, begun }) => self.fail(slice, kind, cause, begun),
        }
        None
    }

    /// Reports that a slice was not done. Nothing touches its memory any more.
    pub(super) fn fail(
        &self,
        slice: Slice,
        kind: FailureKind,
        cause: impl Into<Cow<'static, str>>,
        begun: bool,
    ) {
        let failed = failure(&self.label, kind, &*cause.into()).with_effect(effect(slice.op, begun));
        *self.last_failure.lock() = Some(failed.to_string());
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let Slice { local, token, .. } = slice;
        // As above.
        drop(local);
        token.fail(failed);
    }

    pub(super) fn health(&self) -> PathHealth {
        PathHealth {
            connections: 0,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            last_failure: self.last_failure.lock().clone(),
        }
    }
}
