//! Failures in the words of this transport.

use std::sync::Arc;

use te_segment::TransportKind;
use te_transport::{Failure, FailureKind, Op, PathLabel, RemoteEffect, TransportError};

use crate::frame::Denial;

/// Kind and words for what a target denies.
pub(crate) fn denied(denial: Denial) -> (FailureKind, &'static str) {
    match denial {
        Denial::StaleIncarnation => {
            (FailureKind::StaleIncarnation, "the socket belongs to another life of the peer")
        }
        Denial::Version => (FailureKind::Unsupported, "no version of the protocol is common to both"),
        Denial::Gone => (FailureKind::BufferGone, "the peer has withdrawn the buffer"),
        Denial::Range => (FailureKind::Rejected, "the range is not inside one buffer that peers may reach"),
        Denial::Access => (FailureKind::Rejected, "the buffer does not permit it"),
        Denial::Full => (FailureKind::Unsupported, "too many buffers of the peer are in use (max_buffers)"),
    }
}

/// What an attempt that has ended may have done: nothing of it is left anywhere.
pub(crate) fn effect(op: Op, begun: bool) -> RemoteEffect {
    if op == Op::Write && begun { RemoteEffect::MayHaveApplied } else { RemoteEffect::None }
}

/// A failure on a path.
pub(crate) fn failure(label: &Arc<PathLabel>, kind: FailureKind, cause: impl Into<Arc<str>>) -> Failure {
    Failure::new(kind, cause).on_path(label.clone())
}

/// An error of the transport as a whole.
pub(crate) fn transport_error(operation: &'static str, cause: String) -> TransportError {
    TransportError { transport: TransportKind::SHM, operation, cause, retryable: true }
}
