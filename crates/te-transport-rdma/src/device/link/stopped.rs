//! What goes no further, or not yet: pieces that were stopped, and those that the peer may still apply.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use te_segment::Generation;
use te_transport::{FailureKind, RemoteEffect};

use super::{Doubt, Inner, Link};
use crate::client::Part;
use crate::device::setup::Errand;
use crate::endpoint::{Closed, Endpoint, Event};
use crate::slices::SendQueue;
use crate::wire::Offer;

impl Link {
    /// A WRITE that may come late until the peer has cut the endpoint, which it is asked for once the queue pairs here are
    /// gone.
    pub(super) fn doubt(self: &Arc<Self>, of: Generation, part: Part) {
        let mut inner = self.lock();
        if self.signals.is_over() {
            drop(inner);
            let cause = "the queue pairs broke, and the transport is shutting down";
            part.fail(FailureKind::Shutdown, cause, RemoteEffect::MayStillApply);
            return;
        }
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.signals.begin(1);
        inner.doubts.push(Doubt { of, part, asked: None });
        if inner.ends.iter().all(|end| end.generation != of) {
            self.signals.errand(Errand::Cut(self.clone()));
        }
    }

    /// Has a request to cut stand for what is in doubt and was posted on endpoints that are gone. None, if nothing is that no
    /// request stands for; else its number, and the last of those endpoints.
    pub(crate) fn ask_to_cut(&self) -> Option<(u64, Offer)> {
        let Inner { doubts, ends, last, cuts, .. } = &mut *self.lock();
        let is_gone = |doubt: &Doubt| ends.iter().all(|end| end.generation != doubt.of);
        let mut asks = doubts.iter_mut().filter(|doubt| doubt.asked.is_none() && is_gone(doubt)).peekable();
        asks.peek()?;
        let last = last.clone()?;
        *cuts += 1;
        asks.for_each(|doubt| doubt.asked = Some(*cuts));
        Some((*cuts, last))
    }

    /// Takes what a request to cut stands for; without one, all that is in doubt.
    pub(crate) fn take_doubts(&self, asked: Option<u64>) -> Vec<Part> {
        let is_meant = |doubt: &mut Doubt| asked.is_none() || doubt.asked == asked;
        let doubts: Vec<_> = self.lock().doubts.extract_if(.., is_meant).map(|doubt| doubt.part).collect();
        doubts.iter().for_each(|part| self.lighten(None, part));
        doubts
    }

    /// Looks for what has been stopped: what is not posted ends, and what is posted is flushed.
    pub(crate) fn review(self: &Arc<Self>, now: Instant) {
        let mut stopped = Vec::new();
        let mut inner = self.lock();
        for (lane, waiting) in inner.waiting.iter_mut().enumerate() {
            waiting.retain(|draft| match draft.owner.job.stopped(now) {
                Some(reason) => {
                    stopped.push((Some(lane), draft.owner.clone(), reason));
                    false
                }
                None => true,
            });
        }
        inner.doubts.retain(|doubt| match doubt.part.job.stopped(now) {
            Some(reason) => {
                stopped.push((None, doubt.part.clone(), reason));
                false
            }
            None => true,
        });
        let current = inner.line.current().map(Endpoint::generation);
        let in_service = inner.ends.iter().filter(|end| Some(end.generation) == current);
        let posted = in_service.flat_map(|end| &end.queues).flat_map(SendQueue::owners);
        let interrupted = posted.filter(|part| part.job.stopped(now).is_some()).count() > 0;
        if interrupted {
            self.handle(&mut inner, now, Event::Close(Closed::Interrupted));
        }
        drop(inner);
        for (lane, part, reason) in stopped {
            self.lighten(lane, &part);
            let posted = lane.is_none() || part.tries > 0;
            let effect = if posted { RemoteEffect::MayHaveApplied } else { RemoteEffect::None };
            part.stop(reason, if lane.is_none() { RemoteEffect::MayStillApply } else { effect });
        }
    }
}
