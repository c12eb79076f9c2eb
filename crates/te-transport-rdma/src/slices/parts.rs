//! The pieces of one slice, put together again.

use super::Status;

/// Counts the outcomes of one slice's pieces. It ends with the last of them, not with the first failure: only then can
/// nothing touch its memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    left: u32,
    worst: Status,
    posted: bool,
}

impl Parts {
    /// A slice of so many pieces.
    #[must_use]
    pub fn new(pieces: u32) -> Self {
        Self { left: pieces, worst: Status::Done, posted: false }
    }

    /// A piece has been posted: a WRITE may have an effect from now on.
    pub fn posted(&mut self) {
        self.posted = true;
    }

    /// Whether any piece was ever posted.
    #[must_use]
    pub fn was_posted(&self) -> bool {
        self.posted
    }

    /// A piece has ended; with the last one, how the slice did: done if all pieces are, else the first failure that is
    /// not a flush, else the flush.
    pub fn ended(&mut self, status: Status) -> Option<Status> {
        let left = self.left.checked_sub(1)?;
        self.left = left;
        let rank = |status: &Status| match status {
            Status::Done => 0,
            Status::Forfeited => 1,
            Status::Failed(error) if error.is_flush() => 1,
            Status::Failed(_) => 2,
        };
        if rank(&status) > rank(&self.worst) {
            self.worst = status;
        }
        (left == 0).then_some(self.worst)
    }
}
