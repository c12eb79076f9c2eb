//! Open segments, ranges inside them and the paths to them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use te_metadata::{CachedSegment, Cause, SegmentState, Snapshot};
use te_segment::{
    AddressRange, BufferDescriptor, DescriptorVersion, Identity, Incarnation, Location, SegmentDescriptor,
    SegmentName, TransportKind,
};
use te_select::{Installed, Locality, NoPath, Plan, Policy, Request, plan};
use te_transport::{FailureKind, Op, Path, Transport};

use crate::buffer::TransportSet;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::peers::{Acquaintance, BufferWithdrawn, Uses, Verdict};

/// An open segment of a peer. Cloning gives another handle; dropping the last closes it.
#[derive(Clone)]
pub struct Segment {
    shared: Arc<Shared>,
}

struct Shared {
    core: Arc<Core>,
    cached: CachedSegment,
    owner: Arc<Acquaintance>,
    prepared: ArcSwap<Prepared>,
}

impl Segment {
    pub(crate) fn new(core: Arc<Core>, cached: CachedSegment, owner: Arc<Acquaintance>) -> Self {
        let prepared = ArcSwap::from_pointee(Prepared::new(&core, cached.name(), cached.snapshot()));
        Self { shared: Arc::new(Shared { core, cached, owner, prepared }) }
    }

    /// The name it was opened by.
    #[must_use]
    pub fn name(&self) -> &SegmentName {
        self.shared.cached.name()
    }

