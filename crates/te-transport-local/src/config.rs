//! Settings of the copies within a process.

use te_transport::Compare;
use thiserror::Error;

/// Settings of the copies within a process.
///
/// ```
/// use te_transport_local::LocalConfig;
/// let mut config = LocalConfig::default();
/// config.set("threads", "4")?;
/// let error = config.set("threads", "0").unwrap_err();
/// assert_eq!(error.to_string(), "threads = 0 is not within 1 to 64");
/// # Ok::<(), te_transport_local::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalConfig {
    /// Threads that copy in the background for one peer at most, started on demand. 1 to 64, default 2.
    pub threads: usize,
    /// Which pieces of copies are compared with their source after they were made: `off`, `sampled` (one in 64) or `always`.
    /// Memory that changes meanwhile does not fit either. Default off.
    pub compare: Compare,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self { threads: 2, compare: Compare::Off }
    }
}

/// A setting makes no sense.
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
    /// The value is not of its kind.
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
        /// Its value.
        value: u128,
        /// The lowest value allowed.
        min: u128,
        /// The highest value allowed.
        max: u128,
    },
}

impl ConfigError {
    pub(crate) fn into_install_error(self) -> te_transport::InstallError {
        let key = match &self {
            Self::UnknownKey { .. } => "",
            Self::NotUnderstood { key, .. } | Self::OutOfRange { key, .. } => key,
        };
        let cause = self.to_string();
        te_transport::InstallError::Config { transport: te_segment::TransportKind::LOCAL, key, cause }
    }
}

impl LocalConfig {
    /// The settings by name.
    pub const KEYS: [&'static str; 2] = ["threads", "compare"];

    /// Sets one setting from text. Nothing changes on an error.
    ///
    /// # Errors
    ///
    /// Names the setting, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let unclear = |key, expected| ConfigError::NotUnderstood { key, value: value.to_owned(), expected };
        let mut next = self.clone();
        match key {
            "threads" => next.threads = value.parse().map_err(|_| unclear("threads", "a whole number"))?,
            "compare" => next.compare = value.parse().map_err(|expected| unclear("compare", expected))?,
            _ => {
                let key = key.chars().take(80).collect();
                return Err(ConfigError::UnknownKey { key, known: Self::KEYS.join(", ") });
            }
        }
        next.validate()?;
        *self = next;
        Ok(())
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first one outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if (1..=64).contains(&self.threads) {
            return Ok(());
        }
        Err(ConfigError::OutOfRange { key: "threads", value: self.threads as u128, min: 1, max: 64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut config = LocalConfig::default();
        assert!(config.set("threads", "65").is_err());
        assert!(config.set("threads", "many").unwrap_err().to_string().contains("a whole number"));
        assert!(config.set("lanes", "4").unwrap_err().to_string().contains("known are threads, compare"));
        assert!(config.set("compare", "on").unwrap_err().to_string().contains("off, sampled or always"));
        assert_eq!(config, LocalConfig::default());
        config.set("threads", "64").unwrap();
        assert_eq!(config.threads, 64);
    }
}
