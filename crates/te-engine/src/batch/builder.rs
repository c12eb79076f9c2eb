//! Building and submitting a batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_memory::Hold;
use te_segment::TransportKind;
use te_select::Policy;
use te_transport::{
    AttemptId, CompletionSink, CompletionToken, Failure, FailureKind, Op, Slice, Submission, SubmitMode,
};

use super::Batch;
use super::report::Report;
use super::state::{BatchPlan, BatchState, Flight, Options, RequestInfo};
use crate::buffer::{Deadline, LocalSlice, refusal_kind};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::machines::attempt::AttemptPolicy;
use crate::notify::Notice;
use crate::peers::Uses;
use crate::prepared::{Care, Route};
use crate::process::InProcess;
use crate::segment::{RemoteRange, Segment};

/// Collects requests. Nothing happens before [`submit`](Self::submit) or [`run`](Self::run).
#[must_use = "a batch does nothing until it is submitted"]
pub struct BatchBuilder {
    core: InProcess<Core>,
    requests: Vec<Request>,
    deadline: Option<Deadline>,
    options: Options,
    notice: Option<(Segment, String, String)>,
    tell_failure: bool,
}

struct Request {
    op: Op,
    local: LocalSlice,
    remote: RemoteRange,
}

impl BatchBuilder {
    pub(crate) fn new(core: InProcess<Core>) -> Self {
        let attempts = AttemptPolicy { silence: core.limits().silence, ..AttemptPolicy::default() };
        let options = Options { selection: Policy::default(), attempts, retry_changed: true };
        Self { core, requests: Vec::new(), deadline: None, options, notice: None, tell_failure: false }
    }

    /// Room for so many more requests, to spare growing the list.
    pub fn reserve(mut self, requests: usize) -> Self {
        self.requests.reserve(requests.min(self.core.limits().batch));
        self
    }

    /// Copies a remote range into local memory of the same length.
    pub fn read(mut self, from: &RemoteRange, into: LocalSlice) -> Self {
        self.requests.push(Request { op: Op::Read, local: into, remote: from.clone() });
        self
    }

    /// Copies local memory into a remote range of the same length.
    pub fn write(mut self, from: LocalSlice, to: &RemoteRange) -> Self {
        self.requests.push(Request { op: Op::Write, local: from, remote: to.clone() });
        self
    }

    /// How long the batch may take from submission. The default is the engine's request deadline.
    pub fn deadline(self, time: Duration) -> Self {
        self.deadline_at(Deadline::after(time))
    }

    /// When the batch must be terminal.
    pub fn deadline_at(mut self, deadline: Deadline) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Uses only these transports, in this order, even if one of them failed lately.
    pub fn transports(mut self, only: impl IntoIterator<Item = TransportKind>) -> Self {
        self.options.selection.only = Some(only.into_iter().collect());
        self
    }

    /// How long an attempt may be without progress before it is given up for the next path, if there is one that may be
    /// taken. The default is the engine's limit of the same name. A slice that is under way shows no progress: for each
    /// 64 MiB of it the wait is about a second longer.
    pub fn silence(mut self, time: Duration) -> Self {
        self.options.attempts.silence = time;
        self
    }

    /// Lets a write go on over another path although an earlier attempt may still be applied later, where its target
    /// cannot be made to refuse it. Only for bytes that nobody writes otherwise meanwhile: a late duplicate writes the
    /// same bytes again. Without this such a write fails and says that it may still apply.
    pub fn allow_late_duplicates(mut self) -> Self {
        self.options.attempts.allow_late_duplicate = true;
        self
    }

    /// Whether a request that the target refused is planned anew, once, when the same life of the peer describes itself
    /// otherwise by now and the buffer is still the same. Default true; never across lives.
    pub fn retry_changed(mut self, retry: bool) -> Self {
        self.options.retry_changed = retry;
        self
    }

