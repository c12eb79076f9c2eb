//! One NIC of one life of a peer, as a NIC here reaches it: the line of endpoints, their queue pairs, and the pieces on them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use te_segment::{Generation, Incarnation, SegmentDescriptor};
use te_sys_verbs::{QueuePair, WorkList};
use te_transport::{FailureKind, RemoteEffect};

use super::setup::Errand;
use super::signals::Signals;
use super::verdict::{Verdict, judge};
use super::work;
use crate::client::{Common, Part};
use crate::counters::add;
use crate::endpoint::{Closed, Endpoint, Event, Line, RemoteSet, Step, Timeouts, Turn};
use crate::error::WorkError;
use crate::route::Rail;
use crate::slices::{Draft, Refused, SendQueue, Status, WorkId, WorkRequest};
use crate::store::{Circuit, Held, Pace};
use crate::wire::{NicPath, Offer};

/// Which NIC of which life of which peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    /// The peer's NIC.
    pub(crate) there: NicPath,
    /// The peer's life; none of a peer that does not say which it is.
    pub(crate) life: Option<Incarnation>,
}

/// See the module.
pub(crate) struct Link {
    key: LinkKey,
    here: NicPath,
    rail: Rail,
    common: Arc<Common>,
    signals: Arc<Signals>,
    /// The peer as the last path to it described it: where a handshake goes. None where only the peer has opened.
    target: Mutex<Option<Arc<SegmentDescriptor>>>,
    used: AtomicBool,
    /// Room was needed: what comes from now on goes to another link. Changes under the lock.
    retired: AtomicBool,
    /// Work has completed, and nothing has failed since.
    sound: AtomicBool,
    /// Pieces that wait or are posted.
    pieces: AtomicUsize,
    /// Bytes of them, by queue pair.
    loads: Box<[AtomicU64]>,
    inner: Mutex<Inner>,
}

/// What changes.
pub(crate) struct Inner {
    pub(crate) line: Line<RemoteSet>,
    pub(crate) ends: Vec<End>,
    /// What is to be done by the set-up thread, in this order.
    todo: VecDeque<Step<RemoteSet>>,
    /// Pieces that are not posted, by queue pair.
    waiting: Vec<VecDeque<Draft<Part>>>,
    /// Pieces that the peer may still apply until it has cut the endpoint.
    doubts: Vec<Doubt>,
    /// The last request to cut.
    cuts: u64,
    /// The set-up thread knows that an endpoint is wanted.
    wanted: bool,
    pub(crate) circuit: Circuit,
    /// Why the last endpoint could not be opened.
    pub(crate) trouble: Option<Trouble>,
    /// The last endpoint whose queue pairs are gone, as the peer knows it.
    pub(crate) last: Option<Offer>,
    lists: Lists,
}

/// A piece that the peer may still apply.
struct Doubt {
    /// The endpoint that it was posted on.
    of: Generation,
    part: Part,
    /// The request to cut that it waits for, once that is made.
    asked: Option<u64>,
}

/// Lists that are filled, posted and filled again.
#[derive(Default)]
struct Lists {
    requests: Vec<WorkRequest>,
    work: WorkList,
}

impl Inner {
    /// Why no endpoint is opened until then.
    pub(crate) fn barred(&self, until: Instant) -> Barred {
        Barred { until, trouble: self.trouble.clone() }
    }

    /// The queue pairs of an endpoint, while they are there.
    pub(crate) fn end(&mut self, of: Generation) -> Option<&mut End> {
        self.ends.iter_mut().find(|end| end.generation == of)
    }
}

/// An endpoint is not to be opened yet.
#[derive(Clone, Debug)]
pub(crate) struct Barred {
    /// Until when.
    pub(crate) until: Instant,
    /// What went wrong.
    pub(crate) trouble: Option<Trouble>,
}

impl Barred {
    /// Whether requests wait for the end of the pause: what broke at work is opened again soon, while a peer that did not
    /// answer, or refused, will hardly have another answer.
    pub(crate) fn is_brief(&self, now: Instant) -> bool {
        let broke = self.trouble.as_ref().is_some_and(|trouble| trouble.kind == FailureKind::ConnectionLost);
        broke && self.until.saturating_duration_since(now) <= WORTH_WAITING
    }
}

