//! The cases.

pub(super) mod basic;
pub(super) mod condition;
pub(super) mod keys;
pub(super) mod lease;
pub(super) mod watch;

use crate::report::{Verdict, Violation};

/// The verdict of a case that got to its end.
const PASSED: Result<Verdict, Violation> = Ok(Verdict::Passed);

/// The verdict of a case that does not apply.
const fn skip(why: &'static str) -> Result<Verdict, Violation> {
    Ok(Verdict::NotApplicable(why))
}
