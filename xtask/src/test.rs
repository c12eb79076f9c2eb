//! Everything, in order, with the time each stage took.
//!
//! A failed stage does not stop the others: one run shows all that is wrong. Each stage can be run by itself.

mod disk;
pub(crate) mod summary;

use std::time::{Duration, Instant};

use crate::args::Args;
use crate::interop::environment::Environment;
use crate::outcome::Outcome;
use crate::shell::{Cmd, is_installed};
use crate::workspace::Workspace;
use crate::{Result, artefacts, demo, deny, guest, interop, lean, loom, matrix, provision, simulator, tidy};

struct Stage {
    name: &'static str,
    run: fn(&Workspace) -> Result<Outcome>,
}

/// Cheap and frequent mistakes first. The three that need the release build come last and share it.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", run: fmt },
    Stage { name: "tidy", run: tidy::check },
    Stage { name: "deny", run: deny::check },
    Stage { name: "lean", run: lean::check },
    Stage { name: "clippy", run: clippy },
    Stage { name: "docs", run: docs },
    Stage { name: "matrix", run: matrix::check },
    Stage { name: "tests", run: tests },
    Stage { name: "doctests", run: doctests },
    Stage { name: "loom", run: loom::check },
    Stage { name: "simulator", run: simulator::check },
    Stage { name: "guest", run: guest::check },
    Stage { name: "artefacts", run: artefacts::check },
    Stage { name: "demo", run: demo::check },
    Stage { name: "interop", run: interop::check },
];

pub(crate) fn stage_names() -> Vec<&'static str> {
    STAGES.iter().map(|s| s.name).collect()
}

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let only = args.list("--only")?;
    let skip = args.list("--skip")?.unwrap_or_default();
    args.finish()?;
    let names = stage_names();
    if let Some(stranger) = only.iter().flatten().chain(&skip).find(|s| !names.contains(&s.as_str())) {
        return Err(format!("no stage `{stranger}`; there are {}", names.join(", ")).into());
    }
    let workspace = Workspace::load()?;
    println!("{} are free at {}", disk::shown(disk::free(&workspace.target)?), workspace.target.display());
    let mut rows = Vec::new();
    for stage in STAGES {
        let wanted = only.as_ref().is_none_or(|only| only.iter().any(|s| s == stage.name));
        if skip.iter().any(|s| s == stage.name) {
            rows.push(Row { stage: stage.name, result: None, time: Duration::ZERO });
        } else if wanted {
            rows.push(run(stage, &workspace));
        }
    }
    Ok(report(&rows))
}

/// What became of a stage; no result if it was skipped by request.
struct Row {
    stage: &'static str,
    result: Option<Outcome>,
    time: Duration,
}

fn run(stage: &Stage, workspace: &Workspace) -> Row {
    println!("\n==== {}", stage.name);
    let begun = Instant::now();
    let mut outcome = begin(stage, workspace).unwrap_or_else(|error| {
        let mut outcome = Outcome::default();
        outcome.fail(error.to_string());
        outcome
    });
    if outcome.passed + outcome.failed == 0 {
        outcome.fail("nothing was checked");
    }
    let time = begun.elapsed();
    let word = if outcome.is_green() { "ok" } else { "FAILED" };
    println!("==== {}: {word} after {:.1} s", stage.name, time.as_secs_f64());
    Row { stage: stage.name, result: Some(outcome), time }
}

/// The stage itself, if there is room on the disk for what it builds.
fn begin(stage: &Stage, workspace: &Workspace) -> Result<Outcome> {
    disk::suffices(disk::free(&workspace.target)?, &workspace.target)?;
    (stage.run)(workspace)
}

/// Prints the table, the failures and the closing line.
fn report(rows: &[Row]) -> Outcome {
    let mut total = Outcome::default();
    println!("\n{:<11} {:<7} {:>7} {:>7} {:>9}", "stage", "result", "passed", "failed", "time");
    for Row { stage, result, time } in rows {
        let seconds = format!("{:.1} s", time.as_secs_f64());
        let Some(outcome) = result else {
            println!("{stage:<11} SKIPPED on request");
            continue;
        };
        let word = if outcome.is_green() { "ok" } else { "FAILED" };
        println!("{stage:<11} {word:<7} {:>7} {:>7} {seconds:>9}", outcome.passed, outcome.failed);
        total.passed += outcome.passed;
        total.failed += outcome.failed;
        total.notes.extend(outcome.notes.iter().map(|note| format!("{stage}: {note}")));
    }
    let time: Duration = rows.iter().map(|row| row.time).sum();
    println!("{:<11} {:>33}", "all", format!("{:.1} s", time.as_secs_f64()));
    let skipped: Vec<_> = rows.iter().filter(|row| row.result.is_none()).map(|row| row.stage).collect();
    if !skipped.is_empty() {
        println!("\nSKIPPED, so this run proves less than it could: {}", skipped.join(", "));
    }
    if !total.notes.is_empty() {
        println!("\nto look at:");
    }
    total.print();
    total
}