/// Longer pauses are not waited for.
const WORTH_WAITING: Duration = Duration::from_millis(2_500);

/// Why there is no endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: FailureKind,
    pub(crate) cause: Arc<str>,
}

/// The queue pairs of one endpoint. They are gone before it is.
pub(crate) struct End {
    pub(crate) generation: Generation,
    pub(crate) pairs: Vec<QueuePair>,
    pub(crate) queues: Vec<SendQueue<Part>>,
    pub(crate) ours: Offer,
    pub(crate) theirs: Option<Offer>,
    /// What broke it, as a completion says.
    pub(crate) cause: Option<WorkError>,
    /// Some of what is posted is not signalled, and nothing behind it is.
    pub(crate) is_silent: bool,
}

/// What has broken an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub(crate) error: WorkError,
    /// It is known by the completion at hand.
    pub(crate) is_new: bool,
}

/// What a queue pair did not take.
struct NotPosted {
    left: u32,
    /// The endpoint is of no use any more.
    is_broken: bool,
    /// Nothing was taken, and the queue was not full: the next endpoint will hardly fare better.
    is_hopeless: bool,
}

impl Link {
    pub(crate) fn new(
        key: LinkKey,
        here: NicPath,
        first: Generation,
        common: Arc<Common>,
        signals: Arc<Signals>,
    ) -> Self {
        let lanes = usize::from(common.config.queue_pairs);
        let rail = Rail { local: here.nic().clone(), remote: key.there.nic().clone() };
        let inner = Inner {
            line: Line::new(first, Turn::of(&here, &key.there), Timeouts::default()),
            ends: Vec::new(),
            todo: VecDeque::new(),
            waiting: (0..lanes).map(|_| VecDeque::new()).collect(),
            doubts: Vec::new(),
            cuts: 0,
            wanted: false,
            circuit: Circuit::new(Pace::default()),
            trouble: None,
            last: None,
            lists: Lists::default(),
        };
        Self {
            rail,
            here,
            key,
            common,
            signals,
            target: Mutex::new(None),
            used: AtomicBool::new(true),
            retired: AtomicBool::new(false),
            sound: AtomicBool::new(false),
            pieces: AtomicUsize::new(0),
            loads: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn key(&self) -> &LinkKey {
        &self.key
    }

    pub(crate) fn here(&self) -> &NicPath {
        &self.here
    }

    pub(crate) fn rail(&self) -> &Rail {
        &self.rail
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn target(&self) -> Option<Arc<SegmentDescriptor>> {
        self.target.lock().clone()
    }

    pub(crate) fn aim(&self, target: &Arc<SegmentDescriptor>) {
        *self.target.lock() = Some(target.clone());
    }

    /// Whether it was used since it was asked last.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Bytes under way on a queue pair.
    pub(crate) fn load(&self, lane: usize) -> u64 {
        self.loads.get(lane).map_or(0, |load| load.load(Ordering::Relaxed))
    }

    /// Whether work has completed, and nothing has failed since.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::Relaxed)
    }

    /// Whether pieces wait or are posted.
    pub(crate) fn is_at_work(&self) -> bool {
        self.pieces.load(Ordering::SeqCst) > 0
    }

    /// Whether an endpoint is there or may be opened now.
    ///
    /// # Errors
    ///
    /// Why not, until a pause is over.
    pub(crate) fn may_be_used(&self, now: Instant) -> Result<(), Barred> {
        let inner = self.lock();
        if inner.line.current().is_some_and(Endpoint::is_ready) {
            return Ok(());
        }
        inner.circuit.may_open(now).map_err(|until| inner.barred(until))
    }

    /// Forgets what has failed, since that was the own port's. Returns whether an endpoint is wanted.
    pub(crate) fn forgive(&self) -> bool {
        let mut inner = self.lock();
        inner.circuit = Circuit::new(Pace::default());
        inner.trouble = None;
        inner.wanted
    }

    /// When an endpoint that is wanted may be opened, if that is to be waited for.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        let inner = self.lock();
        let until = if inner.wanted { inner.circuit.until() } else { None };
        until.filter(|_| inner.line.current().is_none())
    }

    /// Whether room was needed elsewhere: ask the NIC for another one.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// It makes room.
    pub(crate) fn retire(self: &Arc<Self>) {
        let mut inner = self.lock();
        self.retired.store(true, Ordering::SeqCst);
        self.handle(&mut inner, Instant::now(), Event::Close(Closed::Evicted));
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().line.current().is_some_and(Endpoint::is_ready)
    }

    /// Takes over pieces, each for a queue pair, and posts what can be posted. If it is retired, or the transport has ended, all
    /// of them are left.
    pub(crate) fn give(self: &Arc<Self>, parts: &mut Vec<(usize, Part)>) {
        let now = Instant::now();
        let mut inner = self.lock();
        if self.is_retired() || self.signals.is_over() || parts.is_empty() {
            return;
        }
        self.used.store(true, Ordering::Relaxed);
        self.pieces.fetch_add(parts.len(), Ordering::SeqCst);
        self.signals.begin(parts.len());
        for (lane, part) in parts.drain(..) {
            let lane = lane.min(inner.waiting.len().saturating_sub(1));
            if let Some(load) = self.loads.get(lane) {
                load.fetch_add(part.len(), Ordering::Relaxed);
            }
            if let Some(waiting) = inner.waiting.get_mut(lane) {
                waiting.push_back(draft(part));
            }
        }
        self.pump(&mut inner, now);
    }

    /// Tells the line something. What is to be done about it is done by the set-up thread.
    pub(crate) fn tell(self: &Arc<Self>, event: Event<RemoteSet>) {
        let mut inner = self.lock();
        self.handle(&mut inner, Instant::now(), event);
    }

    /// As [`tell`](Self::tell), under the lock.
    pub(crate) fn handle(self: &Arc<Self>, inner: &mut Inner, now: Instant, event: Event<RemoteSet>) {
        let steps = inner.line.handle(now, event);
        self.add(inner, steps);
    }

    fn add(self: &Arc<Self>, inner: &mut Inner, steps: Vec<Step<RemoteSet>>) {
        if steps.is_empty() {
            return;
        }
        // Whoever empties the list takes all of it.
        if inner.todo.is_empty() {
            self.signals.errand(Errand::Run(self.clone()));
        }
        inner.todo.extend(steps);
    }

    /// The next thing for the set-up thread.
    pub(crate) fn next_step(&self) -> Option<Step<RemoteSet>> {
        self.lock().todo.pop_front()
    }

    /// Leaves out what was to be done for an endpoint that could not be created.
    pub(crate) fn skip(inner: &mut Inner, of: Generation) {
        inner.todo.retain(|step| step.endpoint != Some(of));
    }

    /// Posts what waits, as far as there is an endpoint and room; else asks for one.
    pub(crate) fn pump(self: &Arc<Self>, inner: &mut Inner, now: Instant) {
        let Some(current) = inner.line.current() else {
            let is_wanted = inner.waiting.iter().any(|waiting| !waiting.is_empty());
            if is_wanted && !inner.wanted {
                inner.wanted = true;
                self.signals.errand(Errand::Want(self.clone()));
            }
            return;
        };
        if !current.is_ready() {
            return;
        }
        let generation = current.generation();
        let mut steps = Vec::new();
        let Inner { line, ends, waiting, lists, circuit, trouble, .. } = inner;
        let Some(end) = ends.iter_mut().find(|end| end.generation == generation) else { return };
        for (lane, waiting) in waiting.iter_mut().enumerate() {
            if waiting.is_empty() {
                continue;
            }
            let Some(refusal) = self.post(end, lane, waiting, line, lists) else { continue };
            steps.extend(line.handle(now, Event::Completed(generation, refusal.left)));
            if refusal.is_hopeless {
                circuit.failed(now, rand::random());
                *trouble = Some(self.trouble("the NIC here takes no work"));
            }
            if refusal.is_broken {
                steps.extend(line.handle(now, Event::Broken(generation)));
                break;
            }
        }
        self.add(inner, steps);
    }

    /// What has failed, while it is not tried again.
    fn trouble(&self, error: impl std::fmt::Display) -> Trouble {
        let cause = format!("work from {} failed, and it is not tried again yet: {error}", self.rail);
        Trouble { kind: FailureKind::ConnectionLost, cause: cause.into() }
    }

    /// Posts on one queue pair with one doorbell. What it did not take waits again.
    fn post(
        self: &Arc<Self>,
        end: &mut End,
        lane: usize,
        waiting: &mut VecDeque<Draft<Part>>,
        line: &mut Line<RemoteSet>,
        lists: &mut Lists,
    ) -> Option<NotPosted> {
        let (queue, pair) = (end.queues.get_mut(lane)?, end.pairs.get(lane)?);
        lists.requests.clear();
        lists.work.clear();
        let granted = self.signals.take_room(waiting.len().min(queue.room()));
        if granted == 0 {
            if queue.room() > 0 {
                self.signals.starve(self);
            }
            return None;
        }
        let count = queue.post(waiting, granted, &mut lists.requests);
        if line.post(u32::try_from(count).unwrap_or(u32::MAX)).is_err() {
            // Not reached: the endpoint is ready, and nothing else changes it while the link is locked.
            return Some(NotPosted { left: 0, is_broken: true, is_hopeless: false });
        }
        work::fill(&mut lists.work, &lists.requests, queue);
        let signalled = lists.requests.iter().filter(|request| request.signalled).count();
        add(&self.common.counters.requests, count as u64);
        add(&self.common.counters.signalled, signalled as u64);
        add(&self.common.counters.doorbells, 1);
        let refusal = pair.post(&mut lists.work).err()?;
        let left = count.saturating_sub(refusal.accepted);
        self.signals.give_room(left);
        let Refused { owners, must_flush } = queue.refused(left);
        for owner in owners.into_iter().rev() {
            waiting.push_front(draft(owner));
        }
        // A queue that is full has room again when something completes, if anything is to.
        let is_full = refusal.is_full() && queue.outstanding() > 0;
        let is_broken = must_flush || !is_full;
        end.is_silent |= must_flush;
        if is_broken {
            tracing::debug!(target: "te::rdma", rail = %self.rail, %refusal, "not posted");
        }
        let is_hopeless = is_broken && refusal.accepted == 0;
        Some(NotPosted { left: u32::try_from(left).unwrap_or(u32::MAX), is_broken, is_hopeless })
    }

    /// A completion of the endpoint's queue pair. Appends what has ended by it.
    pub(crate) fn complete(
        self: &Arc<Self>,
        (of, lane): (Generation, usize),
        id: WorkId,
        status: Status,
        ended: &mut Vec<(Part, Status)>,
    ) -> Option<Cause> {
        let now = Instant::now();
        let mut inner = self.lock();
        let end = inner.end(of)?;
        let queue = end.queues.get_mut(lane)?;
        let count = queue.complete(id, status, ended);
        self.signals.give_room(count);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count == 0 {
            add(&self.common.counters.stale, 1);
        }
        let failed = match status {
            Status::Failed(error) if !error.is_flush() => Some(error),
            _ => None,
        };
        // Each queue pair reports what broke it, and it is one failure: of the endpoint.
        let is_first = end.cause.is_none();
        end.cause = end.cause.or(failed);
        let cause = end.cause.map(|error| Cause { error, is_new: is_first && failed.is_some() });
        if count > 0 {
            self.handle(&mut inner, now, Event::Completed(of, count));
        }
        if let Some(error) = failed {
            if is_first && !error.is_refusal() {
                inner.circuit.failed(now, rand::random());
                inner.trouble = Some(self.trouble(error));
            }
            self.sound.store(false, Ordering::Relaxed);
            self.handle(&mut inner, now, Event::Broken(of));
        } else if status != Status::Done {
            // The device has broken it without a failure of its own, as after a request of the peer that it has refused.
            self.handle(&mut inner, now, Event::Broken(of));
        } else {
            // Not with the first one alone: failures are forgotten once things have gone well for a while.
            inner.circuit.worked(now);
        }
        self.pump(&mut inner, now);
        cause
    }

    /// What becomes of a piece of an endpoint here that has ended.
    pub(crate) fn settle(
        self: &Arc<Self>,
        of: Generation,
        lane: usize,
        mut part: Part,
        status: Status,
        cause: Option<Cause>,
    ) {
        self.lighten(Some(lane), &part);
        let peer = part.job.peer().clone();
        if status == Status::Done {
            if !self.sound.swap(true, Ordering::Relaxed) {
                peer.worked(&self.rail);
            }
            part.done();
            return;
        }
        let own = match status {
            Status::Failed(error) if !error.is_flush() => Some(error),
            _ => None,
        };
        let is_new = cause.is_some_and(|cause| cause.is_new);
        if is_new && own.is_some_and(|error| !error.is_refusal()) {
            peer.failed(&self.rail, &part, Instant::now());
        }
        if let Some(reason) = part.job.stopped(Instant::now()) {
            part.stop(reason, RemoteEffect::MayStillApply);
            return;
        }
        let cause = cause.map(|cause| cause.error);
        part.came_back(own.or(cause).is_some_and(|error| !error.is_refusal()));
        match judge(part.op(), status, cause, part.tries, self.key.life.is_some()) {
            Verdict::Refused(error) => {
                part.fail(error.kind(), error.to_string(), RemoteEffect::MayHaveApplied)
            }
            Verdict::Again => {
                add(&self.common.counters.moved, 1);
                peer.again(part);
            }
            Verdict::AfterCut => self.doubt(of, part),
            Verdict::Over(error) => {
                let kind = error.map_or(FailureKind::ConnectionLost, WorkError::kind);
                let cause = match error {
                    Some(error) => format!("{}: {error}", self.rail),
                    None => format!("{}: the queue pair was closed under the request", self.rail),
                };
                part.fail(kind, cause, RemoteEffect::MayStillApply);
            }
        }
    }

    /// A WRITE that may come late until the peer has cut the endpoint, which it is asked for once the queue pairs here are
    /// gone.
    fn doubt(self: &Arc<Self>, of: Generation, part: Part) {
        let mut inner = self.lock();
        if self.signals.is_over() {
            drop(inner);
            let cause = "the queue pairs broke, and the transport is shutting down";
            part.fail(FailureKind::Shutdown, cause, RemoteEffect::MayStillApply);
            return;
        }
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.signals.begin(1);
        inner.doubts.push(Doubt { of, part, asked: None });
        if inner.ends.iter().all(|end| end.generation != of) {
            self.signals.errand(Errand::Cut(self.clone()));
        }
    }

    /// Has a request to cut stand for what is in doubt and was posted on endpoints that are gone. None, if nothing is that no
    /// request stands for; else its number, and the last of those endpoints.
    pub(crate) fn ask_to_cut(&self) -> Option<(u64, Offer)> {
        let Inner { doubts, ends, last, cuts, .. } = &mut *self.lock();
        let is_gone = |doubt: &Doubt| ends.iter().all(|end| end.generation != doubt.of);
        let mut asks = doubts.iter_mut().filter(|doubt| doubt.asked.is_none() && is_gone(doubt)).peekable();
        asks.peek()?;
        let last = last.clone()?;
        *cuts += 1;
        asks.for_each(|doubt| doubt.asked = Some(*cuts));
        Some((*cuts, last))
    }

    /// Takes what a request to cut stands for; without one, all that is in doubt.
    pub(crate) fn take_doubts(&self, asked: Option<u64>) -> Vec<Part> {
        let is_meant = |doubt: &mut Doubt| asked.is_none() || doubt.asked == asked;
        let doubts: Vec<_> = self.lock().doubts.extract_if(.., is_meant).map(|doubt| doubt.part).collect();
        doubts.iter().for_each(|part| self.lighten(None, part));
        doubts
    }

    /// Takes what waits.
    pub(crate) fn take_waiting(&self) -> Vec<Part> {
        let mut inner = self.lock();
        let mut taken = Vec::new();
        for (lane, waiting) in inner.waiting.iter_mut().enumerate() {
            for draft in waiting.drain(..) {
                self.lighten(Some(lane), &draft.owner);
                taken.push(draft.owner);
            }
        }
        taken
    }

    /// There is room at the NIC again.
    pub(crate) fn go_on(self: &Arc<Self>) {
        self.pump(&mut self.lock(), Instant::now());
    }

    /// Room for work requests that have ended without a completion.
    pub(crate) fn give_room(&self, requests: usize) {
        self.signals.give_room(requests);
    }

    /// Whether an endpoint is wanted, as the set-up thread knows.
    pub(crate) fn set_wanted(inner: &mut Inner, wanted: bool) {
        inner.wanted = wanted;
    }

    /// Looks for what has been stopped: what is not posted ends, and what is posted is flushed. Returns the earliest
    /// deadline of the rest.
    pub(crate) fn review(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut stopped = Vec::new();
        let mut earliest: Option<Instant> = None;
        let mut note = |part: &Part| {
            let until = part.job.deadline();
            earliest = Some(earliest.map_or(until, |known| known.min(until)));
        };
        let mut inner = self.lock();
        for (lane, waiting) in inner.waiting.iter_mut().enumerate() {
            waiting.retain(|draft| match draft.owner.job.stopped(now) {
                Some(reason) => {
                    stopped.push((Some(lane), draft.owner.clone(), reason));
                    false
                }
                None => {
                    note(&draft.owner);
                    true
                }
            });
        }
        inner.doubts.retain(|doubt| match doubt.part.job.stopped(now) {
            Some(reason) => {
                stopped.push((None, doubt.part.clone(), reason));
                false
            }
            None => {
                note(&doubt.part);
                true
            }
        });
        let current = inner.line.current().map(Endpoint::generation);
        let mut interrupted = false;
        for end in &inner.ends {
            for part in end.queues.iter().flat_map(SendQueue::owners) {
                match part.job.stopped(now) {
                    Some(_) => interrupted |= Some(end.generation) == current,
                    None => note(part),
                }
            }
        }
        if interrupted {
            self.handle(&mut inner, now, Event::Close(Closed::Interrupted));
        }
        drop(inner);
        for (lane, part, reason) in stopped {
            self.lighten(lane, &part);
            let posted = lane.is_none() || part.tries > 0;
            let effect = if posted { RemoteEffect::MayHaveApplied } else { RemoteEffect::None };
            part.stop(reason, if lane.is_none() { RemoteEffect::MayStillApply } else { effect });
        }
        earliest
    }

    /// A piece is not here any more.
    fn lighten(&self, lane: Option<usize>, part: &Part) {
        if let Some(load) = lane.and_then(|lane| self.loads.get(lane)) {
            load.fetch_sub(part.len(), Ordering::Relaxed);
        }
        self.pieces.fetch_sub(1, Ordering::SeqCst);
        self.signals.end(1);
    }
}

impl Held for Arc<Link> {
    fn endpoints(&self) -> usize {
        self.lock().line.endpoints()
    }

    fn is_gone(&self) -> bool {
        // Whoever holds it may want an endpoint at any time, and what waits here is held by nobody else.
        Self::strong_count(self) == 1
            && !self.is_at_work()
            && self.endpoints() == 0
            && !self.lock().line.gives_way()
    }

    fn is_busy(&self) -> bool {
        self.is_at_work()
    }

    fn next_generation(&self) -> Generation {
        self.lock().line.next_generation()
    }
}

fn draft(part: Part) -> Draft<Part> {
    let Part { piece, local_key, remote_key, .. } = part;
    Draft { op: part.op(), piece, local_key, remote_key, owner: part }
}
