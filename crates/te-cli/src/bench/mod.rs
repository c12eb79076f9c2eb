//! `te bench`: throughput and latency of batches, beside plain sockets if asked for.

mod load;
mod meter;
pub(crate) mod raw;

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use te::{Access, Deadline, Location};

use crate::child::{self, JsonChild};
use crate::command::serve::{self, ServeArgs};
use crate::context::Context;
use crate::failure::Result;
use crate::latency::Latencies;
use crate::output::{self, Align, Table};
use crate::{size, usage};
use load::{Load, RawLoad, Sample, Shape};
use meter::{Cores, Meter};

/// Which side to be.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Offers the buffer that an initiator works on
    Target(TargetArgs),
    /// Works on the buffer of a target
    Initiator(InitiatorArgs),
    /// Both sides on this host, in two processes
    Local(LocalArgs),
}

#[derive(Args, Debug)]
struct TargetArgs {
    /// Size of the buffer
    #[arg(long, default_value = "256MiB", value_parser = size::size)]
    size: u64,
}

#[derive(Args, Debug)]
struct InitiatorArgs {
    /// The target's segment
    #[arg(long)]
    peer: String,
    /// Which of its buffers
    #[arg(long, default_value_t = 0)]
    buffer: usize,
    /// Where the target answers raw sockets, to compare with them
    #[arg(long, value_name = "ADDRESS:PORT")]
    raw: Option<SocketAddr>,
    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Args, Debug)]
struct LocalArgs {
    /// Also measures plain sockets with the same work, in turns
    #[arg(long)]
    raw: bool,
    /// Keeps each side on a core of its own, so that a latency is not that of a migration
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Args, Clone, Debug)]
struct WorkArgs {
    /// The direction
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    op: Direction,
    /// Bytes of one request
    #[arg(long, default_value = "1MiB", value_parser = size::size)]
    block: u64,
    /// Requests of one batch, all in flight at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch: u64,
    /// Threads that each run batch after batch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// How long to measure one direction, all rounds together
    #[arg(long, default_value = "3s", value_parser = size::time)]
    duration: Duration,
    /// In how many rounds; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Memory to work on, all threads together; more than the caches hold
    #[arg(long, default_value = "256MiB", value_parser = size::size)]
    area: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// Remote to local
    Read,
    /// Local to remote
    Write,
    /// One after the other
    Both,
}

impl WorkArgs {
    /// The shape of the work in at most `available` bytes.
    fn shape(&self, write: bool, available: u64) -> Result<Shape> {
        let step =
            self.block.checked_mul(self.batch).and_then(|step| Some((step, step.checked_mul(self.threads)?)));
        let area = self.area.min(available);
        let Some((step, _)) = step.filter(|(_, all)| *all <= area) else {
            let Self { threads, batch, block, .. } = self;
            return usage(format!(
                "{threads} threads with {batch} requests of {block} bytes need more than the {area} bytes there are; see \
                 --area"
            ));
        };
        let area = area / self.threads / step * step;
        Ok(Shape { write, block: self.block, batch: self.batch, threads: self.threads, area })
    }

    fn directions(&self) -> &'static [bool] {
        match self.op {
            Direction::Write => &[true],
            Direction::Read => &[false],
            Direction::Both => &[true, false],
        }
    }
}

pub(crate) fn run(context: &Context, args: &BenchArgs) -> Result<()> {
    match &args.side {
        Side::Target(target) => {
            let serve = ServeArgs {
                size: target.size,
                pattern: Some(0),
                access: Access::REMOTE,
                until_stdin_closes: false,
                raw: true,
            };
            serve::run(context, &serve)
        }
        Side::Initiator(args) => initiator(context, &args.peer, args.buffer, args.raw, &args.work, None),
        Side::Local(args) => local(context, args),
    }
}

fn local(context: &Context, args: &LocalArgs) -> Result<()> {
    let mut arguments = vec!["serve".to_owned(), "--size".to_owned(), args.work.area.to_string()];
    arguments.extend(["--until-stdin-closes".to_owned(), "--raw".to_owned()]);
    let cores = args.pin.then(Cores::allowed).transpose()?;
    if let Some(cores) = &cores {
        // The target inherits it.
        cores.pin(false)?;
    }
    let target = JsonChild::start(context, "target", &arguments)?;
    let meter = Meter::with(target.id());
    let hello = target.next(Duration::from_secs(30))?;
    let segment = hello["segment"].as_str().unwrap_or_default();
    let raw = hello["raw"].as_str().and_then(|address| address.parse().ok()).filter(|_| args.raw);
    let here = context.on_loopback(child::loopback())?;
    if let Some(cores) = &cores {
        cores.pin(true)?;
    }
    initiator(&here, segment, 0, raw, &args.work, Some(&meter))
}

/// One direction: what the engine did, and what plain sockets did.
struct Row {
    shape: Shape,
    engine: Summary,
    raw: Option<Summary>,
}

struct Summary {
    /// Of each round.
    speeds: Vec<f64>,
    latencies: Latencies,
    bytes: u64,
    /// CPU time of both sides in all rounds, if both can be looked at.
    cpu: Option<Duration>,
}

impl Summary {
    fn new() -> Result<Self> {
        Ok(Self { speeds: Vec::new(), latencies: Latencies::new()?, bytes: 0, cpu: Some(Duration::ZERO) })
    }

    fn add(&mut self, sample: &Sample) -> Result<()> {
        self.speeds.push(size::gigabytes_per_second(sample.bytes, sample.time));
        self.bytes += sample.bytes;
        self.cpu = self.cpu.zip(sample.cpu).map(|(sum, more)| sum + more);
        self.latencies.add(&sample.latencies)
    }

