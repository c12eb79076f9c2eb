//! Licences, sources, banned crates and duplicates, by cargo-deny and `deny.toml`.
//!
//! Advisories need a database from the network, so they are a person's command: `cargo deny check advisories`.

use crate::Result;
use crate::outcome::Outcome;
use crate::provision;
use crate::shell::Cmd;
use crate::workspace::Workspace;

const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let program = provision::cargo_deny(workspace)?;
    let mut outcome = Outcome::default();
    for check in CHECKS {
        let finished = Cmd::new(&program)
            .args(["--all-features", "--offline", "--locked", "check", "--hide-inclusion-graph", check])
            .dir(&workspace.root)
            .tee()?;
        outcome.add(Outcome::of_command(&format!("cargo deny check {check}"), finished.success));
    }
    Ok(outcome)
}
