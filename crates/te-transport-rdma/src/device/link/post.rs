//! Posting what waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use te_sys_verbs::WorkList;
use te_transport::FailureKind;

use super::{End, Inner, Link, Trouble, draft};
use crate::client::Part;
use crate::counters::add;
use crate::device::setup::Errand;
use crate::device::work;
use crate::endpoint::{Event, Line, RemoteSet};
use crate::slices::{Draft, Refused, WorkRequest};

/// Lists that are filled, posted and filled again.
#[derive(Default)]
pub(super) struct Lists {
    requests: Vec<WorkRequest>,
    work: WorkList,
}

/// What a queue pair did not take.
struct NotPosted {
    left: u32,
    /// The endpoint is of no use any more.
    is_broken: bool,
    /// Nothing was taken, and the queue was not full: the next endpoint will hardly fare better.
    is_hopeless: bool,
}

impl Link {
    /// Posts what waits, as far as there is an endpoint and room; else asks for one.
    pub(crate) fn pump(self: &Arc<Self>, inner: &mut Inner, now: Instant) {
        let Some(current) = inner.line.current() else {
            let is_wanted = inner.waiting.iter().any(|waiting| !waiting.is_empty());
            if is_wanted && !inner.wanted {
                inner.wanted = true;
                self.signals.errand(Errand::Want(self.clone()));
            }
            return;
        };
        if !current.is_ready() {
            return;
        }
        let generation = current.generation();
        let mut steps = Vec::new();
        let Inner { line, ends, waiting, lists, circuit, trouble, .. } = inner;
        let Some(end) = ends.iter_mut().find(|end| end.generation == generation) else { return };
        for (lane, waiting) in waiting.iter_mut().enumerate() {
            if waiting.is_empty() {
                continue;
            }
            let Some(refusal) = self.post(end, lane, waiting, line, lists) else { continue };
            steps.extend(line.handle(now, Event::Completed(generation, refusal.left)));
            if refusal.is_hopeless {
                circuit.failed(now, rand::random());
                *trouble = Some(self.trouble("the NIC here takes no work"));
            }
            if refusal.is_broken {
                steps.extend(line.handle(now, Event::Broken(generation)));
                break;
            }
        }
        self.add(inner, steps);
    }

    /// What has failed, while it is not tried again.
    pub(super) fn trouble(&self, error: impl std::fmt::Display) -> Trouble {
        let cause = format!("work from {} failed, and it is not tried again yet: {error}", self.rail);
        Trouble { kind: FailureKind::ConnectionLost, cause: cause.into() }
    }

    /// Posts on one queue pair with one doorbell. What it did not take waits again.
    fn post(
        self: &Arc<Self>,
        end: &mut End,
        lane: usize,
        waiting: &mut VecDeque<Draft<Part>>,
        line: &mut Line<RemoteSet>,
        lists: &mut Lists,
    ) -> Option<NotPosted> {
        let (queue, pair) = (end.queues.get_mut(lane)?, end.pairs.get(lane)?);
        lists.requests.clear();
        lists.work.clear();
        let granted = self.signals.take_room(waiting.len().min(queue.room()));
        if granted == 0 {
            if queue.room() > 0 {
                self.signals.starve(self);
            }
            return None;
        }
        let count = queue.post(waiting, granted, &mut lists.requests);
        if line.post(u32::try_from(count).unwrap_or(u32::MAX)).is_err() {
            // Not reached: the endpoint is ready, and nothing else changes it while the link is locked.
            return Some(NotPosted { left: 0, is_broken: true, is_hopeless: false });
        }
        work::fill(&mut lists.work, &lists.requests, queue);
        let signalled = lists.requests.iter().filter(|request| request.signalled).count();
        add(&self.common.counters.requests, count as u64);
        add(&self.common.counters.signalled, signalled as u64);
        add(&self.common.counters.doorbells, 1);
        let refusal = pair.post(&mut lists.work).err()?;
        let left = count.saturating_sub(refusal.accepted);
        self.signals.give_room(left);
        let Refused { owners, must_flush } = queue.refused(left);
        for owner in owners.into_iter().rev() {
            waiting.push_front(draft(owner));
        }
        // A queue that is full has room again when something completes, if anything is to.
        let is_full = refusal.is_full() && queue.outstanding() > 0;
        let is_broken = must_flush || !is_full;
        end.is_silent |= must_flush;
        if is_broken {
            tracing::debug!(target: "te::rdma", rail = %self.rail, %refusal, "not posted");
        }
        let is_hopeless = is_broken && refusal.accepted == 0;
        Some(NotPosted { left: u32::try_from(left).unwrap_or(u32::MAX), is_broken, is_hopeless })
    }
}
