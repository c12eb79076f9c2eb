//! Errors a caller can act on: kind, operation, peer, path, cause and whether a retry can help.

use std::fmt;
use std::sync::Arc;

use te_metadata::{DirectoryError, SegmentState};
use te_select::NoPath;
use te_transport::{Failure, FailureKind, RemoteEffect};

use crate::batch::Report;
use crate::catalogue::{self, Entry};

/// What went wrong, as far as a program decides on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument makes no sense: lengths that differ, an empty batch, an empty range.
    InvalidArgument,
    /// A setting makes no sense.
    Config,
    /// A segment name breaks the rules or another live engine holds it.
    Name,
    /// The metadata knows no such segment.
    NotFound,
    /// The directory said that the segment is gone, and its owner cannot be reached either.
    SegmentGone,
    /// The name has another owner now; this handle is of the earlier one.
    StaleIncarnation,
    /// The range is not inside one buffer of the segment.
    OutsideSegment,
    /// The buffer does not allow the operation.
    PermissionDenied,
    /// The memory overlaps a registered region.
    Overlaps,
    /// The memory is null, empty, wrapping or unmapped.
    BadMemory,
    /// A documented limit is reached.
    LimitReached,
    /// The metadata store or the peer's control endpoint does not answer.
    MetadataUnavailable,
    /// A descriptor cannot be used.
    DescriptorInvalid,
    /// No installed transport can serve the request.
    NoPath,
    /// The peer's data address cannot be connected.
    DataPathUnreachable,
    /// A connection broke in mid-transfer.
    ConnectionLost,
    /// The target refused the range or the access.
    Rejected,
    /// The deadline passed.
    TimedOut,
    /// The caller cancelled.
    Cancelled,
    /// A write was sent but could not be confirmed.
    Unconfirmed,
    /// The bytes that arrived are not those that were sent.
    Damaged,
    /// The peer broke a protocol.
    Protocol,
    /// The buffer is withdrawn.
    BufferGone,
    /// Something still uses the memory.
    StillHeld,
    /// The peer's control endpoint cannot be reached.
    PeerUnreachable,
    /// The receiver refused the notification.
    NotifyRejected,
    /// A transport could not be installed or could not register memory.
    Transport,
    /// The engine is shutting down.
    Shutdown,
    /// The engine belongs to the process that forked this one.
    ForkedChild,
}

impl ErrorKind {
    /// What it means, its likely causes and what to do next: its part of `docs/failures.md`.
    #[must_use]
    pub fn entry(self) -> &'static Entry {
        match self {
            Self::InvalidArgument => &catalogue::INVALID_ARGUMENT,
            Self::Config => &catalogue::CONFIG,
            Self::Name => &catalogue::NAME,
            Self::NotFound => &catalogue::NOT_FOUND,
            Self::SegmentGone => &catalogue::SEGMENT_GONE,
            Self::StaleIncarnation => &catalogue::STALE_INCARNATION,
            Self::OutsideSegment => &catalogue::OUTSIDE_SEGMENT,
            Self::PermissionDenied => &catalogue::PERMISSION_DENIED,
            Self::Overlaps => &catalogue::OVERLAPS,
            Self::BadMemory => &catalogue::BAD_MEMORY,
            Self::LimitReached => &catalogue::LIMIT_REACHED,
            Self::MetadataUnavailable => &catalogue::METADATA_UNAVAILABLE,
            Self::DescriptorInvalid => &catalogue::DESCRIPTOR_INVALID,
            Self::NoPath => &catalogue::NO_PATH,
            Self::DataPathUnreachable => &catalogue::DATA_PATH_UNREACHABLE,
            Self::ConnectionLost => &catalogue::CONNECTION_LOST,
            Self::Rejected => &catalogue::REJECTED,
            Self::TimedOut => &catalogue::TIMED_OUT,
            Self::Cancelled => &catalogue::CANCELLED,
            Self::Unconfirmed => &catalogue::UNCONFIRMED,
            Self::Damaged => &catalogue::DAMAGED,
            Self::Protocol => &catalogue::PROTOCOL,
            Self::BufferGone => &catalogue::BUFFER_GONE,
            Self::StillHeld => &catalogue::STILL_HELD,
            Self::PeerUnreachable => &catalogue::PEER_UNREACHABLE,
            Self::NotifyRejected => &catalogue::NOTIFY_REJECTED,
            Self::Transport => &catalogue::TRANSPORT,
            Self::Shutdown => &catalogue::SHUTDOWN,
            Self::ForkedChild => &catalogue::FORKED_CHILD,
        }
    }

    /// A few words for tables and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.entry().name
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether doing it again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// Not without changing something.
    No,
    /// The same call may succeed later.
    Later,
    /// After opening the segment again: its addresses may have changed.
    AfterReopen,
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "not without a change",
            Self::Later => "the same call may succeed later",
            Self::AfterReopen => "after reopening the segment; the addresses may have changed",
        })
    }
}

