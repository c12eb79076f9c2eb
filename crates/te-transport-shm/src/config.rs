//! Settings of the shared-memory transport.

use std::time::Duration;

use te_transport::settings::{duration, number, within};
use te_transport::{Compare, ConfigError};

/// Settings of the shared-memory transport. Durations have millisecond resolution.
///
/// ```
/// use te_transport_shm::ShmConfig;
/// let mut config = ShmConfig::default();
/// config.set("threads", "4")?;
/// let error = config.set("threads", "0").unwrap_err();
/// assert_eq!(error.to_string(), "threads = 0 is not within 1 to 64");
/// # Ok::<(), te_transport_shm::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmConfig {
    /// Threads that copy for one peer at most, in the background or beside the caller of a large submission; started on
    /// demand. 1 to 64, default 2.
    pub threads: usize,
    /// Time to connect to a peer's socket and to prove that it is on this host. 1 ms to 600 s, default 2 s.
    pub connect_timeout: Duration,
    /// A connection that has not said hello after this time is closed. 1 ms to 1 h, default 5 s.
    pub silent_timeout: Duration,
    /// Connections the target serves at most. 1 to 100,000, default 256.
    pub max_connections: usize,
    /// Buffers one peer can use at a time at most. 1 to 1,048,576, default 65,536.
    pub max_buffers: u32,
    /// Time a withdrawal waits for copies that are under way before it says who still copies. 1 ms to 600 s, default 1 s.
    pub withdraw_timeout: Duration,
    /// Which pieces of copies are compared with their source after they were made: `off`, `sampled` (one in 64) or `always`.
    /// Memory that changes meanwhile does not fit either; memory that may not be read is not compared. Default off.
    pub compare: Compare,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            threads: 2,
            connect_timeout: Duration::from_secs(2),
            silent_timeout: Duration::from_secs(5),
            max_connections: 256,
            max_buffers: 65_536,
            withdraw_timeout: Duration::from_secs(1),
            compare: Compare::Off,
        }
    }
}

const MINUTES_10: u128 = 600_000;
const HOUR: u128 = 3_600_000;

impl ShmConfig {
    /// The settings by name.
    pub const KEYS: [&'static str; 7] = [
        "threads",
        "connect_timeout",
        "silent_timeout",
        "max_connections",
        "max_buffers",
        "withdraw_timeout",
        "compare",
    ];

    /// Sets one setting from text: a whole number, or a duration such as `500ms` or `30s` (a bare number means seconds).
    /// Nothing changes on an error.
    ///
    /// # Errors
    ///
    /// Names the setting, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        match key {
            "threads" => next.threads = number("threads", value)?,
            "connect_timeout" => next.connect_timeout = duration("connect_timeout", value)?,
            "silent_timeout" => next.silent_timeout = duration("silent_timeout", value)?,
            "max_connections" => next.max_connections = number("max_connections", value)?,
            "max_buffers" => next.max_buffers = number("max_buffers", value)?,
            "withdraw_timeout" => next.withdraw_timeout = duration("withdraw_timeout", value)?,
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
        within("threads", self.threads as u128, 1..=64)?;
        within("connect_timeout", self.connect_timeout.as_millis(), 1..=MINUTES_10)?;
        within("silent_timeout", self.silent_timeout.as_millis(), 1..=HOUR)?;
        within("max_connections", self.max_connections as u128, 1..=100_000)?;
        within("max_buffers", self.max_buffers.into(), 1..=(1 << 20))?;
        within("withdraw_timeout", self.withdraw_timeout.as_millis(), 1..=MINUTES_10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(ShmConfig::default().validate(), Ok(()));
    }

    #[test]
    fn every_key_is_known_to_set() {
        for key in ShmConfig::KEYS {
            let outcome = ShmConfig::default().set(key, "x");
            assert!(matches!(outcome, Err(ConfigError::NotUnderstood { .. })), "{key}");
        }
        let error = ShmConfig::default().set("lanes", "4").unwrap_err();
        assert!(error.to_string().contains("max_buffers"), "{error}");
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut config = ShmConfig::default();
        assert!(config.set("max_buffers", "1048577").is_err());
        assert!(config.set("connect_timeout", "0ms").is_err());
        assert_eq!(config, ShmConfig::default());
        config.set("withdraw_timeout", "250ms").unwrap();
        assert_eq!(config.withdraw_timeout, Duration::from_millis(250));
    }
}
