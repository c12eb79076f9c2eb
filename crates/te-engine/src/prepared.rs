//! One snapshot of a descriptor, prepared for use: the paths opened on it and the decisions made for it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::RwLock;
use te_memory::ForkMark;
use te_metadata::Snapshot;
use te_segment::{Identity, Location, SegmentDescriptor, SegmentName, TransportKind};
use te_select::{Installed, NoPath, Plan, Policy, Request, plan};
use te_transport::{Fencing, Op, Path, Transport};

use crate::buffer::TransportSet;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::lane::Lane;
use crate::locality;
use crate::process::OfProcess;

/// A usable path, ready for use.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) lane: Arc<Lane>,
    pub(crate) path: Arc<dyn Path>,
    pub(crate) max_slice: u64,
}

/// The usable paths of a request, best first. Never empty.
pub(crate) struct Routes {
    first: Route,
    others: Vec<Route>,
    fencing: Arc<[Fencing]>,
}

/// How an attempt is looked after while it is under way. Those of one flight have it in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Care {
    /// Given up when silent: another path is open to it.
    pub(crate) leaves: bool,
    /// Stopped a little before the deadline, so that its target can be fenced in time.
    pub(crate) guarded: bool,
}

impl Routes {
    fn new(first: Route, others: Vec<Route>) -> Self {
        let all = std::iter::once(&first).chain(&others);
        let fencing = all.map(|route| route.path.fencing()).collect();
        Self { first, others, fencing }
    }

    pub(crate) fn first(&self) -> &Route {
        &self.first
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Route> {
        index.checked_sub(1).map_or(Some(&self.first), |index| self.others.get(index))
    }

    /// How each of them is fenced.
    pub(crate) fn fencing(&self) -> &Arc<[Fencing]> {
        &self.fencing
    }

    /// How an attempt on the path with this number is looked after.
    pub(crate) fn care(&self, index: usize, op: Op, late_duplicates: bool) -> Care {
        let fencing = self.fencing.get(index);
        let guarded = op == Op::Write && fencing == Some(&Fencing::Target);
        let stops = matches!(fencing, Some(Fencing::Target | Fencing::Immediate));
        let leaves = index < self.others.len() && (op == Op::Read || stops || late_duplicates);
        Care { leaves, guarded }
    }

    /// Whether a failed request has anything left to do: another path, or a target to fence.
    pub(crate) fn can_act(&self, op: Op) -> bool {
        !self.others.is_empty() || self.care(0, op, false).guarded
    }

    /// The order in which they are tried now: those whose circuit is open come last. An explicit list keeps its order.
    pub(crate) fn ordered(self: &Arc<Self>, policy: &Policy) -> Arc<Self> {
        // While all goes well this is one load.
        if policy.only.is_some() || self.others.is_empty() || !self.first.lane.is_troubled() {
            return self.clone();
        }
        let now = Instant::now();
        if !self.first.lane.is_open(now) {
            return self.clone();
        }
        let all = std::iter::once(&self.first).chain(&self.others).cloned();
        let (open, mut order): (Vec<Route>, Vec<Route>) = all.partition(|route| route.lane.is_open(now));
        order.extend(open);
        let mut order = order.into_iter();
        match order.next() {
            Some(first) => Arc::new(Self::new(first, order.collect())),
            None => self.clone(),
        }
    }
}

/// One snapshot with the paths opened on it and the decisions made for it.
pub(crate) struct Prepared {
    mark: Arc<ForkMark>,
    pub(crate) sequence: u64,
    name: SegmentName,
    pub(crate) descriptor: Arc<SegmentDescriptor>,
    /// Parallel to the engine's transports, which never change after the start.
    paths: Vec<OnceLock<std::result::Result<Arc<dyn Path>, String>>>,
    routes: RwLock<HashMap<RouteKey, Arc<Routes>>>,
}

/// What a decision depends on, beside the snapshot and a default policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RouteKey {
    op: Op,
    buffer: usize,
    device: bool,
    local: TransportSet,
}

impl OfProcess for Prepared {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

impl Prepared {
    pub(crate) fn new(core: &Core, name: &SegmentName, snapshot: Arc<Snapshot>) -> Self {
        let descriptor = match (&snapshot.tcp, snapshot.descriptor.tcp()) {
            // The host that the directory found stands in for the one that the record does not state.
            (Some(found), Some(service)) if service.host.is_none() => {
                Arc::new(snapshot.descriptor.with_tcp_host(found.host().clone()))
            }
            _ => snapshot.descriptor.clone(),
        };
        let paths = core.transports().iter().map(|_| OnceLock::new()).collect();
        let routes = RwLock::new(HashMap::new());
        let mark = core.fork_mark().clone();
        Self { mark, sequence: snapshot.sequence, name: name.clone(), descriptor, paths, routes }
    }

