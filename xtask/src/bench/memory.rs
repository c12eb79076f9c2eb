//! Within one host: shared memory beside `memcpy`, beside `process_vm_readv` and `process_vm_writev` alone, and beside UCX.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::table::{Measure, Row, median};
use super::ucx::Ucx;
use super::{KIB, MIB, Way, rate};
use crate::Result;
use crate::interop::environment::Environment;
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// More than the caches of a core hold.
const COLD: u64 = 256 * MIB;

/// A yardstick, the cells it is taken for, and the ratio promised for each.
struct Beside {
    /// How ours is called in the table.
    ours: &'static str,
    yardstick: &'static str,
    /// Whether the target's memory is such that it cannot be mapped.
    private: bool,
    cells: &'static [(u64, u64, f64)],
}

const MEMCPY: Beside = Beside {
    ours: "shm",
    yardstick: "memcpy",
    private: false,
    cells: &[
        (4 * KIB, 128, 0.5),
        (64 * KIB, 16, 0.8),
        (MIB, 1, 0.95),
        (MIB, 16, 0.95),
        (16 * MIB, 1, 0.95),
        (64 * MIB, 1, 0.95),
    ],
};

const PROCESS_VM: Beside = Beside {
    ours: "shm (private)",
    yardstick: "process_vm",
    private: true,
    cells: &[(64 * KIB, 1, 0.95), (64 * KIB, 16, 0.95), (MIB, 1, 0.95), (MIB, 16, 0.95), (16 * MIB, 1, 0.95)],
};

/// UCX works on one block again and again, so ours gets no more memory than a batch needs.
const UCX: Beside = Beside {
    ours: "shm",
    yardstick: "UCX shm",
    private: false,
    cells: &[(64 * KIB, 16, 1.2), (MIB, 1, 1.2), (MIB, 16, 1.2), (16 * MIB, 1, 1.2)],
};

const OPS: [&str; 2] = ["write", "read"];

/// Takes all figures and hands them to `print` as they come.
pub(super) fn measure(
    workspace: &Workspace,
    te: &Path,
    environment: &Environment,
    rounds: u64,
    print: &mut dyn FnMut(Vec<Row>),
) -> Result<()> {
    let copies = Copies::build(workspace)?;
    for beside in [MEMCPY, PROCESS_VM] {
        for (op, (block, batch, promised)) in pairs(&beside) {
            let yardstick = || copies.run(&beside, op, block, batch);
            print(vec![row(te, &beside, op, (block, batch), COLD, (promised, rounds), yardstick)?]);
        }
    }
    let ucx = Ucx::prepare(environment)?;
    for (op, (block, batch, promised)) in pairs(&UCX) {
        let yardstick = || ucx.run(op, block);
        print(vec![row(te, &UCX, op, (block, batch), block * batch, (promised, rounds), yardstick)?]);
    }
    Ok(())
}

fn pairs(beside: &Beside) -> impl Iterator<Item = (&'static str, (u64, u64, f64))> {
    beside.cells.iter().flat_map(|cell| OPS.map(|op| (op, *cell)))
}

/// Ours and the yardstick in turns.
fn row(
    te: &Path,
    beside: &Beside,
    op: &str,
    cell: (u64, u64),
    area: u64,
    (promised, rounds): (f64, u64),
    yardstick: impl Fn() -> Result<f64>,
) -> Result<Row> {
    let mut way: Way = vec![("--set", "transports=shm".to_owned())];
    if beside.private {
        way.push(("--private", String::new()));
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(rate(te, &way, op, cell, area)?);
        theirs.push(yardstick()?);
    }
    Ok(Row {
        measure: Measure::Rate,
        op: op.to_owned(),
        framing: beside.ours,
        block: cell.0,
        batch: cell.1,
        yardstick: beside.yardstick,
        ours: median(&mut ours),
        theirs: median(&mut theirs),
        promised: Some(promised),
    })
}

/// The program that copies without an engine.
struct Copies {
    program: PathBuf,
}

impl Copies {
    fn build(workspace: &Workspace) -> Result<Self> {
        let build = Cmd::cargo("build").args(["--locked", "--release", "-p", "te-transport-shm"]);
        if !build.args(["--example", "yardstick"]).run()? {
            return Err("the yardstick does not build".into());
        }
        Ok(Self { program: workspace.target.join("release/examples/yardstick") })
    }

    /// Gigabytes per second of one round of a second.
    fn run(&self, beside: &Beside, op: &str, block: u64, batch: u64) -> Result<f64> {
        let kind = if beside.private { "process-vm" } else { "copy" };
        let finished = Cmd::new(&self.program)
            .args([kind, op, &block.to_string(), &batch.to_string(), &COLD.to_string(), "1"])
            .deadline(Duration::from_secs(60))
            .quiet()?;
        let figure = finished.output.trim().parse();
        figure.map_err(|_| format!("the yardstick failed: {}", finished.output.trim()).into())
    }
}
