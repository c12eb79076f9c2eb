//! Batches: several reads and writes planned, submitted, completed and cancelled together.

mod builder;
mod departing;
mod errands;
mod fencing;
mod flight;
mod measure;
mod mover;
mod moving;
mod outcome;
mod report;
mod state;
mod stopping;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use te_transport::CancelReason;

pub use builder::BatchBuilder;
pub(crate) use fencing::TargetFence;
pub(crate) use mover::Mover;
pub use report::{AttemptReport, NotifyOutcome, Report, RequestReport};
pub(crate) use state::BatchState;
pub use state::BatchStatus;

use crate::buffer::Deadline;
use crate::error::Result;
use crate::process::{InProcess, OfProcess};

/// A submitted batch. A future of its [`Report`]; [`wait`](Self::wait) for programs that block.
///
/// Dropping it requests cancellation and detaches: the engine keeps the memory until nothing touches it any more.
#[must_use = "dropping a batch cancels it"]
pub struct Batch {
    state: InProcess<BatchState>,
}

impl Batch {
    pub(crate) fn new(state: Arc<BatchState>) -> Self {
        Self { state: state.into() }
    }

    /// How far it is. Never goes back, and never leaves `Completed` or `Failed`.
    #[must_use]
    pub fn status(&self) -> BatchStatus {
        self.state.status()
    }

    /// Blocks until the batch is terminal: every byte applied at its destination, or an error that says what
    /// happened to each request. Either way nothing touches the local buffers any more.
    ///
    /// # Errors
    ///
    /// The first failure, with the [`Report`] of all requests.
    pub fn wait(self) -> Result<Report> {
        self.check_process()?;
        self.state.wait();
        self.state.result()
    }

    /// As [`wait`](Self::wait), but gives the batch back when it is not terminal by then.
    ///
    /// # Errors
    ///
    /// `Err(self)` when it is still running; the inner result is that of the batch.
    pub fn wait_until(self, deadline: Deadline) -> std::result::Result<Result<Report>, Self> {
        if let Err(error) = self.check_process() {
            return Ok(Err(error));
        }
        if self.state.wait_until(deadline.instant()) { Ok(self.state.result()) } else { Err(self) }
    }

    /// Requests cancellation and waits until the batch is terminal. What had completed before stays completed.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), usually of kind `Cancelled`.
    pub async fn cancel(self) -> Result<Report> {
        self.check_process()?;
        self.state.cancel(CancelReason::Cancelled);
        self.await
    }

    /// As [`cancel`](Self::cancel), blocking, at most until the deadline.
    ///
    /// # Errors
    ///
    /// `Err(self)` when it is still running at the deadline.
    pub fn cancel_wait(self, deadline: Deadline) -> std::result::Result<Result<Report>, Self> {
        if let Err(error) = self.check_process() {
            return Ok(Err(error));
        }
        self.state.cancel(CancelReason::Cancelled);
        self.wait_until(deadline)
    }

    /// When the batch must be terminal.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.state.deadline()
    }

    fn check_process(&self) -> Result<()> {
        self.state.plan.core.check_process("wait for a batch")
    }
}

impl Future for Batch {
    type Output = Result<Report>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.check_process()?;
        if self.state.poll_done(context) { Poll::Ready(self.state.result()) } else { Poll::Pending }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.state.is_done() && !self.state.mark().is_forked() {
            self.state.cancel(CancelReason::Cancelled);
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("status", &self.status()).finish_non_exhaustive()
    }
}
