//! `te check`: writes a pattern into a peer's buffer, or reads it and compares, in blocks that are submitted in reverse.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use te::{Access, Buffer, Deadline, Location, RemoteRange, Report, Retry, Segment, blocking::Engine};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::{output, pattern, size, usage};

/// What to check.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The segment's name
    #[arg(long)]
    pub(crate) peer: String,
    /// Where the pattern begins, in the peer's memory; at the beginning of its first buffer unless given
    #[arg(long, value_parser = size::address)]
    pub(crate) addr: Option<u64>,
    /// How many bytes
    #[arg(long, value_parser = size::size)]
    pub(crate) size: u64,
    /// In how many requests
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) batch: u64,
    /// Which pattern
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u8,
    /// What to do
    #[arg(long, value_enum, default_value_t = CheckOp::Both)]
    pub(crate) op: CheckOp,
    /// Waits so long for a peer that is not there yet
    #[arg(long, value_parser = size::time)]
    pub(crate) wait: Option<Duration>,
}

/// What to do with the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckOp {
    /// Reads and compares
    Read,
    /// Writes
    Write,
    /// Writes, then reads and compares
    Both,
}

pub(crate) fn run(context: &Context, args: &CheckArgs) -> Result<()> {
    if args.size < args.batch {
        return usage(format!("{} bytes cannot be cut into {} requests", args.size, args.batch));
    }
    let engine = context.client(&args.peer)?;
    let peer = open(&engine, args)?;
    let remote = match args.addr {
        Some(addr) => peer.range(addr, args.size)?,
        None => peer.buffer(0)?.slice(0, args.size)?,
    };
    let local = engine.allocate(size::index(args.size), Location::Any, Access::LOCAL)?;
    let began = Instant::now();
    let mut path = String::new();
    if args.op != CheckOp::Read {
        pattern::write_to(&local, args.seed, 0, args.size)?;
        path = transfer(&engine, &local, &remote, args, true)?.path();
    }
    if args.op != CheckOp::Write {
        // What was there before must not pass for what is read.
        pattern::write_to(&local, !args.seed, 0, args.size)?;
        path = transfer(&engine, &local, &remote, args, false)?.path();
        if let Some(wrong) = pattern::verify(&local, args.seed, 0, args.size)? {
            return Err(Failure::Other(format!(
                "byte {} is {:#04x} instead of {:#04x}",
                wrong.at, wrong.found, wrong.expected
            )));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    // Said at once: whoever waits for it does not wait for the engine's end.
    if context.json {
        output::json(&json!({
            "ok": true, "peer": args.peer, "bytes": args.size, "requests": args.batch, "path": path,
            "seconds": seconds, "verified": args.op != CheckOp::Write,
        }))?;
    } else {
        let bytes = te_engine::size::bytes(args.size);
        output::line(&format!("{bytes} in {} requests over {path}: ok", args.batch))?;
    }
    engine.shutdown(Deadline::after_secs(1));
    Ok(())
}

/// Pause before a peer that was not there is looked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// Opens the peer's segment, again and again while it offers nothing and there is time.
fn open(engine: &Engine, args: &CheckArgs) -> Result<Segment> {
    let until = Instant::now() + args.wait.unwrap_or_default();
    loop {
        let opened = engine.open(&args.peer);
        let waits = match &opened {
            Ok(segment) => segment.descriptor().buffers().is_empty(),
            Err(error) => error.retry() != Retry::No,
        };
        if !waits || Instant::now() >= until {
            return Ok(opened?);
        }
        thread::sleep(AGAIN);
    }
}

/// The whole range in equal blocks, the last one first; the last has what is left over.
fn transfer(
    engine: &Engine,
    local: &Buffer,
    remote: &RemoteRange,
    args: &CheckArgs,
    write: bool,
) -> Result<Report> {
    let block = args.size / args.batch;
    let mut batch = engine.batch().reserve(size::index(args.batch));
    for index in (0..args.batch).rev() {
        let offset = index * block;
        let len = if index == args.batch - 1 { args.size - offset } else { block };
        let (here, there) = (local.slice(offset..offset + len), remote.slice(offset, len)?);
        batch = if write { batch.write(here, &there) } else { batch.read(&there, here) };
    }
    Ok(batch.run()?)
}
