//! What was measured, as a table, as JSON and for the plot.

use std::time::Duration;

use serde_json::{Value, json};

use super::limit::Seen;
use super::load::{Sample, Shape};
use super::meter::Used;
use crate::failure::Result;
use crate::latency::Latencies;
use crate::output::{self, Align, Table};
use crate::size;

/// One direction: what the engine did, and what plain sockets did.
pub(super) struct Row {
    pub(super) shape: Shape,
    pub(super) engine: Summary,
    pub(super) raw: Option<Summary>,
    /// How many bytes of the destination were compared and found right.
    pub(super) verified: Option<u64>,
}

pub(super) struct Summary {
    /// Of each round.
    speeds: Vec<f64>,
    /// What of this host was used up in each.
    seen: Vec<Seen>,
    latencies: Latencies,
    bytes: u64,
    /// What both sides used in all rounds, if both can be looked at.
    used: Option<Used>,
}

impl Summary {
    pub(super) fn new() -> Result<Self> {
        let used = Some(Used { cpu: Duration::ZERO, allocations: 0 });
        Ok(Self { speeds: Vec::new(), seen: Vec::new(), latencies: Latencies::new()?, bytes: 0, used })
    }

    pub(super) fn add(&mut self, sample: &Sample) -> Result<()> {
        self.speeds.push(size::gigabytes_per_second(sample.bytes, sample.time));
        self.seen.push(sample.seen.clone());
        self.bytes += sample.bytes;
        self.used = self.used.zip(sample.used).map(|(sum, more)| Used {
            cpu: sum.cpu + more.cpu,
            allocations: sum.allocations + more.allocations,
        });
        self.latencies.add(&sample.latencies)
    }

    /// Gigabytes (1e9 bytes) per second of the median round.
    pub(super) fn median(&self) -> f64 {
        let mut speeds = self.speeds.clone();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied().unwrap_or_default()
    }

    /// What was used up in the median round.
    fn seen(&self) -> Option<&Seen> {
        let mut seen: Vec<_> = self.seen.iter().collect();
        seen.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        seen.get(seen.len() / 2).copied()
    }

    /// CPU seconds of both sides together for a gigabyte (1e9 bytes).
    fn cpu_per_gigabyte(&self) -> Option<f64> {
        self.used.filter(|_| self.bytes > 0).map(|used| used.cpu.as_secs_f64() * 1e9 / self.bytes as f64)
    }

    /// Allocations of both sides together for a request of `block` bytes.
    fn allocations_per_request(&self, block: u64) -> Option<f64> {
        let requests = self.bytes / block.max(1);
        self.used.filter(|_| requests > 0).map(|used| used.allocations as f64 / requests as f64)
    }

    fn quantile(&self, quantile: f64) -> u64 {
        self.latencies.quantile(quantile)
    }

    fn to_json(&self, block: u64) -> Value {
        json!({
            "gigabytes_per_second": self.median(),
            "rounds": self.speeds,
            "batch_p50_us": self.quantile(0.5),
            "batch_p99_us": self.quantile(0.99),
            "cpu_seconds_per_gigabyte": self.cpu_per_gigabyte(),
            "allocations_per_request": self.allocations_per_request(block),
            "line": self.seen().map(Seen::to_json),
        })
    }
}

pub(super) fn op(shape: Shape) -> &'static str {
    if shape.write { "write" } else { "read" }
}

fn ratio(row: &Row) -> Option<f64> {
    let raw = row.raw.as_ref()?.median();
    (raw > 0.0).then(|| row.engine.median() / raw)
}

/// Prints all rows, as one JSON list or as a table.
pub(super) fn print(as_json: bool, rows: &[Row]) -> Result<()> {
    if as_json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "op": op(row.shape), "block": row.shape.block, "batch": row.shape.batch,
                    "threads": row.shape.threads, "area": row.shape.area * row.shape.threads,
                    "engine": row.engine.to_json(row.shape.block),
                    "raw": row.raw.as_ref().map(|raw| raw.to_json(row.shape.block)),
                    "ratio": ratio(row), "verified": row.verified,
                })
            })
            .collect();
        return output::json(&Value::Array(rows));
    }
    let mut columns = vec![
        ("OP", Align::Left),
        ("BLOCK", Align::Right),
        ("BATCH", Align::Right),
        ("THREADS", Align::Right),
        ("GB/s", Align::Right),
        ("LINE GB/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("CPU s/GB", Align::Right),
        ("ALLOCS", Align::Right),
    ];
    let with_raw = rows.iter().any(|row| row.raw.is_some());
    if with_raw {
        columns.extend([
            ("RAW GB/s", Align::Right),
            ("RAW p50", Align::Right),
            ("RAW CPU s/GB", Align::Right),
        ]);
        columns.push(("RATIO", Align::Right));
    }
    let cpu = |summary: &Summary| {
        summary.cpu_per_gigabyte().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}"))
    };
    let line = |summary: &Summary| match summary.seen() {
        Some(seen) if seen.has_links() => {
            seen.line().map_or_else(|| "unknown".to_owned(), |line| format!("{line:.2}"))
        }
        _ => "-".to_owned(),
    };
    let allocations = |row: &Row| {
        let count = row.engine.allocations_per_request(row.shape.block);
        count.map_or_else(|| "-".to_owned(), |count| format!("{count:.2}"))
    };
    let verified = rows.iter().any(|row| row.verified.is_some());
    if verified {
        columns.push(("VERIFIED", Align::Right));
    }
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            op(row.shape).to_owned(),
            te_engine::size::bytes(row.shape.block),
            row.shape.batch.to_string(),
            row.shape.threads.to_string(),
            format!("{:.2}", row.engine.median()),
            line(&row.engine),
            size::micros(row.engine.quantile(0.5)),
            size::micros(row.engine.quantile(0.99)),
            cpu(&row.engine),
            allocations(row),
        ];
        if let Some(raw) = &row.raw {
            cells.push(format!("{:.2}", raw.median()));
            cells.push(size::micros(raw.quantile(0.5)));
            cells.push(cpu(raw));
            cells.push(ratio(row).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
        }
        if verified {
            cells.push(row.verified.map_or_else(|| "-".to_owned(), te_engine::size::bytes));
        }
        table.row(cells);
    }
    table.print()?;
    output::line("")?;
    for row in rows {
        if let Some(seen) = row.engine.seen() {
            output::line(&format!("{}: {seen}", row.shape))?;
        }
    }
    output::line(
        "\nmedian of the rounds; LINE is the speed of the links that carried the bytes; latency per batch; CPU time, and allocations for a request, of both sides, where both are on this host",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_round() {
        let mut summary = Summary::new().unwrap();
        summary.speeds = vec![3.0, 1.0, 2.0];
        assert!((summary.median() - 2.0).abs() < 1e-9);
    }
}
