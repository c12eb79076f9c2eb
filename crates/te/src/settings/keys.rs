//! The table of settings.

use std::path::PathBuf;
use std::time::Duration;

use te_metadata::ClusterId;
use te_segment::{Host, NicName, TransportKind};

use super::error::nearest;
use super::value::{Digest, Framing, Span, Value};
use super::{Count, Origin, RailMap, Secret, Setting, SettingsError};
use crate::address::InterfaceFilter;
use crate::features;
use crate::metadata::MetadataUrl;

/// What is known of one setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Key {
    /// Its name in files, on the command line and in messages.
    pub name: &'static str,
    /// What it is, in a sentence or two.
    pub about: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// Variables of the reference engine that mean the same; the own one counts more.
    pub aliases: &'static [Alias],
    /// The Cargo feature it belongs to, if it is not about every engine.
    pub feature: Option<&'static str>,
    expected: fn() -> String,
}

impl Key {
    /// What can stand there: type, unit and range.
    #[must_use]
    pub fn expected(&self) -> String {
        (self.expected)()
    }

    /// Whether the part it belongs to is compiled in.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.feature
            .is_none_or(|name| features::all().any(|known| known.name() == name && known.is_compiled()))
    }
}

/// A variable of the reference engine and how it states its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alias {
    /// In the same form.
    Same(&'static str),
    /// A whole number of seconds.
    Seconds(&'static str),
    /// `1` for version 1 of the framing, anything else for the choice by peer.
    Proto(&'static str),
    /// Its presence, whatever its value, means this value.
    Presence(&'static str, &'static str),
    /// In the same form; `-1` means `auto`.
    Auto(&'static str),
    /// Its presence, whatever its value, means this value, unless another variable is switched on, `1` or `true`: of two ways
    /// to do the same the reference engine then takes none.
    PresenceUnless {
        /// The variable.
        variable: &'static str,
        /// What its presence means.
        means: &'static str,
        /// The switch of the other way.
        on: &'static str,
    },
    /// In the same form, if one variable is switched on, `1` or `true`, and another one, for the other way, is absent.
    SameIf {
        /// The variable.
        variable: &'static str,
        /// Its switch.
        on: &'static str,
        /// What must be absent.
        absent: &'static str,
    },
}

impl Alias {
    /// Its name.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        match self {
            Self::Same(name)
            | Self::Seconds(name)
            | Self::Proto(name)
            | Self::Presence(name, _)
            | Self::Auto(name) => name,
            Self::PresenceUnless { variable, .. } | Self::SameIf { variable, .. } => variable,
        }
    }

    /// Whether it means anything beside the other variables.
    pub(super) fn counts<'a>(&self, value_of: impl Fn(&str) -> Option<&'a String>) -> bool {
        let is_on = |switch| value_of(switch).is_some_and(|v| v == "1" || v.eq_ignore_ascii_case("true"));
        match self {
            Self::PresenceUnless { on, .. } => !is_on(on),
            Self::SameIf { on, absent, .. } => is_on(on) && value_of(absent).is_none(),
            _ => true,
        }
    }

    /// Its value in the form of the setting.
    pub(super) fn translate(&self, value: &str) -> String {
        match self {
            Self::Same(_) | Self::SameIf { .. } => value.to_owned(),
            Self::Seconds(_) => format!("{value}s"),
            Self::Proto(_) => if value == "1" { "v1" } else { "auto" }.to_owned(),
            Self::Presence(_, means) | Self::PresenceUnless { means, .. } => (*means).to_owned(),
            Self::Auto(_) => if value == "-1" { "auto" } else { value }.to_owned(),
        }
    }
}

