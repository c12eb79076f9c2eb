//! Has te peers refuse attempts that were given up here.

use std::time::Instant;

use te_rpc::native::{FencedAttempt, MAX_ITEMS, NativeClient, Target};
use te_transport::{AttemptId, BoxFuture};

use super::{AGAIN, FenceReply, PeerTarget};
use crate::batch::TargetFence;

/// Asks over native control connections.
pub(crate) struct Fencer {
    pub(super) client: NativeClient,
}

impl TargetFence for Fencer {
    /// Repeated until it is answered or `deadline` has passed.
    fn fence(
        &self,
        target: PeerTarget,
        attempts: Vec<AttemptId>,
        deadline: Instant,
    ) -> BoxFuture<'static, FenceReply> {
        let client = self.client.clone();
        Box::pin(async move { ask(&client, &target, &attempts, deadline).await })
    }
}

async fn ask(
    client: &NativeClient,
    target: &PeerTarget,
    attempts: &[AttemptId],
    deadline: Instant,
) -> FenceReply {
    let to = Target::from(target);
    let mut outcomes = Vec::with_capacity(attempts.len());
    for attempts in attempts.chunks(MAX_ITEMS) {
        let requests: Vec<_> =
            attempts.iter().map(|id| FencedAttempt { request: id.request, attempt: id.attempt }).collect();
        loop {
            let error = match client.fence(&to, requests.clone(), deadline).await {
                Ok(stopped) => {
                    outcomes.extend(stopped);
                    break;
                }
                Err(error) => error,
            };
            if error.stale().is_some() || error.is_refused() {
                return FenceReply::LifeOver;
            }
            if error.retry() == te_rpc::Retry::Pointless || Instant::now() + AGAIN >= deadline {
                return FenceReply::Unanswered(error.to_string());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    FenceReply::Outcomes(outcomes)
}
