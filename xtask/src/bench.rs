//! `cargo xtask bench`: ours beside raw sockets and beside the reference engine, in one run, as ratios.
//!
//! Every figure is the median of several rounds; ours and the yardstick take turns, so that a machine that becomes slower
//! meanwhile is slower for both.

mod reference;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::args::Args;
use crate::artefacts;
use crate::interop::environment::Environment;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;
use reference::ReferenceBench;
use table::{Row, median};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Beside raw sockets: every block and batch, ratio at least.
const RAW: (&[u64], &[u64], f64) = (&[4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB], &[1, 16], 0.8);
/// Beside the reference engine.
const REFERENCE: (&[u64], &[u64], f64) = (&[4 * KIB, 64 * KIB, 256 * KIB, MIB], &[16], 1.5);
/// How our initiator speaks: the reference's acknowledged framing, for which the ratios are promised, and our own.
const FRAMINGS: [&str; 2] = ["v2", "native"];
/// Small blocks are measured but promised nothing yet.
const PROMISED_FROM: u64 = 64 * KIB;

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let check = args.flag("--check");
    let program = args.value("--te")?.map(PathBuf::from);
    let rounds = args.number("--rounds", 5)?;
    args.finish()?;
    let workspace = Workspace::load()?;
    let te = match program {
        Some(program) => program,
        None => artefacts::te(&workspace)?,
    };
    let environment = Environment::prepare(&workspace)?;
    let mut rows = Vec::new();
    for framing in FRAMINGS {
        for (block, batch) in cells(RAW) {
            for row in beside_raw(&te, framing, block, batch, rounds)? {
                println!("{row}");
                rows.push(row);
            }
        }
    }
    let largest =
        REFERENCE.0.iter().max().copied().unwrap_or(MIB) * REFERENCE.1.iter().max().copied().unwrap_or(1);
    let mut reference = ReferenceBench::start(&environment, largest)?;
    for (block, batch) in cells(REFERENCE) {
        for op in ["write", "read"] {
            for row in beside_reference(&te, &mut reference, op, block, batch, rounds)? {
                println!("{row}");
                rows.push(row);
            }
        }
    }
    drop(reference);
    table::write(&workspace.root.join("docs/performance.md"), &rows)?;
    let short = rows.iter().filter(|row| row.is_short()).count();
    let mut outcome = Outcome { passed: rows.len() - short, ..Outcome::default() };
    for row in rows.iter().filter(|row| row.is_short()) {
        if check {
            outcome.fail(format!("{row}"));
        }
    }
    outcome.print();
    Ok(outcome)
}

fn cells((blocks, batches, _): (&[u64], &[u64], f64)) -> impl Iterator<Item = (u64, u64)> {
    blocks.iter().flat_map(|block| batches.iter().map(|batch| (*block, *batch)))
}

fn promise(framing: &str, block: u64, at_least: f64) -> Option<f64> {
    (framing == FRAMINGS[0] && block >= PROMISED_FROM).then_some(at_least)
}

/// `te bench local --raw` takes turns by itself.
fn beside_raw(te: &Path, framing: &'static str, block: u64, batch: u64, rounds: u64) -> Result<Vec<Row>> {
    let report = local(
        te,
        framing,
        &[
            ("--block", block.to_string()),
            ("--batch", batch.to_string()),
            // More than the caches hold.
            ("--area", (block * batch).max(256 * MIB).to_string()),
            ("--rounds", rounds.to_string()),
            ("--duration", format!("{rounds}s")),
            ("--raw", String::new()),
        ],
    )?;
    let entries = report.as_array().ok_or("te bench printed no list")?;
    entries
        .iter()
        .map(|entry| {
            let figure = |side: &str| {
                let figure = entry[side]["gigabytes_per_second"].as_f64();
                figure.ok_or_else(|| format!("te bench printed no figure for {side}: {entry}"))
            };
            Ok(Row {
                op: entry["op"].as_str().unwrap_or("?").to_owned(),
                framing,
                block,
                batch,
                yardstick: "raw socket pair",
                ours: figure("engine")?,
                theirs: figure("raw")?,
                at_least: promise(framing, block, RAW.2),
            })
        })
        .collect()
}

/// Both framings of ours beside the same runs of the reference.
fn beside_reference(
    te: &Path,
    reference: &mut ReferenceBench,
    op: &'static str,
    block: u64,
    batch: u64,
    rounds: u64,
) -> Result<Vec<Row>> {
    let (mut ours, mut theirs) = (FRAMINGS.map(|framing| (framing, Vec::new())), Vec::new());
    for _ in 0..rounds {
        theirs.push(reference.run(op, block, batch, Duration::from_secs(1))?);
        for (framing, figures) in &mut ours {
            let report = local(
                te,
                framing,
                &[
                    ("--op", op.to_owned()),
                    ("--block", block.to_string()),
                    ("--batch", batch.to_string()),
                    // The same memory as the reference's program works on.
                    ("--area", (block * batch).max(MIB).to_string()),
                    ("--rounds", "1".to_owned()),
                    ("--duration", "1s".to_owned()),
                ],
            )?;
            let figure = report[0]["engine"]["gigabytes_per_second"].as_f64();
            figures.push(figure.ok_or_else(|| format!("te bench printed no figure: {report}"))?);
        }
    }
    let theirs = median(&mut theirs);
    let row = |(framing, mut figures): (&'static str, Vec<f64>)| Row {
        op: op.to_owned(),
        framing,
        block,
        batch,
        yardstick: "reference engine",
        ours: median(&mut figures),
        theirs,
        at_least: promise(framing, block, REFERENCE.2),
    };
    Ok(ours.into_iter().map(row).collect())
}

fn local(te: &Path, framing: &str, arguments: &[(&str, String)]) -> Result<Value> {
    let mut command = Cmd::new(te)
        .args(["bench", "local", "--json", "--set", "transports=tcp"])
        .args(["--set", &format!("tcp.framing={framing}")])
        .deadline(Duration::from_secs(300));
    for (name, value) in arguments {
        command = command.arg(name);
        if !value.is_empty() {
            command = command.arg(value);
        }
    }
    let finished = command.quiet()?;
    if !finished.success {
        return Err(format!("te bench failed: {}", finished.output.trim()).into());
    }
    let line = finished.output.lines().find(|line| line.starts_with('['));
    Ok(serde_json::from_str(line.ok_or("te bench printed no JSON")?)?)
}
