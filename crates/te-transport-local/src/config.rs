//! Settings of the copies within a process.

use te_transport::settings::{number, within};
use te_transport::{Compare, ConfigError};

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

impl LocalConfig {
    /// The settings by name.
    pub const KEYS: [&'static str; 2] = ["threads", "compare"];

    /// Sets one setting from text. Nothing changes on an error.
    ///
    /// # Errors
    ///
    /// Names the setting, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        match key {
            "threads" => next.threads = number("threads", value)?,
            "compare" => {
                let wrong = |expected| ConfigError::not_understood("compare", value, expected);
                next.compare = value.parse().map_err(wrong)?;
            }
            _ => return Err(ConfigError::unknown(key, &Self::KEYS)),
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
        within("threads", self.threads as u128, 1..=64)
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
