//! The unit of work a path executes.

use std::fmt;
use std::time::Instant;

use te_memory::Hold;
use te_segment::{AddressRange, Generation};

use crate::admission::AttemptId;
use crate::cancel::CancelScope;
use crate::completion::CompletionToken;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Remote memory to local memory.
    Read,
    /// Local memory to remote memory.
    Write,
}

impl Op {
    /// `read` or `write`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One contiguous local range against one contiguous remote range of the same length.
#[derive(Debug)]
pub struct Slice {
    /// Direction.
    pub op: Op,
    /// The local bytes, held against withdrawal until the slice is resolved.
    pub local: Hold,
    /// The remote bytes, as absolute addresses of the peer. Same length as `local`.
    pub remote: AddressRange,
    /// The generation of the remote buffer the request was planned with; `None` for peers that have none.
    pub generation: Option<Generation>,
    /// Which attempt of which request this is, for targets that fence. All slices of a request are parts of its attempt.
    pub attempt: AttemptId,
    /// Reports the outcome.
    pub token: CompletionToken,
}

/// Slices of one batch for one path.
#[derive(Debug)]
pub struct Submission {
    /// The work, in submission order. No order of execution is promised.
    pub slices: Vec<Slice>,
    /// When every slice must be resolved.
    pub deadline: Instant,
    /// The batch's cancellation.
    pub scope: CancelScope,
}

/// Who executes a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitMode {
    /// Threads of the transport; `submit` returns at once.
    Background,
    /// The calling thread may execute the work itself before `submit` returns, at most until the deadline. Spares
    /// the hand-over between threads to a caller that would only wait. A transport may treat it as `Background`.
    CallerRuns,
}
