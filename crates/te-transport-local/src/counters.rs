//! What has been done since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work since installation, as initiator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Bytes copied, those of requests that failed later among them.
    pub copied_bytes: u64,
    /// Slices that the target's registration table has refused.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Adds to one counter. Counters order nothing.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> LocalCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LocalCounters { copied_bytes: read(&self.copied_bytes), refused: read(&self.refused) }
    }
}
