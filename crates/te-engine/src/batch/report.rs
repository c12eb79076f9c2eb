//! What became of a batch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use te_segment::{AddressRange, SegmentName};
use te_transport::{Failure, Op, PathLabel};

use super::flight::Judged;
use crate::peers::PeerState;

/// How far an attempt came that did not complete.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The path.
    pub path: Arc<PathLabel>,
    /// Bytes that were handed to the path.
    pub given: u64,
    /// Of those, bytes that the path may have sent and that are not known to be applied: the slices of a WRITE that it
    /// began. `None` for a READ, whose path does not say what it asked for.
    pub posted: Option<u64>,
    /// Of those, bytes that are applied at their destination.
    pub acknowledged: u64,
    /// For how long no progress had been seen when it ended. At most: progress is looked for four times in the silence
    /// limit.
    pub quiet: Duration,
}

impl AttemptReport {
    pub(super) fn new(path: Arc<PathLabel>, judged: &Judged, quiet: Duration) -> Self {
        let Judged { given, bytes, posted, .. } = *judged;
        Self { path, given, posted, acknowledged: bytes, quiet }
    }

    /// Bytes that the path had not begun, where it says so.
    #[must_use]
    pub fn queued(&self) -> Option<u64> {
        Some(self.given.saturating_sub(self.acknowledged).saturating_sub(self.posted?))
    }
}

impl fmt::Display for AttemptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::size::bytes;
        write!(f, "{}: {} of {} acknowledged", self.path, bytes(self.acknowledged), bytes(self.given))?;
        if let (Some(posted), Some(queued)) = (self.posted, self.queued()) {
            write!(f, ", {} posted, {} queued", bytes(posted), bytes(queued))?;
        }
        write!(f, ", no progress seen for {:.1} s", self.quiet.as_secs_f64())
    }
}

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
    /// The local range.
    pub local: AddressRange,
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
    /// How far the attempts came that a path was given and that failed, in order.
    pub tried: Vec<AttemptReport>,
    /// What was believed of the peer's life when the report was made, if the request did not complete.
    pub peer: Option<PeerState>,
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
