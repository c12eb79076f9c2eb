//! What every handle of one engine shares.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use te_memory::ForkMark;
use te_metadata::{Directory, SegmentCache};
use te_rpc::RpcClient;
use te_segment::{Endpoint, SegmentName};
use te_transport::Transport;
use tokio::sync::watch;

use crate::batch::{Mover, TargetFence};
use crate::error::{Error, ErrorKind, Result, Retry};
use crate::inbox::Inbox;
use crate::limits::Limits;
use crate::local::LocalSegment;
use crate::peers::Peers;
use crate::process::OfProcess;
use crate::publisher::{self, Progress, Wanted};
use crate::runtime::Runtime;

/// What every handle of one engine shares.
pub(crate) struct Core {
    parts: Parts,
    stopping: AtomicBool,
    requests: AtomicU64,
    mover: Mover,
    /// Other than the usual one, for tests.
    target_fence: OnceLock<Arc<dyn TargetFence>>,
}

/// The parts, made once at the start.
pub(crate) struct Parts {
    pub(crate) mark: Arc<ForkMark>,
    pub(crate) limits: Limits,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) local: Arc<LocalSegment>,
    pub(crate) transports: Arc<[Arc<dyn Transport>]>,
    pub(crate) cache: SegmentCache,
    pub(crate) rpc: RpcClient,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) peers: Peers,
    /// Tells the publisher which version there is, and which is waited for.
    pub(crate) wake: Arc<watch::Sender<Wanted>>,
    /// Tells how far publishing is.
    pub(crate) progress: watch::Receiver<Progress>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let mover = Mover::start(parts.runtime.handle());
        let (stopping, requests) = (AtomicBool::new(false), AtomicU64::new(1));
        Self { parts, stopping, requests, mover, target_fence: OnceLock::new() }
    }

    /// Moves requests to their next path, and knows the paths.
    pub(crate) fn mover(&self) -> &Mover {
        &self.mover
    }

    /// What reaches targets with fences.
    pub(crate) fn target_fence(&self) -> Arc<dyn TargetFence> {
        let otherwise = || -> Arc<dyn TargetFence> { Arc::new(self.peers().fencer()) };
        self.target_fence.get().cloned().unwrap_or_else(otherwise)
    }

    /// Has other fences than those over the control connections answer.
    #[cfg(test)]
    pub(crate) fn install_target_fence(&self, fence: Arc<dyn TargetFence>) {
        let _ = self.target_fence.set(fence);
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.parts.limits
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.parts.runtime
    }

    pub(crate) fn local(&self) -> &Arc<LocalSegment> {
        &self.parts.local
    }

    pub(crate) fn transports(&self) -> Arc<[Arc<dyn Transport>]> {
        self.parts.transports.clone()
    }

    pub(crate) fn cache(&self) -> &SegmentCache {
        &self.parts.cache
    }

    pub(crate) fn directory(&self) -> &Arc<dyn Directory> {
        self.parts.cache.directory()
    }

    pub(crate) fn rpc(&self) -> &RpcClient {
        &self.parts.rpc
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.parts.inbox
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.parts.peers
    }

    pub(crate) fn control_deadline(&self) -> Instant {
        Instant::now() + self.parts.limits.control_request
    }

    /// Tells the engine's process from its children.
    pub(crate) fn fork_mark(&self) -> &Arc<ForkMark> {
        &self.parts.mark
    }

    /// Whether this is the engine's process. To be asked before any lock is taken: in a child, some thread that it does not
    /// have may hold it.
    pub(crate) fn check_process(&self, operation: &str) -> Result<()> {
        let mark = &self.parts.mark;
        if mark.is_forked() { Err(Error::forked_child(operation, mark.process())) } else { Ok(()) }
    }

    /// Whether new work is accepted.
    pub(crate) fn check_running(&self, operation: &str) -> Result<()> {
        self.check_process(operation)?;
        if self.stopping.load(Ordering::Acquire) { Err(Error::shutdown(operation)) } else { Ok(()) }
    }

    /// Refuses new work from now on; whether this call was the first to say so.
    pub(crate) fn begin_stop(&self) -> bool {
        self.parts.peers.begin_stop();
        let first = !self.stopping.swap(true, Ordering::AcqRel);
        self.mover.stop();
        first
    }

    /// Numbers for so many requests of this life: the first of them.
    pub(crate) fn number_requests(&self, count: usize) -> u64 {
        self.requests.fetch_add(count as u64, Ordering::Relaxed)
    }

    pub(crate) fn wake_publisher(&self) {
        publisher::wake(&self.parts.wake, self.local().version());
    }

    /// Ends the publisher.
    pub(crate) fn stop_publisher(&self) {
        self.parts.wake.send_modify(|wanted| wanted.stop = true);
    }

    /// Waits until what is offered now is published, at most until the deadline.
    pub(crate) async fn published_by(&self, deadline: Instant) -> Result<()> {
        let operation = format!("publish segment {}", self.local().name());
        self.check_process(&operation)?;
        let wanted = self.local().version();
        self.parts.wake.send_if_modified(|known| {
            let news = wanted > known.awaited;
            known.awaited = known.awaited.max(wanted);
            known.version = known.version.max(wanted);
            news
        });
        let mut progress = self.parts.progress.clone();
        let named = operation.clone();
        self.runtime()
            .run(&operation, async move {
                let reached = progress.wait_for(|progress| {
                    progress.published >= wanted || matches!(progress.failure, Some((_, false)))
                });
                let failure = match tokio::time::timeout_at(deadline.into(), reached).await {
                    Ok(Ok(progress)) if progress.published >= wanted => return Ok(()),
                    Ok(Ok(progress)) => progress.failure.clone(),
                    Ok(Err(_)) => return Err(Error::shutdown(named)),
                    Err(_) => None,
                };
                let last = progress.borrow().failure.clone();
                Err(match failure.or(last) {
                    Some((cause, repeat)) => Error::new(ErrorKind::MetadataUnavailable, named, &*cause)
                        .with_retry(if repeat { Retry::Later } else { Retry::No }),
                    None => Error::new(ErrorKind::TimedOut, named, "not published by the deadline")
                        .with_retry(Retry::Later),
                })
            })
            .await
    }

    /// Tells the holders of the local segment of every version that is out.
    pub(crate) fn announce(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut progress, interest) = (self.parts.progress.clone(), self.peers().interest().clone());
        async move {
            // An error means that the publisher has ended.
            while progress.changed().await.is_ok() {
                let published = progress.borrow_and_update().published;
                interest.announce(published);
            }
        }
    }

    /// The control endpoint of an engine: stated in its descriptor if that is open here, else looked up by name.
    pub(crate) async fn control_of(&self, name: &SegmentName, deadline: Instant) -> Result<Endpoint> {
        if name == self.local().name() {
            return Ok(self.local().control().clone());
        }
        let known =
            self.cache().lookup(name).and_then(|segment| segment.snapshot().descriptor.control().cloned());
        if let Some(endpoint) = known {
            return Ok(endpoint);
        }
        self.directory()
            .locate(name, deadline)
            .await
            .map_err(|error| Error::from_directory(format!("locate {name}"), Some(name.as_str()), error))
    }

    /// The deadline of a step that may take `time`, but not longer than the caller's.
    pub(crate) fn within(deadline: Instant, time: Duration) -> Instant {
        deadline.min(Instant::now() + time)
    }
}

impl OfProcess for Core {
    fn mark(&self) -> &ForkMark {
        &self.parts.mark
    }
}
