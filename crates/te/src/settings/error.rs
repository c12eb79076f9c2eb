//! What can be wrong with a setting.

use std::fmt;

use thiserror::Error;

use super::Origin;

/// A setting makes no sense.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The value is none of the key's, or outside its range.
    #[error("{key} = {value:?} from {origin} is not {expected}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// The value, as it was given.
        value: String,
        /// Where it was given.
        origin: Origin,
        /// What can stand there: type, unit and range.
        expected: String,
    },
    /// There is no such key.
    #[error("{origin}: there is no setting {key:?}{}", nearest_hint(.nearest))]
    UnknownKey {
        /// The word found.
        key: String,
        /// Where it was given.
        origin: Origin,
        /// The key that looks most like it, if one does.
        nearest: Option<&'static str>,
    },
    /// The key belongs to a part that is not compiled in.
    #[error("{key} from {origin} needs the Cargo feature `{feature}`, which is not compiled in")]
    NeedsFeature {
        /// The key.
        key: &'static str,
        /// Where it was given.
        origin: Origin,
        /// The feature.
        feature: &'static str,
    },
    /// Two values do not fit together.
    #[error("{low} = {low_value} is above {high} = {high_value}")]
    Order {
        /// The key that must not be above the other.
        low: &'static str,
        /// Its value.
        low_value: u16,
        /// The other key.
        high: &'static str,
        /// Its value.
        high_value: u16,
    },
    /// One of two values that go together is missing.
    #[error("{one} and {other} go together, but only one of them is stated")]
    Pair {
        /// A key.
        one: &'static str,
        /// The other key.
        other: &'static str,
    },
    /// A line of a settings file is not `key = value`.
    #[error("{path}:{line}: {text:?} is not `key = value`")]
    Syntax {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A settings file cannot be read.
    #[error("settings file {path} cannot be read: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

fn nearest_hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

/// Something in the environment that looks like a setting and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The variable.
    pub variable: String,
    /// The variable that looks most like it, if one does.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a setting and is ignored{}", self.variable, nearest_hint(&self.nearest))
    }
}

/// The word of `known` that is most like `word`, if the difference is small.
pub(crate) fn nearest(word: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    known
        .map(|candidate| (distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .map(|(_, candidate)| candidate)
}

/// How many single-character edits lead from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let substitution = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn only_a_small_difference_is_a_hint() {
        let known = || ["TE_CONTROL_PORT", "TE_BIND"].into_iter();
        assert_eq!(nearest("TE_CONTROL_PROT", known()), Some("TE_CONTROL_PORT"));
        assert_eq!(nearest("TE_WHATEVER_ELSE", known()), None);
    }
}
