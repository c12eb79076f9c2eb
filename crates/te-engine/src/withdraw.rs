//! Withdrawing registered memory: block, announce, drain, revoke, release. Resumable.

use std::sync::Arc;
use std::time::Instant;

use te_memory::{Memory, Region, ReleaseError};
use te_transport::Transport;
use tokio::sync::oneshot;

use crate::buffer::TransportSet;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Retry};

/// The progress of one withdrawal. A failed run keeps what it reached, so that the next goes on from there.
pub(crate) struct Withdrawal {
    region: Region,
    /// Transports that still have keys or handles of the region.
    to_revoke: TransportSet,
    announced: bool,
}

impl Withdrawal {
    pub(crate) fn new(region: Region, registered: TransportSet) -> Self {
        Self { region, to_revoke: registered, announced: false }
    }

    /// Runs until the memory is free or the deadline passes.
    pub(crate) async fn run(mut self, core: Arc<Core>, deadline: Instant) -> (Self, Result<Memory, Error>) {
        self.block(&core);
        if !self.announced {
            // A directory that does not answer delays nothing: the publisher goes on in the background, and the
            // targets' own checks refuse the range already.
            let until = deadline.min(Instant::now() + core.limits().announce);
            let _ = core.published_by(until).await;
            self.announced = true;
        }
        if let Err(error) = self.drain(&core, deadline).await {
            return (self, Err(error));
        }
        let region = self.region.clone();
        let worker = core.clone();
        let mut left = self.to_revoke;
        let revoked = core
            .runtime()
            .run_blocking("unregister", move || {
                let outcome = revoke(&region, &worker.transports(), &mut left);
                Ok((left, outcome))
            })
            .await;
        let outcome = match revoked {
            Ok((left, outcome)) => {
                self.to_revoke = left;
                outcome
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            return (self, Err(error));
        }
        let released = self.release(&core);
        (self, released)
    }

    /// Goes on without anybody waiting; the memory is freed when the last hold ends.
    pub(crate) fn in_background(mut self, core: Arc<Core>) {
        self.block(&core);
        let region = self.region.clone();
        region.on_drained(move || {
            let transports = core.transports();
            if let Err(error) = revoke(&self.region, &transports, &mut self.to_revoke) {
                tracing::warn!(target: "te::engine", %error, "a dropped buffer stays registered");
                return;
            }
            // The memory is freed here; an error means that somebody else released it.
            drop(self.release(&core));
        });
    }

    fn block(&self, core: &Core) {
        self.region.block();
        core.local().bump();
        core.wake_publisher();
    }

    async fn drain(&self, core: &Core, deadline: Instant) -> Result<(), Error> {
        let (drained, ended) = oneshot::channel();
        self.region.on_drained(move || {
            // Nobody may be waiting any more.
            let _ = drained.send(());
        });
        let region = self.region.clone();
        let held = move || {
            let holds = region.holds();
            let cause = format!("still held by {} local and {} remote requests", holds.local, holds.remote);
            Error::new(ErrorKind::StillHeld, format!("unregister {}", region.range()), cause)
                .with_retry(Retry::Later)
        };
        core.runtime()
            .run("unregister", async move {
                match tokio::time::timeout_at(deadline.into(), ended).await {
                    Ok(_) => Ok(()),
                    Err(_) => Err(held()),
                }
            })
            .await
    }

    fn release(&self, core: &Core) -> Result<Memory, Error> {
        let operation = || format!("unregister {}", self.region.range());
        core.local().forget_vias(self.region.generation());
        self.region.release().map_err(|error| {
            let kind = match error {
                ReleaseError::Released => ErrorKind::BufferGone,
                _ => ErrorKind::StillHeld,
            };
            Error::new(kind, operation(), error.to_string()).with_source(error)
        })
    }
}

/// Makes the transports give up the region, each once. Goes through all of them even after a failure, so that a
/// repeated call has only the failed ones left.
fn revoke(region: &Region, transports: &[Arc<dyn Transport>], left: &mut TransportSet) -> Result<(), Error> {
    let mut failures = Vec::new();
    let mut remaining = TransportSet::default();
    for (index, transport) in transports.iter().enumerate().filter(|(index, _)| left.contains(*index)) {
        if let Err(error) = transport.unregister(region) {
            remaining.insert(index);
            failures.push(error.to_string());
        }
    }
    *left = remaining;
    if failures.is_empty() {
        return Ok(());
    }
    let operation = format!("unregister {}", region.range());
    Err(Error::new(ErrorKind::Transport, operation, failures.join("; ")).with_retry(Retry::Later))
}