    /// Notifies the segment's owner after all bytes are applied. Nothing is sent if a request fails, unless
    /// [`notify_failure`](Self::notify_failure) asks for it. The name of the notification is this engine's segment name.
    pub fn notify(self, to: &Segment, message: impl Into<String>) -> Self {
        let name = self.core.local().name().as_str().to_owned();
        self.notify_as(to, name, message)
    }

    /// As [`notify`](Self::notify), with a name of the caller's.
    pub fn notify_as(mut self, to: &Segment, name: impl Into<String>, message: impl Into<String>) -> Self {
        self.notice = Some((to.clone(), name.into(), message.into()));
        self
    }

    /// If a request fails, the receiver of the notification is told so, in the background. A reference peer cannot be told:
    /// nothing is sent to it.
    pub fn notify_failure(mut self) -> Self {
        self.tell_failure = true;
        self
    }

    /// Plans a path for every request and hands the work to the transports. Never blocks on a peer.
    ///
    /// # Errors
    ///
    /// Before anything is sent: an empty or too large batch, lengths that differ, a range that does not permit the
    /// operation, a withdrawn local buffer, no common path, an engine that is shutting down.
    pub fn submit(self) -> Result<Batch> {
        self.start(SubmitMode::Background)
    }

    /// Submits and waits. The calling thread may move the bytes itself, which spares the hand-over to another.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit) and [`Batch::wait`].
    pub fn run(self) -> Result<Report> {
        self.start(SubmitMode::CallerRuns)?.wait()
    }

    fn start(self, mode: SubmitMode) -> Result<Batch> {
        let Self { core, requests, deadline, options, notice, tell_failure } = self;
        core.check_running("submit a batch")?;
        check_count(requests.len(), core.limits().batch)?;
        let deadline = deadline.unwrap_or_else(|| Deadline::after(core.limits().request_deadline)).instant();
        let notice = match notice {
            Some((to, name, message)) => Some(Notice::new(core.arc(), &to, name, message, tell_failure)?),
            None => None,
        };

        // Everything is planned and held before anything is sent, so that an error here leaves no trace.
        let mut infos = Vec::with_capacity(requests.len());
        let mut holds: Vec<Hold> = Vec::with_capacity(requests.len());
        let mut drafts: Vec<Draft> = Vec::new();
        let mut slices = 0_usize;
        let mut uses = Uses::default();
        for Request { op, local, remote } in requests {
            check_request(op, &local, &remote)?;
            remote.begin_use(&mut uses)?;
            let source = (local.location(), local.registered());
            let index = remote.buffer_index();
            let selection = &options.selection;
            let routes = remote.prepared().routes(&core, op, index, source, selection)?.ordered(selection);
            let hold = local.hold().map_err(|refusal| {
                let operation = format!("use {} bytes of local memory", local.len());
                Error::new(refusal_kind(refusal), operation, refusal.to_string())
            })?;
            let (route, care) = (routes.first(), routes.care(0, op, options.attempts.allow_late_duplicate));
            let of_request = usize::try_from(remote.len().div_ceil(route.max_slice)).unwrap_or(usize::MAX);
            slices = slices.saturating_add(of_request);
            let joins = |draft: &Draft| draft.care == care && Arc::ptr_eq(&draft.route.path, &route.path);
            let flight = match drafts.iter().position(joins) {
                Some(known) => known,
                None => {
                    drafts.push(Draft { route: route.clone(), care, slices: 0, largest: 0 });
                    drafts.len() - 1
                }
            };
            let draft = &mut drafts[flight];
            draft.slices = draft.slices.saturating_add(of_request);
            draft.largest = draft.largest.max(remote.len().min(route.max_slice));
            holds.push(hold);
            infos.push(RequestInfo { op, local, remote, routes, flight, slices_end: slices });
        }
        check_slices(slices)?;

        let started = Instant::now();
        let state = BatchState::new(BatchPlan {
            numbers: core.number_requests(infos.len()),
            core,
            requests: infos,
            flights: drafts.iter().map(|draft| draft.flight(started)).collect(),
            started,
            deadline,
            options,
            notice,
            uses,
        });
        let mut work: Vec<Vec<Slice>> = drafts.iter().map(|draft| Vec::with_capacity(draft.slices)).collect();
        state.cut(holds, &mut work);
        state.count_begun();
        state.watch();
        let mut rest = drafts.len();
        for (flight, (draft, slices)) in drafts.into_iter().zip(work).enumerate() {
            // The caller can run one flight only: with more, a dead peer would keep it from the others.
            rest -= 1;
            let mode = if rest == 0 { mode } else { SubmitMode::Background };
            let scope = state.scope(flight);
            draft.route.path.submit(Submission { slices, deadline, scope }, mode);
        }
        Ok(Batch::new(state))
    }
}

