//! What a check found: how many things were right, how many were not, and which.

/// Counts and the texts that explain the failures.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// One entry per failure, or per thing worth knowing.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// Adds one passed check.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Adds one failed check.
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        self.failed += 1;
        self.notes.push(why.into());
    }

    /// Adds one check: passed if there is nothing to complain about, else failed with every complaint.
    pub(crate) fn verdict(&mut self, name: &str, complaints: Vec<String>) {
        if complaints.is_empty() {
            self.pass();
        } else {
            self.failed += 1;
            self.notes.extend(complaints.into_iter().map(|c| format!("{name}: {c}")));
        }
    }

    /// One check that consists of a command's success.
    pub(crate) fn of_command(name: &str, success: bool) -> Self {
        let mut outcome = Self::default();
        if success {
            outcome.pass()
        } else {
            outcome.fail(format!("{name} failed, see its output"))
        }
        outcome
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.notes.extend(other.notes);
    }

    /// Something was checked and nothing failed.
    pub(crate) fn is_green(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    pub(crate) fn print(&self) {
        for note in &self.notes {
            println!("  {note}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_checked_is_not_green() {
        assert!(!Outcome::default().is_green());
    }

    #[test]
    fn one_failure_is_not_green() {
        let mut outcome = Outcome::default();
        outcome.pass();
        assert!(outcome.is_green());
        outcome.verdict("rule", vec!["broken".into()]);
        assert!(!outcome.is_green());
        assert_eq!(outcome.notes, ["rule: broken"]);
    }
}
