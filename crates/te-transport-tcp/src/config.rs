//! Settings of the TCP transport.

use std::time::Duration;

use te_segment::Host;
use te_transport::ConfigError;
use te_transport::settings::{duration, number, within};

/// Which framing the initiator uses. The target always serves all of them, and advertises native and version 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FramingChoice {
    /// Native with peers that advertise it, else version 2 with peers that advertise that, else version 1.
    #[default]
    Auto,
    /// Native always. Peers that do not advertise it cannot be reached.
    Native,
    /// Version 2 always. Peers that do not advertise it cannot be reached.
    V2,
    /// Version 1 always. Every WRITE then costs a read-back.
    V1,
}

/// Settings of the TCP transport. Durations have millisecond resolution.
///
/// ```
/// use te_transport_tcp::TcpConfig;
/// let mut config = TcpConfig::default();
/// config.set("connections_per_peer", "2")?;
/// let error = config.set("connections_per_peer", "0").unwrap_err();
/// assert_eq!(error.to_string(), "connections_per_peer = 0 is not within 1 to 64");
/// # Ok::<(), te_transport_tcp::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Where the target listens, which is what peers are told, if data connections take another network than control
    /// requests. An address of this host, and no wildcard. Default none: the addresses of the engine.
    pub address: Option<Host>,
    /// Connections the initiator opens to one peer at most, on demand. 1 to 64, default 4.
    pub connections_per_peer: usize,
    /// Framing of the initiator, `auto`, `native`, `v2` or `v1`. Default `auto`.
    pub framing: FramingChoice,
    /// Time to establish a connection, all addresses of the peer and a native hello together. 1 ms to 600 s, default 2 s.
    pub connect_timeout: Duration,
    /// Time the initiator waits for a status after its last byte is sent. 1 ms to 1 h, default 30 s.
    pub status_timeout: Duration,
    /// Time within which a payload must advance by 64 KiB or end, on both sides. 1 ms to 1 h, default 30 s.
    pub progress_timeout: Duration,
    /// Requests in flight on one connection at most (version 1 has one). 1 to 1,024, default 64.
    pub pipeline: usize,
    /// A request of at least this many bytes is cut for several connections, in the native framing into pieces of about
    /// 2 MiB between which other batches get their turn. 64 KiB to 2^60, default 4 MiB.
    pub stripe_threshold: u64,
    /// Connections the target serves at most. 1 to 1,000,000, default 4,096.
    pub max_connections: usize,
    /// A connection that has not sent one whole header after this time is closed. 1 ms to 1 h, default 10 s.
    pub silent_timeout: Duration,
    /// Bytes of a refused request that are read and thrown away, so that the status is not lost in a reset. 0 to
    /// 2^40, default 256 MiB.
    pub reject_drain_bytes: u64,
    /// Time for that. 0 to 600 s, default 2 s.
    pub reject_drain_time: Duration,
    /// Whether requests of the native framing carry a digest of their payload, which whoever receives it compares.
    /// `off`, `sampled` (one in 64 requests) or `always`; default `off`. Memory that changes during the request does not fit
    /// either.
    pub digest: DigestChoice,
    /// Idle time after which the kernel asks whether the peer still exists. 1 s to 9 h, default 30 s.
    pub keepalive: Duration,
}

/// Which native requests carry a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestChoice {
    /// None.
    #[default]
    Off,
    /// One in 64.
    Sampled,
    /// All. Each goes in a frame of its own.
    Always,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            address: None,
            connections_per_peer: 4,
            framing: FramingChoice::Auto,
            connect_timeout: Duration::from_secs(2),
            status_timeout: Duration::from_secs(30),
            progress_timeout: Duration::from_secs(30),
            pipeline: 64,
            stripe_threshold: 4 << 20,
            max_connections: 4096,
            silent_timeout: Duration::from_secs(10),
            reject_drain_bytes: 256 << 20,
            reject_drain_time: Duration::from_secs(2),
            digest: DigestChoice::Off,
            keepalive: Duration::from_secs(30),
        }
    }
}

const MINUTES_10: u128 = 600_000;
const HOUR: u128 = 3_600_000;

impl TcpConfig {
    /// The settings by name.
    pub const KEYS: [&'static str; 14] = [
        "address",
        "connections_per_peer",
        "framing",
        "connect_timeout",
        "status_timeout",
        "progress_timeout",
        "pipeline",
        "stripe_threshold",
        "max_connections",
        "silent_timeout",
        "reject_drain_bytes",
        "reject_drain_time",
        "digest",
        "keepalive",
    ];

