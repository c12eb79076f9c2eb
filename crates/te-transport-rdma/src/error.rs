//! Failures in the words of this transport.

use std::fmt;
use std::sync::Arc;

use te_transport::{Failure, FailureKind, Op, PathLabel, RemoteEffect};

use crate::slices::Status;

/// Why a work request failed, as its completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkError {
    /// The local range is longer than the request permits.
    LocalLength,
    /// The queue pair cannot do it.
    LocalQueuePair,
    /// The local key does not cover the range.
    LocalProtection,
    /// It was flushed because the queue pair broke before.
    Flushed,
    /// The responder answered with something else.
    BadResponse,
    /// The local memory does not permit it.
    LocalAccess,
    /// The responder takes the request for invalid.
    RemoteInvalid,
    /// The responder's key does not permit it, or is gone.
    RemoteAccess,
    /// The responder could not do it.
    RemoteOperation,
    /// The responder did not answer, however often it was asked.
    NoAnswer,
    /// The responder was not ready, however often it was asked.
    NotReady,
    /// The device is broken.
    Fatal,
    /// Anything else, by its number.
    Other(u32),
}

impl WorkError {
    /// The meaning of a completion's status number; `None` is success.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::LocalLength,
            2 => Self::LocalQueuePair,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalid,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::NoAnswer,
            13 => Self::NotReady,
            19 => Self::Fatal,
            other => Self::Other(other),
        })
    }

    /// Whether it is only behind another failure: it says nothing about the rail.
    #[must_use]
    pub fn is_flush(self) -> bool {
        self == Self::Flushed
    }

    /// Whether it says something about the local device, memory or request rather than about the path.
    #[must_use]
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalLength | Self::LocalQueuePair | Self::LocalProtection | Self::LocalAccess)
    }

    fn kind(self) -> FailureKind {
        match self {
            Self::LocalLength | Self::LocalProtection | Self::LocalAccess => FailureKind::LocalMemory,
            Self::RemoteAccess | Self::RemoteInvalid => FailureKind::Rejected,
            _ => FailureKind::ConnectionLost,
        }
    }
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => {
                "local length error: the request is longer than the queue pair permits (mtu, slice_max)"
            }
            Self::LocalQueuePair => "local queue pair error",
            Self::LocalProtection => {
                "local protection error: the buffer's key does not cover the range at this NIC"
            }
            Self::Flushed => "flushed, because the queue pair broke before",
            Self::BadResponse => "the peer's NIC answered with something else",
            Self::LocalAccess => "local access error: the NIC may not touch the buffer like this",
            Self::RemoteInvalid => {
                "the peer's NIC takes the request for invalid: do both sides use the same path MTU?"
            }
            Self::RemoteAccess => {
                "the peer's NIC refuses the key: the buffer is withdrawn or does not permit it"
            }
            Self::RemoteOperation => "the peer's NIC could not do it",
            Self::NoAnswer => {
                "the peer's NIC does not answer: link, route, or a NIC that cannot reach the memory"
            }
            Self::NotReady => "the peer's NIC was not ready",
            Self::Fatal => "the device is broken",
            Self::Other(number) => return write!(f, "completion status {number}"),
        })
    }
}

/// What a slice's failure is to the caller. `posted`: whether any of it was given to a device.
///
/// A WRITE that was given to a device may still be applied after it has failed here: packets that are under way are
/// taken by the peer's NIC as long as its queue pair exists.
#[must_use]
pub fn failure(label: &Arc<PathLabel>, op: Op, status: Status, posted: bool) -> Failure {
    let (kind, cause) = match status {
        Status::Failed(error) => (error.kind(), error.to_string()),
        Status::Done | Status::Forfeited => {
            (FailureKind::ConnectionLost, "the queue pair was destroyed before the work completed".to_owned())
        }
    };
    let effect = match (op, posted) {
        (Op::Write, true) => RemoteEffect::MayStillApply,
        _ => RemoteEffect::None,
    };
    Failure::new(kind, cause).with_effect(effect).on_path(label.clone())
}

#[cfg(test)]
mod tests {
    use te_segment::TransportKind;

    use super::*;

    #[test]
    fn every_status_has_words_and_a_kind() {
        assert_eq!(WorkError::from_number(0), None);
        let label = Arc::new(PathLabel::new(TransportKind::RDMA, "mlx5_0 to mlx5_1"));
        for number in 1..40 {
            let error = WorkError::from_number(number).unwrap();
            let failure = failure(&label, Op::Write, Status::Failed(error), true);
            assert!(!failure.cause().is_empty() && failure.effect() == RemoteEffect::MayStillApply);
        }
        let says =
            |number| failure(&label, Op::Read, Status::Failed(WorkError::from_number(number).unwrap()), true);
        assert_eq!(says(10).kind(), FailureKind::Rejected);
        assert_eq!(says(12).kind(), FailureKind::ConnectionLost);
        assert_eq!(says(4).kind(), FailureKind::LocalMemory);
        assert_eq!(says(99).to_string(), "connection lost: completion status 99 (rdma mlx5_0 to mlx5_1)");
        assert_eq!(says(12).effect(), RemoteEffect::None, "a READ changes nothing there");
    }

    #[test]
    fn what_never_began_has_no_effect() {
        let label = Arc::new(PathLabel::new(TransportKind::RDMA, "x"));
        assert_eq!(failure(&label, Op::Write, Status::Forfeited, false).effect(), RemoteEffect::None);
    }
}
