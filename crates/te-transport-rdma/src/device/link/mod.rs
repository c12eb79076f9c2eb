//! One NIC of one life of a peer, as a NIC here reaches it: the line of endpoints, their queue pairs, and the pieces on them.

mod outcome;
mod post;
mod stopped;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use te_segment::{Generation, Incarnation, SegmentDescriptor};
use te_sys_verbs::QueuePair;
use te_transport::FailureKind;

use super::setup::Errand;
use super::signals::Signals;
use crate::client::{Common, Part};
use crate::endpoint::{Closed, Endpoint, Event, Line, RemoteSet, Step, Timeouts, Turn};
use crate::error::WorkError;
use crate::route::Rail;
use crate::slices::{Draft, SendQueue};
use crate::store::{Circuit, Held, Pace};
use crate::wire::{NicPath, Offer};
use post::Lists;

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
