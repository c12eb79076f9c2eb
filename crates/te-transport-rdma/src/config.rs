//! Settings of the RDMA transport.

use std::num::NonZeroU64;
use std::time::Duration;

use te_segment::NicName;
use te_transport::ConfigError;
use te_transport::settings::{duration, number, within};

use crate::negotiate::Mtu;
use crate::route::{Connectivity, HealthSettings};
use crate::slices::{QueueSettings, SliceSize};

/// Settings of the RDMA transport. Sizes are bytes, durations have millisecond resolution.
///
/// ```
/// use te_transport_rdma::RdmaConfig;
/// let mut config = RdmaConfig::default();
/// config.set("queue_pairs", "4")?;
/// config.set("rail_map", "mlx5_0=mlx5_0;mlx5_1=mlx5_1")?;
/// let error = config.set("queue_pairs", "0").unwrap_err();
/// assert_eq!(error.to_string(), "queue_pairs = 0 is not within 1 to 255");
/// # Ok::<(), te_transport_rdma::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// NICs to use, separated by commas in text; none: every one that works.
    pub nics: Vec<NicName>,
    /// Queue pairs of one endpoint; both sides need the same number. 1 to 255, default 2 as the reference engine.
    pub queue_pairs: u8,
    /// Endpoints at one NIC, those that are being destroyed included. 1 to 65,535, default 4,096.
    pub endpoints: u32,
    /// Work requests under way on one queue pair. 4 to 32,768, default 256.
    pub depth: u32,
    /// At most this many work requests in a row are not signalled. 1 to 1,024, default 16.
    pub signal_every: u32,
    /// WRITEs of at most this many bytes are copied into the request. 0 to 1,024, default 64.
    pub max_inline: u32,
    /// Smallest piece of a request that is cut at all. 4 KiB to 1 GiB, default 64 KiB.
    pub slice_min: u64,
    /// Largest piece of a request. 4 KiB to 1 GiB, default 1 MiB.
    pub slice_max: u64,
    /// Upper bound of the path MTU: 256, 512, 1024, 2048 or 4096, default 4096.
    pub mtu: Mtu,
    /// Largest registration. 1 MiB to 2^60, default 2^40; the devices may permit less.
    pub max_mr_size: u64,
    /// Which pairs of NICs the fabric joins. Default all.
    pub rail_map: Connectivity,
    /// How long a rail is paused after failures. 1 ms to 1 h, default 30 s.
    pub rail_pause: Duration,
    /// Port of the NICs. 1 to 255, default 1.
    pub port: u8,
    /// Index of the address in the port's table; `auto` in text: the best one.
    pub gid_index: Option<u8>,
    /// Index of the partition key. Default 0.
    pub pkey_index: u16,
    /// Traffic class of packets; `auto` in text: the device's own.
    pub traffic_class: Option<u8>,
    /// Service level of packets, 0 to 15; `auto` in text: 0.
    pub service_level: Option<u8>,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        let (queue, size) = (QueueSettings::default(), SliceSize::default());
        Self {
            nics: Vec::new(),
            queue_pairs: 2,
            endpoints: 4_096,
            depth: queue.depth,
            signal_every: queue.signal_every,
            max_inline: queue.max_inline,
            slice_min: size.min.get(),
            slice_max: size.max.get(),
            mtu: Mtu::B4096,
            max_mr_size: 1 << 40,
            rail_map: Connectivity::All,
            rail_pause: HealthSettings::default().pause,
            port: 1,
            gid_index: None,
            pkey_index: 0,
            traffic_class: None,
            service_level: None,
        }
    }
}

impl RdmaConfig {
    /// The settings by name, and beside them the variable of the reference engine that means the same, in its units.
    pub const KEYS: [(&'static str, Option<&'static str>); 17] = [
        ("nics", Some("MC_TE_FILTERS")),
        ("queue_pairs", Some("MC_NUM_QP_PER_EP")),
        ("endpoints", Some("MC_MAX_EP_PER_CTX")),
        ("depth", Some("MC_MAX_WR")),
        ("signal_every", None),
        ("max_inline", Some("MC_MAX_INLINE")),
        ("slice_min", Some("MC_SLICE_SIZE")),
        ("slice_max", None),
        ("mtu", Some("MC_MTU")),
        ("max_mr_size", Some("MC_MAX_MR_SIZE")),
        ("rail_map", Some("MC_NIC_PEER_AFFINITY")),
        ("rail_pause", Some("MC_RDMA_RAIL_PAUSE_SECONDS")),
        ("port", Some("MC_IB_PORT")),
        ("gid_index", Some("MC_GID_INDEX")),
        ("pkey_index", Some("MC_PKEY_INDEX")),
        ("traffic_class", Some("MC_IB_TC")),
        ("service_level", Some("MC_IB_SL")),
    ];

