//! What the server counts, as OpenMetrics text.

use std::fmt;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

/// One request as it is counted: few values each, nothing a client chooses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Request {
    pub(super) operation: &'static str,
    pub(super) status: u16,
}

/// The counters, and the registry they are in.
pub(super) struct Metrics {
    registry: Registry,
    pub(super) requests: Family<Request, Counter>,
    pub(super) request_seconds: Histogram,
    pub(super) keys: Gauge,
    pub(super) leased_keys: Gauge,
    pub(super) value_bytes: Gauge,
    pub(super) expired: Counter,
    pub(super) watches: Gauge,
    pub(super) connections: Gauge,
    pub(super) connections_dropped: Counter,
    pub(super) journal_bytes: Gauge,
    pub(super) journal_seconds: Histogram,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("keys", &self.keys.get()).finish_non_exhaustive()
    }
}

impl Metrics {
    pub(super) fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_1, 4.0, 9));
        let mut metrics = Self {
            registry: Registry::with_prefix("te_metad"),
            requests: Family::default(),
            request_seconds: seconds(),
            keys: Gauge::default(),
            leased_keys: Gauge::default(),
            value_bytes: Gauge::default(),
            expired: Counter::default(),
            watches: Gauge::default(),
            connections: Gauge::default(),
            connections_dropped: Counter::default(),
            journal_bytes: Gauge::default(),
            journal_seconds: seconds(),
        };
        let r = &mut metrics.registry;
        r.register("requests", "Requests answered, by operation and status", metrics.requests.clone());
        let took = "Time from the head of a request to its answer";
        r.register_with_unit("request_duration", took, Unit::Seconds, metrics.request_seconds.clone());
        r.register("keys", "Keys held", metrics.keys.clone());
        r.register("leased_keys", "Keys held under a lease", metrics.leased_keys.clone());
        r.register_with_unit("values", "Size of all values", Unit::Bytes, metrics.value_bytes.clone());
        r.register("expired_keys", "Keys whose lease ended", metrics.expired.clone());
        r.register("watches", "Watches, the page's included", metrics.watches.clone());
        r.register("connections", "Open connections", metrics.connections.clone());
        let dropped = "Connections closed or refused to keep their number bounded";
        r.register("connections_dropped", dropped, metrics.connections_dropped.clone());
        r.register_with_unit("journal", "Size of the journal", Unit::Bytes, metrics.journal_bytes.clone());
        let wrote = "Time to write changes to the disk";
        r.register_with_unit("journal_write", wrote, Unit::Seconds, metrics.journal_seconds.clone());
        metrics
    }

    /// The text of all of them. Writing to a string cannot fail; if it does, what there is so far is given.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::debug!(target: "te::metad", %error, "metrics are incomplete");
        }
        text
    }
}
