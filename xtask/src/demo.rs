//! The first thing a newcomer runs: `te demo`.

use std::time::Duration;

use crate::Result;
use crate::artefacts;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::workspace::Workspace;

pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let program = artefacts::te(workspace)?;
    let finished = Cmd::new(program).arg("demo").deadline(Duration::from_secs(300)).tee()?;
    let mut outcome = Outcome::of_command("te demo", finished.success);
    if finished.success && finished.output.trim().is_empty() {
        outcome.fail("te demo printed nothing");
    }
    Ok(outcome)
}
