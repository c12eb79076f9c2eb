//! What a suite found.

use std::fmt;
use std::time::Duration;

/// What a case found wrong, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl Violation {
    /// The violation in words.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Says in which step it showed.
    #[must_use]
    pub fn at(self, step: impl fmt::Display) -> Self {
        Self(format!("{step}: {}", self.0))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// With this `?` takes any error; `Violation` itself is no `Error`, or the two would overlap.
impl<E: std::error::Error> From<E> for Violation {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Ends a case with a violation unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err($crate::report::Violation::new(format!($($words)+)));
        }
    };
}
pub(crate) use ensure;

/// How one case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing was found wrong.
    Passed,
    /// The case asks for an ability that the backend does not claim; which.
    NotApplicable(&'static str),
    /// What was found wrong.
    Failed(Violation),
}

/// How the cases of a suite ended.
#[derive(Clone, Debug, Default)]
pub struct Report {
    cases: Vec<(&'static str, Verdict, Duration)>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &'static str, verdict: Verdict, took: Duration) {
        self.cases.push((name, verdict, took));
    }

    /// Name, verdict and duration of each case, in the order in which they ran.
    #[must_use]
    pub fn cases(&self) -> &[(&'static str, Verdict, Duration)] {
        &self.cases
    }

    /// The names of the cases that failed.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        self.named(|verdict| matches!(verdict, Verdict::Failed(_)))
    }

    /// The names of the cases that ask for an ability the backend does not claim.
    #[must_use]
    pub fn not_applicable(&self) -> Vec<&'static str> {
        self.named(|verdict| matches!(verdict, Verdict::NotApplicable(_)))
    }

    fn named(&self, which: impl Fn(&Verdict) -> bool) -> Vec<&'static str> {
        self.cases.iter().filter(|(_, verdict, _)| which(verdict)).map(|(name, ..)| *name).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict, took) in &self.cases {
            match verdict {
                Verdict::Passed => writeln!(f, "ok    {name} ({took:.1?})")?,
                Verdict::NotApplicable(why) => writeln!(f, "n/a   {name}: {why}")?,
                Verdict::Failed(violation) => writeln!(f, "FAIL  {name} ({took:.1?}): {violation}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_what_failed_and_why() {
        let mut report = Report::default();
        report.add("first", Verdict::Passed, Duration::from_millis(5));
        report.add("second", Verdict::Failed(Violation::new("lost").at("size 7")), Duration::from_millis(5));
        report.add("third", Verdict::NotApplicable("no leases"), Duration::ZERO);
        assert_eq!(report.failed(), ["second"]);
        assert_eq!(report.not_applicable(), ["third"]);
        assert!(report.to_string().contains("FAIL  second (5.0ms): size 7: lost\n"), "{report}");
    }
}
