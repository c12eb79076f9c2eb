//! Reads the closing lines of test runners.

use crate::outcome::Outcome;
use crate::shell::Finished;

/// Turns a finished test run into an outcome. A run without a closing line, or that failed without a failed test,
/// counts as one failure: it did not compile, crashed or ran nothing.
pub(crate) fn judge(name: &str, finished: &Finished) -> Outcome {
    let text = plain(&finished.output);
    let (passed, failed) = nextest(&text).or_else(|| cargo_test(&text)).unwrap_or_default();
    let mut outcome = Outcome { passed, failed, notes: Vec::new() };
    if failed > 0 {
        outcome.notes.push(format!("{name}: {failed} failed, see their output"));
    } else if !finished.success {
        outcome.fail(format!("{name}: the run failed without naming a failed test"));
    } else if passed == 0 {
        outcome.fail(format!("{name}: no test ran"));
    }
    outcome
}

/// Sums `test result: ok. 3 passed; 1 failed; …` over all test binaries.
fn cargo_test(text: &str) -> Option<(usize, usize)> {
    let results: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result: "))
        .map(|line| (number_before(line, "passed"), number_before(line, "failed")))
        .collect();
    if results.is_empty() {
        return None;
    }
    Some(results.into_iter().fold((0, 0), |(p, f), (passed, failed)| (p + passed, f + failed)))
}

/// Reads `Summary [ 0.1s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 0 skipped`.
fn nextest(text: &str) -> Option<(usize, usize)> {
    let line = text.lines().rev().find_map(|line| line.trim_start().strip_prefix("Summary ["))?;
    let (_, counts) = line.split_once("run:")?;
    let bad = ["failed", "timed out", "exec failed"].iter().map(|word| number_before(counts, word)).sum();
    Some((number_before(counts, "passed"), bad))
}

/// The number in front of a word, in a text of comma- or semicolon-separated counts; 0 if it is not there.
fn number_before(text: &str, word: &str) -> usize {
    text.split([',', ';', '.'])
        .filter_map(|part| {
            let (number, rest) = part.trim().split_once(' ')?;
            let rest = rest.split('(').next().unwrap_or_default().trim();
            if rest == word { number.parse::<usize>().ok() } else { None }
        })
        .sum()
}

/// The text without terminal escapes.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // A control sequence ends with a letter.
            chars.by_ref().find(|c| c.is_ascii_alphabetic());
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(success: bool, output: &str) -> Finished {
        Finished { success, output: output.to_owned() }
    }

    #[test]
    fn cargo_test_results_are_summed() {
        let text = "\
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
noise
test result: FAILED. 7 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
        assert_eq!(cargo_test(text), Some((10, 2)));
    }

    #[test]
    fn nextest_counts_every_way_to_fail() {
        let text = "     Summary [   0.456s] 8 tests run: 4 passed (1 slow), 2 failed, 1 timed out, 1 exec failed, 3 skipped";
        assert_eq!(nextest(text), Some((4, 4)));
        assert_eq!(nextest("Summary [ 0.1s] 1 test run: 1 passed, 0 skipped"), Some((1, 0)));
        assert_eq!(
            nextest("Summary [ 0.1s] 3/9 tests run: 2 passed, 1 failed (1 leaky), 0 skipped"),
            Some((2, 1))
        );
    }

    #[test]
    fn colours_do_not_hide_the_summary() {
        let text = "\u{1b}[32;1m     Summary\u{1b}[0m [ 0.1s] \u{1b}[1m2\u{1b}[0m tests run: \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped";
        assert_eq!(nextest(&plain(text)), Some((2, 0)));
    }

    #[test]
    fn a_run_that_did_not_compile_is_a_failure() {
        let outcome = judge("tests", &finished(false, "error: could not compile `te`"));
        assert_eq!((outcome.passed, outcome.failed), (0, 1));
    }

    #[test]
    fn a_run_that_crashed_after_passing_tests_is_a_failure() {
        let text =
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\nerror: test failed";
        assert_eq!(judge("tests", &finished(false, text)).failed, 1);
    }

    #[test]
    fn a_run_without_tests_is_a_failure() {
        let text = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(judge("tests", &finished(true, text)).failed, 1);
        assert_eq!(judge("tests", &finished(true, "")).failed, 1);
    }

    #[test]
    fn a_green_run_is_green() {
        let outcome = judge("tests", &finished(true, "test result: ok. 3 passed; 0 failed; 0 ignored"));
        assert!(outcome.is_green());
        assert_eq!(outcome.passed, 3);
    }
}
