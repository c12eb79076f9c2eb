//! The other process of the demo. Each line of standard input, `write BLOCK LENGTH SEED` or `read BLOCK LENGTH SEED`, is
//! one pass; it ends when standard input closes.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use te::{Access, Buffer, Deadline, Location, RemoteRange, blocking::Engine};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::latency::Latencies;
use crate::{output, pattern, size};

/// How often progress is told.
const TELL: Duration = Duration::from_millis(50);

/// Where the target is.
#[derive(Args, Debug)]
pub(crate) struct InitiatorArgs {
    /// Its segment
    #[arg(long)]
    peer: String,
    /// Bytes of its buffer
    #[arg(long, value_parser = size::size)]
    size: u64,
}

/// One pass.
struct Pass {
    write: bool,
    block: u64,
    len: u64,
    seed: u8,
}

impl Pass {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let write = match words.next()? {
            "write" => true,
            "read" => false,
            _ => return None,
        };
        let block = words.next()?.parse().ok().filter(|block| *block > 0)?;
        let (len, seed) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(Self { write, block, len, seed })
    }
}

struct Initiator {
    engine: Engine,
    local: Buffer,
    remote: RemoteRange,
    /// Of all passes so far, by direction and block.
    latencies: BTreeMap<(bool, u64), Latencies>,
}

pub(crate) fn run(context: &Context, args: &InitiatorArgs) -> Result<()> {
    let engine = context.client(&args.peer)?;
    let local = engine.allocate(size::index(args.size), Location::Any, Access::LOCAL)?;
    let remote = engine.open(&args.peer)?.buffer(0)?;
    let mut initiator = Initiator { engine, local, remote, latencies: BTreeMap::new() };
    output::json(&json!({ "ready": true }))?;
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let pass = Pass::parse(&line).ok_or_else(|| Failure::Other(format!("{line:?} is no pass")))?;
        initiator.pass(&pass)?;
    }
    let Initiator { engine, local, .. } = initiator;
    drop(local);
    engine.shutdown(Deadline::after_secs(1));
    Ok(())
}

impl Initiator {
    fn pass(&mut self, pass: &Pass) -> Result<()> {
        // For a read the wrong pattern, so that nothing left over passes for what should arrive.
        let before = if pass.write { pass.seed } else { !pass.seed };
        pattern::write_to(&self.local, before, 0, pass.len)?;
        let latencies = match self.latencies.entry((pass.write, pass.block)) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => new.insert(Latencies::new()?),
        };
        let began = Instant::now();
        let mut told = began;
        let mut path = String::new();
        let mut offset = 0;
        while offset < pass.len {
            let len = pass.block.min(pass.len - offset);
            let (here, there) = (self.local.slice(offset..offset + len), self.remote.slice(offset, len)?);
            let batch = self.engine.batch();
            let batch = if pass.write { batch.write(here, &there) } else { batch.read(&there, here) };
            let start = Instant::now();
            let report = batch.run()?;
            let now = Instant::now();
            latencies.record(now - start);
            offset += len;
            if path.is_empty() {
                path = report.path();
            }
            if now - told >= TELL {
                told = now;
                output::json(&json!({ "moved": offset }))?;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let verified = pass.write || pattern::verify(&self.local, pass.seed, 0, pass.len)?.is_none();
        output::json(&json!({
            "seconds": seconds,
            "p50_us": latencies.quantile(0.5),
            "p99_us": latencies.quantile(0.99),
            "path": path,
            "verified": verified,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_four_words() {
        let pass = Pass::parse("read 4096 8192 7").unwrap();
        assert_eq!((pass.write, pass.block, pass.len, pass.seed), (false, 4096, 8192, 7));
        for line in ["", "read", "read 0 1 1", "erase 1 1 1", "read 1 1 256", "read 1 1 1 1"] {
            assert!(Pass::parse(line).is_none(), "{line}");
        }
    }
}
