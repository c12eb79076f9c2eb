//! Command-line arguments: flags, values and positionals, in any order.

use crate::Result;

/// What is left of the command line. Reading an argument takes it out; [`Args::finish`] refuses the rest.
pub(crate) struct Args {
    rest: Vec<String>,
}

impl Args {
    pub(crate) fn new(arguments: impl IntoIterator<Item = String>) -> Self {
        Self { rest: arguments.into_iter().collect() }
    }

    /// The first argument that is no flag.
    pub(crate) fn positional(&mut self) -> Option<String> {
        let at = self.rest.iter().position(|a| !a.starts_with('-'))?;
        Some(self.rest.remove(at))
    }

    /// Everything after `--`, which is somebody else's.
    pub(crate) fn trailing(&mut self) -> Option<Vec<String>> {
        let at = self.rest.iter().position(|a| a == "--")?;
        let trailing = self.rest.split_off(at + 1);
        self.rest.pop();
        Some(trailing).filter(|words| !words.is_empty())
    }

    /// Whether the flag was given.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|a| a != name);
        self.rest.len() < before
    }

    /// The value of `--name VALUE` or `--name=VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>> {
        let prefix = format!("{name}=");
        if let Some(at) = self.rest.iter().position(|a| a.starts_with(&prefix)) {
            return Ok(Some(self.rest.remove(at).split_off(prefix.len())));
        }
        let Some(at) = self.rest.iter().position(|a| a == name) else { return Ok(None) };
        self.rest.remove(at);
        if self.rest.get(at).is_none_or(|v| v.starts_with('-')) {
            return Err(format!("{name} needs a value").into());
        }
        Ok(Some(self.rest.remove(at)))
    }

    /// The value of `--name`, as a number.
    pub(crate) fn number(&mut self, name: &str, default: u64) -> Result<u64> {
        match self.value(name)? {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("{name} needs a number, not `{text}`").into()),
        }
    }

    /// The comma-separated values of `--name`.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        Ok(self.value(name)?.map(|v| v.split(',').map(str::to_owned).collect()))
    }

    /// Refuses whatever nobody asked for.
    pub(crate) fn finish(self) -> Result<()> {
        match self.rest.first() {
            None => Ok(()),
            Some(argument) => Err(format!("unexpected argument `{argument}`").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn values_are_taken_in_both_spellings() {
        let mut a = args("test --only=fmt,tidy --skip loom");
        assert_eq!(a.list("--only").unwrap().unwrap(), ["fmt", "tidy"]);
        assert_eq!(a.value("--skip").unwrap().as_deref(), Some("loom"));
        assert_eq!(a.positional().as_deref(), Some("test"));
        assert!(a.finish().is_ok());
    }

    #[test]
    fn a_value_that_is_missing_is_an_error() {
        assert!(args("--only").value("--only").is_err());
        assert!(args("--only --skip").value("--only").is_err());
    }

    #[test]
    fn a_number_that_is_none_is_an_error() {
        assert!(args("--rounds many").number("--rounds", 1).is_err());
        assert_eq!(args("--rounds 3").number("--rounds", 1).unwrap(), 3);
        assert_eq!(args("").number("--rounds", 1).unwrap(), 1);
    }

    #[test]
    fn what_comes_after_the_dashes_is_not_ours() {
        let mut a = args("guest --rxe 2 -- program --flag x");
        assert_eq!(a.trailing().unwrap(), ["program", "--flag", "x"]);
        assert!(!a.flag("--flag"));
        assert_eq!(a.number("--rxe", 0).unwrap(), 2);
        assert_eq!(args("guest --").trailing(), None);
        assert_eq!(args("guest").trailing(), None);
    }

    #[test]
    fn leftovers_are_refused() {
        assert!(args("--unknown").finish().is_err());
    }
}
