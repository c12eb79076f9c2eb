//! Keeps the snapshots of open segments as new as their owners say they are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use te_metadata::{CachedSegment, Cause};
use te_segment::DescriptorVersion;

use super::acquaintance::Acquaintance;
use crate::core::Core;

/// A store may lag behind the owner: it is asked again after this, twice as long each time.
const LAG: Duration = Duration::from_millis(20);
/// So often. Then the owner's next announcement, or an error on a data path, asks again.
const TIMES: u32 = 6;

/// The open segments of this life.
pub(super) fn segments(core: &Core, owner: &Acquaintance) -> Vec<CachedSegment> {
    let mut segments = core.cache().segments();
    segments.retain(|segment| segment.snapshot().descriptor.incarnation() == owner.incarnation());
    segments
}

fn stale(core: &Core, owner: &Acquaintance) -> Vec<CachedSegment> {
    let served = owner.served.load(Ordering::Acquire);
    let version = |segment: &CachedSegment| segment.snapshot().descriptor.version();
    let mut segments = segments(core, owner);
    segments.retain(|segment| version(segment).map_or(0, DescriptorVersion::value) < served);
    segments
}

/// The owner spoke of a version: makes older snapshots suspect, and fetches newer ones in a task of its own.
pub(super) fn announced(core: &Arc<Core>, owner: &Arc<Acquaintance>) {
    let stale = stale(core, owner);
    if stale.is_empty() {
        return;
    }
    for segment in &stale {
        segment.invalidate(Cause::Announced);
    }
    if !owner.refreshing.swap(true, Ordering::AcqRel) {
        core.runtime().handle().spawn(catch_up(core.clone(), owner.clone()));
    }
}

async fn catch_up(core: Arc<Core>, owner: Arc<Acquaintance>) {
    let mut pause = LAG;
    for _ in 0..TIMES {
        for segment in stale(&core, &owner) {
            if let Err(error) = segment.sync(core.control_deadline()).await {
                tracing::debug!(target: "te::engine", segment = %segment.name(), %error, "refresh failed");
            }
        }
        // Freed before the last look: an announcement after it starts anew.
        owner.refreshing.store(false, Ordering::Release);
        if stale(&core, &owner).is_empty() || owner.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    owner.refreshing.store(false, Ordering::Release);
}
