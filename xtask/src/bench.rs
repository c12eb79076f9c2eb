//! `cargo xtask bench`: ours beside raw sockets, beside the reference engine, and within one host beside plain copies and
//! UCX, in one run, as ratios.
//!
//! Every figure is the median of several rounds; ours and the yardstick take turns, so that a machine that becomes slower
//! meanwhile is slower for both.

mod memory;
mod nixl;
mod reference;
pub(crate) mod table;
mod ucx;

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
use table::{Measure, Row, median};

/// What can be taken alone. The page is written when all are taken but NIXL, which is taken only when it is named.
const PARTS: [&str; 4] = ["memory", "raw", "reference", "nixl"];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Blocks and batches beside raw sockets, and the reference engine.
const RAW: (&[u64], &[u64]) = (&[4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB], &[1, 16]);
const REFERENCE: [(u64, u64); 5] =
    [(4 * KIB, 16), (4 * KIB, 128), (64 * KIB, 16), (256 * KIB, 16), (MIB, 16)];
/// How our initiator speaks: the reference's acknowledged framing, and our own.
const FRAMINGS: [&str; 2] = ["v2", NATIVE];
const NATIVE: &str = "native";
/// Rates beside raw sockets are promised for blocks from this size on.
const PROMISED_FROM: u64 = 64 * KIB;

/// The rate beside raw sockets that is promised.
fn of_raw(framing: &str, block: u64) -> Option<f64> {
    (block >= PROMISED_FROM).then_some(if framing == NATIVE { 0.95 } else { 0.8 })
}

/// The CPU time beside that of raw sockets that is promised.
fn cpu_of_raw(framing: &str, block: u64) -> Option<f64> {
    (framing == NATIVE && block >= PROMISED_FROM).then_some(1.1)
}

/// The rate beside the reference engine that is promised.
fn of_reference(framing: &str, block: u64, batch: u64) -> Option<f64> {
    match (framing == NATIVE, block, batch) {
        (true, PROMISED_FROM.., _) => Some(2.0),
        (true, _, 128) => Some(10.0),
        (false, PROMISED_FROM.., _) => Some(1.5),
        _ => None,
    }
}

/// The latency of one small block beside that of a ping-pong that is promised.
const PING_PONG: (u64, f64) = (4 * KIB, 1.5);

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let check = args.flag("--check");
    let program = args.value("--te")?.map(PathBuf::from);
    let rounds = args.number("--rounds", 5)?;
    let part = args.value("--part")?;
    if let Some(part) = part.as_deref().filter(|part| !PARTS.contains(part)) {
        return Err(format!("--part {part}: there are {}", PARTS.join(", ")).into());
    }
    args.finish()?;
    let workspace = Workspace::load()?;
    let te = match program {
        Some(program) => program,
        None => artefacts::te(&workspace)?,
    };
    let environment = Environment::prepare(&workspace)?;
    let mut rows = Vec::new();
    let mut print = |measured: Vec<Row>| {
        measured.iter().for_each(|row| println!("{row}"));
        rows.extend(measured);
    };
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("memory") {
        memory::measure(&workspace, &te, &environment, rounds, &mut print)?;
    }
    if wanted("raw") {
        for framing in FRAMINGS {
            for (block, batch) in cells(RAW) {
                print(beside_raw(&te, framing, block, batch, rounds)?);
            }
        }
        print(beside_ping_pong(&te, rounds)?);
    }
    if wanted("reference") {
        let largest = REFERENCE.iter().map(|(block, batch)| block * batch).max().unwrap_or(MIB);
        let mut reference = ReferenceBench::start(&environment, largest)?;
        for (block, batch) in REFERENCE {
            for op in ["write", "read"] {
                print(beside_reference(&te, &mut reference, op, block, batch, rounds)?);
            }
        }
    }
    if part.as_deref() == Some("nixl") {
        nixl::measure(&workspace, &te, &environment, rounds, &mut print)?;
    }
    if part.is_none() {
        table::write(&workspace.root.join("docs/performance.md"), "bench", &rows)?;
    }
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

fn cells((blocks, batches): (&[u64], &[u64])) -> impl Iterator<Item = (u64, u64)> {
    blocks.iter().flat_map(|block| batches.iter().map(|batch| (*block, *batch)))
}

