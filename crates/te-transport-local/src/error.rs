//! Failures in the words of this transport.

use std::sync::Arc;

use te_memory::Refusal;
use te_segment::TransportKind;
use te_transport::{Failure, FailureKind, Op, PathLabel, RemoteEffect, TransportError};

/// Kind and words for what a target's table refuses.
pub(crate) fn refused(refusal: Refusal) -> (FailureKind, &'static str) {
    match refusal {
        Refusal::Gone | Refusal::Withdrawn => (FailureKind::BufferGone, "the peer has withdrawn the buffer"),
        Refusal::PermissionDenied => (FailureKind::Rejected, "the buffer does not permit it"),
        Refusal::TooManyHolds => (FailureKind::Unsupported, "too many requests use the buffer"),
        _ => (FailureKind::Rejected, "the range is not inside one buffer that peers may reach"),
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
    TransportError { transport: TransportKind::LOCAL, operation, cause, retryable: true }
}
