//! Asks peers whether they live, when their machines say so.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use te_metadata::{CachedSegment, SegmentState};

use super::acquaintance::Acquaintance;
use super::refresh;
use crate::core::Core;
use crate::machines::liveness::{Life, LivenessEvent};

/// Looks at least this often.
const LONGEST: Duration = Duration::from_secs(2);
/// Nobody is asked more often than this, whatever happens.
const SHORTEST: Duration = Duration::from_millis(5);

/// Runs until the engine is gone.
pub(crate) async fn keep(core: Weak<Core>) {
    loop {
        let (ask, next) = {
            let Some(core) = core.upgrade() else { return };
            core.peers().book().forget_ended();
            let now = Instant::now();
            let mut next = now + LONGEST;
            for peer in core.peers().book().all() {
                let Some(at) = peer.ask_at() else { continue };
                if at > now {
                    next = next.min(at);
                } else if !peer.asking.swap(true, Ordering::AcqRel) {
                    peer.asked();
                    core.runtime().handle().spawn(ask_one(core.clone(), peer));
                }
            }
            (core.peers().book().ask.clone(), next)
        };
        tokio::time::sleep(SHORTEST).await;
        tokio::select! {
            () = ask.notified() => {}
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
}

async fn ask_one(core: Arc<Core>, peer: Arc<Acquaintance>) {
    let segments = refresh::segments(&core, &peer);
    look_at_lease(&peer, &segments);
    let deadline = core.control_deadline();
    match (peer.is_joined(), peer.target()) {
        (true, Some(target)) => drop(core.peers().probe(&target, deadline).await),
        (false, _) if !segments.is_empty() => drop(core.peers().join(&core, &peer, deadline).await),
        (_, Some(target)) => drop(core.peers().probe(&target, deadline).await),
        (_, None) => {}
    }
    // The directory said that it is gone; now its owner has been asked.
    let life = peer.state().borrow().life;
    for segment in segments.iter().filter(|segment| is_expiring(segment)) {
        match life {
            Life::Alive => segment.confirm(),
            Life::Lost => segment.expire(),
            _ => {}
        }
    }
    peer.asking.store(false, Ordering::Release);
    core.peers().book().ask.notify_one();
}

fn look_at_lease(peer: &Acquaintance, segments: &[CachedSegment]) {
    if segments.is_empty() {
        return;
    }
    let gone = segments.iter().any(is_expiring);
    peer.on(if gone { LivenessEvent::LeaseGone } else { LivenessEvent::LeaseBack });
}

fn is_expiring(segment: &CachedSegment) -> bool {
    matches!(segment.state(), SegmentState::Suspect { cause, .. } if cause.starts_expiry())
}