/// `te bench local --raw` takes turns by itself. One connection each.
fn beside_raw(te: &Path, framing: &'static str, block: u64, batch: u64, rounds: u64) -> Result<Vec<Row>> {
    let report = local(
        te,
        &tcp(framing),
        &[
            ("--block", block.to_string()),
            ("--batch", batch.to_string()),
            // More than the caches hold.
            ("--area", (block * batch).max(256 * MIB).to_string()),
            ("--rounds", rounds.to_string()),
            ("--duration", format!("{rounds}s")),
            ("--set", "tcp.connections_per_peer=1".to_owned()),
            ("--raw", String::new()),
        ],
    )?;
    let mut rows = Vec::new();
    for entry in report.as_array().ok_or("te bench printed no list")? {
        let row = |measure, member, promised| beside(entry, framing, (measure, member), promised);
        rows.push(row(Measure::Rate, "gigabytes_per_second", of_raw(framing, block))?);
        rows.push(row(Measure::Cpu, "cpu_seconds_per_gigabyte", cpu_of_raw(framing, block))?);
    }
    Ok(rows)
}

/// One small block at a time, each side on its own core.
fn beside_ping_pong(te: &Path, rounds: u64) -> Result<Vec<Row>> {
    let (block, promised) = PING_PONG;
    let report = local(
        te,
        &tcp(NATIVE),
        &[
            ("--block", block.to_string()),
            ("--batch", "1".to_owned()),
            ("--area", MIB.to_string()),
            ("--rounds", rounds.to_string()),
            ("--duration", format!("{rounds}s")),
            ("--raw", String::new()),
            ("--pin", String::new()),
        ],
    )?;
    let entries = report.as_array().ok_or("te bench printed no list")?;
    let latency = |entry| beside(entry, NATIVE, (Measure::Latency, "batch_p50_us"), Some(promised));
    entries.iter().map(latency).collect()
}

/// A figure of both sides of an entry.
fn beside(
    entry: &Value,
    framing: &'static str,
    (measure, member): (Measure, &str),
    promised: Option<f64>,
) -> Result<Row> {
    let figure = |side: &str| {
        let figure = entry[side][member].as_f64();
        figure.ok_or_else(|| format!("te bench printed no {member} for {side}: {entry}"))
    };
    let number = |member: &str| entry[member].as_u64().unwrap_or_default();
    Ok(Row {
        measure,
        op: entry["op"].as_str().unwrap_or("?").to_owned(),
        framing,
        block: number("block"),
        batch: number("batch"),
        yardstick: "raw socket pair",
        ours: figure("engine")?,
        theirs: figure("raw")?,
        promised,
    })
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
            // The same memory as the reference's program works on.
            let area = (block * batch).max(MIB);
            figures.push(rate(te, &tcp(framing), op, (block, batch), area)?);
        }
    }
    let theirs = median(&mut theirs);
    let row = |(framing, mut figures): (&'static str, Vec<f64>)| Row {
        measure: Measure::Rate,
        op: op.to_owned(),
        framing,
        block,
        batch,
        yardstick: "reference engine",
        ours: median(&mut figures),
        theirs,
        promised: of_reference(framing, block, batch),
    };
    Ok(ours.into_iter().map(row).collect())
}

/// Arguments for a way that the bytes take.
type Way = Vec<(&'static str, String)>;

fn tcp(framing: &str) -> Way {
    vec![("--set", "transports=tcp".to_owned()), ("--set", format!("tcp.framing={framing}"))]
}

/// Gigabytes per second of one round of a second.
fn rate(te: &Path, way: &Way, op: &str, (block, batch): (u64, u64), area: u64) -> Result<f64> {
    let report = local(
        te,
        way,
        &[
            ("--op", op.to_owned()),
            ("--block", block.to_string()),
            ("--batch", batch.to_string()),
            ("--area", area.to_string()),
            ("--rounds", "1".to_owned()),
            ("--duration", "1s".to_owned()),
        ],
    )?;
    let figure = report[0]["engine"]["gigabytes_per_second"].as_f64();
    figure.ok_or_else(|| format!("te bench printed no figure: {report}").into())
}

fn local(te: &Path, way: &Way, arguments: &[(&str, String)]) -> Result<Value> {
    let mut command = Cmd::new(te).args(["bench", "local", "--json"]).deadline(Duration::from_secs(300));
    for (name, value) in way.iter().chain(arguments) {
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
