//! What has completed, and what becomes of what did not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use te_segment::Generation;
use te_transport::{FailureKind, RemoteEffect};

use super::{Cause, Link};
use crate::client::Part;
use crate::counters::add;
use crate::device::verdict::{Verdict, judge};
use crate::endpoint::Event;
use crate::error::WorkError;
use crate::slices::{Status, WorkId};

impl Link {
    /// A completion of the endpoint's queue pair. Appends what has ended by it.
    pub(crate) fn complete(
        self: &Arc<Self>,
        (of, lane): (Generation, usize),
        id: WorkId,
        status: Status,
        ended: &mut Vec<(Part, Status)>,
    ) -> Option<Cause> {
        let now = Instant::now();
        let mut inner = self.lock();
        let end = inner.end(of)?;
        let queue = end.queues.get_mut(lane)?;
        let count = queue.complete(id, status, ended);
        self.signals.give_room(count);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count == 0 {
            add(&self.common.counters.stale, 1);
        }
        let failed = match status {
            Status::Failed(error) if !error.is_flush() => Some(error),
            _ => None,
        };
        // Each queue pair reports what broke it, and it is one failure: of the endpoint.
        let is_first = end.cause.is_none();
        end.cause = end.cause.or(failed);
        let cause = end.cause.map(|error| Cause { error, is_new: is_first && failed.is_some() });
        if count > 0 {
            self.handle(&mut inner, now, Event::Completed(of, count));
        }
        if let Some(error) = failed {
            if is_first && !error.is_refusal() {
                inner.circuit.failed(now, rand::random());
                inner.trouble = Some(self.trouble(error));
            }
            self.sound.store(false, Ordering::Relaxed);
            self.handle(&mut inner, now, Event::Broken(of));
        } else if status != Status::Done {
            // The device has broken it without a failure of its own, as after a request of the peer that it has refused.
            self.handle(&mut inner, now, Event::Broken(of));
        } else {
            // Not with the first one alone: failures are forgotten once things have gone well for a while.
            inner.circuit.worked(now);
        }
        self.pump(&mut inner, now);
        cause
    }

    /// What becomes of a piece of an endpoint here that has ended.
    pub(crate) fn settle(
        self: &Arc<Self>,
        of: Generation,
        lane: usize,
        mut part: Part,
        status: Status,
        cause: Option<Cause>,
    ) {
        self.lighten(Some(lane), &part);
        let peer = part.job.peer().clone();
        if status == Status::Done {
            if !self.sound.swap(true, Ordering::Relaxed) {
                peer.worked(&self.rail, &part, Instant::now());
            }
            part.done();
            return;
        }
        let own = match status {
            Status::Failed(error) if !error.is_flush() => Some(error),
            _ => None,
        };
        let is_new = cause.is_some_and(|cause| cause.is_new);
        if is_new && own.is_some_and(|error| !error.is_refusal()) {
            peer.failed(&self.rail, &part, Instant::now());
        }
        if let Some(reason) = part.job.stopped(Instant::now()) {
            part.stop(reason, RemoteEffect::MayStillApply);
            return;
        }
        let cause = cause.map(|cause| cause.error);
        part.came_back(own.or(cause).is_some_and(|error| !error.is_refusal()));
        match judge(part.op(), status, cause, part.tries, self.key.life.is_some()) {
            Verdict::Refused(error) => {
                part.fail(error.kind(), error.to_string(), RemoteEffect::MayHaveApplied)
            }
            Verdict::Again => {
                add(&self.common.counters.moved, 1);
                peer.again(part);
            }
            Verdict::AfterCut => self.doubt(of, part),
            Verdict::Over(error) => {
                let kind = error.map_or(FailureKind::ConnectionLost, WorkError::kind);
                let cause = match error {
                    Some(error) => format!("{}: {error}", self.rail),
                    None => format!("{}: the queue pair was closed under the request", self.rail),
                };
                part.fail(kind, cause, RemoteEffect::MayStillApply);
            }
        }
    }
}
