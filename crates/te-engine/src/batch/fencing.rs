//! Making a target refuse attempts that were given up here.

use std::time::Instant;

use te_rpc::native::FenceOutcome;
use te_segment::{Endpoint, Incarnation, SegmentName};
use te_transport::{AttemptId, BoxFuture};

/// One life of a peer, as far as a fence must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerTarget {
    /// Its control endpoint.
    pub(crate) control: Endpoint,
    /// The life that received the attempts.
    pub(crate) incarnation: Incarnation,
    /// The name it was opened by.
    pub(crate) name: SegmentName,
}

/// What became of a fence.
#[cfg_attr(not(test), allow(dead_code, reason = "made by whoever reaches peers over their control endpoint"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FenceReply {
    /// The target's word on each attempt, in the order asked.
    Outcomes(Vec<FenceOutcome>),
    /// The life that received the attempts is over: nothing of it applies any more.
    LifeOver,
    /// No answer by the deadline: why.
    Unanswered(String),
}

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
