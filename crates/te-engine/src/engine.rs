//! The engine's handle.

use std::fmt;
use std::sync::Arc;

use te_memory::{Memory, MemoryError, Sharing};
use te_segment::{Access, Incarnation, Location, SegmentDescriptor, SegmentName, TransportKind};

use crate::batch::BatchBuilder;
use crate::buffer::{Buffer, Deadline, RegisterFailed};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::inbox::{Expectation, Notification};
use crate::local::LocalSegment;
use crate::locality;
use crate::machines::delivery::Tidings;
use crate::machines::liveness::Life as PeerLife;
use crate::metrics::EngineMetrics;
use crate::notify;
use crate::peers::{Letter, PeerState, PeerWatch};
use crate::probe::{ProbeReport, probe};
use crate::process::InProcess;
use crate::register::{self, RegisterProgress};
use crate::segment::Segment;
use crate::shutdown::{Running, ShutdownReport};

/// A running engine: one segment offered, any number opened. Cloning gives another handle; dropping the last one
/// starts [`shutdown`](Self::shutdown) in the background.
#[derive(Clone)]
pub struct Engine {
    running: InProcess<Running>,
}

impl Engine {
    pub(crate) fn new(running: Running) -> Self {
        Self { running: Arc::new(running).into() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.running.core
    }

    /// The name peers open.
    #[must_use]
    pub fn name(&self) -> &SegmentName {
        self.core().local().name()
    }

    /// This life of the engine.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.core().local().incarnation()
    }

    /// Port of the control listener.
    #[must_use]
    pub fn control_port(&self) -> u16 {
        self.core().local().control().port()
    }

    /// The segment as peers would see it now.
    ///
    /// # Errors
    ///
    /// When the parts do not fit together, which is a defect of a transport.
    pub fn descriptor(&self) -> Result<Arc<SegmentDescriptor>> {
        self.core().check_process("describe the local segment")?;
        self.core().local().descriptor().map_err(|error| {
            Error::new(ErrorKind::DescriptorInvalid, "describe the local segment", error.to_string())
                .with_source(error)
        })
    }

    /// The local segment, for whoever serves or prints it.
    #[must_use]
    pub fn local(&self) -> &Arc<LocalSegment> {
        self.core().local()
    }

    /// The installed transports.
    #[must_use]
    pub fn transports(&self) -> Vec<TransportKind> {
        self.core().transports().iter().map(|transport| transport.kind()).collect()
    }

    /// Allocates memory, faults it in and registers it. `len` in bytes. What peers may read lies where other processes of
    /// this host can map it, if a transport of this engine can make use of that.
    ///
    /// # Errors
    ///
    /// As [`register_at`](Self::register_at), and when the memory cannot be had.
    pub async fn allocate(&self, len: usize, location: Location, access: Access) -> Result<Buffer> {
        let operation = format!("allocate {}", crate::size::bytes(len as u64));
        self.core().check_running(&operation)?;
        let named = operation.clone();
        let sharing = locality::shares(self.core(), access)
            .then(|| if access.allows_write() { Sharing::ReadWrite } else { Sharing::ReadOnly });
        let memory = self
            .core()
            .runtime()
            .run_blocking(&operation, move || {
                allocate(len, sharing).map_err(|error| {
                    Error::new(ErrorKind::BadMemory, named, error.to_string()).with_source(error)
                })
            })
            .await?;
        self.register_at(memory, location, access).await.map_err(Error::from)
    }

    /// Registers memory whose place is looked up (the NUMA node of its first page).
    ///
    /// # Errors
    ///
    /// As [`register_at`](Self::register_at).
    pub async fn register(
        &self,
        memory: impl Into<Memory>,
        access: Access,
    ) -> std::result::Result<Buffer, RegisterFailed> {
        self.register_at(memory, Location::Any, access).await
    }

    /// Registers memory with every installed transport that serves it. When this returns the buffer is usable and
    /// peers that ask this engine see it; [`published`](Self::published) waits for a metadata store.
    ///
    /// # Errors
    ///
    /// [`RegisterFailed`] with the memory: it overlaps a registered range, is empty or unmapped, a limit is reached, a
    /// transport failed (the others are rolled back), or none serves such memory.
    pub async fn register_at(
        &self,
        memory: impl Into<Memory>,
        location: Location,
        access: Access,
    ) -> std::result::Result<Buffer, RegisterFailed> {
        let mut buffers = self.register_batch(vec![(memory.into(), location, access)]).await?;
        buffers.pop().ok_or_else(|| RegisterFailed {
            error: Error::new(ErrorKind::InvalidArgument, "register", "no memory was given"),
            memory: Vec::new(),
        })
    }