/// One setting as text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: &'static Key,
    /// The value, passwords left out.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+
        $field:ident: $type:ty = $default:expr, $name:literal, $variable:literal, $range:expr,
        [$($alias:expr),*] $(, feature $feature:literal)?;)+) => {
        /// Every setting of an engine. Fields are documented with unit, range and default; the text form is that of
        /// files, variables and the command line.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $field: Setting<$type>,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: Setting::by_default($default),)+ }
            }
        }

        const KEYS: &[Key] = &[$(Key {
            name: $name,
            about: concat!($($doc),+),
            variable: $variable,
            aliases: &[$($alias),*],
            feature: settings!(@feature $($feature)?),
            expected: || <$type as Value>::expected(&$range),
        },)+];

        impl Settings {
            /// Every setting with its value and where it came from, in the order of the table.
            #[must_use]
            pub fn entries(&self) -> Vec<Entry> {
                let mut keys = Self::keys().iter();
                [$((self.$field.get().show(), self.$field.origin().clone()),)+]
                    .into_iter()
                    .filter_map(|(value, origin)| Some(Entry { key: keys.next()?, value, origin }))
                    .collect()
            }

            /// Replaces every value that `over` states.
            pub fn overlay(&mut self, over: &Self) {
                $(if !over.$field.is_default() {
                    self.$field = over.$field.clone();
                })+
            }

            fn assign(&mut self, key: &'static Key, text: &str, origin: Origin) -> Result<(), SettingsError> {
                match key.name {
                    $($name => {
                        let range = $range;
                        match <$type as Value>::parse(text).filter(|value| value.is_within(&range)) {
                            Some(value) => self.$field.replace(value, origin),
                            None => return Err(invalid(key, <$type as Value>::refused(text), origin)),
                        }
                    })+
                    _ => {}
                }
                Ok(())
            }

            /// The first value outside its range. Values set from text are checked already.
            fn check_ranges(&self) -> Result<(), SettingsError> {
                let mut keys = Self::keys().iter();
                $(
                    let key = keys.next();
                    let range = $range;
                    if let (Some(key), false) = (key, self.$field.get().is_within(&range)) {
                        return Err(invalid(key, self.$field.get().show(), self.$field.origin().clone()));
                    }
                )+
                Ok(())
            }
        }
    };
    (@feature) => { None };
    (@feature $feature:literal) => { Some($feature) };
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const HOUR: Duration = secs(3_600);
const MIB: u64 = 1 << 20;

