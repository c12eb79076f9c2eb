//! How a connection speaks, and what its refusals mean.

use te_transport::FailureKind;

use crate::frame;
use crate::native::{self, Verdict, Why};

/// The longest request header, and the longest thing a target has to collect before it can act.
pub(crate) const HEADER_MAX: usize = native::REQUEST_LEN;

/// Framing of a connection of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Reference framing without statuses.
    V1,
    /// Reference framing with statuses.
    V2,
    /// Between te engines.
    Native,
}

impl Framing {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Native => "native",
        }
    }

    /// Bytes of a request header.
    pub(crate) const fn header_len(self) -> usize {
        match self {
            Self::V1 | Self::V2 => frame::HEADER_LEN,
            Self::Native => native::REQUEST_LEN,
        }
    }

    /// Whether every request is answered with a status.
    pub(crate) fn has_status(self) -> bool {
        self != Self::V1
    }

    /// What the code of a refusal says, as a kind and in words.
    pub(crate) fn refusal(self, code: u32) -> (FailureKind, String) {
        let verdict = if self == Self::Native { Verdict::from_code(code).ok() } else { None };
        let (kind, words) = match verdict {
            Some(Verdict::Rejected(why)) => match why {
                Why::OutOfRange => (FailureKind::Rejected, "the range is not inside one buffer"),
                Why::Access => (FailureKind::Rejected, "the buffer does not permit it"),
                Why::Gone => (FailureKind::BufferGone, "the buffer is gone"),
                Why::Withdrawn => (FailureKind::BufferGone, "the buffer is being withdrawn"),
                Why::Unnamed => (FailureKind::Rejected, "the request names no registration of the buffer"),
                Why::Overload => (FailureKind::Rejected, "the buffer has too many users"),
            },
            Some(Verdict::Fenced) => (FailureKind::Rejected, "the attempt is fenced"),
            Some(Verdict::Damaged) => (FailureKind::Damaged, "what arrived does not fit its digest"),
            Some(Verdict::Ok) | None => return (FailureKind::Rejected, format!("status {code}")),
        };
        (kind, words.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// META-02
    #[test]
    fn withdrawn_buffers_are_told_from_other_refusals() {
        for why in [Why::Gone, Why::Withdrawn] {
            let code = Verdict::Rejected(why).code();
            assert_eq!(Framing::Native.refusal(code).0, FailureKind::BufferGone, "{why:?}");
            // The same number is no more than a refusal to the reference's framing.
            assert_eq!(Framing::V2.refusal(code).0, FailureKind::Rejected);
        }
        for verdict in [Verdict::Rejected(Why::Access), Verdict::Rejected(Why::OutOfRange), Verdict::Fenced] {
            assert_eq!(Framing::Native.refusal(verdict.code()).0, FailureKind::Rejected, "{verdict:?}");
        }
    }
}
