//! What has been done since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work since installation, of all NICs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaCounters {
    /// Work requests given to devices.
    pub requests: u64,
    /// Of these, those whose completion was asked for.
    pub signalled: u64,
    /// Lists of work requests given to devices, each with one doorbell.
    pub doorbells: u64,
    /// Pieces that were posted again, on whatever rail, after their queue pair had broken.
    pub moved: u64,
    /// Endpoints that became ready.
    pub endpoints: u64,
    /// Endpoints that went out of service, for whatever reason.
    pub closed: u64,
    /// Endpoints that went so that others had room.
    pub evicted: u64,
    /// Times that a peer has cut endpoints because it was asked to.
    pub cuts: u64,
    /// Events of devices that were handled.
    pub events: u64,
    /// Completions that named nothing that was under way.
    pub stale: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) signalled: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) endpoints: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) cuts: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) stale: AtomicU64,
}

/// Adds to one counter. Counters order nothing.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> RdmaCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RdmaCounters {
            requests: read(&self.requests),
            signalled: read(&self.signalled),
            doorbells: read(&self.doorbells),
            moved: read(&self.moved),
            endpoints: read(&self.endpoints),
            closed: read(&self.closed),
            evicted: read(&self.evicted),
            cuts: read(&self.cuts),
            events: read(&self.events),
            stale: read(&self.stale),
        }
    }
}
