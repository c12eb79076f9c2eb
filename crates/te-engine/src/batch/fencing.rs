//! Making a target refuse attempts that were given up here.

use std::time::Instant;

use te_transport::{AttemptId, BoxFuture};

use crate::peers::{FenceReply, PeerTarget};

/// Reaches targets with fences.
pub(crate) trait TargetFence: Send + Sync {
    /// Makes the target refuse these attempts and older ones of their requests, and waits until none is running any more.
    fn fence(
        &self,
        target: PeerTarget,
        attempts: Vec<AttemptId>,
        deadline: Instant,
    ) -> BoxFuture<'static, FenceReply>;
}