/// A flight while the batch is planned.
struct Draft {
    route: Route,
    care: Care,
    slices: usize,
    largest: u64,
}

impl Draft {
    fn flight(&self, now: Instant) -> Flight {
        Flight::new(&self.route, self.care, self.largest, now)
    }
}

impl BatchState {
    /// Cuts the requests into the slices of their flights.
    fn cut(self: &Arc<Self>, holds: Vec<Hold>, work: &mut [Vec<Slice>]) {
        let sink: Arc<dyn CompletionSink> = self.clone();
        let mut index = 0_u32;
        for ((hold, info), request) in holds.into_iter().zip(&self.plan.requests).zip(self.plan.numbers..) {
            let Some(flight) = work.get_mut(info.flight) else { continue };
            let max_slice = info.routes.first().max_slice;
            let (op, remote) = (info.op, info.remote.range());
            let generation = info.remote.buffer().generation();
            let attempt = AttemptId { request, attempt: 1 };
            if remote.len() <= max_slice {
                let token = CompletionToken::new(sink.clone(), index);
                index += 1;
                flight.push(Slice { op, local: hold, remote, generation, attempt, token });
                continue;
            }
            let mut offset = 0;
            while offset < remote.len() {
                let len = max_slice.min(remote.len() - offset);
                let token = CompletionToken::new(sink.clone(), index);
                index += 1;
                match (hold.slice(offset, len), remote.slice(offset, len)) {
                    (Ok(local), Ok(remote)) => {
                        flight.push(Slice { op, local, remote, generation, attempt, token });
                    }
                    // Cutting inside checked bounds cannot fail; should it ever, the request fails, not the process.
                    _ => token.fail(Failure::new(FailureKind::LocalMemory, "the slice cannot be cut")),
                }
                offset += len;
            }
        }
    }
}

impl std::fmt::Debug for BatchBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchBuilder").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

fn check_count(requests: usize, limit: usize) -> Result<()> {
    if requests == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "submit a batch", "the batch has no requests"));
    }
    if requests > limit {
        let cause = format!("{requests} requests are over the limit of {limit} in one batch");
        return Err(Error::new(ErrorKind::LimitReached, "submit a batch", cause));
    }
    Ok(())
}

fn check_slices(slices: usize) -> Result<()> {
    if u32::try_from(slices).is_err() {
        let cause = format!("{slices} slices are over the limit of {} in one batch", u32::MAX);
        return Err(Error::new(ErrorKind::LimitReached, "submit a batch", cause));
    }
    Ok(())
}

fn check_request(op: Op, local: &LocalSlice, remote: &RemoteRange) -> Result<()> {
    let operation = || format!("{op} {} of {}", remote.range(), remote.segment().name());
    if local.len() != remote.len() {
        let cause = format!("the local slice has {} bytes, the remote range {}", local.len(), remote.len());
        return Err(Error::new(ErrorKind::InvalidArgument, operation(), cause));
    }
    remote.segment().check_owner(operation)?;
    let access = remote.buffer().access();
    let permitted = match op {
        Op::Read => access.allows_read(),
        Op::Write => access.allows_write(),
    };
    if !permitted {
        let cause = format!("the buffer permits {access} only");
        return Err(Error::new(ErrorKind::PermissionDenied, operation(), cause)
            .with_peer(remote.segment().name().as_str())
            .with_retry(Retry::AfterReopen));
    }
    Ok(())
}
