//! What the reference engine needs on this machine, made once below the target folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::provision::{self, Need, What};
use crate::shell::Cmd;
use crate::workspace::Workspace;

const NEEDS: [Need; 5] = [
    Need { what: What::Library("libibverbs.so.1"), package: "libibverbs1" },
    Need { what: What::Library("libnuma.so.1"), package: "libnuma1" },
    Need { what: What::Library("libcurl.so.4"), package: "libcurl4" },
    Need { what: What::Program("gcc"), package: "gcc" },
    Need { what: What::PythonModule("ensurepip"), package: "python3-venv" },
];

/// Where the reference's interpreter, the scripts, the preload and the logs are.
pub(crate) struct Environment {
    pub(crate) python: PathBuf,
    pub(crate) scripts: PathBuf,
    /// Keeps the reference's listeners on the loopback address.
    pub(crate) preload: PathBuf,
    pub(crate) logs: PathBuf,
}

impl Environment {
    pub(crate) fn prepare(workspace: &Workspace) -> Result<Self> {
        provision::debian(&NEEDS)?;
        let scripts = workspace.root.join("tests/interop");
        let home = workspace.target.join("interop");
        let logs = home.join("logs");
        fs::create_dir_all(&logs)?;
        let requirements = fs::read_to_string(scripts.join("requirements.txt"))?;
        let python = provision::python_environment(&home.join("venv"), &requirements)?;
        let preload = home.join("loopback.so");
        compile(&scripts.join("loopback.c"), &preload)?;
        Ok(Self { python, scripts, preload, logs })
    }
}

/// Compiles the preload library, always: it takes a blink, and a stale one would be hard to notice.
fn compile(source: &Path, library: &Path) -> Result<()> {
    let gcc =
        Cmd::new("gcc").args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(library).arg(source).arg("-ldl");
    if gcc.run()? { Ok(()) } else { Err(format!("{} does not compile", source.display()).into()) }
}
