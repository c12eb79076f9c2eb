//! Why a call to a peer failed.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use te_segment::{Endpoint, Incarnation};

use super::{
    close::{CallError, CloseReason},
    codec::ControlReject,
    frame::RefuseReason,
};
use crate::error::{Attempt, Attempts, Retry};

/// Why there is no connection to a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The host name has no address.
    #[error("cannot resolve the host: {0}")]
    Resolve(#[source] io::Error),
    /// No address could be reached, or none answered.
    #[error("{}", Attempts(.attempts))]
    Unreachable {
        /// Every address that was tried, in order; never empty.
        attempts: Vec<Attempt>,
    },
    /// Whoever listens there closed at our first bytes, as reference engines and older listeners do, or answered in
    /// another protocol. A peer that dies, or is full, at that moment looks the same.
    #[error("peer at {address} does not speak native: {}", match .answer {
        Some(reject) => reject.to_string(), None => "it closed at the first bytes".to_owned() })]
    NotNative {
        /// The address.
        address: SocketAddr,
        /// What is wrong with its answer; [`None`] if it closed.
        answer: Option<ControlReject>,
    },
    /// The peer is there and does not want us.
    #[error("refused: {0}")]
    Refused(#[source] RefuseReason),
    /// The peer is there in another life than the one that was meant.
    #[error("incarnation {expected} is gone, {now} answers")]
    StaleIncarnation {
        /// The life that was meant.
        expected: Incarnation,
        /// The life that answers.
        now: Incarnation,
    },
    /// The connection ended during the handshake in another way.
    #[error("handshake failed: {0}")]
    Handshake(#[source] CloseReason),
    /// The deadline was over before the connection was tried.
    #[error("not tried before the deadline")]
    DeadlineExceeded,
}

/// Why a call to a peer failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NativeError {
    /// There is no connection.
    #[error("cannot connect to {endpoint}: {source}")]
    Dial {
        /// Where the call should have gone.
        endpoint: Endpoint,
        /// Why not.
        source: Arc<DialError>,
        /// Set if this is an earlier failure, and the next try comes only after this time, which is too late.
        pause: Option<Duration>,
    },
    /// The connection gave no answer.
    #[error("request to {endpoint} failed: {source}")]
    Call {
        /// Where the call went.
        endpoint: Endpoint,
        /// Why.
        source: CallError,
    },
    /// There are connections to too many peers already.
    #[error("cannot connect to {endpoint}: there are connections to {limit} peers already")]
    TooManyPeers {
        /// Where the call should have gone.
        endpoint: Endpoint,
        /// The limit.
        limit: usize,
    },
}

impl NativeError {
    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        let can_help = match self {
            Self::Dial { source, .. } => !matches!(
                **source,
                DialError::StaleIncarnation { .. }
                    | DialError::NotNative { answer: Some(_), .. }
                    | DialError::Refused(RefuseReason::NameMismatch | RefuseReason::Version { .. })
            ),
            Self::Call { source, .. } => !matches!(source, CallError::OverBound(_)),
            Self::TooManyPeers { .. } => true,
        };
        if can_help { Retry::CanHelp } else { Retry::Pointless }
    }

    /// The life that answers now, if the one that was meant is gone.
    pub fn stale(&self) -> Option<Incarnation> {
        match self.dial() {
            Some(DialError::StaleIncarnation { now, .. }) => Some(*now),
            _ => None,
        }
    }

    /// Whether the peer does not speak this protocol; see [`DialError::NotNative`].
    pub fn is_not_native(&self) -> bool {
        matches!(self.dial(), Some(DialError::NotNative { .. }))
    }

    /// Whether every address refused the connection: nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self.dial(), Some(DialError::Unreachable { attempts })
            if attempts.iter().all(Attempt::is_refusal))
    }

    /// Whether the peer is there and about to end.
    pub fn is_shutting_down(&self) -> bool {
        matches!(self.dial(), Some(DialError::Refused(RefuseReason::ShuttingDown)))
    }

    /// Whether nothing was heard, so that the peer may well be alive.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Dial { source, .. } => match &**source {
                DialError::Resolve(_) => true,
                DialError::Unreachable { attempts } => attempts.iter().any(Attempt::is_silence),
                _ => false,
            },
            Self::Call { source, .. } => matches!(
                source,
                CallError::DeadlineExceeded { delivered: true }
                    | CallError::Disconnected { reason: CloseReason::Silent | CloseReason::NotReading, .. }
            ),
            Self::TooManyPeers { .. } => false,
        }
    }

    /// Whether the peer may have acted on the request although the call failed.
    pub fn may_have_been_delivered(&self) -> bool {
        matches!(self, Self::Call { source, .. } if source.may_have_been_delivered())
    }

    fn dial(&self) -> Option<&DialError> {
        match self {
            Self::Dial { source, .. } => Some(source),
            _ => None,
        }
    }
}
