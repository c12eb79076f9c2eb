//! The same words for programs that block: no runtime, no futures.
//!
//! Only [`Engine`] differs from the one above. What it hands out is the same: batches end with
//! [`Batch::wait`](crate::Batch::wait) or [`BatchBuilder::run`](crate::BatchBuilder::run), which block by themselves.
//!
//! ```
//! use te::{Access, Deadline, Location};
//! # fn main() -> te::Result<()> {
//! # #[cfg(all(feature = "tcp", feature = "p2p"))] {
//! let engine = te::blocking::build(te::builder("127.0.0.1"))?;
//! let buffer = engine.allocate(4096, Location::Any, Access::REMOTE)?;
//! let peer = engine.open(engine.name().as_str())?;
//! engine.batch().write(buffer.slice(..16), &peer.range(buffer.address() + 64, 16)?).run()?;
//! let memory = engine.unregister(buffer, Deadline::after_secs(5)).map_err(te::Error::from)?;
//! assert_eq!(memory.len(), 4096);
//! assert!(engine.shutdown(Deadline::after_secs(5)).is_clean());
//! # }
//! # Ok(()) }
//! ```
//!
//! None of these may be called from the engine's own control thread or from inside an async task: they block.

use std::sync::Arc;

use te_engine::block_on;
use te_segment::{Incarnation, SegmentDescriptor, SegmentName};

use crate::{
    Access, BatchBuilder, Buffer, Deadline, EngineBuilder, EngineMetrics, Expectation, Location, Memory,
    Notification, PeerState, ProbeReport, RegisterFailed, RegisterProgress, Result, Segment, ShutdownReport,
    UnregisterFailed,
};

/// Builds an engine; see [`EngineBuilder::build`].
///
/// # Errors
///
/// As there.
pub fn build(builder: EngineBuilder) -> Result<Engine> {
    block_on(builder.build()).map(Engine::new)
}

/// A running engine whose calls block.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: crate::Engine,
}

impl Engine {
    /// The same engine, blocking.
    #[must_use]
    pub fn new(inner: crate::Engine) -> Self {
        Self { inner }
    }

    /// The same engine, for async code.
    #[must_use]
    pub fn inner(&self) -> &crate::Engine {
        &self.inner
    }

    /// The name peers open.
    #[must_use]
    pub fn name(&self) -> &SegmentName {
        self.inner.name()
    }

    /// This life of the engine.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    /// Port of the control listener.
    #[must_use]
    pub fn control_port(&self) -> u16 {
        self.inner.control_port()
    }

    /// The segment as peers would see it now.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::descriptor`].
    pub fn descriptor(&self) -> Result<Arc<SegmentDescriptor>> {
        self.inner.descriptor()
    }

    /// Allocates memory, faults it in and registers it. `len` in bytes.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::allocate`].
    pub fn allocate(&self, len: usize, location: Location, access: Access) -> Result<Buffer> {
        block_on(self.inner.allocate(len, location, access))
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::register`]; the memory comes back.
    pub fn register(
        &self,
        memory: impl Into<Memory>,
        access: Access,
    ) -> std::result::Result<Buffer, RegisterFailed> {
        block_on(self.inner.register(memory, access))
    }

    /// Registers all of them or none.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::register_batch`]; all memory comes back.
    pub fn register_batch(
        &self,
        memory: Vec<(Memory, Location, Access)>,
    ) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
        block_on(self.inner.register_batch(memory))
    }

    /// Registers all of them or none, and tells after each how far it is.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::register_batch_with`]; all memory comes back.
    pub fn register_batch_with(
        &self,
        memory: Vec<(Memory, Location, Access)>,
        progress: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
        block_on(self.inner.register_batch_with(memory, progress))
    }

    /// Withdraws a buffer and gives its memory back.
    ///
    /// # Errors
    ///
    /// As [`Buffer::unregister`]; the buffer comes back.
    pub fn unregister(
        &self,
        buffer: Buffer,
        deadline: Deadline,
    ) -> std::result::Result<Memory, UnregisterFailed> {
        block_on(buffer.unregister(deadline))
    }

    /// Waits until what is registered now can be found in the metadata store.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::published`].
    pub fn published(&self, deadline: Deadline) -> Result<()> {
        block_on(self.inner.published(deadline))
    }

    /// Opens a peer's segment by name.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::open`].
    pub fn open(&self, name: &str) -> Result<Segment> {
        block_on(self.inner.open(name))
    }

    /// Asks for a segment's descriptor again.
    ///
    /// # Errors
    ///
    /// As [`Segment::sync`].
    pub fn sync(&self, segment: &Segment) -> Result<()> {
        block_on(segment.sync())
    }

    /// Starts a batch.
    pub fn batch(&self) -> BatchBuilder {
        self.inner.batch()
    }

    /// Sends a notification to an engine by its segment name.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::notify`].
    pub fn notify(&self, peer: &str, name: &str, message: &str) -> Result<()> {
        block_on(self.inner.notify(peer, name, message))
    }

    /// Takes all received notifications, oldest first.
    #[must_use]
    pub fn notifications(&self) -> Vec<Notification> {
        self.inner.notifications()
    }

    /// Blocks for the next notification, at most until the deadline.
    #[must_use]
    pub fn wait_notification(&self, deadline: Deadline) -> Option<Notification> {
        self.inner.wait_notification(deadline)
    }

    /// Expects batches whose notification has this message; [`Expectation::wait`] blocks until it has ended.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::expect`].
    pub fn expect(&self, message: &str, count: u32, deadline: Deadline) -> Result<Expectation> {
        self.inner.expect(message, count, deadline)
    }

    /// What has been moved so far and how the paths stand.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        self.inner.metrics()
    }

    /// The peers that are known, and what is believed of each life of them.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerState> {
        self.inner.peers()
    }

    /// Asks whether the engine behind a name answers.
    ///
    /// # Errors
    ///
    /// As [`crate::Engine::probe`].
    pub fn probe(&self, peer: &str) -> Result<ProbeReport> {
        block_on(self.inner.probe(peer))
    }

    /// Stops the engine.
    pub fn shutdown(&self, deadline: Deadline) -> ShutdownReport {
        block_on(self.inner.shutdown(deadline))
    }
}
