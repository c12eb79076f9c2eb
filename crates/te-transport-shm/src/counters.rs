//! What has been done since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work since installation, both roles together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmCounters {
    /// Bytes copied between mappings and registered memory by this process, as initiator.
    pub mapped_bytes: u64,
    /// Bytes moved by `process_vm_readv` and `process_vm_writev`, as initiator.
    pub process_bytes: u64,
    /// Buffers of peers that were mapped.
    pub mappings: u64,
    /// Connections made by the initiator.
    pub connected: u64,
    /// Connections accepted by the target, greeted and proven.
    pub accepted: u64,
    /// Connections the target has closed before that.
    pub turned_away: u64,
    /// Buffers the target has let peers use.
    pub attached: u64,
    /// Requests for a buffer that the target has denied.
    pub denied: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) mapped_bytes: AtomicU64,
    pub(crate) process_bytes: AtomicU64,
    pub(crate) mappings: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    pub(crate) attached: AtomicU64,
    pub(crate) denied: AtomicU64,
}

/// Adds to one counter. Counters order nothing.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> ShmCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShmCounters {
            mapped_bytes: read(&self.mapped_bytes),
            process_bytes: read(&self.process_bytes),
            mappings: read(&self.mappings),
            connected: read(&self.connected),
            accepted: read(&self.accepted),
            turned_away: read(&self.turned_away),
            attached: read(&self.attached),
            denied: read(&self.denied),
        }
    }
}
