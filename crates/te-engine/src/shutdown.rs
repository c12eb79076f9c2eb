//! A running engine's tasks, and how they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_memory::{ForkMark, Region};
use te_rpc::RpcServer;
use te_transport::CancelReason;
use tokio::task::JoinHandle;

use crate::core::Core;
use crate::process::OfProcess;

pub(crate) struct Running {
    pub(crate) core: Arc<Core>,
    tasks: Mutex<Option<Tasks>>,
    report: tokio::sync::OnceCell<ShutdownReport>,
}

struct Tasks {
    server: RpcServer,
    publisher: JoinHandle<()>,
    follower: JoinHandle<()>,
    announcer: JoinHandle<()>,
    keeper: JoinHandle<()>,
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

impl Running {
    pub(crate) fn new(core: Arc<Core>, server: RpcServer, publisher: JoinHandle<()>) -> Self {
        let handle = core.runtime().handle();
        let follower = handle.spawn(follow(core.cache().clone(), core.limits().control_request));
        let announcer = handle.spawn(core.announce());
        let keeper = handle.spawn(crate::peers::keep(Arc::downgrade(&core)));
        let tasks = Mutex::new(Some(Tasks { server, publisher, follower, announcer, keeper }));
        Self { core, tasks, report: tokio::sync::OnceCell::new() }
    }

    /// Stops, once; every call gives the same report.
    pub(crate) async fn shutdown(self: &Arc<Self>, deadline: Instant) -> ShutdownReport {
        if let Err(error) = self.core.check_process("shutdown") {
            return ShutdownReport { left: vec![error.to_string()] };
        }
        let running = self.clone();
        let report = running
            .report
            .get_or_init(|| async {
                let tasks = self.tasks.lock().take();
                let core = self.core.clone();
                self.core
                    .runtime()
                    .run("shutdown", async move { Ok(stop(core, tasks, deadline).await) })
                    .await
                    .unwrap_or_else(|error| ShutdownReport { left: vec![error.to_string()] })
            })
            .await
            .clone();
        self.core.runtime().stop();
        report
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

impl OfProcess for Running {
    fn mark(&self) -> &ForkMark {
        self.core.mark()
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
    let Some(Tasks { server, publisher, follower, announcer, keeper }) = tasks else {
        return ShutdownReport { left };
    };
    follower.abort();
    announcer.abort();
    keeper.abort();

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
    if let Err(error) = core.directory().close(step).await {
        left.push(format!("something of the segment may still be published: {error}"));
    }
    for region in core.local().regions().regions() {
        region.block();
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
    // A transport that stopped has ended its requests; what one left behind must not outlive the engine either.
    for batch in core.mover().lanes().batches() {
        batch.cancel(CancelReason::Shutdown);
    }
    // Peers take a closed control port for the end of this life, so nothing may be applied any more when it closes.
    core.peers().stop();
    let open = server.shutdown(Core::within(deadline, core.limits().control_request)).await;
    if open > 0 {
        left.push(format!("{open} control connections were cut"));
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
