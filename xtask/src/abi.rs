//! The structures of vendors' libraries are those of their headers: the program in `abi`, which needs these headers and is
//! therefore no part of the workspace.

use crate::Result;
use crate::outcome::Outcome;
use crate::provision::{self, Need, What};
use crate::shell::Cmd;
use crate::workspace::Workspace;

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    provision::debian(&[
        Need { what: What::Program("cmake"), package: "cmake" },
        Need { what: What::Program("pkg-config"), package: "pkg-config" },
        Need { what: What::Library("libclang"), package: "libclang-dev" },
        Need { what: What::File("/usr/include/infiniband/verbs.h"), package: "libibverbs-dev" },
    ])?;
    let run = Cmd::cargo("run").args(["--locked", "--quiet", "--manifest-path", "abi/Cargo.toml"]);
    let success = run.dir(&workspace.root).env("CARGO_TARGET_DIR", workspace.target.join("abi")).run()?;
    Ok(Outcome::of_command("abi", success))
}
