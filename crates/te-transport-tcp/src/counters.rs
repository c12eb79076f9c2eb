//! Byte counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes moved since installation, both roles together. Wire bytes are payload plus headers and statuses, without
/// what the kernel adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpCounters {
    /// Payload bytes handed to the kernel.
    pub payload_sent: u64,
    /// Payload bytes received into registered memory.
    pub payload_received: u64,
    /// All bytes handed to the kernel.
    pub wire_sent: u64,
    /// All bytes received, those of refused requests included.
    pub wire_received: u64,
    /// Connections made by the initiator.
    pub connected: u64,
    /// Connections accepted by the target.
    pub accepted: u64,
    /// Requests served by the target, refused ones not included.
    pub served: u64,
    /// Requests refused by the target.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) payload_sent: AtomicU64,
    pub(crate) payload_received: AtomicU64,
    pub(crate) wire_sent: AtomicU64,
    pub(crate) wire_received: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Adds to one counter. Counters order nothing.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Counters {
    pub(crate) fn snapshot(&self) -> TcpCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TcpCounters {
            payload_sent: read(&self.payload_sent),
            payload_received: read(&self.payload_received),
            wire_sent: read(&self.wire_sent),
            wire_received: read(&self.wire_received),
            connected: read(&self.connected),
            accepted: read(&self.accepted),
            served: read(&self.served),
            refused: read(&self.refused),
        }
    }
}
