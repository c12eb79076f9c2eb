//! What the engine has moved: counters of each transport, on by default, for whoever watches a fleet.
//!
//! Requests are counted where a batch ends, all of one path together, so that small requests do not pay for it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use te_segment::TransportKind;
use te_transport::{FailureKind, Op};

use crate::lane::PathCircuit;

/// Upper ends of the buckets of latencies: 1 us, and twice the one before, up to a minute and more.
const BUCKETS: usize = 27;

/// Counters of all transports of an engine.
#[derive(Default)]
pub(crate) struct Metrics {
    transports: Mutex<BTreeMap<String, Arc<OfTransport>>>,
}

impl Metrics {
    /// Those of one transport.
    pub(crate) fn of(&self, kind: &TransportKind) -> Arc<OfTransport> {
        self.transports.lock().entry(kind.to_string()).or_default().clone()
    }

    /// All of them as they are now.
    pub(crate) fn snapshot(&self) -> Vec<TransportMetrics> {
        let transports = self.transports.lock().clone();
        let both = |(transport, of): (String, Arc<OfTransport>)| {
            [Op::Read, Op::Write].map(|op| of.op(op).snapshot(transport.clone(), op))
        };
        transports.into_iter().flat_map(both).collect()
    }
}

/// Counters of one transport.
#[derive(Default)]
pub(crate) struct OfTransport {
    read: OfOp,
    write: OfOp,
}

impl OfTransport {
    pub(crate) fn op(&self, op: Op) -> &OfOp {
        match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
        }
    }
}

/// Counters of one direction.
#[derive(Default)]
pub(crate) struct OfOp {
    in_flight: AtomicU64,
    done: AtomicU64,
    bytes: AtomicU64,
    microseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
    failed: Mutex<HashMap<FailureKind, u64>>,
}

impl OfOp {
    /// So many requests are handed to a path of this transport.
    pub(crate) fn begun(&self, requests: u64) {
        self.in_flight.fetch_add(requests, Ordering::Relaxed);
    }

    /// So many of those are over.
    pub(crate) fn over(&self, requests: u64) {
        self.in_flight.fetch_sub(requests, Ordering::Relaxed);
    }

    /// So many requests of a batch that took so long are done.
    pub(crate) fn done(&self, requests: u64, bytes: u64, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.done.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.microseconds.fetch_add(microseconds.saturating_mul(requests), Ordering::Relaxed);
        // The first bucket that ends at or above it.
        let bucket = (u64::BITS - microseconds.saturating_sub(1).leading_zeros()) as usize;
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(requests, Ordering::Relaxed);
        }
    }

    /// A request failed for good, having moved so many bytes.
    pub(crate) fn failed(&self, kind: FailureKind, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        *self.failed.lock().entry(kind).or_insert(0) += 1;
    }

    fn snapshot(&self, transport: String, op: Op) -> TransportMetrics {
        let mut failures: Vec<_> = self.failed.lock().iter().map(|(kind, count)| (*kind, *count)).collect();
        failures.sort_by_key(|(kind, _)| kind.as_str());
        let mut latency: Vec<(Duration, u64)> = Vec::with_capacity(BUCKETS);
        let mut sum = 0;
        for (power, bucket) in self.buckets.iter().enumerate() {
            sum += bucket.load(Ordering::Relaxed);
            latency.push((Duration::from_micros(1 << power), sum));
        }
        TransportMetrics {
            transport,
            op,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            // Not below what is in the buckets.
            done: self.done.load(Ordering::Relaxed).max(sum),
            bytes: self.bytes.load(Ordering::Relaxed),
            time: Duration::from_micros(self.microseconds.load(Ordering::Relaxed)),
            latency,
            failures,
        }
    }
}

/// What one transport has moved in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportMetrics {
    /// Its name, as in descriptors.
    pub transport: String,
    /// Direction, seen from here.
    pub op: Op,
    /// Requests under way whose first path is of this transport.
    pub in_flight: u64,
    /// Requests that are done.
    pub done: u64,
    /// Payload bytes that were moved, those of failed requests included as far as they are known.
    pub bytes: u64,
    /// Time of all requests that are done, from the submission of their batch to its end.
    pub time: Duration,
    /// How many of them took at most so long. Those that took longer than the last are in [`done`](Self::done) only.
    pub latency: Vec<(Duration, u64)>,
    /// Requests that failed for good, by what went wrong.
    pub failures: Vec<(FailureKind, u64)>,
}

/// What an engine has moved so far, and how its paths stand.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EngineMetrics {
    /// Each transport that was used, in each direction.
    pub transports: Vec<TransportMetrics>,
    /// The paths that are known, with the peer's segment name.
    pub paths: Vec<(String, PathCircuit)>,
    /// Registered buffers.
    pub buffers: usize,
    /// Notifications that wait to be taken.
    pub notifications: usize,
}

impl EngineMetrics {
    /// The text form of OpenMetrics 1.0, as scrapers read it; content type `application/openmetrics-text`.
    #[must_use]
    pub fn to_openmetrics(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.render(&mut text);
        text
    }

