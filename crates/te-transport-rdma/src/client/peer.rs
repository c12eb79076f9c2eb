//! A peer as one descriptor describes it, and what is known of the rails to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use te_segment::{AddressRange, BufferDescriptor, Generation, NicName, SegmentDescriptor, TransportKind};
use te_transport::{Failure, FailureKind, PathHealth, PathLabel, Slice, Submission, SubmitMode, stopped};

use super::Shared;
use super::job::{Job, Part, Work};
use super::route::{self, Route};
use crate::device::{Link, Looking, Registered, Trouble};
use crate::route::{Health, Rail, Spread};
use crate::slices::Cut;

/// Routes that are kept of one peer at most.
const MAX_ROUTES: usize = 4_096;

/// Rails in a row that do not come about for a piece, at most.
const DIVERSIONS: u8 = 8;

/// See the module.
pub(crate) struct Peer {
    shared: Arc<Shared>,
    descriptor: Arc<SegmentDescriptor>,
    label: Arc<PathLabel>,
    /// Where its buffers begin, in order, and their positions in the descriptor.
    buffers: Vec<(u64, usize)>,
    health: Mutex<Health>,
    /// Changes when routes have to be found anew.
    epoch: AtomicU64,
    routes: Mutex<HashMap<(Generation, usize), Arc<Route>>>,
    /// Slices under way.
    in_flight: AtomicUsize,
    failing: AtomicBool,
    last_failure: Mutex<Option<String>>,
    /// So that small requests do not all begin with the same queue pair.
    turn: AtomicUsize,
}

/// Pieces, each for a queue pair.
type Laned = Vec<(usize, Part)>;

/// What a slice needs to be cut.
struct Planned {
    route: Arc<Route>,
    buffer: usize,
    local: AddressRange,
    remote: AddressRange,
}

