//! The simulated networks with many seeds: what a normal test run does with a few.
//!
//! In the test profile, so that overflow and debug assertions count too. A seed that fails is told with the command that
//! repeats it.

use crate::Result;
use crate::outcome::Outcome;
use crate::shell::Cmd;
use crate::test::summary;
use crate::workspace::Workspace;

/// Seeds of each simulation. There are three, so this is a little more than a hundred thousand runs.
const SEEDS: u64 = 34_000;

/// What the names of simulations begin with.
const SIMULATIONS: &str = "in_any_weather";

pub(crate) fn check(_: &Workspace) -> Result<Outcome> {
    let finished = Cmd::cargo("test")
        .args(["--locked", "-p", "te-engine", "--lib", SIMULATIONS])
        .env("TE_SEEDS", SEEDS.to_string())
        .tee()?;
    Ok(summary::judge("simulations", &finished))
}