    /// Sets one setting from text: a whole number, a duration such as `500ms` or `30s` (a bare number means
    /// seconds), or a word. Nothing changes on an error.
    ///
    /// # Errors
    ///
    /// Names the setting, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        match key {
            "address" => next.address = Some(address(value)?),
            "connections_per_peer" => next.connections_per_peer = number("connections_per_peer", value)?,
            "framing" => next.framing = framing(value)?,
            "connect_timeout" => next.connect_timeout = duration("connect_timeout", value)?,
            "status_timeout" => next.status_timeout = duration("status_timeout", value)?,
            "progress_timeout" => next.progress_timeout = duration("progress_timeout", value)?,
            "pipeline" => next.pipeline = number("pipeline", value)?,
            "stripe_threshold" => next.stripe_threshold = number("stripe_threshold", value)?,
            "max_connections" => next.max_connections = number("max_connections", value)?,
            "silent_timeout" => next.silent_timeout = duration("silent_timeout", value)?,
            "reject_drain_bytes" => next.reject_drain_bytes = number("reject_drain_bytes", value)?,
            "reject_drain_time" => next.reject_drain_time = duration("reject_drain_time", value)?,
            "digest" => next.digest = digest(value)?,
            "keepalive" => next.keepalive = duration("keepalive", value)?,
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
    /// The first setting outside its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(wildcard) = self.address.as_ref().filter(|address| address.is_unspecified()) {
            return Err(ConfigError::not_understood("address", &wildcard.to_string(), AN_ADDRESS));
        }
        within("connections_per_peer", self.connections_per_peer as u128, 1..=64)?;
        within("connect_timeout", self.connect_timeout.as_millis(), 1..=MINUTES_10)?;
        within("status_timeout", self.status_timeout.as_millis(), 1..=HOUR)?;
        within("progress_timeout", self.progress_timeout.as_millis(), 1..=HOUR)?;
        within("pipeline", self.pipeline as u128, 1..=1024)?;
        within("stripe_threshold", u128::from(self.stripe_threshold), (64 << 10)..=(1 << 60))?;
        within("max_connections", self.max_connections as u128, 1..=1_000_000)?;
        within("silent_timeout", self.silent_timeout.as_millis(), 1..=HOUR)?;
        within("reject_drain_bytes", u128::from(self.reject_drain_bytes), 0..=(1 << 40))?;
        within("reject_drain_time", self.reject_drain_time.as_millis(), 0..=MINUTES_10)?;
        within("keepalive", self.keepalive.as_millis(), 1000..=32_400_000)
    }
}

const AN_ADDRESS: &str = "one address of this host, as peers can be told it";

fn address(value: &str) -> Result<Host, ConfigError> {
    value.parse().map_err(|_| ConfigError::not_understood("address", value, AN_ADDRESS))
}

fn framing(value: &str) -> Result<FramingChoice, ConfigError> {
    match value {
        "auto" => Ok(FramingChoice::Auto),
        "native" => Ok(FramingChoice::Native),
        "v2" => Ok(FramingChoice::V2),
        "v1" => Ok(FramingChoice::V1),
        _ => Err(ConfigError::not_understood("framing", value, "auto, native, v2 or v1")),
    }
}

fn digest(value: &str) -> Result<DigestChoice, ConfigError> {
    match value {
        "off" => Ok(DigestChoice::Off),
        "sampled" => Ok(DigestChoice::Sampled),
        "always" => Ok(DigestChoice::Always),
        _ => Err(ConfigError::not_understood("digest", value, "off, sampled or always")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(TcpConfig::default().validate(), Ok(()));
    }

    #[test]
    fn every_key_is_known_to_set() {
        for key in TcpConfig::KEYS {
            let value = if key == "framing" { "v1" } else { "x" };
            let outcome = TcpConfig::default().set(key, value);
            assert!(!matches!(outcome, Err(ConfigError::UnknownKey { .. })), "{key}");
        }
    }

    #[test]
    fn errors_name_key_value_and_range() {
        let error = TcpConfig::default().set("connect_timeout", "0ms").unwrap_err();
        assert_eq!(error.to_string(), "connect_timeout = 0 is not within 1 to 600000");
        let error = TcpConfig::default().set("status_timeout", "soon").unwrap_err();
        assert_eq!(error.to_string(), "status_timeout = soon is not a duration such as 500ms or 30s");
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut config = TcpConfig::default();
        assert!(config.set("pipeline", "1025").is_err());
        assert_eq!(config, TcpConfig::default());
    }

    #[test]
    fn durations_are_read_in_seconds_and_milliseconds() {
        let mut config = TcpConfig::default();
        config.set("connect_timeout", "250ms").unwrap();
        assert_eq!(config.connect_timeout, Duration::from_millis(250));
        config.set("connect_timeout", "3s").unwrap();
        assert_eq!(config.connect_timeout, Duration::from_secs(3));
        config.set("connect_timeout", "4").unwrap();
        assert_eq!(config.connect_timeout, Duration::from_secs(4));
    }

    #[test]
    fn an_address_is_one_that_peers_can_be_told() {
        let mut config = TcpConfig::default();
        config.set("address", "127.0.0.2").unwrap();
        assert_eq!(config.address.as_ref().map(Host::bare).as_deref(), Some("127.0.0.2"));
        let error = config.set("address", "0.0.0.0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "address = 0.0.0.0 is not one address of this host, as peers can be told it"
        );
    }

    #[test]
    fn unknown_key_lists_the_known_ones() {
        let error = TcpConfig::default().set("lanes", "4").unwrap_err();
        assert!(error.to_string().contains("connections_per_peer"), "{error}");
    }
}
