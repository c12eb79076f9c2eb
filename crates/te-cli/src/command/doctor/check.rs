//! One thing that a path needs, and a report of them.

use crate::output::{Align, Table};

/// Whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is.
    Ok,
    /// It works, with less than it could have, or it may not.
    Warn,
    /// The path does not work without it.
    Missing,
}

impl Verdict {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// What to do about hardware that most hosts do not have.
pub(super) const NOTHING: &str = "nothing, unless this host should have some";

/// One thing that a path needs.
#[derive(Clone, Debug)]
pub(super) struct Check {
    /// The transport; `control` for what every engine needs.
    pub(super) path: String,
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    /// What there is.
    pub(super) found: String,
    /// What follows from it.
    pub(super) means: Option<String>,
    /// What to do about it.
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(path: &str, what: &'static str, found: impl Into<String>) -> Self {
        let (verdict, found) = (Verdict::Ok, found.into());
        Self { path: path.to_owned(), what, verdict, found, means: None, remedy: None }
    }

    pub(super) fn warn(
        path: &str,
        what: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (means, remedy) = (Some(means.into()), Some(remedy.into()));
        Self { verdict: Verdict::Warn, means, remedy, ..Self::ok(path, what, found) }
    }

    pub(super) fn missing(
        path: &str,
        what: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { verdict: Verdict::Missing, ..Self::warn(path, what, found, means, remedy) }
    }

    /// The same with what follows from it, for something that is there.
    pub(super) fn meaning(mut self, means: impl Into<String>) -> Self {
        self.means = Some(means.into());
        self
    }
}

/// A table, and below it what follows and what to do where something is amiss.
pub(super) fn report(checks: &[Check], is_needed: &dyn Fn(&Check) -> bool) -> String {
    let columns = ["", "PATH", "NEEDED", "WHAT", "FOUND"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    for check in checks {
        table.row([
            check.verdict.as_str().to_owned(),
            check.path.clone(),
            if is_needed(check) { "yes" } else { "no" }.to_owned(),
            check.what.to_owned(),
            check.found.clone(),
        ]);
    }
    let mut text = table.render();
    let mut amiss: Vec<&Check> = checks.iter().filter(|check| check.verdict != Verdict::Ok).collect();
    amiss.sort_by_key(|check| !is_needed(check));
    for check in amiss {
        text.push_str(&format!(
            "\n{} {} {}: {}\n",
            check.verdict.as_str(),
            check.path,
            check.what,
            check.found
        ));
        for (word, line) in [("means", &check.means), ("do", &check.remedy)] {
            if let Some(line) = line {
                text.push_str(&format!("  {word:<5}  {line}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_explained_first() {
        let checks = [
            Check::ok("tcp", "sockets", "IPv4"),
            Check::missing("rdma", "devices", "none", "no RDMA", "load a driver"),
            Check::warn("shm", "huge pages", "never", "slower", "write advise"),
        ];
        let text = report(&checks, &|check| check.path != "rdma");
        let expected = "         PATH  NEEDED  WHAT        FOUND\n\
                        ok       tcp   yes     sockets     IPv4\n\
                        missing  rdma  no      devices     none\n\
                        warn     shm   yes     huge pages  never\n\n\
                        warn shm huge pages: never\n  means  slower\n  do     write advise\n\n\
                        missing rdma devices: none\n  means  no RDMA\n  do     load a driver\n";
        assert_eq!(text, expected);
    }
}
