//! Exactly-once completion of slices.

use std::sync::Arc;

use crate::failure::{Failure, FailureKind, RemoteEffect};

/// How a slice ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// All bytes are applied at the destination; how many there were.
    Done(u64),
    /// The slice did not complete.
    Failed(Failure),
}

impl Outcome {
    /// Whether the slice completed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// Receives the outcomes of the slices of one batch.
///
/// Called from data-path threads: it must not block and must not call back into the path.
pub trait CompletionSink: Send + Sync {
    /// Slice `index` ended. Called exactly once per token.
    fn complete(&self, index: u32, outcome: Outcome);
}

/// The right, and the duty, to report one slice's outcome once.
///
/// Consumed by [`done`](Self::done) or [`fail`](Self::fail). Dropping it unused reports a failure of kind
/// [`FailureKind::Dropped`], so that a lost slice is an error and never silence.
#[must_use = "dropping a token reports a failure"]
pub struct CompletionToken {
    sink: Option<Arc<dyn CompletionSink>>,
    index: u32,
}

impl CompletionToken {
    /// A token for slice `index` of the batch behind `sink`. No allocation.
    pub fn new(sink: Arc<dyn CompletionSink>, index: u32) -> Self {
        Self { sink: Some(sink), index }
    }

    /// Which slice of the batch this is.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reports that all `bytes` are applied at the destination.
    pub fn done(self, bytes: u64) {
        self.resolve(Outcome::Done(bytes));
    }

    /// Reports a failure.
    pub fn fail(self, failure: Failure) {
        self.resolve(Outcome::Failed(failure));
    }

    /// Reports either.
    pub fn resolve(mut self, outcome: Outcome) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.index, outcome);
        }
    }
}

impl Drop for CompletionToken {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            let failure =
                Failure::new(FailureKind::Dropped, "the transport dropped the slice without an outcome")
                    .with_effect(RemoteEffect::MayHaveApplied);
            sink.complete(self.index, Outcome::Failed(failure));
        }
    }
}

impl std::fmt::Debug for CompletionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionToken").field("index", &self.index).finish()
    }
}
