//! What a segment looks like from here.

use std::{sync::Arc, time::Instant};

use te_segment::{Endpoint, Incarnation, RejectedBuffer, SegmentDescriptor};

use crate::{
    directory::{Resolved, Source},
    error::DirectoryError,
};

/// A descriptor as it was heard once. Never changes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The descriptor.
    pub descriptor: Arc<SegmentDescriptor>,
    /// Where the TCP data port is reached, if the segment has one.
    pub tcp: Option<Endpoint>,
    /// Buffers of the record that could not be used, with the reason.
    pub rejected: Vec<RejectedBuffer>,
    /// Who gave it.
    pub source: Source,
    /// When it arrived.
    pub fetched_at: Instant,
    /// Grows with every snapshot of this cache, across segments.
    pub sequence: u64,
}

impl Snapshot {
    pub(super) fn new(resolved: Resolved, sequence: u64) -> Self {
        let Resolved { descriptor, rejected, tcp, source } = resolved;
        let fetched_at = tokio::time::Instant::now().into_std();
        Self { descriptor: Arc::new(descriptor), tcp, rejected, source, fetched_at, sequence }
    }

    /// Whether `newer` describes the same process life. Two records without incarnation cannot be told apart.
    pub(super) fn same_life(&self, newer: &SegmentDescriptor) -> bool {
        self.descriptor.incarnation() == newer.incarnation()
    }

    /// Whether `other`, of the same life, is an older version: a store that lags behind its owner.
    pub(super) fn is_newer_than(&self, other: &SegmentDescriptor) -> bool {
        match (self.descriptor.version(), other.version()) {
            (Some(ours), Some(theirs)) => ours > theirs,
            _ => false,
        }
    }
}

/// Why a segment is suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The directory said that the name is not published.
    NotFound,
    /// The directory reported the deletion of the record, or the end of its lease.
    Deleted,
    /// A refresh failed for another reason.
    RefreshFailed(DirectoryError),
    /// An error on a data path implies that the snapshot is stale.
    Stale {
        /// The error, in words.
        detail: String,
    },
    /// The owner announced a change.
    Announced,
}

impl Cause {
    /// Whether this is the directory's own statement that the segment is gone. Only then may a segment expire, after
    /// its owner was asked.
    pub fn starts_expiry(&self) -> bool {
        matches!(self, Self::NotFound | Self::Deleted)
    }

    pub(super) fn of(error: &DirectoryError) -> Self {
        match error {
            DirectoryError::NotFound { .. } => Self::NotFound,
            other => Self::RefreshFailed(other.clone()),
        }
    }
}

/// Whether a snapshot is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentState {
    /// As far as anybody told us.
    Fresh,
    /// Something speaks against it. It stays usable: only the owner can tell.
    Suspect {
        /// Since when.
        since: Instant,
        /// Why. A statement of the directory is not displaced by an outage.
        cause: Cause,
    },
    /// The owner was asked and is gone.
    Gone {
        /// Since when.
        since: Instant,
    },
    /// The name has another life now. Final.
    Replaced {
        /// Since when.
        since: Instant,
        /// The newer life, if it states one.
        by: Option<Incarnation>,
    },
}

/// What a refresh found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refreshed {
    /// The same content as before the call.
    Unchanged,
    /// The segment offers something else now.
    Changed,
    /// The name has another life now; open it again.
    Replaced,
}

/// Snapshot and state, exchanged together.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) state: SegmentState,
    /// How often somebody raised a doubt: a fetch that began before the last one cannot end it.
    pub(super) doubts: u64,
}