    /// Decides for one request. A default decision is made once per snapshot and then looked up.
    pub(crate) fn routes(
        &self,
        core: &Core,
        op: Op,
        buffer: usize,
        local: (&Location, TransportSet),
        policy: &Policy,
    ) -> Result<Arc<Routes>> {
        let device = matches!(local.0, Location::Device { .. });
        let key = RouteKey { op, buffer, device, local: local.1 };
        let by_default = policy.only.is_none();
        if by_default && let Some(routes) = self.routes.read().get(&key) {
            return Ok(routes.clone());
        }
        let operation = || format!("{op} segment {}", self.name);
        let transports = core.transports();
        let plan = self
            .decide(&transports, op, buffer, local.0, local.1, policy)
            .map_err(|error| Error::no_path(operation(), self.name.as_str(), error))?;
        let (mut usable, mut refusals) = (Vec::new(), Vec::new());
        for kind in plan.order() {
            let Some(index) = transports.iter().position(|transport| transport.kind() == *kind) else {
                continue;
            };
            match self.path(&transports, index) {
                Ok(path) => {
                    let lane = self.lane(core, &path);
                    usable.push(Route { lane, path, max_slice: transports[index].capabilities().max_slice });
                }
                Err(reason) => refusals.push(format!("{kind}: {reason}")),
            }
        }
        let mut usable = usable.into_iter();
        let Some(first) = usable.next() else {
            let error = Error::new(ErrorKind::NoPath, operation(), refusals.join(", "));
            return Err(error.with_peer(self.name.as_str()));
        };
        let routes = Arc::new(Routes::new(first, usable.collect()));
        if by_default {
            self.routes.write().insert(key, routes.clone());
        }
        Ok(routes)
    }

    fn lane(&self, core: &Core, path: &Arc<dyn Path>) -> Arc<Lane> {
        core.mover().lanes().lane(&self.name, self.descriptor.incarnation(), path.label())
    }

    /// As [`decide`](Self::decide), with what the circuits of the paths say now.
    pub(crate) fn explain(
        &self,
        core: &Core,
        op: Op,
        buffer: usize,
        local: &Location,
        policy: &Policy,
    ) -> std::result::Result<Plan, NoPath> {
        let transports = core.transports();
        let plan = self.decide(&transports, op, buffer, local, TransportSet::all(), policy)?;
        if policy.only.is_some() {
            return Ok(plan);
        }
        let now = Instant::now();
        Ok(plan.deferring(|kind| {
            let index = transports.iter().position(|transport| transport.kind() == *kind)?;
            let lane = self.lane(core, &self.path(&transports, index).ok()?);
            lane.is_open(now).then(|| format!("its circuit is {}", lane.circuit(now)))
        }))
    }

    fn path(
        &self,
        transports: &[Arc<dyn Transport>],
        index: usize,
    ) -> std::result::Result<Arc<dyn Path>, String> {
        self.paths[index].get_or_init(|| transports[index].path(&self.descriptor)).clone()
    }

    fn decide(
        &self,
        transports: &[Arc<dyn Transport>],
        op: Op,
        buffer: usize,
        local: &Location,
        registered: TransportSet,
        policy: &Policy,
    ) -> std::result::Result<Plan, NoPath> {
        let described = self.descriptor.buffers().get(buffer);
        let mut offered: Vec<TransportKind> =
            described.map(|buffer| buffer.via().keys().cloned().collect()).unwrap_or_default();
        // A reference engine with a data port serves TCP whatever its `protocol` says (wire spec).
        if self.descriptor.tcp().is_some()
            && matches!(self.descriptor.identity(), Identity::Reference)
            && !offered.contains(&TransportKind::TCP)
        {
            offered.push(TransportKind::TCP);
        }
        let installed: Vec<Installed<'_>> = transports
            .iter()
            .enumerate()
            .map(|(index, transport)| {
                let assessment = match described {
                    Some(buffer) => transport.assess_buffer(&self.descriptor, buffer),
                    None => transport.assess(&self.descriptor),
                };
                Installed::new(
                    transport.kind(),
                    transport.capabilities(),
                    assessment,
                    registered.contains(index),
                )
            })
            .collect();
        let locality = locality::proven(transports, &self.descriptor);
        plan(&Request { op, local, policy }, locality, &installed, &offered)
    }
}