settings! {
    /// Where segments are published and found: `P2PHANDSHAKE` (engines ask each other), `p2p://HOST[:PORT]` (the
    /// same, at a stated address) or the URL of a store. Default `P2PHANDSHAKE`.
    metadata: MetadataUrl = MetadataUrl::default(), "metadata", "TE_METADATA", (), [];
    /// A component of every key in a metadata store, so that deployments can share one. Default none.
    metadata_cluster: Option<ClusterId> = None, "metadata.cluster", "TE_METADATA_CLUSTER", (),
        [Alias::Same("MC_METADATA_CLUSTER_ID")];
    /// How long what this engine published outlives it in a store that can expire keys; renewed three times in that
    /// time. Default 10s, range 1s to 1h.
    metadata_lease: Duration = secs(10), "metadata.lease", "TE_METADATA_LEASE", secs(1)..=HOUR, [];
    /// The name to log in to etcd or redis with, where the URL states no login. Default none.
    metadata_user: Option<String> = None, "metadata.user", "TE_METADATA_USER", (),
        [Alias::Same("MC_REDIS_USERNAME")];
    /// The password of etcd or redis, the bearer token of an http store, where the URL states no login. Shown nowhere.
    /// Default none.
    metadata_token: Option<Secret> = None, "metadata.token", "TE_METADATA_TOKEN", (),
        [Alias::Same("MC_REDIS_PASSWORD")];
    /// The database of a redis server whose URL states none. Default 0, range 0 to 2147483647.
    metadata_database: Count = Count(0), "metadata.database", "TE_METADATA_DATABASE", Span::Count(0, 0x7fff_ffff),
        [Alias::Same("MC_REDIS_DB_INDEX")], feature "redis";
    /// The largest request the etcd servers take, their `--max-request-bytes`; a descriptor may be up to 8 KiB
    /// smaller. Default 1536KiB, range 64KiB to 1GiB.
    metadata_max_request: u64 = 1_536 << 10, "metadata.max_request", "TE_METADATA_MAX_REQUEST",
        Span::Bytes(64 << 10, 1 << 30), [], feature "etcd";
    /// The proxy on the way to an http store; the proxy variables of the environment count nothing. Shown nowhere.
    /// Default none.
    metadata_proxy: Option<Secret> = None, "metadata.proxy", "TE_METADATA_PROXY", (), [], feature "http";
    /// PEM file of the authorities whose certificates a store may show, and no others. Default none: those that this
    /// system trusts.
    metadata_ca_file: Option<PathBuf> = None, "metadata.ca_file", "TE_METADATA_CA_FILE", (), [], feature "tls";
    /// PEM file of the certificate chain that a store is shown which asks for one. Default none.
    metadata_cert_file: Option<PathBuf> = None, "metadata.cert_file", "TE_METADATA_CERT_FILE", (), [],
        feature "tls";
    /// PEM file of the key to that certificate. Default none.
    metadata_key_file: Option<PathBuf> = None, "metadata.key_file", "TE_METADATA_KEY_FILE", (), [], feature "tls";
    /// The transports to install, and no others. Default `all` that are compiled in.
    transports: Option<Vec<TransportKind>> = None, "transports", "TE_TRANSPORTS", (),
        [Alias::Presence("MC_FORCE_TCP", "tcp")];
    /// The address peers are told. Default `auto`: from the metadata URL or the name, else the only routable address
    /// of this host.
    advertise: Option<Host> = None, "advertise", "TE_ADVERTISE", (), [Alias::Same("MC_TCP_BIND_ADDRESS")];
    /// The interfaces of this host that count where the address to advertise is looked for: names, `PREFIX*`, and both with
    /// `!` in front for those that do not. What is left out appears in no choice and no message. Default `all`.
    interfaces: InterfaceFilter = InterfaceFilter::default(), "interfaces", "TE_INTERFACES", (), [];
    /// The address listeners bind; `0.0.0.0` or `::` for every interface. Default `auto`: the advertised one.
    bind: Option<Host> = None, "bind", "TE_BIND", (), [];
    /// Port of the control listener; 0 takes a free one of the range. Default 0, range 0 to 65535.
    control_port: u16 = 0, "control.port", "TE_CONTROL_PORT", 0..=65_535, [];
    /// Lowest port of listeners that take a free one. Default 15000, range 1 to 65535.
    port_min: u16 = 15_000, "port.min", "TE_PORT_MIN", 1..=65_535,
        [Alias::Same("MC_MIN_PRC_PORT"), Alias::Same("MC_MIN_RPC_PORT")];
    /// Highest port of listeners that take a free one. Default 17000, range 1 to 65535.
    port_max: u16 = 17_000, "port.max", "TE_PORT_MAX", 1..=65_535,
        [Alias::Same("MC_MAX_PRC_PORT"), Alias::Same("MC_MAX_RPC_PORT")];
    /// Deadline of a batch that states none. Default 30s, range 1ms to 24h.
    request_deadline: Duration = secs(30), "request.deadline", "TE_REQUEST_DEADLINE", ms(1)..=HOUR * 24,
        [Alias::Seconds("MC_TRANSFER_TIMEOUT")];
    /// How long an attempt of a request may be without progress before the next path is tried. Default 5s, range 1ms to 1h.
    request_silence: Duration = secs(5), "request.silence", "TE_REQUEST_SILENCE", ms(1)..=HOUR, [];
    /// Requests in one batch at most. Default 65536, range 1 to 16777216.
    request_batch: Count = Count(65_536), "request.batch", "TE_REQUEST_BATCH", Span::Count(1, 1 << 24), [];
    /// Time to connect to a peer's control listener. Default 2s, range 1ms to 1h.
    control_connect: Duration = secs(2), "control.connect", "TE_CONTROL_CONNECT", ms(1)..=HOUR,
        [Alias::Seconds("MC_HANDSHAKE_CONNECT_TIMEOUT")];
    /// Time of one control request or one call of a metadata store. Default 5s, range 1ms to 1h.
    control_request: Duration = secs(5), "control.request", "TE_CONTROL_REQUEST", ms(1)..=HOUR, [];
    /// Largest control request of a peer nothing is known of, in bytes. Default 1MiB, range 64KiB to 128MiB.
    control_frame: u64 = MIB, "control.frame", "TE_CONTROL_FRAME", Span::Bytes(64 << 10, 128 * MIB),
        [Alias::Same("MC_HANDSHAKE_MAX_LENGTH")];
    /// Connections of the control listener at most. Default 4096, range 1 to 1000000.
    control_connections: Count = Count(4_096), "control.connections", "TE_CONTROL_CONNECTIONS",
        Span::Count(1, 1_000_000), [];
    /// Registered buffers at most. Default 1000000, range 1 to 1000000.
    memory_regions: Count = Count(1_000_000), "memory.regions", "TE_MEMORY_REGIONS", Span::Count(1, 1_000_000), [];
    /// How long a withdrawal waits for requests that use the memory, where the caller states nothing. Default 5s,
    /// range 0s to 1h.
    memory_drain: Duration = secs(5), "memory.drain", "TE_MEMORY_DRAIN", ms(0)..=HOUR, [];
    /// How long a withdrawal waits for its announcement before it goes on. Default 1s, range 0s to 1h.
    memory_announce: Duration = secs(1), "memory.announce", "TE_MEMORY_ANNOUNCE", ms(0)..=HOUR, [];
    /// Bytes of a notification, name and message together. Default 64KiB, range 1 to 1MiB.
    notify_bytes: u64 = 64 << 10, "notify.bytes", "TE_NOTIFY_BYTES", Span::Bytes(1, MIB), [];
    /// Notifications received and not yet taken at most. Default 4096, range 1 to 1000000.
    notify_queue: Count = Count(4_096), "notify.queue", "TE_NOTIFY_QUEUE", Span::Count(1, 1_000_000), [];
    /// Where data connections are taken, which is what peers are told, if they go over another network than control requests:
    /// an address of this host, and no wildcard. Default `auto`: the addresses of `bind` and `advertise`.
    tcp_address: Option<Host> = None, "tcp.address", "TE_TCP_ADDRESS", (), [], feature "tcp";
    /// Connections the initiator opens to one peer at most. Default 4, range 1 to 64.
    tcp_connections_per_peer: Count = Count(4), "tcp.connections_per_peer", "TE_TCP_CONNECTIONS_PER_PEER",
        Span::Count(1, 64),
        [Alias::Same("MC_TCP_MAX_CONNECTIONS_PER_PEER"), Alias::Same("MC_TCP_LANES_PER_PEER")], feature "tcp";
    /// Framing of the initiator: `auto` is native with te peers, version 2 with others that advertise it, else version 1.
    /// The other words take that one always, and peers that do not advertise it cannot be reached. Default `auto`.
    tcp_framing: Framing = Framing::Auto, "tcp.framing", "TE_TCP_FRAMING", (), [Alias::Proto("MC_TCP_PROTO")],
        feature "tcp";
    /// Time to establish a data connection, all addresses of the peer together. Default 2s, range 1ms to 10min.
    tcp_connect_timeout: Duration = secs(2), "tcp.connect_timeout", "TE_TCP_CONNECT_TIMEOUT", ms(1)..=secs(600), [],
        feature "tcp";
    /// Time the initiator waits for a status after its last byte is sent. Default 30s, range 1ms to 1h.
    tcp_status_timeout: Duration = secs(30), "tcp.status_timeout", "TE_TCP_STATUS_TIMEOUT", ms(1)..=HOUR,
        [Alias::Seconds("MC_TCP_STATUS_TIMEOUT_SEC")], feature "tcp";
    /// Time within which a payload must advance by 64 KiB or end. Default 30s, range 1ms to 1h.
    tcp_progress_timeout: Duration = secs(30), "tcp.progress_timeout", "TE_TCP_PROGRESS_TIMEOUT", ms(1)..=HOUR,
        [Alias::Seconds("MC_TCP_PROGRESS_TIMEOUT_SEC")], feature "tcp";
    /// Requests in flight on one data connection at most. Default 64, range 1 to 1024.
    tcp_pipeline: Count = Count(64), "tcp.pipeline", "TE_TCP_PIPELINE", Span::Count(1, 1_024), [], feature "tcp";
    /// A request of at least this many bytes is cut for several connections, between te engines into pieces of about 2 MiB
    /// between which other batches get their turn. Default 4MiB, range 64KiB to 1048576TiB.
    tcp_stripe_threshold: u64 = 4 * MIB, "tcp.stripe_threshold", "TE_TCP_STRIPE_THRESHOLD",
        Span::Bytes(64 << 10, 1 << 60), [], feature "tcp";
    /// Data connections served at most. Default 4096, range 1 to 1000000.
    tcp_max_connections: Count = Count(4_096), "tcp.max_connections", "TE_TCP_MAX_CONNECTIONS",
        Span::Count(1, 1_000_000), [], feature "tcp";
    /// A data connection that has not sent one whole header after this time is closed. Default 10s, range 1ms to 1h.
    tcp_silent_timeout: Duration = secs(10), "tcp.silent_timeout", "TE_TCP_SILENT_TIMEOUT", ms(1)..=HOUR, [],
        feature "tcp";
    /// Bytes of a refused request that are read and thrown away, so that the refusal arrives. Default 256MiB, range 0
    /// to 1TiB.
    tcp_reject_drain_bytes: u64 = 256 * MIB, "tcp.reject_drain_bytes", "TE_TCP_REJECT_DRAIN_BYTES",
        Span::Bytes(0, 1 << 40), [], feature "tcp";
    /// Time for that. Default 2s, range 0s to 10min.
    tcp_reject_drain_time: Duration = secs(2), "tcp.reject_drain_time", "TE_TCP_REJECT_DRAIN_TIME",
        ms(0)..=secs(600), [], feature "tcp";
    /// Whether requests between te engines carry a digest of their payload, which whoever receives it compares with its
    /// memory: none, one in 64, or all. Memory that changes during the request does not fit either. Default `off`.
    tcp_digest: Digest = Digest::Off, "tcp.digest", "TE_TCP_DIGEST", (), [], feature "tcp";
    /// Idle time after which the kernel asks whether the peer still exists. Default 30s, range 1s to 9h.
    tcp_keepalive: Duration = secs(30), "tcp.keepalive", "TE_TCP_KEEPALIVE", secs(1)..=HOUR * 9, [], feature "tcp";
    /// Threads that copy in the background for one engine of the same local group at most. Default 2, range 1 to 64.
    local_threads: Count = Count(2), "local.threads", "TE_LOCAL_THREADS", Span::Count(1, 64), [];
    /// Which pieces of copies within a local group are compared with their source after they were made: none, one in 64, or
    /// all. Memory that changes meanwhile does not fit either. Default `off`.
    local_compare: Digest = Digest::Off, "local.compare", "TE_LOCAL_COMPARE", (), [];
    /// Threads that copy for one peer of this host at most, in the background or beside the caller of a large batch. Default 2,
    /// range 1 to 64.
    shm_threads: Count = Count(2), "shm.threads", "TE_SHM_THREADS", Span::Count(1, 64), [], feature "shm";
    /// Time to connect to the socket of a peer of this host, and to prove that it is one. Default 2s, range 1ms to 10min.
    shm_connect_timeout: Duration = secs(2), "shm.connect_timeout", "TE_SHM_CONNECT_TIMEOUT", ms(1)..=secs(600), [],
        feature "shm";
    /// A connection at that socket that has not said hello after this time is closed. Default 5s, range 1ms to 1h.
    shm_silent_timeout: Duration = secs(5), "shm.silent_timeout", "TE_SHM_SILENT_TIMEOUT", ms(1)..=HOUR, [],
        feature "shm";
    /// Connections served there at most. Default 256, range 1 to 100000.
    shm_max_connections: Count = Count(256), "shm.max_connections", "TE_SHM_MAX_CONNECTIONS",
        Span::Count(1, 100_000), [], feature "shm";
    /// Buffers that one peer of this host uses at a time at most. Default 65536, range 1 to 1048576.
    shm_max_buffers: Count = Count(65_536), "shm.max_buffers", "TE_SHM_MAX_BUFFERS", Span::Count(1, 1 << 20), [],
        feature "shm";
    /// How long a withdrawal waits for copies of peers of this host before it says who still makes one. Default 1s, range
    /// 1ms to 10min.
    shm_withdraw_timeout: Duration = secs(1), "shm.withdraw_timeout", "TE_SHM_WITHDRAW_TIMEOUT", ms(1)..=secs(600),
        [], feature "shm";
    /// Which pieces of copies in shared memory are compared with their source after they were made: none, one in 64, or all.
    /// Memory that changes meanwhile does not fit either; memory that may not be read is not compared. Default `off`.
    shm_compare: Digest = Digest::Off, "shm.compare", "TE_SHM_COMPARE", (), [], feature "shm";
    /// The NICs to use; those that cannot be used are left out. Default `all`.
    rdma_nics: Vec<NicName> = Vec::new(), "rdma.nics", "TE_RDMA_NICS", (), [Alias::Same("MC_TE_FILTERS")],
        feature "rdma";
    /// Queue pairs that join one NIC here with one of a peer; both sides need the same number. Default 2, range 1 to 255.
    rdma_queue_pairs: Count = Count(2), "rdma.queue_pairs", "TE_RDMA_QUEUE_PAIRS", Span::Count(1, 255),
        [Alias::Same("MC_NUM_QP_PER_EP")], feature "rdma";
    /// Endpoints, NICs of peers that one NIC here is joined with, at most; those that are being destroyed are included. At
    /// the limit one without work under way makes room. Default 4096, range 1 to 65535.
    rdma_endpoints: Count = Count(4_096), "rdma.endpoints", "TE_RDMA_ENDPOINTS", Span::Count(1, 65_535),
        [Alias::Same("MC_MAX_EP_PER_CTX")], feature "rdma";
    /// Work requests under way on one queue pair at most. Default 256, range 4 to 32768.
    rdma_depth: Count = Count(256), "rdma.depth", "TE_RDMA_DEPTH", Span::Count(4, 32_768),
        [Alias::Same("MC_MAX_WR")], feature "rdma";
    /// At most this many work requests in a row are posted without asking for a completion. Default 16, range 1 to 1024.
    rdma_signal_every: Count = Count(16), "rdma.signal_every", "TE_RDMA_SIGNAL_EVERY", Span::Count(1, 1_024), [],
        feature "rdma";
    /// WRITEs of at most this many bytes are copied into the work request. Default 64, range 0 to 1KiB.
    rdma_max_inline: u64 = 64, "rdma.max_inline", "TE_RDMA_MAX_INLINE", Span::Bytes(0, 1_024),
        [Alias::Same("MC_MAX_INLINE")], feature "rdma";
    /// The smallest piece of a request that is cut at all; the only size of the reference engine. `rdma.slice_max` counts more.
    /// Default 64KiB, range 4KiB to 1GiB.
    rdma_slice_min: u64 = 64 << 10, "rdma.slice_min", "TE_RDMA_SLICE_MIN", Span::Bytes(4 << 10, 1 << 30),
        [Alias::Same("MC_SLICE_SIZE")], feature "rdma";
    /// The largest piece of a request. Default 1MiB, range 4KiB to 1GiB.
    rdma_slice_max: u64 = MIB, "rdma.slice_max", "TE_RDMA_SLICE_MAX", Span::Bytes(4 << 10, 1 << 30), [],
        feature "rdma";
    /// Bytes of a packet at most; what both ports can do counts besides. Default 4096.
    rdma_mtu: Count = Count(4_096), "rdma.mtu", "TE_RDMA_MTU", Span::OneOf(&[256, 512, 1_024, 2_048, 4_096]),
        [Alias::Same("MC_MTU")], feature "rdma";
    /// The largest registration; devices may permit less. A larger buffer is registered in parts. Default 1TiB, range 1MiB to
    /// 1048576TiB.
    rdma_max_mr_size: u64 = 1 << 40, "rdma.max_mr_size", "TE_RDMA_MAX_MR_SIZE", Span::Bytes(MIB, 1 << 60),
        [Alias::Same("MC_MAX_MR_SIZE")], feature "rdma";
    /// Which NICs here reach which NICs of a peer: `all`; `prefer_same_name`, which is all, and those of one name first;
    /// `same_name`; or a list, in which a NIC that is not named reaches none. `MC_NIC_PEER_AFFINITY` counts while
    /// `MC_ENABLE_HCA_PEER_AFFINITY` is on, and neither way where both are switched on. Default `all`.
    rdma_rail_map: RailMap = RailMap::default(), "rdma.rail_map", "TE_RDMA_RAIL_MAP", (),
        [
            Alias::PresenceUnless {
                variable: "MC_ENABLE_DEST_DEVICE_AFFINITY",
                means: "prefer_same_name",
                on: "MC_ENABLE_HCA_PEER_AFFINITY"
            },
            Alias::SameIf {
                variable: "MC_NIC_PEER_AFFINITY",
                on: "MC_ENABLE_HCA_PEER_AFFINITY",
                absent: "MC_ENABLE_DEST_DEVICE_AFFINITY"
            }
        ],
        feature "rdma";
    /// How long a pair of NICs is not used after failures. Default 30s, range 1ms to 1h.
    rdma_rail_pause: Duration = secs(30), "rdma.rail_pause", "TE_RDMA_RAIL_PAUSE", ms(1)..=HOUR,
        [Alias::Seconds("MC_RDMA_RAIL_PAUSE_SECONDS")], feature "rdma";
    /// The port of each NIC. Default 1, range 1 to 255.
    rdma_port: Count = Count(1), "rdma.port", "TE_RDMA_PORT", Span::Count(1, 255), [Alias::Same("MC_IB_PORT")],
        feature "rdma";
    /// Index of the address (GID) in the port's table. Default `auto`: the best one, as `te topology` shows it; range 0 to
    /// 255.
    rdma_gid_index: Option<u8> = None, "rdma.gid_index", "TE_RDMA_GID_INDEX", 0..=255,
        [Alias::Auto("MC_GID_INDEX")], feature "rdma";
    /// Index of the partition key in the port's table. Default 0, range 0 to 65535.
    rdma_pkey_index: Count = Count(0), "rdma.pkey_index", "TE_RDMA_PKEY_INDEX", Span::Count(0, 65_535),
        [Alias::Same("MC_PKEY_INDEX")], feature "rdma";
    /// Traffic class of packets. Default `auto`: the device's own; range 0 to 255.
    rdma_traffic_class: Option<u8> = None, "rdma.traffic_class", "TE_RDMA_TRAFFIC_CLASS", 0..=255,
        [Alias::Auto("MC_IB_TC")], feature "rdma";
    /// Service level of packets. Default `auto`: 0; range 0 to 15.
    rdma_service_level: Option<u8> = None, "rdma.service_level", "TE_RDMA_SERVICE_LEVEL", 0..=15,
        [Alias::Auto("MC_IB_SL")], feature "rdma";
    /// What the `te` program logs to standard error. A library never looks at it. Default `warn`.
    log: String = "warn".to_owned(), "log", "TE_LOG", (), [];
}

