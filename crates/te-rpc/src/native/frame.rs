//! What native peers say to each other. The order of the variants and of their members is the wire format.

use serde::{Deserialize, Serialize};
use te_segment::{DescriptorVersion, Generation, Incarnation};

/// Most bytes of a name.
pub const MAX_NAME: usize = te_segment::MAX_NAME_BYTES;
/// Most bytes of the message of a notification.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Most bytes of the reason in a goodbye; longer ones are cut.
pub const MAX_REASON: usize = 256;
/// Most elements of a list.
pub const MAX_ITEMS: usize = 65_536;

/// Ties an answer to its request. Counts up from 1 on each connection, separately in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(u64);

impl RequestId {
    /// The id with this number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// Who is at the other end: one life of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerId {
    /// Its life.
    pub incarnation: Incarnation,
    /// The name of its segment, at most [`MAX_NAME`] bytes; empty if it has none.
    pub name: String,
}

/// One attempt of a data request, as the target of the data knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FencedAttempt {
    /// Id of the data request, unique in the life of its sender.
    pub request: u64,
    /// The newest attempt to stop; older ones are meant as well.
    pub attempt: u32,
}

/// What a target can say about a fenced attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceOutcome {
    /// From now on this attempt and older ones take no effect. A part of it may have been applied before.
    Stopped,
    /// It was applied as a whole before the fence came.
    Applied,
    /// It cannot be stopped; it may still take effect.
    MayStillApply,
}

/// How the batch of a notification ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BatchOutcome {
    /// All of its data is applied.
    Success,
    /// Some of its data is not.
    Failure,
}

/// Why a peer is not welcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RefuseReason {
    /// The peer was addressed by an earlier life's incarnation.
    #[error("the peer now is incarnation {now}")]
    StaleIncarnation {
        /// Its present life.
        now: Incarnation,
    },
    /// The peer has another name than the one it was addressed by.
    #[error("the peer has another name")]
    NameMismatch,
    /// The peer has all the connections it wants.
    #[error("the peer has too many connections")]
    Busy,
    /// The peer is ending.
    #[error("the peer is shutting down")]
    ShuttingDown,
    /// The peers have no version in common.
    #[error("the peer speaks versions {oldest} to {newest}")]
    Version {
        /// The oldest version the peer speaks.
        oldest: u16,
        /// The newest version the peer speaks.
        newest: u16,
    },
}

/// One frame, either way. After the handshake both sides may send any request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ControlFrame {
    /// First frame of the side that opened the connection.
    Hello {
        /// The newest version it speaks.
        version: u16,
        /// Its life.
        from: Incarnation,
        /// The name of its segment.
        name: String,
        /// The life it wants to talk to; [`None`] if any will do.
        expects: Option<Incarnation>,
        /// The name it wants to talk to; [`None`] if any will do.
        expects_name: Option<String>,
    },
    /// Answers a hello: the handshake is over.
    Welcome {
        /// The version that is spoken from here on.
        version: u16,
        /// The life that answers.
        incarnation: Incarnation,
        /// The name of its segment.
        name: String,
    },
    /// Answers a hello: the connection ends.
    Refuse {
        /// Why.
        reason: RefuseReason,
    },
    /// The sender keeps a copy of the receiver's descriptor and wants to hear of changes on this connection.
    Interest {
        /// Ties the answer.
        id: RequestId,
        /// The version of its copy.
        known: DescriptorVersion,
    },
    /// Answers [`Interest`](Self::Interest).
    InterestAck {
        /// Of the request.
        id: RequestId,
        /// The version that is served now.
        version: DescriptorVersion,
    },
    /// Copies older than `version` are stale, and the buffers listed must not be used any more.
    Invalidate {
        /// Ties the answer.
        id: RequestId,
        /// The version that is served now.
        version: DescriptorVersion,
        /// The buffers that were withdrawn.
        withdrawn: Vec<Generation>,
    },
    /// Answers [`Invalidate`](Self::Invalidate): nothing of what was withdrawn is used any more.
    InvalidateAck {
        /// Of the request.
        id: RequestId,
    },
    /// Stop these attempts.
    Fence {
        /// Ties the answer.
        id: RequestId,
        /// What to stop.
        requests: Vec<FencedAttempt>,
    },
    /// Answers [`Fence`](Self::Fence).
    FenceAck {
        /// Of the request.
        id: RequestId,
        /// One for each attempt, in the same order.
        stopped: Vec<FenceOutcome>,
    },
    /// Delivers a notification.
    Notify {
        /// Ties the answer.
        id: RequestId,
        /// Tells notifications apart: one id is delivered once to each life of the receiver, however often it comes.
        batch: u64,
        /// What is notified.
        name: String,
        /// Opaque.
        message: String,
        /// How the batch ended.
        outcome: BatchOutcome,
    },
    /// Answers [`Notify`](Self::Notify).
    NotifyAck {
        /// Of the request.
        id: RequestId,
        /// False if there was no room for it: try again.
        taken: bool,
    },
    /// Asks whether anybody is there.
    Probe {
        /// Ties the answer.
        id: RequestId,
    },
    /// Answers [`Probe`](Self::Probe).
    ProbeAck {
        /// Of the request.
        id: RequestId,
    },
    /// Last frame of a side: it closes now.
    Goodbye {
        /// Why, for people.
        reason: String,
    },
}

impl ControlFrame {
    /// Number of variants: the first number on the wire that is none.
    pub(crate) const KINDS: u32 = 14;

    /// A goodbye; a reason that is too long is cut.
    pub fn goodbye(reason: &str) -> Self {
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        Self::Goodbye { reason: reason[..end].to_owned() }
    }

    /// Whether every member is within its bound.
    pub fn check(&self) -> Result<(), OverBound> {
        match self {
            Self::Hello { name, expects_name, .. } => {
                bound("name", name.len(), MAX_NAME)?;
                bound("expected name", expects_name.as_ref().map_or(0, String::len), MAX_NAME)
            }
            Self::Welcome { name, .. } => bound("name", name.len(), MAX_NAME),
            Self::Invalidate { withdrawn, .. } => bound("list of buffers", withdrawn.len(), MAX_ITEMS),
            Self::Fence { requests, .. } => bound("list of requests", requests.len(), MAX_ITEMS),
            Self::FenceAck { stopped, .. } => bound("list of outcomes", stopped.len(), MAX_ITEMS),
            Self::Notify { name, message, .. } => {
                bound("name", name.len(), MAX_NAME)?;
                bound("message", message.len(), MAX_MESSAGE)
            }
            Self::Goodbye { reason } => bound("reason", reason.len(), MAX_REASON),
            _ => Ok(()),
        }
    }
}

/// A member of a frame is larger than any receiver accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{member} of {len} is over the limit of {limit}")]
pub struct OverBound {
    /// Which one.
    pub member: &'static str,
    /// Its length, in bytes or elements.
    pub len: usize,
    /// The limit.
    pub limit: usize,
}

fn bound(member: &'static str, len: usize, limit: usize) -> Result<(), OverBound> {
    if len <= limit { Ok(()) } else { Err(OverBound { member, len, limit }) }
}
