//! Failures in the words of this transport.

use std::io;
use std::sync::Arc;

use te_segment::TransportKind;
use te_transport::{Failure, FailureKind, Op, PathLabel, RemoteEffect, TransportError};

/// What broke an exchange.
#[derive(Debug)]
pub(crate) enum Break {
    /// The target refused the request at the front, with this code.
    Refused(u32),
    /// The connection ended or failed.
    Lost {
        /// How, in words.
        cause: String,
        /// Whether bytes on the way may still be applied: the peer's end is not known to be gone.
        late: bool,
    },
    /// The peer sent what no peer sends.
    Protocol(String),
    /// Nothing moved for too long.
    Stalled(String),
    /// The deadline passed, or somebody said stop.
    Ended,
}

impl Break {
    /// An error of the socket. After a reset or a broken pipe the peer's end is gone, and with it what it had not
    /// read; after other errors it may live on.
    pub(crate) fn from_io(doing: &str, error: &io::Error) -> Self {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
        );
        Self::Lost { cause: format!("{doing}: {error}"), late: !gone }
    }

    /// The peer has closed its side.
    pub(crate) fn closed(cause: String) -> Self {
        Self::Lost { cause, late: false }
    }
}

/// The effect of a request whose header was handed to the kernel.
pub(crate) fn effect_of(op: Op, late: bool) -> RemoteEffect {
    match (op, late) {
        (Op::Read, _) => RemoteEffect::None,
        (Op::Write, false) => RemoteEffect::MayHaveApplied,
        (Op::Write, true) => RemoteEffect::MayStillApply,
    }
}

/// A failure on a path.
pub(crate) fn failure(
    label: &Arc<PathLabel>,
    kind: FailureKind,
    cause: impl Into<Arc<str>>,
    effect: RemoteEffect,
) -> Failure {
    Failure::new(kind, cause).with_effect(effect).on_path(label.clone())
}

/// An error of the transport as a whole.
pub(crate) fn transport_error(operation: &'static str, cause: String, retryable: bool) -> TransportError {
    TransportError { transport: TransportKind::TCP, operation, cause, retryable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_leaves_nothing_that_may_still_apply() {
        let error = io::Error::from(io::ErrorKind::ConnectionReset);
        assert!(matches!(Break::from_io("sending", &error), Break::Lost { late: false, .. }));
    }

    #[test]
    fn network_silence_may_still_apply() {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        assert!(matches!(Break::from_io("sending", &error), Break::Lost { late: true, .. }));
    }

    #[test]
    fn reads_have_no_remote_effect() {
        assert_eq!(effect_of(Op::Read, true), RemoteEffect::None);
    }
}
