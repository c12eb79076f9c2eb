//! Open segments, ranges inside them and the paths to them.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use te_memory::ForkMark;
use te_metadata::{CachedSegment, Cause, SegmentState};
use te_segment::{
    AddressRange, BufferDescriptor, DescriptorVersion, Incarnation, Location, SegmentDescriptor, SegmentName,
};
use te_select::{Plan, Policy};
use te_transport::{FailureKind, Op};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::lane::PathCircuit;
use crate::locality;
use crate::peers::{Acquaintance, BufferWithdrawn, PeerState, Uses, Verdict};
use crate::prepared::Prepared;
use crate::process::{InProcess, OfProcess};

/// An open segment of a peer. Cloning gives another handle; dropping the last closes it.
#[derive(Clone)]
pub struct Segment {
    shared: InProcess<Shared>,
}

struct Shared {
    core: Arc<Core>,
    cached: CachedSegment,
    owner: Arc<Acquaintance>,
    prepared: ArcSwap<Prepared>,
}

impl OfProcess for Shared {
    fn mark(&self) -> &ForkMark {
        self.core.mark()
    }
}

impl Segment {
    pub(crate) fn new(core: Arc<Core>, cached: CachedSegment, owner: Arc<Acquaintance>) -> Self {
        let prepared = ArcSwap::from_pointee(Prepared::new(&core, cached.name(), cached.snapshot()));
        Self { shared: Arc::new(Shared { core, cached, owner, prepared }).into() }
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
        self.shared.core.check_process(&operation)?;
        let (cached, core) = (self.shared.cached.clone(), self.shared.core.clone());
        let (deadline, named) = (core.control_deadline(), operation.clone());
        self.shared
            .core
            .runtime()
            .run(&operation, async move {
                let synced = cached.sync(deadline).await;
                synced.map_err(|error| Error::from_directory(named, Some(cached.name().as_str()), error))?;
                locality::prove(&core, cached.snapshot().descriptor.clone()).await;
                Ok(())
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
        Ok(RemoteRange { segment: self.clone(), prepared: prepared.into(), range, buffer: index })
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
        Ok(RemoteRange { segment: self.clone(), prepared: prepared.into(), range, buffer: index })
    }

    /// How a request would travel, without sending it: every installed transport with its reason. A path whose circuit
    /// is open comes last among the usable ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoPath`] with what both sides have.
    pub fn explain(&self, op: Op, remote: &RemoteRange, local: &Location, policy: &Policy) -> Result<Plan> {
        self.shared.core.check_process(&format!("{op} {}", remote.range))?;
        remote
            .prepared
            .explain(&self.shared.core, op, remote.buffer, local, policy)
            .map_err(|error| Error::no_path(format!("{op} {}", remote.range), self.name().as_str(), error))
    }

    /// The circuits of the paths to the owner's life that this handle was opened on, as far as they have been used.
    #[must_use]
    pub fn circuits(&self) -> Vec<PathCircuit> {
        self.shared.core.mover().lanes().circuits(self.name(), self.incarnation())
    }

    /// What is believed of the owner's life that this handle was opened on, why, and since when.
    /// [`Engine::watch_peer`](crate::Engine::watch_peer) tells of changes.
    #[must_use]
    pub fn peer(&self) -> PeerState {
        self.shared.owner.state().borrow().clone()
    }

    /// Fetches the descriptor anew and finds the range in it: `None` unless the same life describes itself otherwise
    /// now, with the same buffer in this place.
    pub(crate) async fn renewed(&self, old: &RemoteRange, deadline: Instant) -> Option<RemoteRange> {
        self.shared.cached.sync(deadline).await.ok()?;
        self.check_owner(String::new).ok()?;
        let fresh = self.range(old.range.start(), old.range.len()).ok()?;
        let (was, is) = (&old.prepared.descriptor, &fresh.prepared.descriptor);
        let same_life = was.incarnation().is_some() && was.incarnation() == is.incarnation();
        let same_buffer = old.buffer().generation() == fresh.buffer().generation();
        (same_life && same_buffer && !was.same_content(is)).then_some(fresh)
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
    prepared: InProcess<Prepared>,
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

    pub(crate) fn prepared(&self) -> &Prepared {
        &self.prepared
    }
}

impl std::fmt::Debug for RemoteRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteRange({} {})", self.segment.name(), self.range)
    }
}
