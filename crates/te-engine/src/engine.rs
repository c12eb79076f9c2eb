//! The engine's handle.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_memory::{Memory, Region};
use te_rpc::RpcServer;
use te_rpc::message::NotifyBody;
use te_segment::{Access, Incarnation, Location, SegmentDescriptor, SegmentName, TransportKind};
use tokio::task::JoinHandle;

use crate::batch::BatchBuilder;
use crate::buffer::{Buffer, Deadline, RegisterFailed};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::local::LocalSegment;
use crate::notify::{self, Notification};
use crate::register;
use crate::segment::Segment;

/// A running engine: one segment offered, any number opened. Cloning gives another handle; dropping the last one
/// starts [`shutdown`](Self::shutdown) in the background.
#[derive(Clone)]
pub struct Engine {
    running: Arc<Running>,
}

pub(crate) struct Running {
    core: Arc<Core>,
    tasks: Mutex<Option<Tasks>>,
    report: tokio::sync::OnceCell<ShutdownReport>,
}

struct Tasks {
    server: RpcServer,
    publisher: JoinHandle<()>,
    follower: JoinHandle<()>,
}

/// What a shutdown left behind: nothing, if all is well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// What did not end cleanly by the deadline, one line each.
    pub left: Vec<String>,
}

impl ShutdownReport {
    /// Whether nothing was left behind.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }
}

/// The answer of a peer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Where it was reached.
    pub endpoint: te_segment::Endpoint,
    /// From connect to answer.
    pub round_trip: Duration,
}

impl Running {
    pub(crate) fn new(core: Arc<Core>, server: RpcServer, publisher: JoinHandle<()>) -> Self {
        let follower =
            core.runtime().handle().spawn(follow(core.cache().clone(), core.limits().control_request));
        let tasks = Mutex::new(Some(Tasks { server, publisher, follower }));
        Self { core, tasks, report: tokio::sync::OnceCell::new() }
    }
}

