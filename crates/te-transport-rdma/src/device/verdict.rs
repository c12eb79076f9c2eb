//! What becomes of a piece that did not complete.

use te_transport::Op;

use crate::error::WorkError;
use crate::slices::Status;

/// How often a piece is tried at most.
pub(crate) const TRIES: u8 = 4;

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request itself is at fault: no rail does better.
    Refused(WorkError),
    /// It has no effect any more: post it once more, on whatever rail.
    Again,
    /// The peer's NIC may still apply it: once the peer has cut the rail, post it once more.
    AfterCut,
    /// It goes no further. For a WRITE: its bytes may still arrive.
    Over(Option<WorkError>),
}

/// Decides. `cause`: what broke the queue pair, where a completion has said so. `tries`: how often it has failed, this time
/// included. `cuts`: whether the peer can be asked to cut
/// the rail. A READ changes nothing at the peer, so nothing of it can come late.
pub(crate) fn judge(op: Op, status: Status, cause: Option<WorkError>, tries: u8, cuts: bool) -> Verdict {
    let own = match status {
        Status::Failed(error) if !error.is_flush() => Some(error),
        _ => None,
    };
    if let Some(error) = own.filter(|error| error.is_refusal()) {
        return Verdict::Refused(error);
    }
    let reason = own.or(cause);
    if tries >= TRIES {
        return Verdict::Over(reason);
    }
    // What stands behind a refused request is not carried out: both NICs stop at it.
    let is_behind = own.is_none() && cause.is_some_and(WorkError::is_refusal);
    match op {
        Op::Read => Verdict::Again,
        Op::Write if is_behind => Verdict::Again,
        Op::Write if cuts => Verdict::AfterCut,
        Op::Write => Verdict::Over(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSHED: Status = Status::Failed(WorkError::Flushed);
    const LOST: Status = Status::Failed(WorkError::NoAnswer);

    #[test]
    fn a_refused_request_goes_nowhere_and_those_behind_it_go_on() {
        let refused = Status::Failed(WorkError::RemoteAccess);
        for op in [Op::Read, Op::Write] {
            assert_eq!(judge(op, refused, None, 0, true), Verdict::Refused(WorkError::RemoteAccess));
            assert_eq!(judge(op, FLUSHED, Some(WorkError::RemoteAccess), 0, false), Verdict::Again);
        }
    }

    #[test]
    fn a_read_goes_on_and_a_write_only_where_it_cannot_come_late() {
        for status in [FLUSHED, LOST, Status::Forfeited] {
            assert_eq!(judge(Op::Read, status, None, 0, false), Verdict::Again);
            assert_eq!(judge(Op::Write, status, None, 0, true), Verdict::AfterCut);
        }
        assert_eq!(judge(Op::Write, LOST, None, 0, false), Verdict::Over(Some(WorkError::NoAnswer)));
        assert_eq!(
            judge(Op::Write, FLUSHED, Some(WorkError::NoAnswer), 0, false),
            Verdict::Over(Some(WorkError::NoAnswer))
        );
    }

    #[test]
    fn nothing_goes_on_for_ever() {
        assert_eq!(judge(Op::Read, LOST, None, TRIES, true), Verdict::Over(Some(WorkError::NoAnswer)));
        assert_eq!(judge(Op::Write, FLUSHED, None, TRIES, true), Verdict::Over(None));
    }
}
