//! The model-checked tests: every interleaving of the small concurrent cores.
//!
//! `--cfg loom` swaps the synchronisation primitives of the whole crate, so these builds have a target folder of
//! their own.

use crate::Result;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::test::summary;
use crate::workspace::Workspace;

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let modelled: Vec<_> =
        workspace.members.values().filter(|p| p.dir.join("tests/loom.rs").exists()).collect();
    if modelled.is_empty() {
        return Err("no crate has tests/loom.rs: nothing was model-checked".into());
    }
    let mut outcome = Outcome::default();
    for package in modelled {
        let finished = Cmd::cargo("test")
            .args(["--locked", "-p", &package.name, "--test", "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", workspace.target.join("loom"))
            .tee()?;
        outcome.add(summary::judge(&format!("loom tests of {}", package.name), &finished));
    }
    Ok(outcome)
}