impl Peer {
    pub(crate) fn new(shared: &Arc<Shared>, descriptor: &Arc<SegmentDescriptor>) -> Arc<Self> {
        let mut buffers: Vec<_> = descriptor
            .buffers()
            .iter()
            .enumerate()
            .map(|(at, buffer)| (buffer.range().start(), at))
            .collect();
        buffers.sort_unstable();
        let mut health = Health::new(shared.common.config.health());
        for nic in shared.nics.iter().filter(|nic| !nic.is_up()) {
            health.set_down(nic.name(), true);
        }
        let peer = Arc::new(Self {
            shared: shared.clone(),
            descriptor: descriptor.clone(),
            label: Arc::new(PathLabel::new(TransportKind::RDMA, descriptor.name().as_str())),
            buffers,
            health: Mutex::new(health),
            epoch: AtomicU64::new(0),
            routes: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            failing: AtomicBool::new(false),
            last_failure: Mutex::new(None),
            turn: AtomicUsize::new(0),
        });
        shared.common.peers.add(&peer);
        peer
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn descriptor(&self) -> &Arc<SegmentDescriptor> {
        &self.descriptor
    }

    pub(crate) fn label(&self) -> &Arc<PathLabel> {
        &self.label
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock()
    }

    pub(crate) fn path_health(&self) -> PathHealth {
        let routes: Vec<_> = self.routes.lock().values().cloned().collect();
        let mut links: Vec<&Arc<Link>> = Vec::new();
        for link in routes.iter().flat_map(|route| &route.ways).map(|way| &way.link) {
            if !links.iter().any(|known| Arc::ptr_eq(known, link)) {
                links.push(link);
            }
        }
        PathHealth {
            connections: links.iter().filter(|link| link.is_ready()).count(),
            in_flight: self.in_flight.load(Ordering::Acquire),
            last_failure: self.last_failure.lock().clone(),
        }
    }

    /// Executes slices; what cannot be begun fails at once.
    pub(crate) fn submit(self: &Arc<Self>, submission: Submission, mode: SubmitMode) {
        let Submission { slices, deadline, scope } = submission;
        let now = Instant::now();
        let late = now >= deadline;
        if let Some(reason) = scope.cancelled().map(Some).or_else(|| late.then_some(None)) {
            let (kind, cause) = stopped(reason);
            self.fail_all(slices, &Failure::new(kind, cause));
            return;
        }
        if self.shared.common.is_closing() {
            self.fail_all(slices, &shutting_down());
            return;
        }
        let (mut works, mut plans) = (Vec::with_capacity(slices.len()), Vec::with_capacity(slices.len()));
        let (mut last, mut all) = (None, 0);
        for slice in slices {
            match self.plan(&slice, now, &mut last) {
                Ok((planned, pieces)) => {
                    all += pieces as usize;
                    works.push(Work::new(slice.op, planned.buffer, pieces, slice.token, slice.local));
                    plans.push(planned);
                }
                Err(failure) => {
                    self.note(&failure);
                    slice.token.fail(failure.on_path(self.label.clone()));
                }
            }
        }
        if works.is_empty() {
            return;
        }
        self.in_flight.fetch_add(works.len(), Ordering::AcqRel);
        let job = Job::new(self.clone(), deadline, scope, works);
        job.watch();
        if mode == SubmitMode::CallerRuns {
            // Announced before there is anything to take, so that no thread is woken for it.
            let looking = Looking::along(&self.shared.nics);
            self.distribute(&job, plans, all);
            looking.until(deadline, || job.is_over());
        } else {
            self.distribute(&job, plans, all);
        }
    }

    fn fail_all(&self, slices: Vec<Slice>, failure: &Failure) {
        for slice in slices {
            slice.token.fail(failure.clone().on_path(self.label.clone()));
        }
    }

    /// Where a slice goes, and in how many pieces.
    fn plan(
        self: &Arc<Self>,
        slice: &Slice,
        now: Instant,
        last: &mut Option<(Generation, usize, Arc<Route>)>,
    ) -> Result<(Planned, u32), Failure> {
        let buffer = self.buffer(slice)?;
        let local = slice.local.generation();
        let route = match last {
            Some((of, at, route)) if *of == local && *at == buffer => route.clone(),
            _ => {
                let route = self.route(local, buffer, now)?;
                *last = Some((local, buffer, route.clone()));
                route
            }
        };
        let planned = Planned { route, buffer, local: slice.local.range(), remote: slice.remote };
        let pieces = self.cut(&planned)?.count();
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        Ok((planned, pieces))
    }

    /// Which of the peer's buffers a slice is in, if its request may mean that one.
    fn buffer(&self, slice: &Slice) -> Result<usize, Failure> {
        let outside = || {
            let cause = format!("{} is in no buffer that the peer offers", slice.remote);
            Failure::new(FailureKind::Rejected, cause)
        };
        let behind = self.buffers.partition_point(|(start, _)| *start <= slice.remote.start());
        let (_, at) = *behind.checked_sub(1).and_then(|at| self.buffers.get(at)).ok_or_else(outside)?;
        let buffer = self.descriptor.buffers().get(at).ok_or_else(outside)?;
        if !buffer.range().contains_range(&slice.remote) {
            return Err(outside());
        }
        if slice.generation.is_some() && buffer.generation() != slice.generation {
            let cause = "the range belongs to another registration than the request was planned with";
            return Err(Failure::new(FailureKind::BufferGone, cause));
        }
        Ok(at)
    }

    fn cut<'a>(&self, planned: &'a Planned) -> Result<Cut<'a>, Failure> {
        let config = &self.shared.common.config;
        let lanes = planned.route.ways.len() * usize::from(config.queue_pairs);
        let size = config.slice_size().of(planned.local.len(), u64::try_from(lanes).unwrap_or(u64::MAX));
        Cut::new(planned.local, &planned.route.local.parts, planned.remote, &planned.route.remote, size)
            .map_err(|error| Failure::new(FailureKind::LocalMemory, error.to_string()))
    }

    /// Gives every piece to a queue pair, and each rail all of its pieces at once. `pieces`: how many there are.
    fn distribute(self: &Arc<Self>, job: &Arc<Job>, plans: Vec<Planned>, pieces: usize) {
        let lanes = usize::from(self.shared.common.config.queue_pairs);
        let mut given: Vec<(Arc<Link>, Laned)> = Vec::new();
        let mut spread: Option<(Arc<Route>, Spread)> = None;
        for (slice, planned) in (0_u32..).zip(&plans) {
            let route = &planned.route;
            if !spread.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, route)) {
                spread = Some((route.clone(), self.spread(route, lanes)));
            }
            let Some((_, spread)) = &mut spread else { continue };
            // Cut as it was counted.
            let Ok(cut) = self.cut(planned) else { continue };
            for piece in cut {
                let lane = spread.next(piece.local.len());
                let Some(way) = route.ways.get(lane.rail) else { continue };
                let local_key = route.local.key(piece.local_part, &way.link.rail().local);
                // On both sides each part has a key at each NIC that has one for the first.
                let none = te_segment::MemoryKey::new(0);
                let part = Part {
                    job: job.clone(),
                    slice,
                    piece,
                    local_key: local_key.unwrap_or(none),
                    remote_key: way.remote_key(piece.remote_part).unwrap_or(none),
                    tries: 0,
                    diverted: 0,
                };
                match given.iter_mut().find(|(link, _)| Arc::ptr_eq(link, &way.link)) {
                    Some((_, parts)) => parts.push((lane.queue_pair, part)),
                    None => {
                        // Rails get equal shares, give or take one for each queue pair: none has to grow.
                        let mut parts = Vec::with_capacity(pieces.div_ceil(route.ways.len()) + lanes);
                        parts.push((lane.queue_pair, part));
                        given.push((way.link.clone(), parts));
                    }
                }
            }
        }
        for (link, mut parts) in given {
            link.give(&mut parts);
            // A link that has just been retired takes nothing.
            parts.into_iter().for_each(|(_, part)| self.again(part));
        }
    }

    fn spread(&self, route: &Route, lanes: usize) -> Spread {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut spread = Spread::new(route.ways.len(), lanes, first);
        for (rail, way) in route.ways.iter().enumerate() {
            for queue_pair in 0..lanes {
                spread.load(crate::route::Lane { rail, queue_pair }, way.link.load(queue_pair));
            }
        }
        spread
    }

    fn route(
        self: &Arc<Self>,
        local: Generation,
        buffer: usize,
        now: Instant,
    ) -> Result<Arc<Route>, Failure> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let key = (local, buffer);
        if let Some(route) = self.routes.lock().get(&key).filter(|route| route.is_fresh(epoch, now)) {
            return Ok(route.clone());
        }
        let registered = || self.shared.common.regions.get(local);
        let route = loop {
            let Some(known) = registered() else {
                if self.shared.common.is_closing() {
                    return Err(shutting_down());
                }
                let cause = "the buffer here is not registered at any NIC";
                return Err(Failure::new(FailureKind::LocalMemory, cause));
            };
            let route = route::find(self, &known, buffer, epoch, now)?;
            // Where a NIC came back meanwhile, its keys are others.
            if registered().is_some_and(|now| Arc::ptr_eq(&now, &known)) {
                break Arc::new(route);
            }
        };
        let mut routes = self.routes.lock();
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert(key, route.clone());
        Ok(route)
    }

    /// A piece that has come back goes on, over whatever rail is there.
    pub(crate) fn again(self: &Arc<Self>, mut part: Part) {
        let effect = part.effect();
        if self.shared.common.is_closing() {
            part.failed(shutting_down().with_effect(effect));
            return;
        }
        match self.best(&part) {
            Ok((link, lane, local_key, remote_key)) => {
                (part.local_key, part.remote_key) = (local_key, remote_key);
                let mut parts = vec![(lane, part)];
                link.give(&mut parts);
                for (_, part) in parts {
                    let cause = "the endpoint had to make room for others";
                    let failure = match self.shared.common.is_closing() {
                        true => shutting_down(),
                        false => Failure::new(FailureKind::ConnectionLost, cause),
                    };
                    part.failed(failure.with_effect(effect));
                }
            }
            Err(failure) => {
                let cause =
                    format!("the queue pair broke, and there is no other way now: {}", failure.cause());
                part.fail(FailureKind::ConnectionLost, cause, effect);
            }
        }
    }

    /// A piece that waited for an endpoint which did not come goes to another rail, or fails as said.
    pub(crate) fn divert(self: &Arc<Self>, mut part: Part, trouble: &Trouble) {
        self.changed();
        part.diverted = part.diverted.saturating_add(1);
        let effect = part.effect();
        let is_final = matches!(trouble.kind, FailureKind::Shutdown | FailureKind::StaleIncarnation);
        let next = if is_final || part.diverted > DIVERSIONS { None } else { self.best(&part).ok() };
        // What was posted before has lost its connection, whatever keeps it from another one.
        let kind = match trouble.kind {
            FailureKind::Unreachable if part.tries > 0 => FailureKind::ConnectionLost,
            kind => kind,
        };
        let Some((link, lane, local_key, remote_key)) = next else {
            part.fail(kind, trouble.cause.clone(), effect);
            return;
        };
        (part.local_key, part.remote_key) = (local_key, remote_key);
        let mut parts = vec![(lane, part)];
        link.give(&mut parts);
        for (_, part) in parts {
            part.fail(kind, trouble.cause.clone(), effect);
        }
    }

    /// The queue pair with the least to do of those that reach what a piece is about, with the keys there.
    fn best(
        self: &Arc<Self>,
        part: &Part,
    ) -> Result<(Arc<Link>, usize, te_segment::MemoryKey, te_segment::MemoryKey), Failure> {
        let lost = || Failure::new(FailureKind::ConnectionLost, "the slice is over");
        let work = part.work().ok_or_else(lost)?;
        let route = self.route(work.local, work.buffer, Instant::now())?;
        let lanes = usize::from(self.shared.common.config.queue_pairs);
        let lane = self.spread(&route, lanes).next(part.len());
        let way = route.ways.get(lane.rail).ok_or_else(lost)?;
        let local_key = route.local.key(part.piece.local_part, &way.link.rail().local).ok_or_else(lost)?;
        let remote_key = way.remote_key(part.piece.remote_part).ok_or_else(lost)?;
        Ok((way.link.clone(), lane.queue_pair, local_key, remote_key))
    }

    /// Routes have to be found anew.
    pub(crate) fn changed(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A piece has completed on a rail, the first one since something failed.
    pub(crate) fn worked(&self, rail: &Rail, part: &Part, now: Instant) {
        self.health.lock().worked(rail);
        if let Some((local, remote)) = self.places(part) {
            let mut reach = self.shared.reach.lock();
            reach.worked(now, self.descriptor.name().as_str(), rail, &local.location, remote.location());
        }
    }

    /// The registration here and the peer's buffer that a piece is about.
    fn places(&self, part: &Part) -> Option<(Arc<Registered>, &BufferDescriptor)> {
        let work = part.work()?;
        let local = self.shared.common.regions.get(work.local)?;
        Some((local, self.descriptor.buffers().get(work.buffer)?))
    }

    /// A rail was found to be in order, be that by work of others: every path has a view of its own, and a link tells only the
    /// one whose work was first.
    pub(crate) fn is_sound(&self, rail: &Rail) {
        let mut health = self.health.lock();
        if !health.state(rail).has_worked {
            health.worked(rail);
        }
    }

    /// A piece has failed on a rail, for a reason that is the rail's or its NICs'.
    pub(crate) fn failed(&self, rail: &Rail, part: &Part, now: Instant) {
        let blame = self.health.lock().failed(now, rail);
        tracing::info!(target: "te::rdma", peer = %self.descriptor.name(), %rail, ?blame, "work failed");
        if let Some((local, remote)) = self.places(part) {
            let mut reach = self.shared.reach.lock();
            reach.failed(now, self.descriptor.name().as_str(), rail, &local.location, remote.location());
        }
        self.changed();
    }

    /// A NIC here is down, or is up again.
    pub(crate) fn set_down(&self, nic: &NicName, down: bool) {
        self.health.lock().set_down(nic, down);
        self.changed();
    }

    /// A slice has ended.
    pub(crate) fn ended(&self, failure: Option<&Failure>) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        match failure {
            Some(failure) => self.note(failure),
            None if self.failing.load(Ordering::Relaxed) => {
                self.failing.store(false, Ordering::Relaxed);
                *self.last_failure.lock() = None;
            }
            None => {}
        }
    }

    fn note(&self, failure: &Failure) {
        self.failing.store(true, Ordering::Relaxed);
        *self.last_failure.lock() = Some(failure.to_string());
    }

    /// Something under way has been stopped.
    pub(crate) fn review(&self) {
        self.shared.nics.iter().for_each(|nic| nic.signals().review());
    }
}

fn shutting_down() -> Failure {
    Failure::new(FailureKind::Shutdown, "the transport is shutting down")
}
