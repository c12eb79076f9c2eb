//! The segments this process has open.
//!
//! The cache is not the truth: it holds what a directory said last. Each segment is one atomic pointer to an
//! immutable [`Snapshot`]; whoever plans with a snapshot keeps it, whatever happens to the cache meanwhile.

mod registry;
mod slot;
mod view;

use std::{sync::Arc, time::Instant};

use te_segment::SegmentName;

use crate::{
    directory::{Directory, DirectoryEvent, Resolved},
    error::{DirectoryError, DirectoryOperation},
};
use registry::Registry;
use slot::{Join, Life, Slot};

pub use view::{Cause, Refreshed, SegmentState, Snapshot};

/// What a [`SegmentCache`] knows about the open segments.
///
/// * An [`open`](Self::open) asks the directory; concurrent opens of one name make one fetch. So a segment that was
///   closed, or whose owner registered again, is never opened from memory (SEG-09).
/// * A failed refresh keeps the snapshot. An outage expires nothing: opening a segment that is already open then
///   gives what is known, marked [`SegmentState::Suspect`].
/// * Only the directory's own "not published" starts expiry, never a clock: the segment becomes suspect with a
///   [`Cause`] that [`starts_expiry`](Cause::starts_expiry), and the caller asks the owner itself (META-01).
/// * A segment found with another incarnation is another life: handles of the earlier one keep their last snapshot
///   and are [`SegmentState::Replaced`] for good; they never see an address of the newer owner (META-02).
///
/// Lookups take no lock (META-09). The entry of a segment lives as long as a [`CachedSegment`] of it. Cloning gives
/// another handle to the same cache. Its futures need a tokio runtime with time enabled.
#[derive(Clone)]
pub struct SegmentCache {
    directory: Arc<dyn Directory>,
    registry: Arc<Registry>,
}

impl std::fmt::Debug for SegmentCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentCache")
            .field("directory", &self.directory.scheme())
            .field("open", &self.registry.len())
            .finish()
    }
}

impl SegmentCache {
    /// An empty cache over a directory.
    pub fn new(directory: Arc<dyn Directory>) -> Self {
        Self { directory, registry: Arc::new(Registry::new()) }
    }

    /// The directory behind the cache.
    pub fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// Opens a segment: fetches its descriptor, or shares the fetch that is under way for the same name.
    ///
    /// Dropping the future cancels nobody else's open.
    ///
    /// # Errors
    /// What the directory said. During an outage a segment that is already open is still given, as suspect.
    pub async fn open(&self, name: &SegmentName, deadline: Instant) -> Result<CachedSegment, DirectoryError> {
        self.directory.name_rule().check(name)?;
        let slot = self.registry.slot(name);
        match slot.refresh(&*self.directory, deadline, Join::InFlight).await {
            Ok(life) => Ok(CachedSegment { life, slot, cache: self.clone() }),
            Err(error) => match slot.life().filter(|life| error.is_outage() && life.is_current()) {
                Some(life) => Ok(CachedSegment { life, slot, cache: self.clone() }),
                None => Err(error),
            },
        }
    }

    /// The segment, if it is open. Asks nobody, waits for nobody.
    pub fn lookup(&self, name: &SegmentName) -> Option<CachedSegment> {
        let slot = self.registry.find(name)?;
        let life = slot.life().filter(|life| life.is_current())?;
        Some(CachedSegment { life, slot, cache: self.clone() })
    }

    /// Makes a segment suspect, if it is open: something implies that its snapshot is stale. A refresh under way
    /// does not take this back.
    pub fn invalidate(&self, name: &SegmentName, cause: Cause) {
        if let Some(segment) = self.lookup(name) {
            segment.life.doubt(cause);
        }
    }

    /// The open segments, in no order.
    pub fn segments(&self) -> Vec<CachedSegment> {
        let with_life = |slot: Arc<Slot>| {
            let life = slot.life().filter(|life| life.is_current())?;
            Some(CachedSegment { life, slot, cache: self.clone() })
        };
        self.registry.slots().into_iter().filter_map(with_life).collect()
    }

    /// The open segments that are suspect: what a control loop refreshes or re-validates next.
    pub fn suspects(&self) -> Vec<CachedSegment> {
        let mut segments = self.segments();
        segments.retain(|segment| matches!(segment.state(), SegmentState::Suspect { .. }));
        segments
    }

