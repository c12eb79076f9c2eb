//! The state of a batch: a monotone function of the outcomes of its slices.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_transport::{CancelScope, CompletionSink, FailureKind, Op, Outcome, PathLabel};

use super::report::{NotifyOutcome, Report, RequestReport};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::machines::delivery::Tidings;
use crate::notify::Notice;
use crate::peers::Uses;
use crate::segment::RemoteRange;

/// How far a batch is. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchStatus {
    /// Some slices are not resolved, or the notification is under way.
    Running {
        /// Slices resolved.
        resolved: usize,
        /// All slices.
        total: usize,
    },
    /// Every byte is applied at its destination.
    Completed,
    /// At least one request did not complete.
    Failed,
}

/// What a request was, for its report.
pub(crate) struct RequestInfo {
    pub(crate) op: Op,
    pub(crate) remote: RemoteRange,
    pub(crate) path: Arc<PathLabel>,
    /// Its slices are consecutive; this is one past the last.
    pub(crate) slices_end: usize,
}

pub(crate) struct BatchState {
    requests: Vec<RequestInfo>,
    outcomes: Box<[OnceLock<Outcome>]>,
    unresolved: AtomicUsize,
    failed: AtomicBool,
    done: AtomicBool,
    scope: CancelScope,
    started: Instant,
    deadline: Instant,
    notice: Mutex<Option<Notice>>,
    /// What of the peers' memory is used until the last slice is resolved.
    uses: Mutex<Uses>,
    end: Mutex<End>,
    ended: Condvar,
    /// For the notification, which outlives the call that completes the last slice.
    this: Weak<Self>,
}

#[derive(Default)]
struct End {
    waker: Option<Waker>,
    at: Option<Instant>,
    notify: Option<NotifyOutcome>,
}

impl BatchState {
    pub(crate) fn new(
        requests: Vec<RequestInfo>,
        deadline: Instant,
        notice: Option<Notice>,
        uses: Uses,
    ) -> Arc<Self> {
        let slices = requests.last().map_or(0, |request| request.slices_end);
        Arc::new_cyclic(|this| Self {
            requests,
            outcomes: std::iter::repeat_with(OnceLock::new).take(slices).collect(),
            unresolved: AtomicUsize::new(slices),
            failed: AtomicBool::new(false),
            done: AtomicBool::new(false),
            scope: CancelScope::new(),
            started: Instant::now(),
            deadline,
            notice: Mutex::new(notice),
            uses: Mutex::new(uses),
            end: Mutex::new(End::default()),
            ended: Condvar::new(),
            this: this.clone(),
        })
    }

    pub(crate) fn scope(&self) -> &CancelScope {
        &self.scope
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> BatchStatus {
        if !self.is_done() {
            let total = self.outcomes.len();
            return BatchStatus::Running { resolved: total - self.unresolved.load(Ordering::Acquire), total };
        }
        if self.failed.load(Ordering::Acquire) { BatchStatus::Failed } else { BatchStatus::Completed }
    }

    pub(crate) fn wait(&self) {
        if self.is_done() {
            return;
        }
        let mut end = self.end.lock();
        while !self.is_done() {
            self.ended.wait(&mut end);
        }
    }

    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut end = self.end.lock();
        while !self.is_done() {
            if self.ended.wait_until(&mut end, deadline).timed_out() {
                return self.is_done();
            }
        }
        true
    }

    pub(crate) fn poll_done(&self, context: &Context<'_>) -> bool {
        if self.is_done() {
            return true;
        }
        let mut end = self.end.lock();
        if self.is_done() {
            return true;
        }
        match &mut end.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        false
    }

    /// All slices are resolved: notify if there is something to notify of, then end.
    fn settled(&self) {
        let notice = self.notice.lock().take();
        let complete = !self.failed.load(Ordering::Acquire);
        let uses = std::mem::take(&mut *self.uses.lock());
        if complete {
            uses.succeeded();
        }
        drop(uses);
        let tidings = notice.as_ref().and_then(|notice| notice.tidings(complete));
        match (notice, tidings, self.this.upgrade()) {
            (Some(notice), Some(Tidings::Success), Some(this)) => {
                let deadline = self.deadline;
                notice.send_in_background(deadline, move |outcome| this.finish(Some(outcome)));
            }
            (Some(notice), Some(Tidings::Failure), _) => {
                notice.send_failure();
                self.finish(Some(NotifyOutcome::Underway));
            }
            _ => self.finish(None),
        }
    }