/// Keeps open segments up to date for as long as the directory has a watch.
async fn follow(cache: te_metadata::SegmentCache, budget: Duration) {
    let mut pause = Duration::from_millis(100);
    while let Err(error) = cache.follow(budget).await {
        tracing::debug!(target: "te::engine", %error, "watching the directory failed");
        tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

impl Engine {
    pub(crate) fn new(running: Running) -> Self {
        Self { running: Arc::new(running) }
    }

    fn core(&self) -> &Arc<Core> {
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

    /// Allocates memory, faults it in and registers it. `len` in bytes.
    ///
    /// # Errors
    ///
    /// As [`register_at`](Self::register_at), and when the memory cannot be had.
    pub async fn allocate(&self, len: usize, location: Location, access: Access) -> Result<Buffer> {
        let operation = format!("allocate {}", crate::size::bytes(len as u64));
        let named = operation.clone();
        let memory = self
            .core()
            .runtime()
            .run_blocking(&operation, move || {
                Memory::allocate(len).map_err(|error| {
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

    /// Registers all of them or none.
    ///
    /// # Errors
    ///
    /// As [`register_at`](Self::register_at); all memory comes back, in order.
    pub async fn register_batch(
        &self,
        memory: Vec<(Memory, Location, Access)>,
    ) -> std::result::Result<Vec<Buffer>, RegisterFailed> {
        let core = self.core().clone();
        if register::is_quick(&core, &memory) {
            return register::register_all(&core, memory);
        }
        let (answer, received) = tokio::sync::oneshot::channel();
        self.core().runtime().handle().spawn_blocking(move || {
            // A caller that went away drops the buffers, which withdraws them.
            let _ = answer.send(register::register_all(&core, memory));
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
                Ok(Segment::new(core, cached))
            })
            .await
    }

    /// Starts a batch.
    pub fn batch(&self) -> BatchBuilder {
        BatchBuilder::new(self.core().clone())
    }

    /// Sends a notification to an engine by its segment name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerUnreachable`], [`ErrorKind::NotifyRejected`] when its queue is full, or why the name cannot be
    /// located.
    pub async fn notify(&self, peer: &str, name: &str, message: &str) -> Result<()> {
        let operation = format!("notify {peer}");
        self.core().check_running(&operation)?;
        let to = parse_name(peer, &operation)?;
        notify::check_size(self.core(), name, message)?;
        let (core, deadline) = (self.core().clone(), self.core().control_deadline());
        let body = NotifyBody::new(name, message);
        self.core()
            .runtime()
            .run(&operation, async move { notify::send(&core, &to, &body, deadline).await })
            .await
    }

    /// Takes all received notifications, oldest first.
    #[must_use]
    pub fn notifications(&self) -> Vec<Notification> {
        self.core().inbox().drain()
    }

    /// Waits for the next notification.
    pub async fn next_notification(&self) -> Notification {
        self.core().inbox().pop().await
    }

    /// Blocks for the next notification, at most until the deadline.
    #[must_use]
    pub fn wait_notification(&self, deadline: Deadline) -> Option<Notification> {
        self.core().inbox().pop_until(deadline.instant())
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
            .run(&operation, async move {
                let endpoint =
                    core.control_of(&name, deadline).await.map_err(|error| error.renamed(named.clone()))?;
                let began = Instant::now();
                core.rpc().probe(&endpoint, deadline).await.map_err(|error| {
                    let retry =
                        if error.retry() == te_rpc::Retry::CanHelp { Retry::Later } else { Retry::No };
                    Error::new(ErrorKind::PeerUnreachable, named, error.to_string())
                        .with_peer(format!("{name} at {endpoint}"))
                        .with_retry(retry)
                        .with_source(error)
                })?;
                Ok(ProbeReport { endpoint, round_trip: began.elapsed() })
            })
            .await
    }

    /// Stops: refuses new work, takes the segment out of the directory, ends requests under way, closes listeners.
    /// Idempotent: a repeated call gives the first one's report.
    pub async fn shutdown(&self, deadline: Deadline) -> ShutdownReport {
        let running = self.running.clone();
        let report = running
            .report
            .get_or_init(|| async {
                let tasks = self.running.tasks.lock().take();
                let core = self.core().clone();
                self.core()
                    .runtime()
                    .run("shutdown", async move { Ok(stop(core, tasks, deadline.instant()).await) })
                    .await
                    .unwrap_or_else(|error| ShutdownReport { left: vec![error.to_string()] })
            })
            .await
            .clone();
        self.core().runtime().stop();
        report
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("name", self.name()).field("incarnation", &self.incarnation()).finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(tasks) = self.tasks.lock().take() else { return };
        let core = self.core.clone();
        let deadline = Instant::now() + core.limits().drain;
        core.begin_stop();
        let handle = core.runtime().handle().clone();
        handle.spawn(async move {
            let report = stop(core.clone(), Some(tasks), deadline).await;
            for left in &report.left {
                tracing::warn!(target: "te::engine", left, "after the last handle was dropped");
            }
            core.runtime().stop();
        });
    }
}

/// The steps of a shutdown, on the control runtime.
async fn stop(core: Arc<Core>, tasks: Option<Tasks>, deadline: Instant) -> ShutdownReport {
    core.begin_stop();
    let mut left = Vec::new();
    let Some(Tasks { server, publisher, follower }) = tasks else { return ShutdownReport { left } };
    follower.abort();

    // The publisher goes first: a record written after ours was deleted would stay for ever.
    core.stop_publisher();
    let step = Core::within(deadline, core.limits().control_request);
    let mut publisher = publisher;
    if tokio::time::timeout_at(step.into(), &mut publisher).await.is_err() {
        publisher.abort();
        left.push("publishing the segment did not end".to_owned());
    }
    if let Err(error) = core.directory().withdraw(core.local().name(), step).await {
        left.push(format!("the segment may still be published: {error}"));
    }
    for region in core.local().regions().regions() {
        region.block();
    }
    let open = server.shutdown(Core::within(deadline, core.limits().control_request)).await;
    if open > 0 {
        left.push(format!("{open} control connections were cut"));
    }
    let transports = core.transports();
    let stopping = tokio::task::spawn_blocking(move || {
        let failures = transports.iter().filter_map(|transport| transport.shutdown(deadline).err());
        failures.map(|error| error.to_string()).collect::<Vec<_>>()
    });
    match stopping.await {
        Ok(failures) => left.extend(failures),
        Err(error) => left.push(format!("a transport failed to stop: {error}")),
    }
    left.extend(core.local().regions().regions().iter().filter_map(still_held));
    ShutdownReport { left }
}

fn still_held(region: &Region) -> Option<String> {
    let holds = region.holds();
    (holds.local + holds.remote > 0).then(|| {
        format!(
            "{} is still held by {} local and {} remote requests",
            region.range(),
            holds.local,
            holds.remote
        )
    })
}

fn parse_name(name: &str, operation: &str) -> Result<SegmentName> {
    SegmentName::new(name)
        .map_err(|error| Error::new(ErrorKind::Name, operation, error.to_string()).with_source(error))
}
