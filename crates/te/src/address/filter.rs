//! Which interfaces of this host count at all.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::Interface;

/// The longest name of an interface, in bytes, as the kernel has it.
const MAX_NAME: usize = 15;
/// Patterns in one filter at most.
const MAX_PATTERNS: usize = 64;

/// Which interfaces of this host count: patterns separated by commas, `NAME` or `PREFIX*`, with `!` in front for those that
/// do not. Without a pattern that admits, all count that none excludes; an exclusion always counts.
///
/// It is applied to the table of the system before anything is chosen from it or said about it: what is excluded appears in
/// no choice, no reason and no error.
///
/// ```
/// use te::address::InterfaceFilter;
/// let filter: InterfaceFilter = "eth*,!eth9".parse()?;
/// assert!(filter.admits("eth0") && !filter.admits("eth9") && !filter.admits("docker0"));
/// # Ok::<(), te::address::FilterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    admitted: Vec<Pattern>,
    excluded: Vec<Pattern>,
}

/// A name, or the beginning of some.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

/// A text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FilterError {
    /// A pattern that no interface can fit.
    #[error("{pattern:?} is not the name of an interface, or the beginning of one with a * behind it")]
    Pattern {
        /// The pattern.
        pattern: String,
    },
    /// Too long a list.
    #[error("{count} patterns are more than {MAX_PATTERNS}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

impl InterfaceFilter {
    /// Whether an interface of this name counts.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits(name));
        (self.admitted.is_empty() || fits(&self.admitted)) && !fits(&self.excluded)
    }

    /// The interfaces that count, in their order.
    #[must_use]
    pub fn apply(&self, table: Vec<Interface>) -> Vec<Interface> {
        table.into_iter().filter(|interface| self.admits(&interface.name)).collect()
    }
}

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(&self.text) } else { name == self.text }
    }
}

impl FromStr for Pattern {
    type Err = FilterError;

    fn from_str(pattern: &str) -> Result<Self, FilterError> {
        let (text, is_prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '*' | '!');
        if text.len() > MAX_NAME || (text.is_empty() && !is_prefix) || text.contains(odd) {
            return Err(FilterError::Pattern { pattern: pattern.chars().take(80).collect() });
        }
        Ok(Self { text: text.to_owned(), is_prefix })
    }
}

impl FromStr for InterfaceFilter {
    type Err = FilterError;

    /// An empty text admits all.
    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        if text.is_empty() {
            return Ok(filter);
        }
        let count = text.split(',').count();
        if count > MAX_PATTERNS {
            return Err(FilterError::TooMany { count });
        }
        for word in text.split(',').map(str::trim) {
            match word.strip_prefix('!') {
                Some(excluded) => filter.excluded.push(excluded.parse()?),
                None => filter.admitted.push(word.parse()?),
            }
        }
        Ok(filter)
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let admitted = self.admitted.iter().map(|pattern| ("", pattern));
        let excluded = self.excluded.iter().map(|pattern| ("!", pattern));
        for (at, (sign, pattern)) in admitted.chain(excluded).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let star = if pattern.is_prefix { "*" } else { "" };
            write!(f, "{comma}{sign}{}{star}", pattern.text)?;
        }
        Ok(())
    }
}