    /// Keeps the open segments up to date by the directory's own changes, until the watch breaks.
    ///
    /// Starts a watch, refreshes every open segment once, then follows. `budget` bounds the start and each refresh.
    /// Run it on a control thread; run it again after it returns. A broken watch makes nothing suspect.
    ///
    /// # Errors
    /// Why the watch could not start or broke. `Ok` means that this directory has no watch, or that it ended.
    pub async fn follow(&self, budget: std::time::Duration) -> Result<(), DirectoryError> {
        let Some(mut watch) = self.directory.watch(Instant::now() + budget).await? else {
            return Ok(());
        };
        self.sync_all(budget).await;
        while let Some(event) = watch.next().await {
            match event? {
                DirectoryEvent::Changed(name) => {
                    if let Some(segment) = self.lookup(&name) {
                        segment.sync_quietly(budget).await;
                    }
                }
                DirectoryEvent::Removed(name) => self.invalidate(&name, Cause::Deleted),
                DirectoryEvent::Resync => self.sync_all(budget).await,
            }
        }
        Ok(())
    }

    async fn sync_all(&self, budget: std::time::Duration) {
        for segment in self.segments() {
            segment.sync_quietly(budget).await;
        }
    }
}

/// One life of an open segment. Cloning gives another handle to it; dropping the last closes the segment.
#[derive(Clone)]
pub struct CachedSegment {
    life: Arc<Life>,
    slot: Arc<Slot>,
    cache: SegmentCache,
}

impl std::fmt::Debug for CachedSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedSegment")
            .field("name", self.name())
            .field("state", &self.state())
            .field("sequence", &self.snapshot().sequence)
            .finish()
    }
}

impl CachedSegment {
    /// The name it was opened by. The descriptor's own name may be another.
    pub fn name(&self) -> &SegmentName {
        self.slot.name()
    }

    /// The descriptor as last heard. One atomic load.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.life.view().snapshot)
    }

    /// Whether the snapshot is believed.
    pub fn state(&self) -> SegmentState {
        self.life.view().state.clone()
    }

    /// Asks the directory again. What was published before this call is seen after it.
    ///
    /// # Errors
    /// What the directory said. The snapshot is kept; the segment is suspect.
    pub async fn sync(&self, deadline: Instant) -> Result<Refreshed, DirectoryError> {
        let before = self.snapshot();
        let fetched = self.slot.refresh(&*self.cache.directory, deadline, Join::StartedAfter).await;
        if !self.life.is_current() {
            return Ok(Refreshed::Replaced);
        }
        fetched?;
        let same = before.descriptor.same_content(&self.snapshot().descriptor);
        Ok(if same { Refreshed::Unchanged } else { Refreshed::Changed })
    }

    /// Takes over what the owner itself said about its segment, newer than any store.
    pub fn learn(&self, resolved: Resolved) -> Refreshed {
        let before = self.snapshot();
        self.slot.install(resolved, None);
        if !self.life.is_current() {
            return Refreshed::Replaced;
        }
        let same = before.descriptor.same_content(&self.snapshot().descriptor);
        if same { Refreshed::Unchanged } else { Refreshed::Changed }
    }

    /// Ends the suspicion: the owner answered and is still the same life.
    pub fn confirm(&self) {
        self.life.trust();
    }

    /// Ends the segment: the owner, asked directly, is gone. A later successful fetch of the same life takes this
    /// back.
    pub fn expire(&self) {
        self.life.bury();
    }

    /// Makes it suspect: something implies that the snapshot is stale.
    pub fn invalidate(&self, cause: Cause) {
        self.life.doubt(cause);
    }

    async fn sync_quietly(&self, budget: std::time::Duration) {
        if let Err(error) = self.sync(Instant::now() + budget).await {
            tracing::debug!(target: "te::metadata", segment = %self.name(), %error, "refresh failed");
        }
    }
}

/// The error of a wait that ended at its deadline.
fn deadline_exceeded(name: &SegmentName, from: &str) -> DirectoryError {
    DirectoryError::DeadlineExceeded {
        operation: DirectoryOperation::Resolve,
        name: name.as_str().to_owned(),
        from: from.to_owned(),
    }
}
