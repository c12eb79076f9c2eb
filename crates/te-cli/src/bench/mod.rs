//! `te bench`: throughput and latency of batches, beside plain sockets if asked for.

mod limit;
mod load;
mod meter;
pub(crate) mod ping_pong;
mod plot;
pub(crate) mod raw;
mod report;
mod verify;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use te::{Access, Deadline, Location};

use crate::child::{self, JsonChild};
use crate::command::serve::{self, ServeArgs};
use crate::context::Context;
use crate::failure::Result;
use crate::{size, usage};
use load::{Load, RawLoad, Shape};
use meter::{Cores, Meter};
use ping_pong::PingPongArgs;
use report::{Row, Summary};

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
    /// Half of a round trip of small writes, each side looking at its memory
    PingPong(PingPongArgs),
}

#[derive(Args, Debug)]
struct TargetArgs {
    /// Size of the buffer
    #[arg(long, default_value = "256MiB", value_parser = size::size)]
    size: u64,
    /// A buffer that other processes cannot map, as most programs have them
    #[arg(long)]
    private: bool,
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
    /// The target's buffer is one that other processes cannot map, as most programs have them
    #[arg(long)]
    private: bool,
    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Args, Clone, Debug)]
struct WorkArgs {
    /// The direction
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    op: Direction,
    /// Bytes of one request; several with commas between, one after the other
    #[arg(long, default_value = "1MiB", value_delimiter = ',', value_parser = size::size)]
    block: Vec<u64>,
    /// Requests of one batch, all in flight at once; several with commas between
    #[arg(long, default_value = "16", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch: Vec<u64>,
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
    /// Fills source and destination with known bytes, which the target must permit, and compares afterwards
    #[arg(long)]
    verify: bool,
    /// Also draws the rates to a file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
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
    /// The shapes of the work, each in at most `available` bytes, in the order of the table.
    fn shapes(&self, available: u64) -> Result<Vec<Shape>> {
        let mut shapes = Vec::new();
        for block in &self.block {
            for batch in &self.batch {
                for write in self.directions() {
                    shapes.push(self.shape(*write, *block, *batch, available)?);
                }
            }
        }
        Ok(shapes)
    }

    fn shape(&self, write: bool, block: u64, batch: u64, available: u64) -> Result<Shape> {
        let step = block.checked_mul(batch).and_then(|step| Some((step, step.checked_mul(self.threads)?)));
        let area = self.area.min(available);
        let Some((step, _)) = step.filter(|(_, all)| *all <= area) else {
            let threads = self.threads;
            return usage(format!(
                "{threads} threads with {batch} requests of {block} bytes need more than the {area} bytes there are; see \
                 --area"
            ));
        };
        let area = area / self.threads / step * step;
        Ok(Shape { write, block, batch, threads: self.threads, area })
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
                private: target.private,
                raw: true,
                ping_pong: true,
            };
            serve::run(context, &serve)
        }
        Side::Initiator(args) => initiator(context, &args.peer, args.buffer, args.raw, &args.work, None),
        Side::Local(args) => local(context, args),
        Side::PingPong(args) => ping_pong::run(context, args),
    }
}

fn local(context: &Context, args: &LocalArgs) -> Result<()> {
    let mut arguments = vec!["serve".to_owned(), "--size".to_owned(), args.work.area.to_string()];
    arguments.extend(["--until-stdin-closes".to_owned(), "--raw".to_owned()]);
    if args.private {
        arguments.push("--private".to_owned());
    }
    let cores = args.pin.then(Cores::allowed).transpose()?;
    if let Some(cores) = &cores {
        // The target inherits it.
        cores.pin(false)?;
    }
    let target = JsonChild::start(context, "target", &arguments)?;
    let hello = target.next(Duration::from_secs(30))?;
    let meter = Meter::with(target);
    let segment = hello["segment"].as_str().unwrap_or_default();
    let raw = hello["raw"].as_str().and_then(|address| address.parse().ok()).filter(|_| args.raw);
    let here = context.on_loopback(child::loopback())?;
    if let Some(cores) = &cores {
        cores.pin(true)?;
    }
    initiator(&here, segment, 0, raw, &args.work, Some(&meter))
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
    let shapes = work.shapes(remote.len())?;
    let total = shapes.iter().map(|shape| shape.area * shape.threads).max().unwrap_or_default();
    let local = engine.allocate(size::index(total), Location::Any, Access::LOCAL)?;
    let mut rows = Vec::new();
    let bar = context.steps(shapes.len() as u64 * u64::from(work.rounds));
    for shape in shapes {
        bar.set_message(shape.to_string());
        let load = Load { engine: &engine, local: &local, remote: &remote, shape, meter };
        let mut plain = raw.map(|address| RawLoad::connect(address, shape)).transpose()?;
        if let Some(plain) = &mut plain {
            plain.meter = meter;
        }
        if work.verify {
            verify::prepare(&load)?;
        }
        // Warm: connections, pages and caches are as they will be.
        let round = work.duration / work.rounds / if plain.is_some() { 2 } else { 1 };
        load.run(round / 4)?;
        if let Some(plain) = &mut plain {
            plain.run(round / 4)?;
        }
        let mut row = Row { shape, engine: Summary::new()?, raw: None, verified: None };
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
            bar.inc(1);
        }
        if work.verify {
            row.verified = Some(verify::check(&load)?);
        }
        rows.push(row);
    }
    drop(local);
    engine.shutdown(Deadline::after_secs(1));
    bar.finish_and_clear();
    report::print(context.json, &rows)?;
    match &work.plot {
        Some(file) => plot::write(file, &rows),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    fn work(block: u64, batch: u64, threads: u64) -> WorkArgs {
        let (op, duration) = (Direction::Both, Duration::from_secs(1));
        let (block, batch) = (vec![block], vec![batch]);
        WorkArgs { op, block, batch, threads, duration, rounds: 5, area: 1 << 20, verify: false, plot: None }
    }

    #[test]
    fn a_working_set_is_a_whole_number_of_batches_for_each_thread() {
        let shape = work(4096, 3, 2).shapes(u64::MAX).unwrap()[0];
        assert_eq!(shape.area % (3 * 4096), 0);
        assert!(shape.area * 2 <= 1 << 20);
        assert!(shape.area > 0);
    }

    #[test]
    fn work_that_does_not_fit_is_a_mistake_of_the_caller() {
        assert!(matches!(work(1 << 20, 2, 1).shapes(u64::MAX), Err(Failure::Usage(_))));
        assert!(matches!(work(u64::MAX, 2, 1).shapes(u64::MAX), Err(Failure::Usage(_))));
    }

    #[test]
    fn all_blocks_and_batches_are_done_in_both_directions() {
        let mut work = work(4096, 1, 1);
        (work.block, work.batch) = (vec![4096, 65_536], vec![1, 4]);
        let shapes = work.shapes(u64::MAX).unwrap();
        let found: Vec<_> = shapes.iter().map(|shape| (shape.block, shape.batch, shape.write)).collect();
        assert_eq!(found.len(), 8);
        assert_eq!(found[..3], [(4096, 1, true), (4096, 1, false), (4096, 4, true)]);
    }
}
