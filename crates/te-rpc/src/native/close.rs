//! Why a native connection ended, and why a request on it failed.

use std::io;

use te_segment::Incarnation;

use super::{
    codec::ControlReject,
    frame::{OverBound, RefuseReason, RequestId},
};

/// What a peer must not do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that are no frame.
    #[error(transparent)]
    Reject(#[from] ControlReject),
    /// A frame that has no place here: before the handshake, or of a handshake that is over.
    #[error("frame out of place")]
    OutOfPlace,
    /// A version that was not offered.
    #[error("version {version} was not offered")]
    Version {
        /// The version.
        version: u16,
    },
    /// An answer to a request that was never sent.
    #[error("answer to request {}, which was never sent", .id.value())]
    UnknownAnswer {
        /// Id of the request.
        id: RequestId,
    },
    /// An answer of another kind or length than its request asks for.
    #[error("answer does not fit request {}", .id.value())]
    WrongAnswer {
        /// Id of the request.
        id: RequestId,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer does not welcome us.
    #[error("refused: {0}")]
    Refused(RefuseReason),
    /// We do not welcome the peer.
    #[error("peer refused: {0}")]
    RefusedPeer(RefuseReason),
    /// The peer said that it closes.
    #[error("closed by the peer: {reason}")]
    Goodbye {
        /// Why.
        reason: String,
    },
    /// We closed.
    #[error("closed: {reason}")]
    Closed {
        /// Why.
        reason: String,
    },
    /// The handshake was not over in time.
    #[error("no handshake in time")]
    NoHandshake,
    /// Nothing came from the peer although it was probed.
    #[error("the peer is silent")]
    Silent,
    /// The peer does not take what we send.
    #[error("the peer does not read")]
    NotReading,
    /// The listener has no memory left for this connection.
    #[error("too much memory in use by connections")]
    OverBudget,
    /// The peer broke the rules.
    #[error("protocol violation: {0}")]
    Violation(#[source] Violation),
    /// The connection was closed or reset without a word.
    #[error("connection lost: {}", match .error { Some(kind) => kind.to_string(), None => "end of stream".to_owned() })]
    Lost {
        /// What the operating system said; [`None`] at the end of the stream.
        error: Option<io::ErrorKind>,
    },
}

/// The reason in the goodbye of a side that ends.
pub(crate) const END_OF_LIFE: &str = "shutting down";

impl CloseReason {
    /// Whether the peer said goodbye because it ends, not only this connection.
    pub fn is_end_of_life(&self) -> bool {
        matches!(self, Self::Goodbye { reason } if reason == END_OF_LIFE)
    }

    /// The incarnation that answers now, if the peer was addressed by an earlier life.
    pub fn stale(&self) -> Option<Incarnation> {
        match self {
            Self::Refused(RefuseReason::StaleIncarnation { now }) => Some(*now),
            _ => None,
        }
    }
}

/// Why a request on a connection has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The connection ended first.
    #[error("{reason}")]
    Disconnected {
        /// Why it ended.
        reason: CloseReason,
        /// Whether the peer may have acted on the request.
        delivered: bool,
    },
    /// No answer came in time.
    #[error("no answer in time")]
    DeadlineExceeded {
        /// Whether the peer may have acted on the request.
        delivered: bool,
    },
    /// There are too many requests without an answer. Nothing was sent.
    #[error("{limit} requests are without an answer already")]
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// No peer accepts such a request. Nothing was sent.
    #[error(transparent)]
    OverBound(#[from] OverBound),
}

impl CallError {
    /// Whether the peer may have acted on the request.
    pub fn may_have_been_delivered(&self) -> bool {
        match self {
            Self::Disconnected { delivered, .. } | Self::DeadlineExceeded { delivered } => *delivered,
            _ => false,
        }
    }
}
