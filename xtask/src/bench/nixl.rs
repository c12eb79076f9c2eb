//! NIXL with its UCX backend, over TCP and over shared memory. Its wheel is large, so it is measured on request only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::table::{Measure, Row, median};
use super::{KIB, MIB, NATIVE, Way, rate, tcp};
use crate::Result;
use crate::interop::environment::Environment;
use crate::provision;
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// What the wheel imports where there is no GPU; with all that it names it would be several times as large.
const NUMPY: &str = "numpy==2.4.6\n";
const WHEEL: &str = "nixl-cu12==1.5.1";

const CELLS: [(u64, u64); 3] = [(4 * KIB, 128), (64 * KIB, 16), (MIB, 16)];

/// Takes all figures and hands them to `print` as they come.
pub(super) fn measure(
    workspace: &Workspace,
    te: &Path,
    environment: &Environment,
    rounds: u64,
    print: &mut dyn FnMut(Vec<Row>),
) -> Result<()> {
    let nixl = Nixl::prepare(workspace, environment)?;
    let shm: Way = vec![("--set", "transports=shm".to_owned())];
    for (name, way, theirs) in [(NATIVE, tcp(NATIVE), "tcp"), ("shm", shm, "shm")] {
        for (block, batch) in CELLS {
            for op in ["write", "read"] {
                let (mut ours, mut others) = (Vec::new(), Vec::new());
                for _ in 0..rounds {
                    ours.push(rate(te, &way, op, (block, batch), (block * batch).max(MIB))?);
                    others.push(nixl.run(theirs, op, block, batch)?);
                }
                print(vec![Row {
                    measure: Measure::Rate,
                    op: op.to_owned(),
                    framing: name,
                    block,
                    batch,
                    yardstick: "NIXL",
                    ours: median(&mut ours),
                    theirs: median(&mut others),
                    promised: None,
                }]);
            }
        }
    }
    Ok(())
}

struct Nixl {
    python: PathBuf,
    script: PathBuf,
    preload: PathBuf,
}

impl Nixl {
    fn prepare(workspace: &Workspace, environment: &Environment) -> Result<Self> {
        let python = provision::python_environment(&workspace.target.join("interop/nixl"), NUMPY)?;
        let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", WHEEL];
        if !Cmd::new(&python).args(pip).run()? {
            return Err(format!("could not install {WHEEL}").into());
        }
        let script = environment.scripts.join("nixl_bench.py");
        Ok(Self { python, script, preload: environment.preload.clone() })
    }

    /// Gigabytes per second of one round of a second.
    fn run(&self, way: &str, op: &str, block: u64, batch: u64) -> Result<f64> {
        let finished = Cmd::new(&self.python)
            .arg(&self.script)
            .args([way, op, &block.to_string(), &batch.to_string(), "1"])
            .env("LD_PRELOAD", &self.preload)
            .deadline(Duration::from_secs(60))
            .quiet()?;
        let line = finished.output.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let figure = line.and_then(|line| line["gigabytes_per_second"].as_f64());
        figure.ok_or_else(|| format!("NIXL printed no rate: {}", finished.output.trim()).into())
    }
}