    /// The owner's life this handle was opened on; `None` for a reference peer, which states none.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.descriptor().incarnation()
    }

    /// The descriptor as last heard.
    #[must_use]
    pub fn descriptor(&self) -> Arc<SegmentDescriptor> {
        self.prepared().descriptor.clone()
    }

    /// Whether the descriptor is believed.
    #[must_use]
    pub fn state(&self) -> SegmentState {
        self.shared.cached.state()
    }

    /// Asks the directory, or the peer itself, for the descriptor again.
    ///
    /// # Errors
    ///
    /// What it said; the old descriptor stays in use.
    pub async fn sync(&self) -> Result<()> {
        let operation = format!("refresh segment {}", self.name());
        let (cached, deadline) = (self.shared.cached.clone(), self.shared.core.control_deadline());
        let named = operation.clone();
        self.shared
            .core
            .runtime()
            .run(&operation, async move {
                let peer = cached.name().clone();
                cached
                    .sync(deadline)
                    .await
                    .map(drop)
                    .map_err(|error| Error::from_directory(named, Some(peer.as_str()), error))
            })
            .await
    }

    /// A range of the segment, checked against the descriptor: it must lie inside one buffer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutsideSegment`] with the nearest buffer; [`ErrorKind::InvalidArgument`] for an empty or
    /// wrapping range. After the peer registered more memory, [`sync`](Self::sync) first.
    pub fn range(&self, addr: u64, len: u64) -> Result<RemoteRange> {
        let operation = || format!("address {len} bytes at {addr:#x} of {}", self.name());
        let range = AddressRange::new(addr, len)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, operation(), error.to_string()))?;
        let prepared = self.prepared();
        let buffer = prepared.descriptor.find(range).map_err(|error| {
            Error::new(ErrorKind::OutsideSegment, operation(), error.to_string())
                .with_peer(self.name().as_str())
                .with_retry(Retry::AfterReopen)
        })?;
        // Buffers are in address order; the scan is for records that name one address twice.
        let buffers = prepared.descriptor.buffers();
        let index = buffers
            .binary_search_by_key(&buffer.range().start(), |other| other.range().start())
            .ok()
            .filter(|at| std::ptr::eq(&buffers[*at], buffer))
            .or_else(|| buffers.iter().position(|other| std::ptr::eq(other, buffer)))
            .ok_or_else(|| {
                Error::new(ErrorKind::DescriptorInvalid, operation(), "the buffer is not in the descriptor")
            })?;
        Ok(RemoteRange { segment: self.clone(), prepared, range, buffer: index })
    }

    /// As [`range`](Self::range), but asks the owner or the store once if the range is not in the descriptor that is
    /// known: the peer may have registered it since.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range) and [`sync`](Self::sync).
    pub async fn fresh_range(&self, addr: u64, len: u64) -> Result<RemoteRange> {
        match self.range(addr, len) {
            Err(error) if error.kind() == ErrorKind::OutsideSegment => {
                self.sync().await?;
                self.range(addr, len)
            }
            known => known,
        }
    }

    /// The whole of the `index`-th buffer, in address order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutsideSegment`] if there are fewer buffers.
    pub fn buffer(&self, index: usize) -> Result<RemoteRange> {
        let prepared = self.prepared();
        let Some(buffer) = prepared.descriptor.buffers().get(index) else {
            let cause = format!("the segment has {} buffers", prepared.descriptor.buffers().len());
            let operation = format!("address buffer {index} of {}", self.name());
            return Err(
                Error::new(ErrorKind::OutsideSegment, operation, cause).with_peer(self.name().as_str())
            );
        };
        let range = buffer.range();
        Ok(RemoteRange { segment: self.clone(), prepared, range, buffer: index })
    }

    /// How a request would travel, without sending it: every installed transport with its reason.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoPath`] with what both sides have.
    pub fn explain(&self, op: Op, remote: &RemoteRange, local: &Location, policy: &Policy) -> Result<Plan> {
        let core = &self.shared.core;
        remote
            .prepared
            .decide(&core.transports(), op, remote.buffer, local, TransportSet::all(), policy)
            .map_err(|error| Error::no_path(format!("{op} {}", remote.range), self.name().as_str(), error))
    }

    /// The prepared view of the newest snapshot.
    fn prepared(&self) -> Arc<Prepared> {
        let prepared = self.shared.prepared.load_full();
        let snapshot = self.shared.cached.snapshot();
        if prepared.sequence == snapshot.sequence {
            return prepared;
        }
        let fresh = Arc::new(Prepared::new(&self.shared.core, self.name(), snapshot));
        self.shared.prepared.store(fresh.clone());
        fresh
    }

    /// Whether a request may be planned: not when the name is known to have another owner, or none.
    pub(crate) fn check_owner(&self, operation: impl FnOnce() -> String) -> Result<()> {
        let (kind, cause) = match self.state() {
            SegmentState::Replaced { .. } => {
                (ErrorKind::StaleIncarnation, "the name has another owner since this handle was opened")
            }
            SegmentState::Gone { .. } => (ErrorKind::SegmentGone, "the owner was asked and is gone"),
            _ => match self.shared.owner.verdict() {
                Verdict::Go => return Ok(()),
                Verdict::Lost => {
                    (ErrorKind::SegmentGone, "the owner's process is gone, as far as can be told")
                }
                Verdict::Replaced => {
                    (ErrorKind::StaleIncarnation, "another life of the owner answers in its place")
                }
            },
        };
        Err(Error::new(kind, operation(), cause)
            .with_peer(self.name().as_str())
            .with_retry(Retry::AfterReopen))
    }

    /// A request over a data path failed.
    pub(crate) fn data_failed(&self, kind: FailureKind) {
        self.shared.owner.data_failed(kind);
    }

    /// A data-path error implies that the descriptor is stale.
    pub(crate) fn doubt(&self, detail: &str) {
        self.shared.cached.invalidate(Cause::Stale { detail: detail.to_owned() });
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("name", self.name())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A range inside one buffer of a segment, pinned to the descriptor it was checked against.
#[derive(Clone)]
pub struct RemoteRange {
    segment: Segment,
    prepared: Arc<Prepared>,
    range: AddressRange,
    buffer: usize,
}

impl RemoteRange {
    /// The segment.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The addresses, of the peer.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range.len()
    }

    /// Always false: a range has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The descriptor of the buffer it lies in.
    #[must_use]
    pub fn buffer(&self) -> &BufferDescriptor {
        &self.prepared.descriptor.buffers()[self.buffer]
    }

    /// `len` bytes from `offset` of this range.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] when they are not inside it.
    pub fn slice(&self, offset: u64, len: u64) -> Result<Self> {
        let range = self.range.slice(offset, len).map_err(|error| {
            let operation = format!("slice {len} bytes at offset {offset} of {}", self.range);
            Error::new(ErrorKind::InvalidArgument, operation, error.to_string())
        })?;
        Ok(Self { range, ..self.clone() })
    }

    /// Counts a use of the buffer until `uses` is dropped.
    pub(crate) fn begin_use(&self, uses: &mut Uses) -> Result<()> {
        let Some(buffer) = self.buffer().generation() else { return Ok(()) };
        let snapshot = self.prepared.descriptor.version().map_or(0, DescriptorVersion::value);
        uses.begin(&self.segment.shared.owner, buffer, snapshot).map_err(|BufferWithdrawn| {
            let operation = format!("address {} of {}", self.range, self.segment.name());
            Error::new(ErrorKind::BufferGone, operation, "the peer has withdrawn the buffer")
                .with_peer(self.segment.name().as_str())
                .with_retry(Retry::AfterReopen)
        })
    }

    pub(crate) fn buffer_index(&self) -> usize {
        self.buffer
    }

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }
}