    /// Sets one setting from text: a whole number, a duration such as `500ms` or `30s` (a bare number means seconds), names
    /// separated by commas, or a [rail map](Connectivity). Nothing changes on an error.
    ///
    /// # Errors
    ///
    /// Names the setting, the value and what is allowed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        match key {
            "nics" => next.nics = names(value)?,
            "queue_pairs" => next.queue_pairs = number("queue_pairs", value)?,
            "endpoints" => next.endpoints = number("endpoints", value)?,
            "depth" => next.depth = number("depth", value)?,
            "signal_every" => next.signal_every = number("signal_every", value)?,
            "max_inline" => next.max_inline = number("max_inline", value)?,
            "slice_min" => next.slice_min = number("slice_min", value)?,
            "slice_max" => next.slice_max = number("slice_max", value)?,
            "mtu" => next.mtu = mtu(value)?,
            "max_mr_size" => next.max_mr_size = number("max_mr_size", value)?,
            "rail_map" => next.rail_map = rail_map(value)?,
            "rail_pause" => next.rail_pause = duration("rail_pause", value)?,
            "port" => next.port = number("port", value)?,
            "gid_index" => next.gid_index = or_auto("gid_index", value)?,
            "pkey_index" => next.pkey_index = number("pkey_index", value)?,
            "traffic_class" => next.traffic_class = or_auto("traffic_class", value)?,
            "service_level" => next.service_level = or_auto("service_level", value)?,
            _ => return Err(ConfigError::unknown(key, &Self::KEYS.map(|(key, _)| key))),
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
        within("queue_pairs", self.queue_pairs.into(), 1..=255)?;
        within("endpoints", self.endpoints.into(), 1..=65_535)?;
        within("depth", self.depth.into(), 4..=32_768)?;
        within("signal_every", self.signal_every.into(), 1..=1_024)?;
        within("max_inline", self.max_inline.into(), 0..=1_024)?;
        within("slice_min", self.slice_min.into(), 4_096..=1 << 30)?;
        within("slice_max", self.slice_max.into(), 4_096..=1 << 30)?;
        within("max_mr_size", self.max_mr_size.into(), 1 << 20..=1 << 60)?;
        within("rail_pause", self.rail_pause.as_millis(), 1..=3_600_000)?;
        within("port", self.port.into(), 1..=255)?;
        within("service_level", self.service_level.unwrap_or(0).into(), 0..=15)
    }

    /// What a send queue needs of it.
    #[must_use]
    pub fn queue(&self) -> QueueSettings {
        let Self { depth, signal_every, max_inline, .. } = *self;
        QueueSettings { depth, signal_every, max_inline }
    }

    /// How large pieces become.
    #[must_use]
    pub fn slice_size(&self) -> SliceSize {
        let bytes = |bytes| NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN);
        SliceSize { min: bytes(self.slice_min), max: bytes(self.slice_max), ..SliceSize::default() }
    }

    /// When rails are paused.
    #[must_use]
    pub fn health(&self) -> HealthSettings {
        HealthSettings { pause: self.rail_pause, ..HealthSettings::default() }
    }
}

fn or_auto(key: &'static str, value: &str) -> Result<Option<u8>, ConfigError> {
    if matches!(value, "auto" | "-1") {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| ConfigError::not_understood(key, value, "auto or a number from 0 to 255"))
}

fn mtu(value: &str) -> Result<Mtu, ConfigError> {
    let exact = value.parse().ok().and_then(|bytes| Mtu::at_most(bytes).filter(|mtu| mtu.bytes() == bytes));
    exact.ok_or_else(|| ConfigError::not_understood("mtu", value, "256, 512, 1024, 2048 or 4096"))
}

fn names(value: &str) -> Result<Vec<NicName>, ConfigError> {
    let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names = names.map(str::parse).collect::<Result<Vec<_>, _>>();
    names.map_err(|_| ConfigError::not_understood("nics", value, "names of NICs, separated by commas"))
}

fn rail_map(value: &str) -> Result<Connectivity, ConfigError> {
    let expected = "all, prefer_same_name, same_name or LOCAL=REMOTE,REMOTE;LOCAL=REMOTE";
    value.parse().map_err(|_| ConfigError::not_understood("rail_map", value, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_those_of_the_parts() {
        let config = RdmaConfig::default();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.queue(), QueueSettings::default());
        assert_eq!(config.slice_size(), SliceSize::default());
        assert_eq!(config.health(), HealthSettings::default());
    }

    #[test]
    fn every_key_is_known_to_set() {
        for (key, _) in RdmaConfig::KEYS {
            let outcome = RdmaConfig::default().set(key, "@");
            assert!(matches!(outcome, Err(ConfigError::NotUnderstood { .. })), "{key}");
        }
        let error = RdmaConfig::default().set("lanes", "4").unwrap_err();
        assert!(error.to_string().contains("rail_map"), "{error}");
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut config = RdmaConfig::default();
        let refused = [
            ("endpoints", "0"),
            ("mtu", "1500"),
            ("service_level", "16"),
            ("rail_pause", "0"),
            ("port", "256"),
        ];
        for (key, value) in refused {
            assert!(config.set(key, value).is_err(), "{key} = {value}");
        }
        assert_eq!(config, RdmaConfig::default());
    }

    #[test]
    fn values_are_read() {
        let mut config = RdmaConfig::default();
        let given = [
            ("nics", "mlx5_0, mlx5_1"),
            ("gid_index", "3"),
            ("traffic_class", "auto"),
            ("rail_pause", "250ms"),
            ("mtu", "1024"),
        ];
        for (key, value) in given {
            config.set(key, value).unwrap();
        }
        assert_eq!((config.nics.len(), config.gid_index, config.traffic_class), (2, Some(3), None));
        assert_eq!((config.rail_pause, config.mtu), (Duration::from_millis(250), Mtu::B1024));
    }
}
