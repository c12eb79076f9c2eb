//! Why a slice failed, in terms a caller can act on.

use std::fmt;
use std::sync::Arc;

use crate::cancel::CancelReason;
use crate::contract::PathLabel;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The data address could not be connected: refused, unreachable or no answer in time.
    Unreachable,
    /// An established connection or queue pair broke.
    ConnectionLost,
    /// The target refused the range or the access.
    Rejected,
    /// The deadline passed.
    TimedOut,
    /// The caller cancelled.
    Cancelled,
    /// A v1 WRITE was sent, but its read-back could not confirm it.
    Unconfirmed,
    /// The peer is another life than the one the path was opened for: the handle is of an earlier one.
    StaleIncarnation,
    /// The target's buffer is withdrawn, or the range belongs to a later registration.
    BufferGone,
    /// The bytes that arrived are not those that were sent, or they were changed on the way.
    Damaged,
    /// The peer broke the framing.
    Protocol,
    /// The local buffer is withdrawn or the range is not inside it.
    LocalMemory,
    /// The path does not serve this operation or memory.
    Unsupported,
    /// The transport is shutting down.
    Shutdown,
    /// A token was dropped without an outcome: a defect of the transport.
    Dropped,
}

impl FailureKind {
    /// Whether sending the same request again, perhaps after a pause, can help.
    #[must_use]
    pub fn retry_can_help(self) -> bool {
        matches!(
            self,
            Self::Unreachable
                | Self::ConnectionLost
                | Self::TimedOut
                | Self::Unconfirmed
                | Self::Damaged
                | Self::Dropped
        )
    }

    /// One or two words for tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::ConnectionLost => "connection lost",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Unconfirmed => "unconfirmed",
            Self::StaleIncarnation => "peer was replaced",
            Self::BufferGone => "buffer gone",
            Self::Damaged => "damaged",
            Self::Protocol => "protocol error",
            Self::LocalMemory => "local memory",
            Self::Unsupported => "unsupported",
            Self::Shutdown => "shutting down",
            Self::Dropped => "dropped",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a failed request may have done to the remote bytes. READs are always `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RemoteEffect {
    /// Nothing was sent that could change the peer's memory.
    None,
    /// Any part of the request's own range may have been written; nothing more will be.
    MayHaveApplied,
    /// Any part of the range may have been written, and bytes already sent may still be applied later: the
    /// target cannot be fenced.
    MayStillApply,
}

impl fmt::Display for RemoteEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "remote memory unchanged",
            Self::MayHaveApplied => "part of the range may have been written",
            Self::MayStillApply => "part of the range may have been written and may still be written later",
        })
    }
}

/// Kind and words for work that was stopped from outside; `None` means the deadline.
#[must_use]
pub fn stopped(reason: Option<CancelReason>) -> (FailureKind, &'static str) {
    match reason {
        None | Some(CancelReason::Expired) => (FailureKind::TimedOut, "the deadline passed"),
        Some(CancelReason::Shutdown) => (FailureKind::Shutdown, "the transport is shutting down"),
        Some(CancelReason::Withdrawn) => {
            (FailureKind::Cancelled, "a buffer of the request is being withdrawn")
        }
        Some(_) => (FailureKind::Cancelled, "the batch was cancelled"),
    }
}

/// A failed slice: kind, cause, path and effect. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    cause: Arc<str>,
    effect: RemoteEffect,
    path: Option<Arc<PathLabel>>,
}

impl Failure {
    /// A failure without remote effect. `cause` is one lower-case line.
    #[must_use]
    pub fn new(kind: FailureKind, cause: impl Into<Arc<str>>) -> Self {
        Self { kind, cause: cause.into(), effect: RemoteEffect::None, path: None }
    }

    /// States what may have happened to the remote bytes.
    #[must_use]
    pub fn with_effect(mut self, effect: RemoteEffect) -> Self {
        self.effect = effect;
        self
    }

    /// Names the path that was tried.
    #[must_use]
    pub fn on_path(mut self, path: Arc<PathLabel>) -> Self {
        self.path = Some(path);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The cause in words.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What may have happened to the remote bytes.
    #[must_use]
    pub fn effect(&self) -> RemoteEffect {
        self.effect
    }

    /// The path that was tried, if one was.
    #[must_use]
    pub fn path(&self) -> Option<&Arc<PathLabel>> {
        self.path.as_ref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.cause)?;
        if let Some(path) = &self.path {
            write!(f, " ({path})")?;
        }
        if self.effect != RemoteEffect::None {
            write!(f, "; {}", self.effect)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