fn fmt(_: &Workspace) -> Result<Outcome> {
    Ok(Outcome::of_command("cargo fmt", Cmd::cargo("fmt").args(["--all", "--check"]).run()?))
}

/// With every feature, so that one build serves most stages; `matrix` has the other sets.
fn clippy(_: &Workspace) -> Result<Outcome> {
    provision::building()?;
    let clippy = Cmd::cargo("clippy").args(["--locked", "--workspace", "--all-features", "--all-targets"]);
    Ok(Outcome::of_command("cargo clippy", clippy.args(["--", "-D", "warnings"]).run()?))
}

fn docs(_: &Workspace) -> Result<Outcome> {
    provision::building()?;
    // The program's page and the facade's would have the same name.
    let doc = Cmd::cargo("doc").args([
        "--locked",
        "--workspace",
        "--all-features",
        "--exclude",
        "te-cli",
        "--no-deps",
    ]);
    Ok(Outcome::of_command("cargo doc", doc.env("RUSTDOCFLAGS", "-D warnings").run()?))
}

/// The workspace with every feature against real servers, and the facade and the program as they are by default.
fn tests(workspace: &Workspace) -> Result<Outcome> {
    provision::testing()?;
    // Its interpreter also runs the reference's metadata server, one of the servers the stores are tested against.
    let environment = Environment::prepare(workspace)?;
    let mut outcome = Outcome::default();
    for scope in [&["--workspace", "--all-features"][..], &["-p", "te", "-p", "te-cli"]] {
        let command = if is_installed("cargo-nextest") {
            Cmd::cargo("nextest").args(["run", "--locked", "--no-fail-fast"])
        } else {
            Cmd::cargo("test").args(["--locked", "--all-targets", "--no-fail-fast"])
        };
        let finished = command.args(scope).env("TE_INTEROP_PYTHON", &environment.python).tee()?;
        outcome.add(summary::judge("tests", &finished));
    }
    Ok(outcome)
}

fn doctests(_: &Workspace) -> Result<Outcome> {
    let test =
        Cmd::cargo("test").args(["--locked", "--workspace", "--all-features", "--doc", "--no-fail-fast"]);
    Ok(summary::judge("doc tests", &test.tee()?))
}

#[cfg(test)]
mod unit {
    use super::*;

    fn workspace() -> Workspace {
        Workspace {
            root: Default::default(),
            target: Default::default(),
            members: Default::default(),
            links: Default::default(),
        }
    }

    #[test]
    fn a_stage_that_cannot_run_is_a_failure() {
        let row = run(&Stage { name: "x", run: |_| Err("no tool".into()) }, &workspace());
        let outcome = row.result.unwrap();
        assert_eq!((outcome.passed, outcome.failed), (0, 1));
        assert_eq!(outcome.notes, ["no tool"]);
    }

    #[test]
    fn a_stage_that_checks_nothing_is_a_failure() {
        let row = run(&Stage { name: "x", run: |_| Ok(Outcome::default()) }, &workspace());
        assert_eq!(row.result.unwrap().failed, 1);
    }

    #[test]
    fn the_total_is_the_sum_and_skips_count_for_nothing() {
        let green = run(&Stage { name: "a", run: |_| Ok(Outcome::of_command("a", true)) }, &workspace());
        let red = run(&Stage { name: "b", run: |_| Ok(Outcome::of_command("b", false)) }, &workspace());
        let total = report(&[green, red, Row { stage: "c", result: None, time: Duration::ZERO }]);
        assert_eq!((total.passed, total.failed), (1, 1));
        assert!(!total.is_green());
    }

    #[test]
    fn an_unknown_stage_is_an_error() {
        assert!(command(Args::new(["--only=nothing".to_owned()])).is_err());
        assert!(command(Args::new(["--skip=nothing".to_owned()])).is_err());
    }
}
