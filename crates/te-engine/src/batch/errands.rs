//! What the control task does for a batch: next attempts, fences at targets, descriptors fetched anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use te_rpc::native::FenceOutcome;

use super::departing::Errands;
use super::fencing::TargetFence;
use super::flight::MovedFlight;
use super::moving::Loose;
use super::state::BatchState;
use crate::machines::attempt::AttemptEvent;
use crate::peers::{FenceReply, PeerTarget};
use crate::segment::RemoteRange;

/// Between two fences of which the first was not answered.
const FENCE_PAUSE: Duration = Duration::from_millis(100);

impl BatchState {
    /// Does what there is to do now. When to come again because of time, if at all.
    pub(super) fn advance(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let (departures, errands, wakes) = self.work(now);
        for ready in MovedFlight::group(self, departures, now) {
            self.board(&ready.flight);
            ready.submit();
        }
        let Errands { fence, renew } = errands;
        self.fence(fence);
        for (request, remote) in renew {
            let waiting = Renewing { batch: self.clone(), request, fresh: None };
            self.plan.core.runtime().handle().spawn(waiting.run(remote));
        }
        wakes
    }

    fn target(&self, request: usize) -> Option<PeerTarget> {
        let remote = &self.plan.requests.get(request)?.remote;
        let descriptor = &remote.prepared().descriptor;
        let (control, incarnation) = (descriptor.control()?.clone(), descriptor.incarnation()?);
        Some(PeerTarget { control, incarnation, name: remote.segment().name().clone() })
    }

    fn fence(self: &Arc<Self>, attempts: Vec<Loose>) {
        let mut targets: Vec<(PeerTarget, Vec<Loose>)> = Vec::new();
        let fence = self.plan.core.target_fence();
        for loose in attempts {
            match self.target(loose.request) {
                None => {
                    let Loose { request, attempt, .. } = loose;
                    self.event(request, AttemptEvent::Unfenceable { attempt });
                }
                Some(target) => match targets.iter_mut().find(|(known, _)| *known == target) {
                    Some((_, of_target)) => of_target.push(loose),
                    None => targets.push((target, vec![loose])),
                },
            }
        }
        for (target, attempts) in targets {
            let asked = ask(self.clone(), fence.clone(), target, attempts);
            self.plan.core.runtime().handle().spawn(asked);
        }
    }
}

/// Asks a target until it answers or nobody waits for it any more.
async fn ask(
    batch: Arc<BatchState>,
    fence: Arc<dyn TargetFence>,
    target: PeerTarget,
    mut attempts: Vec<Loose>,
) {
    loop {
        let ids = attempts.iter().map(|loose| loose.id).collect();
        let deadline = batch.fence_deadline(Instant::now());
        let mut outcomes = match fence.fence(target.clone(), ids, deadline).await {
            FenceReply::Outcomes(outcomes) => outcomes,
            FenceReply::LifeOver => vec![FenceOutcome::Stopped; attempts.len()],
            FenceReply::Unanswered(cause) => {
                tracing::debug!(target: "te::engine", peer = %target.name, cause, "a fence was not answered");
                attempts.retain(|loose| batch.is_loose(loose));
                if attempts.is_empty() {
                    return;
                }
                tokio::time::sleep(FENCE_PAUSE).await;
                continue;
            }
        };
        // What the target does not speak of it does not stop.
        outcomes.resize(attempts.len(), FenceOutcome::MayStillApply);
        for (Loose { request, attempt, .. }, outcome) in attempts.into_iter().zip(outcomes) {
            batch.event(
                request,
                match outcome {
                    FenceOutcome::Stopped | FenceOutcome::Applied => AttemptEvent::Fenced { attempt },
                    FenceOutcome::MayStillApply => AttemptEvent::Unfenceable { attempt },
                },
            );
        }
        return;
    }
}

/// A request that waits for its peer's descriptor. Answered when dropped, so that it ends with the runtime too.
struct Renewing {
    batch: Arc<BatchState>,
    request: usize,
    fresh: Option<RemoteRange>,
}

impl Renewing {
    async fn run(mut self, old: RemoteRange) {
        let deadline = self.batch.deadline().min(self.batch.plan.core.control_deadline());
        let segment = old.segment().clone();
        self.fresh = segment.renewed(&old, deadline).await;
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.batch.renewed(self.request, self.fresh.take());
    }
}