fn invalid(key: &'static Key, value: String, origin: Origin) -> SettingsError {
    SettingsError::Invalid { key: key.name, value, origin, expected: key.expected() }
}

impl Settings {
    /// What is known of every setting.
    #[must_use]
    pub fn keys() -> &'static [Key] {
        KEYS
    }

    /// Sets one setting from text.
    ///
    /// # Errors
    ///
    /// Names the key, the value, where it was given and what can stand there. Nothing changes then.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), SettingsError> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let nearest = nearest(name, KEYS.iter().map(|key| key.name));
            return Err(SettingsError::UnknownKey { key: name.chars().take(80).collect(), origin, nearest });
        };
        match key.feature {
            Some(feature) if !key.is_compiled() => {
                Err(SettingsError::NeedsFeature { key: key.name, origin, feature })
            }
            _ => self.assign(key, text, origin),
        }
    }

    /// Checks every value, and those that depend on each other.
    ///
    /// # Errors
    ///
    /// The first one that makes no sense.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.check_ranges()?;
        let (low_value, high_value) = (*self.port_min.get(), *self.port_max.get());
        if low_value > high_value {
            return Err(SettingsError::Order { low: "port.min", low_value, high: "port.max", high_value });
        }
        let pair = [&self.metadata_cert_file, &self.metadata_key_file];
        if let [Some(_), None] | [None, Some(_)] = pair.map(|setting| setting.get().as_ref()) {
            return Err(SettingsError::Pair { one: "metadata.cert_file", other: "metadata.key_file" });
        }
        Ok(())
    }
}
