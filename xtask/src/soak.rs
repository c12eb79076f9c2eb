//! Named campaigns that run for as long as they are told: too long for every change, meant for a night.

use std::time::{Duration, Instant};

use crate::Result;
use crate::args::Args;
use crate::demo;
use crate::guest;
use crate::interop;
use crate::outcome::Outcome;
use crate::shell::{Cmd, is_installed};
use crate::workspace::Workspace;

pub(crate) fn command(mut args: Args) -> Result<Outcome> {
    let campaign = args
        .positional()
        .ok_or("soak needs a campaign: fuzz, demo, interop, restart, rails, applied or asan")?;
    let begun = Instant::now();
    let outcome = match campaign.as_str() {
        "fuzz" => {
            let minutes = args.number("--minutes", 1)?;
            args.finish()?;
            fuzz(&Workspace::load()?, minutes)?
        }
        "demo" => {
            let rounds = args.number("--rounds", 10)?;
            args.finish()?;
            let workspace = Workspace::load()?;
            repeat(rounds, || demo::check(&workspace))?
        }
        "interop" => {
            let rounds = args.number("--rounds", 10)?;
            args.finish()?;
            let workspace = Workspace::load()?;
            repeat(rounds, || interop::check(&workspace))?
        }
        "restart" => {
            let cycles = args.number("--cycles", 200)?;
            args.finish()?;
            let mut outcome = Outcome::default();
            for (package, test) in [("te-cli", "restart"), ("te-tests", "reregister")] {
                let success = Cmd::cargo("test")
                    .args(["--locked", "--release", "-p", package, "--test", test, "--", "--nocapture"])
                    .env("TE_RESTART_CYCLES", cycles.to_string())
                    .run()?;
                outcome.add(Outcome::of_command(test, success));
            }
            outcome
        }
        "rails" => {
            let cycles = args.number("--cycles", 50)?;
            args.finish()?;
            guest::endure(&Workspace::load()?, cycles)?
        }
        "applied" => {
            let completions = args.number("--completions", 1_000_000)?;
            args.finish()?;
            let success = Cmd::cargo("test")
                .args(["--locked", "--release", "-p", "te-tests", "--test", "applied", "--", "--nocapture"])
                .env("TE_COMPLETIONS", completions.to_string())
                .env("TE_CANCELLATIONS", (completions / 10).to_string())
                .run()?;
            Outcome::of_command("completions", success)
        }
        "asan" => {
            args.finish()?;
            asan(&Workspace::load()?)?
        }
        other => {
            let campaigns = "fuzz, demo, interop, restart, rails, applied and asan";
            return Err(format!("no campaign `{other}`; there are {campaigns}").into());
        }
    };
    println!("{campaign} took {} s", begun.elapsed().as_secs());
    outcome.print();
    Ok(outcome)
}

/// The crates whose code the address sanitizer has something to say about, and whole engines over them.
const UNSAFE: [&str; 6] =
    ["te-memory", "te-transport-shm", "te-transport-tcp", "te-transport-local", "te-sys-verbs", "te-tests"];

/// The tests of these crates with every access to memory checked. The sanitizer comes with the toolchain; that a stable one
/// may use it is said by the variable.
fn asan(workspace: &Workspace) -> Result<Outcome> {
    let host = Cmd::new("rustc").arg("-vV").read()?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc does not say which host it is for")?;
    let mut command = Cmd::cargo("test")
        .args(["--locked", "--lib", "--tests", "--target", host, "--target-dir"])
        .arg(workspace.target.join("asan"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // What a program leaks on purpose is proven elsewhere.
        .env("ASAN_OPTIONS", "detect_leaks=0");
    for name in UNSAFE {
        command = command.args(["-p", name]);
    }
    Ok(Outcome::of_command("address sanitizer", command.run()?))
}

fn repeat(rounds: u64, mut round: impl FnMut() -> Result<Outcome>) -> Result<Outcome> {
    let mut total = Outcome::default();
    for n in 1..=rounds {
        println!("round {n} of {rounds}");
        total.add(round()?);
    }
    Ok(total)
}

/// Every fuzz target for the given time. Needs a nightly toolchain and cargo-fuzz, and says so where they lack.
fn fuzz(workspace: &Workspace, minutes: u64) -> Result<Outcome> {
    if !is_installed("rustup") || !Cmd::new("rustup").args(["run", "nightly", "rustc", "-V"]).quiet()?.success
    {
        return Err(
            "fuzzing needs a nightly toolchain, and there is none: rustup toolchain install nightly".into()
        );
    }
    let cargo_fuzz = || Cmd::new("rustup").args(["run", "nightly", "cargo", "fuzz"]).dir(&workspace.root);
    if !cargo_fuzz().arg("--version").quiet()?.success {
        return Err("fuzzing needs cargo-fuzz: cargo install --locked --version 0.13.2 cargo-fuzz".into());
    }
    let list = cargo_fuzz().arg("list").read()?;
    let mut outcome = Outcome::default();
    for target in list.split_whitespace() {
        let seconds = Duration::from_secs(minutes * 60);
        let success = cargo_fuzz()
            .args(["run", target, "--", &format!("-max_total_time={}", seconds.as_secs())])
            .deadline(seconds + Duration::from_secs(30 * 60))
            .run()?;
        outcome.add(Outcome::of_command(&format!("fuzz target {target}"), success));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_counted() {
        let total = repeat(3, || Ok(Outcome::of_command("round", true))).unwrap();
        assert_eq!((total.passed, total.failed), (3, 0));
    }

    #[test]
    fn an_unknown_campaign_is_an_error() {
        assert!(command(Args::new(["sleep".to_owned()])).is_err());
    }
}
