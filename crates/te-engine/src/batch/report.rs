//! What became of a batch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use te_segment::{AddressRange, SegmentName};
use te_transport::{Failure, Op, PathLabel};

/// What became of one request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestReport {
    /// Direction.
    pub op: Op,
    /// The segment.
    pub segment: SegmentName,
    /// The remote range.
    pub remote: AddressRange,
    /// Bytes applied at the destination.
    pub bytes: u64,
    /// Why it did not complete, if so: the first failure of its slices.
    pub failure: Option<Failure>,
    /// The path it took, the last one if it took more.
    pub path: Arc<PathLabel>,
    /// Attempts that were made, each on another path or another descriptor.
    pub attempts: u32,
    /// How the attempts before the last one failed, in order.
    pub earlier: Vec<Failure>,
    /// An earlier attempt may still write the same bytes again: only where the batch allowed that.
    pub late_duplicate: bool,
}

/// What became of the notification of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotifyOutcome {
    /// The receiver has it.
    Delivered,
    /// It was not delivered, or nobody knows: why.
    Failed(String),
    /// The batch failed, and the receiver is being told so; nobody waits for that.
    Underway,
}

/// What became of a batch and of each of its requests.
#[derive(Clone, Debug)]
pub struct Report {
    pub(crate) requests: Vec<RequestReport>,
    pub(crate) elapsed: Duration,
    pub(crate) notify: Option<NotifyOutcome>,
}

impl Report {
    /// Bytes applied at their destinations.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests.iter().map(|request| request.bytes).sum()
    }

    /// Bytes asked for.
    #[must_use]
    pub fn requested_bytes(&self) -> u64 {
        self.requests.iter().map(|request| request.remote.len()).sum()
    }

    /// Each request, in the order they were added.
    #[must_use]
    pub fn requests(&self) -> &[RequestReport] {
        &self.requests
    }

    /// From submission to the end.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// What became of the notification, if the batch had one.
    #[must_use]
    pub fn notify(&self) -> Option<&NotifyOutcome> {
        self.notify.as_ref()
    }

    /// The paths taken, each once.
    #[must_use]
    pub fn path(&self) -> String {
        let mut labels: Vec<&Arc<PathLabel>> = Vec::new();
        for request in &self.requests {
            if !labels.contains(&&request.path) {
                labels.push(&request.path);
            }
        }
        labels.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", crate::size::bytes(self.bytes()), self.path())
    }
}