    fn median(&self) -> f64 {
        let mut speeds = self.speeds.clone();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied().unwrap_or_default()
    }

    /// CPU seconds of both sides together for a gigabyte (1e9 bytes).
    fn cpu_per_gigabyte(&self) -> Option<f64> {
        self.cpu.filter(|_| self.bytes > 0).map(|cpu| cpu.as_secs_f64() * 1e9 / self.bytes as f64)
    }

    fn quantile(&self, quantile: f64) -> u64 {
        self.latencies.quantile(quantile)
    }

    fn to_json(&self) -> Value {
        json!({
            "gigabytes_per_second": self.median(),
            "rounds": self.speeds,
            "batch_p50_us": self.quantile(0.5),
            "batch_p99_us": self.quantile(0.99),
            "cpu_seconds_per_gigabyte": self.cpu_per_gigabyte(),
        })
    }
}

fn initiator(
    context: &Context,
    peer: &str,
    buffer: usize,
    raw: Option<SocketAddr>,
    work: &WorkArgs,
    meter: Option<&Meter>,
) -> Result<()> {
    let engine = context.client(peer)?;
    let remote = engine.open(peer)?.buffer(buffer)?;
    let shapes: Vec<Shape> =
        work.directions().iter().map(|write| work.shape(*write, remote.len())).collect::<Result<_>>()?;
    let total = shapes.iter().map(|shape| shape.area * shape.threads).max().unwrap_or_default();
    let local = engine.allocate(size::index(total), Location::Any, Access::LOCAL)?;
    let mut rows = Vec::new();
    for shape in shapes {
        let load = Load { engine: &engine, local: &local, remote: &remote, shape, meter };
        let mut plain = raw.map(|address| RawLoad::connect(address, shape)).transpose()?;
        if let Some(plain) = &mut plain {
            plain.meter = meter;
        }
        // Warm: connections, pages and caches are as they will be.
        let round = work.duration / work.rounds / if plain.is_some() { 2 } else { 1 };
        load.run(round / 4)?;
        if let Some(plain) = &mut plain {
            plain.run(round / 4)?;
        }
        let mut row = Row { shape, engine: Summary::new()?, raw: None };
        for _ in 0..work.rounds {
            // In turns, so that whatever else this host does hits both.
            row.engine.add(&load.run(round)?)?;
            if let Some(plain) = &mut plain {
                let sample = plain.run(round)?;
                let summary = match row.raw.take() {
                    Some(summary) => summary,
                    None => Summary::new()?,
                };
                row.raw.insert(summary).add(&sample)?;
            }
        }
        rows.push(row);
    }
    drop(local);
    engine.shutdown(Deadline::after_secs(1));
    print(context, &rows)
}

fn op(shape: Shape) -> &'static str {
    if shape.write { "write" } else { "read" }
}

fn ratio(row: &Row) -> Option<f64> {
    let raw = row.raw.as_ref()?.median();
    (raw > 0.0).then(|| row.engine.median() / raw)
}

fn print(context: &Context, rows: &[Row]) -> Result<()> {
    if context.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "op": op(row.shape), "block": row.shape.block, "batch": row.shape.batch,
                    "threads": row.shape.threads, "area": row.shape.area * row.shape.threads,
                    "engine": row.engine.to_json(), "raw": row.raw.as_ref().map(Summary::to_json),
                    "ratio": ratio(row),
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
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("CPU s/GB", Align::Right),
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
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            op(row.shape).to_owned(),
            te_engine::size::bytes(row.shape.block),
            row.shape.batch.to_string(),
            row.shape.threads.to_string(),
            format!("{:.2}", row.engine.median()),
            size::micros(row.engine.quantile(0.5)),
            size::micros(row.engine.quantile(0.99)),
            cpu(&row.engine),
        ];
        if let Some(raw) = &row.raw {
            cells.push(format!("{:.2}", raw.median()));
            cells.push(size::micros(raw.quantile(0.5)));
            cells.push(cpu(raw));
            cells.push(ratio(row).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
        }
        table.row(cells);
    }
    table.print()?;
    output::line(
        "\nmedian of the rounds; latency per batch; CPU time of both sides, where both are on this host",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    fn work(block: u64, batch: u64, threads: u64) -> WorkArgs {
        let (op, duration) = (Direction::Both, Duration::from_secs(1));
        WorkArgs { op, block, batch, threads, duration, rounds: 5, area: 1 << 20 }
    }

    #[test]
    fn a_working_set_is_a_whole_number_of_batches_for_each_thread() {
        let shape = work(4096, 3, 2).shape(true, u64::MAX).unwrap();
        assert_eq!(shape.area % (3 * 4096), 0);
        assert!(shape.area * 2 <= 1 << 20);
        assert!(shape.area > 0);
    }

    #[test]
    fn work_that_does_not_fit_is_a_mistake_of_the_caller() {
        assert!(matches!(work(1 << 20, 2, 1).shape(true, u64::MAX), Err(Failure::Usage(_))));
        assert!(matches!(work(u64::MAX, 2, 1).shape(true, u64::MAX), Err(Failure::Usage(_))));
    }

    #[test]
    fn the_median_is_the_middle_round() {
        let mut summary = Summary::new().unwrap();
        summary.speeds = vec![3.0, 1.0, 2.0];
        assert!((summary.median() - 2.0).abs() < 1e-9);
    }
}
