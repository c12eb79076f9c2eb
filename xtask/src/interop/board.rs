//! The table of checks, printed as they happen.

use std::time::Instant;

use crate::Result;
use crate::outcome::Outcome;

/// What a check is about: one row's first columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case<'a> {
    /// Who acts on whom.
    pub(super) pair: &'a str,
    pub(super) framing: &'a str,
    pub(super) what: &'a str,
    pub(super) size: &'a str,
}

/// The checks so far.
pub(super) struct Board {
    outcome: Outcome,
}

impl Board {
    pub(super) fn new() -> Self {
        println!("{:<6} {:<24} {:<7} {:<24} {:>6} {:>9}", "result", "who", "framing", "what", "size", "ms");
        Self { outcome: Outcome::default() }
    }

    /// Runs one check and prints its row. Whether it passed.
    pub(super) fn check(&mut self, case: Case<'_>, check: impl FnOnce() -> Result<()>) -> bool {
        let begun = Instant::now();
        let result = check();
        let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
        let Case { pair, framing, what, size } = case;
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{word:<6} {pair:<24} {framing:<7} {what:<24} {size:>6} {milliseconds:>9.1}");
        match &result {
            Ok(()) => self.outcome.pass(),
            Err(error) => {
                println!("       {error}");
                self.outcome.fail(format!("{pair} {framing} {what} {size}: {error}"));
            }
        }
        result.is_ok()
    }

    pub(super) fn finish(self) -> Outcome {
        let Outcome { passed, failed, .. } = self.outcome;
        println!("{passed} passed, {failed} failed");
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_by_their_result() {
        let mut board = Board::new();
        let case = Case { pair: "a -> b", framing: "v2", what: "read", size: "4KiB" };
        assert!(board.check(case, || Ok(())));
        assert!(!board.check(case, || Err("wrong bytes".into())));
        let outcome = board.finish();
        assert_eq!((outcome.passed, outcome.failed), (1, 1));
        assert_eq!(outcome.notes, ["a -> b v2 read 4KiB: wrong bytes"]);
    }
}