    /// Registers all of them or none, in the order of their addresses, with at most eight threads where a transport takes
    /// its time over it. The buffers come in the order of `memory`.
    ///
    /// # Errors
    ///
    /// As [`register_at`](Self::register_at); all memory comes back, in order.
    pub async fn register_batch(
        &self,
        memory: Vec<(Memory, Location, Access)>,
    ) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
        self.register_batch_with(memory, |_| {}).await
    }

    /// As [`register_batch`](Self::register_batch), and tells after each member how far it is. `progress` is called from
    /// other threads, one at a time, and must neither block nor panic.
    ///
    /// # Errors
    ///
    /// As [`register_batch`](Self::register_batch).
    pub async fn register_batch_with(
        &self,
        memory: Vec<(Memory, Location, Access)>,
        progress: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
        if let Err(error) = self.core().check_process("register memory") {
            let memory = memory.into_iter().map(|(memory, ..)| memory).collect();
            return Err(RegisterFailed { error, memory });
        }
        let core = self.core().clone();
        if register::is_quick(&core, &memory) {
            return register::register_all(&core, memory, &progress);
        }
        let (answer, received) = tokio::sync::oneshot::channel();
        self.core().runtime().handle().spawn_blocking(move || {
            // A caller that went away drops the buffers, which withdraws them.
            let _ = answer.send(register::register_all(&core, memory, &progress));
        });
        received.await.unwrap_or_else(|_| {
            Err(RegisterFailed { error: Error::shutdown("register"), memory: Vec::new() })
        })
    }

    /// Waits until what is registered now can be found in the metadata store.
    ///
    /// # Errors
    ///
    /// Why it is not published by the deadline; publishing goes on in the background if a retry can help.
    pub async fn published(&self, deadline: Deadline) -> Result<()> {
        self.core().published_by(deadline.instant()).await
    }

    /// Opens a peer's segment by name. Concurrent opens of one name make one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], [`ErrorKind::MetadataUnavailable`], [`ErrorKind::DescriptorInvalid`] with the field,
    /// [`ErrorKind::Name`] when the name breaks the rules.
    pub async fn open(&self, name: &str) -> Result<Segment> {
        let operation = format!("open segment {name}");
        self.core().check_running(&operation)?;
        let parsed = parse_name(name, &operation)?;
        let (core, deadline) = (self.core().clone(), self.core().control_deadline());
        let named = operation.clone();
        self.core()
            .runtime()
            .run(&operation, async move {
                let opened = core.cache().open(&parsed, deadline).await;
                let cached =
                    opened.map_err(|error| Error::from_directory(named, Some(parsed.as_str()), error))?;
                let owner = core.peers().meet(&cached);
                // A peer that cannot be told now is told later; its own checks are the guarantee until then.
                let until = Core::within(deadline, core.limits().announce);
                let proven = locality::prove(&core, cached.snapshot().descriptor.clone());
                let (joined, ()) = tokio::join!(core.peers().join(&core, &owner, until), proven);
                if let Err(error) = joined {
                    tracing::debug!(target: "te::engine", %error, "the owner of a segment does not know of us yet");
                }
                Ok(Segment::new(core, cached, owner))
            })
            .await
    }

    /// Starts a batch.
    pub fn batch(&self) -> BatchBuilder {
        BatchBuilder::new(self.core().clone().into())
    }

    /// Sends a notification to an engine by its segment name. A te engine gets it exactly once, a reference engine at most
    /// once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerUnreachable`], [`ErrorKind::NotifyRejected`] when its queue stays full, or why the name cannot be
    /// located.
    pub async fn notify(&self, peer: &str, name: &str, message: &str) -> Result<()> {
        let operation = format!("notify {peer}");
        self.core().check_running(&operation)?;
        let to = parse_name(peer, &operation)?;
        notify::check_size(self.core(), name, message)?;
        let (core, deadline) = (self.core().clone(), self.core().control_deadline());
        let letter = Letter { name: name.to_owned(), message: message.to_owned(), tidings: Tidings::Success };
        self.core()
            .runtime()
            .run(&operation, async move { notify::send_by_name(&core, &to, letter, deadline).await })
            .await
    }

    /// Takes all received notifications, oldest first. In a child of fork there are none.
    #[must_use]
    pub fn notifications(&self) -> Vec<Notification> {
        self.core().inbox().drain()
    }

    /// Waits for the next notification.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Shutdown`] once the engine has ended and all are taken.
    pub async fn next_notification(&self) -> Result<Notification> {
        self.core().inbox().pop().await
    }

    /// Blocks for the next notification, at most until the deadline or the end of the engine. `None` at once in a child of
    /// fork.
    #[must_use]
    pub fn wait_notification(&self, deadline: Deadline) -> Option<Notification> {
        self.core().inbox().pop_until(deadline.instant())
    }

    /// Expects `count` batches whose notification has this message: their data is applied when it ends in success. Those
    /// that wait already count. What is expected does not appear among [`notifications`](Self::notifications).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LimitReached`] when too many are expected at a time.
    pub fn expect(&self, message: &str, count: u32, deadline: Deadline) -> Result<Expectation> {
        let operation = format!("expect {count} notifications");
        self.core().check_running(&operation)?;
        let core = self.core();
        let expected =
            core.inbox().expect(core.runtime().handle(), message.to_owned(), count, deadline.instant());
        expected.map_err(|error| {
            let cause = format!("{} expectations are under way already", error.limit);
            Error::new(ErrorKind::LimitReached, operation, cause).with_retry(Retry::Later)
        })
    }

    /// What has been moved so far and how the paths stand. Counting costs a few atomic operations a batch. In a child of fork
    /// there is nothing to tell.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        if self.core().fork_mark().is_forked() {
            return EngineMetrics::default();
        }
        let lanes = self.core().mover().lanes();
        EngineMetrics {
            transports: lanes.metrics().snapshot(),
            paths: lanes.paths(),
            buffers: self.core().local().regions().len(),
            notifications: self.core().inbox().waiting(),
        }
    }

    /// The peers that are known, and what is believed of each life of them: those whose segments are open and those that
    /// are connected. None in a child of fork.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerState> {
        if self.core().fork_mark().is_forked() {
            return Vec::new();
        }
        let known = self.core().peers().book().all();
        known.iter().map(|peer| peer.state().borrow().clone()).collect()
    }

    /// Watches what is believed of a peer, by its segment name. A watch is of one life; the next one of the same name has
    /// its own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] when no segment of this name is open and no such peer is connected.
    pub fn watch_peer(&self, peer: &str) -> Result<PeerWatch> {
        self.core().check_process(&format!("watch {peer}"))?;
        let mut known = self.core().peers().book().named(peer);
        known.sort_by_key(|peer| matches!(peer.state().borrow().life, PeerLife::Replaced { .. }));
        let Some(newest) = known.first() else {
            let cause = "no segment of this name is open, and no such peer is connected";
            return Err(Error::new(ErrorKind::NotFound, format!("watch {peer}"), cause));
        };
        Ok(PeerWatch::new(newest.state().subscribe(), self.core().fork_mark().clone()))
    }

    /// Asks whether the engine behind a name answers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerUnreachable`] with the address tried. A peer that predates probes closes the connection, which
    /// proves nothing about its health.
    pub async fn probe(&self, peer: &str) -> Result<ProbeReport> {
        let operation = format!("probe {peer}");
        self.core().check_running(&operation)?;
        let name = parse_name(peer, &operation)?;
        let (core, deadline) = (self.core().clone(), self.core().control_deadline());
        let named = operation.clone();
        self.core()
            .runtime()
            .run(&operation, async move { probe(&core, &name, &named, deadline).await })
            .await
    }

    /// Stops: refuses new work, takes the segment out of the directory, ends requests under way, closes listeners.
    /// Idempotent: a repeated call gives the first one's report.
    pub async fn shutdown(&self, deadline: Deadline) -> ShutdownReport {
        self.running.arc().shutdown(deadline.instant()).await
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("name", self.name()).field("incarnation", &self.incarnation()).finish()
    }
}

/// Memory that others can map, as far as `sharing` says and this host allows; else private memory.
fn allocate(len: usize, sharing: Option<Sharing>) -> std::result::Result<Memory, MemoryError> {
    match sharing.map(|sharing| Memory::allocate_shareable(len, sharing)) {
        None | Some(Err(MemoryError::File { .. })) => Memory::allocate(len),
        Some(allocated) => allocated,
    }
}

fn parse_name(name: &str, operation: &str) -> Result<SegmentName> {
    SegmentName::new(name)
        .map_err(|error| Error::new(ErrorKind::Name, operation, error.to_string()).with_source(error))
}