struct Inner {
    kind: ErrorKind,
    operation: String,
    peer: Option<String>,
    path: Option<String>,
    cause: String,
    retry: Retry,
    effect: RemoteEffect,
    report: Option<Arc<Report>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// An error of the engine. `{}` is one line, `{:#}` the whole story.
pub struct Error(Box<Inner>);

/// A result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind, in an operation ("open segment prefill-3"), with its cause in one lower-case line.
    #[must_use]
    pub fn new(kind: ErrorKind, operation: impl Into<String>, cause: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            operation: operation.into(),
            peer: None,
            path: None,
            cause: cause.into(),
            retry: Retry::No,
            effect: RemoteEffect::None,
            report: None,
            source: None,
        }))
    }

    /// Names the peer.
    #[must_use]
    pub fn with_peer(mut self, peer: impl Into<String>) -> Self {
        self.0.peer = Some(peer.into());
        self
    }

    /// Names the path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// States whether a retry can help.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Keeps the error below.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn with_report(mut self, report: Arc<Report>) -> Self {
        self.0.report = Some(report);
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was attempted.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// With whom.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// Over which path.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// Why.
    #[must_use]
    pub fn cause(&self) -> &str {
        &self.0.cause
    }

    /// Whether doing it again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// What may have happened to the remote bytes.
    #[must_use]
    pub fn remote_effect(&self) -> RemoteEffect {
        self.0.effect
    }

    /// The results of every request, if this is the error of a batch.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.0.report.as_deref()
    }

    /// The same failure, seen with what is known of the segment: the directory's own statement that it is gone or has
    /// another owner explains a path that leads nowhere.
    pub(crate) fn explained_by(mut self, state: &SegmentState) -> Self {
        let leads_nowhere = matches!(self.0.kind, ErrorKind::DataPathUnreachable | ErrorKind::ConnectionLost);
        let kind = match state {
            SegmentState::Replaced { .. } => ErrorKind::StaleIncarnation,
            SegmentState::Gone { .. } => ErrorKind::SegmentGone,
            SegmentState::Suspect { cause, .. } if cause.starts_expiry() => ErrorKind::SegmentGone,
            _ => return self,
        };
        if leads_nowhere {
            self.0.kind = kind;
            self.0.retry = Retry::AfterReopen;
        }
        self
    }

    /// The same error, with more behind its cause.
    pub(crate) fn with_more(mut self, more: &str) -> Self {
        self.0.cause.push_str(more);
        self
    }

    /// The same error, seen as part of another operation.
    pub(crate) fn renamed(mut self, operation: String) -> Self {
        self.0.operation = operation;
        self
    }

    /// An error from what a transport reports about one slice.
    pub(crate) fn from_failure(operation: String, peer: &str, failure: &Failure) -> Self {
        let (kind, retry) = match failure.kind() {
            FailureKind::Unreachable => (ErrorKind::DataPathUnreachable, Retry::AfterReopen),
            FailureKind::ConnectionLost => (ErrorKind::ConnectionLost, Retry::AfterReopen),
            FailureKind::Rejected => (ErrorKind::Rejected, Retry::AfterReopen),
            FailureKind::TimedOut => (ErrorKind::TimedOut, Retry::Later),
            FailureKind::Cancelled => (ErrorKind::Cancelled, Retry::No),
            FailureKind::Unconfirmed => (ErrorKind::Unconfirmed, Retry::Later),
            FailureKind::StaleIncarnation => (ErrorKind::StaleIncarnation, Retry::AfterReopen),
            FailureKind::BufferGone => (ErrorKind::BufferGone, Retry::AfterReopen),
            FailureKind::Damaged => (ErrorKind::Damaged, Retry::Later),
            FailureKind::Protocol => (ErrorKind::Protocol, Retry::No),
            FailureKind::LocalMemory => (ErrorKind::BufferGone, Retry::No),
            FailureKind::Unsupported => (ErrorKind::NoPath, Retry::No),
            FailureKind::Shutdown => (ErrorKind::Shutdown, Retry::No),
            _ => (ErrorKind::Transport, Retry::Later),
        };
        let mut error = Self::new(kind, operation, failure.cause()).with_peer(peer).with_retry(retry);
        error.0.effect = failure.effect();
        error.0.path = failure.path().map(ToString::to_string);
        error.with_source(failure.clone())
    }

    pub(crate) fn from_directory(operation: String, peer: Option<&str>, error: DirectoryError) -> Self {
        let kind = match &error {
            DirectoryError::NotFound { .. } | DirectoryError::NoLocation { .. } => ErrorKind::NotFound,
            DirectoryError::InvalidDescriptor { .. }
            | DirectoryError::InvalidLocation { .. }
            | DirectoryError::InvalidAnswer { .. } => ErrorKind::DescriptorInvalid,
            DirectoryError::TooLarge { .. } => ErrorKind::LimitReached,
            DirectoryError::Refused { .. } => ErrorKind::PeerUnreachable,
            DirectoryError::NameInvalid { .. }
            | DirectoryError::NameTaken { .. }
            | DirectoryError::NameLost { .. } => ErrorKind::Name,
            _ => ErrorKind::MetadataUnavailable,
        };
        let retry = if error.is_retryable() { Retry::Later } else { Retry::No };
        let mut mapped = Self::new(kind, operation, error.to_string()).with_retry(retry);
        mapped.0.peer = peer.map(ToOwned::to_owned);
        mapped.with_source(error)
    }

    pub(crate) fn no_path(operation: String, peer: &str, error: NoPath) -> Self {
        Self::new(ErrorKind::NoPath, operation, error.to_string()).with_peer(peer).with_source(error)
    }

    /// For a child of the process that the engine is in.
    pub(crate) fn forked_child(operation: impl Into<String>, parent: u32) -> Self {
        let cause = format!(
            "this process was forked from process {parent}, which has the engine: start another one here, after the fork"
        );
        Self::new(ErrorKind::ForkedChild, operation, cause)
    }

    pub(crate) fn shutdown(operation: impl Into<String>) -> Self {
        Self::new(ErrorKind::Shutdown, operation, "shutdown was called or the last handle was dropped")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        write!(f, "{} failed: {}", inner.operation, inner.kind)?;
        if !f.alternate() {
            write!(f, ": {}", inner.cause)?;
            if let Some(path) = &inner.path {
                write!(f, " (path {path})")?;
            }
            if inner.effect != RemoteEffect::None {
                write!(f, "; {}", inner.effect)?;
            }
            return Ok(());
        }
        write!(f, "\n  cause    {}", inner.cause)?;
        if let Some(peer) = &inner.peer {
            write!(f, "\n  peer     {peer}")?;
        }
        if let Some(path) = &inner.path {
            write!(f, "\n  path     {path}")?;
        }
        if let Some(report) = &inner.report {
            write!(f, "\n  applied  {} of {} bytes", report.bytes(), report.requested_bytes())?;
        }
        if inner.effect != RemoteEffect::None {
            write!(f, "\n  remote   {}", inner.effect)?;
        }
        write!(f, "\n  retry    {}", inner.retry)?;
        inner.kind.entry().next.iter().try_for_each(|step| write!(f, "\n  next     {step}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.debug_struct("Error")
            .field("kind", &inner.kind)
            .field("operation", &inner.operation)
            .field("peer", &inner.peer)
            .field("path", &inner.path)
            .field("cause", &inner.cause)
            .field("retry", &inner.retry)
            .field("effect", &inner.effect)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests;
