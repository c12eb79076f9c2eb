//! How backends read their settings from text, and what is wrong with one.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use te_segment::TransportKind;
use thiserror::Error;

use crate::InstallError;

/// Characters of a key and of a value that an error repeats.
const SHOWN: usize = 200;

/// A setting of a backend makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such setting.
    #[error("unknown setting {key}; known are {known}")]
    UnknownKey {
        /// The word found.
        key: String,
        /// The settings, separated by commas.
        known: String,
    },
    /// The value is no number, duration or word of the setting.
    #[error("{key} = {value} is not {expected}")]
    NotUnderstood {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// What can stand there.
        expected: &'static str,
    },
    /// The value is outside its range.
    #[error("{key} = {value} is not within {min} to {max}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// Its value; durations in milliseconds.
        value: u128,
        /// The lowest value allowed.
        min: u128,
        /// The highest value allowed.
        max: u128,
    },
}

impl ConfigError {
    /// There is no setting of this name. Of a long one the front is repeated.
    #[must_use]
    pub fn unknown(key: &str, known: &[&str]) -> Self {
        Self::UnknownKey { key: key.chars().take(SHOWN).collect(), known: known.join(", ") }
    }

    /// The value is none that is expected there. Of a long one the front is repeated.
    #[must_use]
    pub fn not_understood(key: &'static str, value: &str, expected: &'static str) -> Self {
        Self::NotUnderstood { key, value: value.chars().take(SHOWN).collect(), expected }
    }

    /// The setting the error is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::UnknownKey { key, .. } => key,
            Self::NotUnderstood { key, .. } | Self::OutOfRange { key, .. } => key,
        }
    }

    /// As the reason why a transport does not start.
    #[must_use]
    pub fn into_install_error(self, transport: TransportKind) -> InstallError {
        let key = match &self {
            Self::UnknownKey { .. } => "",
            Self::NotUnderstood { key, .. } | Self::OutOfRange { key, .. } => key,
        };
        InstallError::Config { transport, key, cause: self.to_string() }
    }
}

/// A whole number.
///
/// # Errors
///
/// [`ConfigError::NotUnderstood`] if it is none, or does not fit the type.
pub fn number<T: FromStr>(key: &'static str, value: &str) -> Result<T, ConfigError> {
    value.parse().map_err(|_| ConfigError::not_understood(key, value, "a whole number in its range"))
}

/// A duration such as `500ms` or `30s`; a bare number means seconds.
///
/// # Errors
///
/// [`ConfigError::NotUnderstood`] if it is none.
pub fn duration(key: &'static str, value: &str) -> Result<Duration, ConfigError> {
    let (digits, unit) = match value.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (value.strip_suffix('s').unwrap_or(value), 1000),
    };
    let count = digits.parse().ok().and_then(|count: u64| count.checked_mul(unit));
    let unclear = || ConfigError::not_understood(key, value, "a duration such as 500ms or 30s");
    count.map(Duration::from_millis).ok_or_else(unclear)
}

/// Checks that a number, or the milliseconds of a duration, is allowed.
///
/// # Errors
///
/// [`ConfigError::OutOfRange`] if it is not.
pub fn within(key: &'static str, value: u128, allowed: RangeInclusive<u128>) -> Result<(), ConfigError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { key, value, min: *allowed.start(), max: *allowed.end() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_seconds_and_milliseconds() {
        assert_eq!(duration("pause", "250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("pause", "3s"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("pause", "4"), Ok(Duration::from_secs(4)));
        for wrong in ["", "s", "ms", "-1s", "1.5s", "3m", "18446744073709551615s"] {
            let error = duration("pause", wrong).unwrap_err();
            assert_eq!(error.to_string(), format!("pause = {wrong} is not a duration such as 500ms or 30s"));
        }
    }

    #[test]
    fn numbers_fit_their_type() {
        assert_eq!(number("port", "255"), Ok(255_u8));
        let error = number::<u8>("port", "256").unwrap_err();
        assert_eq!(error.to_string(), "port = 256 is not a whole number in its range");
    }

    #[test]
    fn what_is_outside_is_named_with_the_bounds() {
        assert_eq!(within("threads", 64, 1..=64), Ok(()));
        let error = within("threads", 65, 1..=64).unwrap_err();
        assert_eq!((error.key(), &*error.to_string()), ("threads", "threads = 65 is not within 1 to 64"));
        let error = error.into_install_error(TransportKind::TCP);
        assert_eq!(error.to_string(), "tcp: invalid setting threads: threads = 65 is not within 1 to 64");
    }

    #[test]
    fn long_words_are_cut() {
        let long = "x".repeat(1 << 20);
        let errors = [ConfigError::unknown(&long, &["a", "b"]), ConfigError::not_understood("a", &long, "b")];
        assert!(errors.iter().all(|error| error.to_string().len() < 300));
        assert!(errors[0].to_string().ends_with("known are a, b"));
    }
}