    fn render(&self, out: &mut String) -> fmt::Result {
        let labels = |of: &TransportMetrics| format!("transport=\"{}\",op=\"{}\"", of.transport, of.op);
        let of_each = |out: &mut String, name: &str, value: &dyn Fn(&TransportMetrics) -> u64| {
            self.transports.iter().try_for_each(|of| writeln!(out, "{name}{{{}}} {}", labels(of), value(of)))
        };
        head(out, "te_requests_done", "counter", "Requests that are done.")?;
        of_each(out, "te_requests_done_total", &|of| of.done)?;
        head(out, "te_requests_failed", "counter", "Requests that failed for good, by what went wrong.")?;
        for of in &self.transports {
            for (kind, count) in &of.failures {
                writeln!(out, "te_requests_failed_total{{{},kind=\"{kind}\"}} {count}", labels(of))?;
            }
        }
        head(out, "te_payload_bytes", "counter", "Payload bytes moved.")?;
        of_each(out, "te_payload_bytes_total", &|of| of.bytes)?;
        head(out, "te_requests_in_flight", "gauge", "Requests under way.")?;
        of_each(out, "te_requests_in_flight", &|of| of.in_flight)?;
        head(
            out,
            "te_request_seconds",
            "histogram",
            "Time from the submission of a batch to its end, by request.",
        )?;
        for of in &self.transports {
            for (bound, count) in &of.latency {
                let bound = bound.as_secs_f64();
                writeln!(out, "te_request_seconds_bucket{{{},le=\"{bound}\"}} {count}", labels(of))?;
            }
            writeln!(out, "te_request_seconds_bucket{{{},le=\"+Inf\"}} {}", labels(of), of.done)?;
            writeln!(out, "te_request_seconds_count{{{}}} {}", labels(of), of.done)?;
            writeln!(out, "te_request_seconds_sum{{{}}} {}", labels(of), of.time.as_secs_f64())?;
        }
        head(
            out,
            "te_path_open",
            "gauge",
            "1 if the circuit of a path is open or half open, so that it is used last.",
        )?;
        for (peer, circuit) in &self.paths {
            let open = u8::from(!circuit.is_closed());
            let (peer, path) = (escaped(peer), escaped(&circuit.path.to_string()));
            writeln!(out, "te_path_open{{peer=\"{peer}\",path=\"{path}\"}} {open}")?;
        }
        head(out, "te_buffers", "gauge", "Registered buffers.")?;
        writeln!(out, "te_buffers {}", self.buffers)?;
        head(out, "te_notifications_waiting", "gauge", "Notifications that nobody has taken yet.")?;
        writeln!(out, "te_notifications_waiting {}", self.notifications)?;
        out.push_str("# EOF\n");
        Ok(())
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}")
}

/// A label's value: names of segments can hold anything.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use te_transport::PathLabel;

    use super::*;
    use crate::lane::PathCircuitState;

    #[test]
    fn latencies_are_in_the_first_bucket_that_holds_them() {
        let of = OfOp::default();
        for (microseconds, requests) in [(0, 1), (1, 1), (2, 1), (3, 1), (1024, 1), (1025, 2), (1 << 40, 1)] {
            of.done(requests, 10, Duration::from_micros(microseconds));
        }
        let snapshot = of.snapshot("tcp".into(), Op::Read);
        let at_most = |microseconds: u64| {
            let bound = Duration::from_micros(microseconds);
            snapshot.latency.iter().find(|(at, _)| *at == bound).unwrap().1
        };
        assert_eq!((at_most(1), at_most(2), at_most(4), at_most(1024), at_most(2048)), (2, 3, 4, 5, 7));
        assert_eq!((snapshot.done, snapshot.bytes, snapshot.latency.last().unwrap().1), (8, 70, 7));
    }

    #[test]
    fn text_is_what_scrapers_read() {
        let metrics = Metrics::default();
        let write = metrics.of(&TransportKind::TCP);
        write.op(Op::Write).begun(3);
        write.op(Op::Write).over(2);
        write.op(Op::Write).done(2, 8192, Duration::from_micros(3));
        write.op(Op::Write).failed(FailureKind::TimedOut, 5);
        let circuit = PathCircuit {
            path: Arc::new(PathLabel::new(TransportKind::TCP, "a:1".to_owned())),
            state: PathCircuitState::HalfOpen,
            failures: 1,
            last_failure: None,
        };
        let all = EngineMetrics {
            transports: metrics.snapshot(),
            paths: vec![("a\"b\\c\nd".to_owned(), circuit)],
            buffers: 4,
            notifications: 0,
        };
        let text = all.to_openmetrics();
        for line in [
            "te_requests_done_total{transport=\"tcp\",op=\"write\"} 2",
            "te_requests_failed_total{transport=\"tcp\",op=\"write\",kind=\"timed out\"} 1",
            "te_payload_bytes_total{transport=\"tcp\",op=\"write\"} 8197",
            "te_requests_in_flight{transport=\"tcp\",op=\"write\"} 1",
            "te_request_seconds_bucket{transport=\"tcp\",op=\"write\",le=\"0.000004\"} 2",
            "te_request_seconds_bucket{transport=\"tcp\",op=\"read\",le=\"+Inf\"} 0",
            "te_request_seconds_sum{transport=\"tcp\",op=\"write\"} 0.000006",
            "te_buffers 4",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("te_path_open{peer=\"a\\\"b\\\\c\\nd\",path=\""), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
