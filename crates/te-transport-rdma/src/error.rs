//! Failures in the words of this transport.

use std::fmt;

use te_segment::TransportKind;
use te_transport::{FailureKind, TransportError};

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

    /// Whether it is the request that is at fault, here or at the responder, rather than the path: no other rail does better.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::LocalLength
                | Self::LocalQueuePair
                | Self::LocalProtection
                | Self::LocalAccess
                | Self::RemoteInvalid
                | Self::RemoteAccess
                | Self::RemoteOperation
        )
    }

    /// What it is to the caller.
    #[must_use]
    pub fn kind(self) -> FailureKind {
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

/// A step of the transport as a whole failed.
pub(crate) fn transport_error(operation: &'static str, cause: String, retryable: bool) -> TransportError {
    TransportError { transport: TransportKind::RDMA, operation, cause, retryable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_words_and_a_kind() {
        assert_eq!(WorkError::from_number(0), None);
        for number in 1..40 {
            assert!(!WorkError::from_number(number).unwrap().to_string().is_empty());
        }
        let kind = |number| WorkError::from_number(number).unwrap().kind();
        assert_eq!(kind(10), FailureKind::Rejected);
        assert_eq!(kind(12), FailureKind::ConnectionLost);
        assert_eq!(kind(4), FailureKind::LocalMemory);
        assert_eq!(WorkError::from_number(99).unwrap().to_string(), "completion status 99");
    }

    #[test]
    fn what_says_something_about_the_path_is_no_refusal() {
        for error in [WorkError::NoAnswer, WorkError::NotReady, WorkError::Flushed, WorkError::Fatal] {
            assert!(!error.is_refusal(), "{error}");
        }
        assert!(WorkError::RemoteAccess.is_refusal() && WorkError::LocalProtection.is_refusal());
    }
}