impl std::fmt::Debug for RemoteRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteRange({} {})", self.segment.name(), self.range)
    }
}

/// One snapshot with the paths opened on it and the decisions made for it.
pub(crate) struct Prepared {
    sequence: u64,
    name: SegmentName,
    descriptor: Arc<SegmentDescriptor>,
    /// Parallel to the engine's transports, which never change after the start.
    paths: Vec<OnceLock<std::result::Result<Arc<dyn Path>, String>>>,
    routes: RwLock<HashMap<RouteKey, Route>>,
}

/// What a decision depends on, beside the snapshot and a default policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RouteKey {
    op: Op,
    buffer: usize,
    device: bool,
    local: TransportSet,
}

/// A decision, ready for use.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) path: Arc<dyn Path>,
    pub(crate) max_slice: u64,
}

impl Prepared {
    fn new(core: &Core, name: &SegmentName, snapshot: Arc<Snapshot>) -> Self {
        let descriptor = match (&snapshot.tcp, snapshot.descriptor.tcp()) {
            // The host that the directory found stands in for the one that the record does not state.
            (Some(found), Some(service)) if service.host.is_none() => {
                Arc::new(snapshot.descriptor.with_tcp_host(found.host().clone()))
            }
            _ => snapshot.descriptor.clone(),
        };
        let paths = core.transports().iter().map(|_| OnceLock::new()).collect();
        let routes = RwLock::new(HashMap::new());
        Self { sequence: snapshot.sequence, name: name.clone(), descriptor, paths, routes }
    }

    /// Decides for one request. A default decision is made once per snapshot and then looked up.
    pub(crate) fn route(
        &self,
        transports: &[Arc<dyn Transport>],
        op: Op,
        buffer: usize,
        local: (&Location, TransportSet),
        policy: &Policy,
    ) -> Result<Route> {
        let device = matches!(local.0, Location::Device { .. });
        let key = RouteKey { op, buffer, device, local: local.1 };
        let by_default = policy.only.is_none();
        if by_default && let Some(route) = self.routes.read().get(&key) {
            return Ok(route.clone());
        }
        let operation = || format!("{op} segment {}", self.name);
        let plan = self
            .decide(transports, op, buffer, local.0, local.1, policy)
            .map_err(|error| Error::no_path(operation(), self.name.as_str(), error))?;
        let mut refusals = Vec::new();
        for kind in plan.order() {
            let Some(index) = transports.iter().position(|transport| transport.kind() == *kind) else {
                continue;
            };
            match self.path(transports, index) {
                Ok(path) => {
                    let route = Route { path, max_slice: transports[index].capabilities().max_slice };
                    if by_default {
                        self.routes.write().insert(key, route.clone());
                    }
                    return Ok(route);
                }
                Err(reason) => refusals.push(format!("{kind}: {reason}")),
            }
        }
        Err(Error::new(ErrorKind::NoPath, operation(), refusals.join(", ")).with_peer(self.name.as_str()))
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
        let mut offered: Vec<TransportKind> = self
            .descriptor
            .buffers()
            .get(buffer)
            .map(|b| b.via().keys().cloned().collect())
            .unwrap_or_default();
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
                let assessment = transport.assess(&self.descriptor);
                Installed::new(
                    transport.kind(),
                    transport.capabilities(),
                    assessment,
                    registered.contains(index),
                )
            })
            .collect();
        plan(&Request { op, local, policy }, Locality::Network, &installed, &offered)
    }
}