    fn finish(&self, notify: Option<NotifyOutcome>) {
        let waker = {
            let mut end = self.end.lock();
            end.at = Some(Instant::now());
            if matches!(notify, Some(NotifyOutcome::Failed(_))) {
                self.failed.store(true, Ordering::Release);
            }
            end.notify = notify;
            self.done.store(true, Ordering::Release);
            self.ended.notify_all();
            end.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn report(&self) -> Report {
        let (elapsed, notify) = {
            let end = self.end.lock();
            (end.at.map_or_else(|| self.started.elapsed(), |at| at - self.started), end.notify.clone())
        };
        let mut first = 0;
        let requests = self
            .requests
            .iter()
            .map(|info| {
                let mut report = RequestReport {
                    op: info.op,
                    segment: info.remote.segment().name().clone(),
                    remote: info.remote.range(),
                    bytes: 0,
                    failure: None,
                    path: info.path.clone(),
                };
                for outcome in self.outcomes[first..info.slices_end].iter().filter_map(OnceLock::get) {
                    match outcome {
                        Outcome::Done(bytes) => report.bytes += bytes,
                        Outcome::Failed(failure) => {
                            report.failure.get_or_insert_with(|| failure.clone());
                        }
                        _ => {}
                    }
                }
                first = info.slices_end;
                report
            })
            .collect();
        Report { requests, elapsed, notify }
    }

    /// The result of a batch that has ended.
    pub(crate) fn result(&self) -> Result<Report> {
        let report = self.report();
        if !self.failed.load(Ordering::Acquire) {
            return Ok(report);
        }
        let failures = report.requests.iter().filter(|request| request.failure.is_some()).count();
        let of_many = if report.requests.len() == 1 {
            String::new()
        } else {
            format!("{failures} of {} requests failed, the first: ", report.requests.len())
        };
        let error =
            match report.requests.iter().find_map(|request| Some((request, request.failure.as_ref()?))) {
                Some((request, failure)) => {
                    let operation = format!(
                        "{of_many}{} {} {} {} at {:#x}",
                        request.op,
                        crate::size::bytes(request.remote.len()),
                        if request.op == Op::Read { "from" } else { "to" },
                        request.segment,
                        request.remote.start()
                    );
                    let error = Error::from_failure(operation, request.segment.as_str(), failure);
                    match self.requests.iter().find(|info| *info.remote.segment().name() == request.segment) {
                        Some(info) => error.explained_by(&info.remote.segment().state()),
                        None => error,
                    }
                }
                None => {
                    let cause = match &report.notify {
                        Some(NotifyOutcome::Failed(cause)) => cause.clone(),
                        _ => "unknown".to_owned(),
                    };
                    Error::new(ErrorKind::NotifyRejected, "notify after the batch", cause)
                        .with_retry(Retry::Later)
                }
            };
        Err(error.with_report(Arc::new(report)))
    }

    /// A stale descriptor explains these failures: the segments they happened on are to be looked at again.
    fn doubt_segment(&self, index: usize, kind: FailureKind, cause: &str) {
        if let Some(request) = self.requests.iter().find(|request| index < request.slices_end) {
            request.remote.segment().data_failed(kind);
        }
        let stale = matches!(
            kind,
            FailureKind::Unreachable
                | FailureKind::ConnectionLost
                | FailureKind::Rejected
                | FailureKind::Protocol
        );
        if stale && let Some(request) = self.requests.iter().find(|request| index < request.slices_end) {
            request.remote.segment().doubt(cause);
        }
    }
}

impl CompletionSink for BatchState {
    fn complete(&self, index: u32, outcome: Outcome) {
        let index = index as usize;
        if let Outcome::Failed(failure) = &outcome {
            self.failed.store(true, Ordering::Release);
            self.doubt_segment(index, failure.kind(), failure.cause());
        }
        // A token is consumed by its one use, so no slot is set twice.
        let fresh = self.outcomes.get(index).is_some_and(|slot| slot.set(outcome).is_ok());
        if fresh && self.unresolved.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled();
        }
    }
}
