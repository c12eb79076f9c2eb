//! `te demo`: a target and an initiator in two processes, blocks of every size, every byte verified by the side that
//! received it.

pub(crate) mod initiator;

use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::child::JsonChild;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{self, Align, Table};
use crate::{size, usage};

const MIB: u64 = 1 << 20;
/// Block sizes, and the bytes that go each way in blocks of it; 1 GiB together.
const PLAN: [(u64, u64); 5] = [
    (4 << 10, 64 * MIB),
    (64 << 10, 192 * MIB),
    (MIB, 256 * MIB),
    (16 * MIB, 256 * MIB),
    (64 * MIB, 256 * MIB),
];
/// Bytes offered by the target and used by the initiator.
const AREA: u64 = 128 * MIB;
/// Longest silence of a child.
const SILENCE: Duration = Duration::from_secs(30);

/// How much to move.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Bytes each way, instead of 1 GiB; larger blocks are left out
    #[arg(long, hide = true, default_value = "1GiB", value_parser = size::size)]
    pub(crate) total: u64,
}

/// A line of the result.
struct Row {
    op: &'static str,
    block: u64,
    bytes: u64,
    seconds: f64,
    /// As the initiator last said: over all passes of this line.
    p50: u64,
    p99: u64,
    path: String,
    verified: bool,
}

/// Blocks and bytes each way for a demo of `total` bytes.
fn plan(total: u64) -> Vec<(u64, u64)> {
    let scaled = |bytes: u64| u128::from(bytes) * u128::from(total) / (1 << 30);
    PLAN.iter()
        .filter(|(block, _)| *block <= total)
        .map(|(block, bytes)| {
            let bytes = u64::try_from(scaled(*bytes)).unwrap_or(u64::MAX);
            // Whole blocks, at least one.
            (*block, (bytes / block).max(1) * block)
        })
        .collect()
}

pub(crate) fn run(context: &Context, args: &DemoArgs) -> Result<()> {
    let plan = plan(args.total);
    let Some((largest, _)) = plan.last().copied() else {
        return usage("--total must be at least 4KiB");
    };
    let area = AREA.min(plan.iter().map(|(_, bytes)| *bytes).max().unwrap_or(AREA)).max(largest);
    let began = Instant::now();
    let area_text = area.to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let target = words(&["serve", "--size", &area_text, "--until-stdin-closes"]);
    let mut target = JsonChild::start(context, "target", &target)?;
    let hello = target.next(SILENCE)?;
    let segment = hello["segment"].as_str().unwrap_or_default();
    let mut initiator = JsonChild::start(
        context,
        "initiator",
        &words(&["demo-initiator", "--peer", segment, "--size", &area_text]),
    )?;
    initiator.next(SILENCE)?;

    let each_way: u64 = plan.iter().map(|(_, bytes)| bytes).sum();
    let bar = context.progress(2 * each_way, "demo");
    let mut rows = Vec::new();
    let mut seed = 1_u8;
    for (block, bytes) in plan {
        for op in ["write", "read"] {
            let mut row = Row {
                op,
                block,
                bytes: 0,
                seconds: 0.0,
                p50: 0,
                p99: 0,
                path: String::new(),
                verified: true,
            };
            while row.bytes < bytes {
                // A pass covers what fits into the area; each has its own pattern.
                let len = area.min(bytes - row.bytes) / block * block;
                seed = seed.wrapping_add(37);
                pass(&mut target, &mut initiator, &mut row, (len, seed), &bar)?;
            }
            rows.push(row);
        }
    }
    bar.finish_and_clear();
    drop(initiator);
    drop(target);
    report(context, &rows, each_way, began.elapsed())
}

/// Moves `len` bytes in blocks; whoever received them verifies them.
fn pass(
    target: &mut JsonChild,
    initiator: &mut JsonChild,
    row: &mut Row,
    (len, seed): (u64, u8),
    bar: &ProgressBar,
) -> Result<()> {
    if row.op == "read" {
        let filled = target.ask(&format!("fill {seed}"), SILENCE)?;
        row.verified &= filled["ok"] == true;
    }
    bar.set_message(format!("{} {}", row.op, te_engine::size::bytes(row.block)));
    initiator.tell(&format!("{} {} {len} {seed}", row.op, row.block))?;
    let before = bar.position();
    let done = loop {
        let line = initiator.next(SILENCE)?;
        match line["moved"].as_u64() {
            Some(moved) => bar.set_position(before + moved),
            None => break line,
        }
    };
    bar.set_position(before + len);
    let missing = || Failure::Other(format!("the initiator said {done}"));
    row.seconds += done["seconds"].as_f64().ok_or_else(missing)?;
    row.p50 = done["p50_us"].as_u64().ok_or_else(missing)?;
    row.p99 = done["p99_us"].as_u64().ok_or_else(missing)?;
    row.path = done["path"].as_str().unwrap_or_default().to_owned();
    row.bytes += len;
    row.verified &= match row.op {
        "write" => target.ask(&format!("check 0 {len} {seed}"), SILENCE)?["ok"] == true,
        _ => done["verified"] == true,
    };
    Ok(())
}

fn report(context: &Context, rows: &[Row], each_way: u64, took: Duration) -> Result<()> {
    let verified = !rows.is_empty() && rows.iter().all(|row| row.verified);
    let speed = |row: &Row| size::gigabytes_per_second(row.bytes, Duration::from_secs_f64(row.seconds));
    if context.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "op": row.op, "block": row.block, "bytes": row.bytes, "path": row.path,
                    "gigabytes_per_second": speed(row), "p50_us": row.p50, "p99_us": row.p99,
                    "verified": row.verified,
                })
            })
            .collect();
        output::json(&json!({
            "ok": verified, "bytes_each_way": each_way, "seconds": took.as_secs_f64(), "rows": rows,
        }))?;
    } else {
        let mut table = Table::new(&[
            ("OP", Align::Left),
            ("BLOCK", Align::Right),
            ("BYTES", Align::Right),
            ("PATH", Align::Left),
            ("GB/s", Align::Right),
            ("p50", Align::Right),
            ("p99", Align::Right),
            ("VERIFIED", Align::Left),
        ]);
        for row in rows {
            table.row([
                row.op.to_owned(),
                te_engine::size::bytes(row.block),
                te_engine::size::bytes(row.bytes),
                row.path.clone(),
                format!("{:.2}", speed(row)),
                size::micros(row.p50),
                size::micros(row.p99),
                if row.verified { "every byte" } else { "NO" }.to_owned(),
            ]);
        }
        table.print()?;
        let each_way = te_engine::size::bytes(each_way);
        output::line(&format!(
            "\n{each_way} each way between two processes in {:.1} s, one request at a time; latency per request",
            took.as_secs_f64()
        ))?;
    }
    if verified { Ok(()) } else { Err(Failure::Other("not every byte arrived as it was sent".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_demo_moves_a_gibibyte_each_way() {
        let plan = plan(1 << 30);
        assert_eq!(plan.iter().map(|(_, bytes)| bytes).sum::<u64>(), 1 << 30);
        let blocks: Vec<u64> = plan.iter().map(|(block, _)| block >> 10).collect();
        assert_eq!(blocks, [4, 64, 1024, 16 << 10, 64 << 10]);
    }

    #[test]
    fn a_small_demo_leaves_large_blocks_out_and_keeps_them_whole() {
        let plan = plan(2 << 20);
        assert_eq!(plan.len(), 3);
        assert!(plan.iter().all(|(block, bytes)| *bytes >= *block && bytes % block == 0));
        assert!(super::plan(4095).is_empty());
    }
}
