//! Project automation: `cargo xtask COMMAND`.
//!
//! Not part of the product. One file per command, the standard library and a JSON parser, so that a fresh checkout
//! waits seconds for it. `cargo xtask` without a command lists what there is.

#![forbid(unsafe_code)]

mod abi;
mod args;
mod artefacts;
mod bench;
mod demo;
mod deny;
mod guest;
mod interop;
mod lean;
mod loom;
mod matrix;
mod outcome;
mod provision;
mod publish;
mod reliability;
mod shell;
mod simulator;
mod soak;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use args::Args;
use outcome::Outcome;

/// Errors are for people: one text, no variants to match on.
pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--only STAGE,..] [--skip STAGE,..]   everything, in order; the same as .ci/run
  tidy [--bless]                             house rules; --bless records the hashes of the wire sources
  matrix                                     every feature alone, none and all still compile
  lean                                       default features build no C and link nothing
  deny                                       licences, sources, banned and duplicate dependencies
  loom                                       the model-checked tests
  abi                                        our structures are those of vendors' headers; needs the headers
  simulator                                  the simulated networks, with many seeds
  artefacts                                  what the built program needs at run time
  demo                                       run `te demo`
  interop [--te PATH] [--baseline]           against the reference engine, both directions
  bench [--te PATH] [--check] [--rounds N] [--part NAME]
                                             ours beside every yardstick; writes docs/performance.md
  reliability                                the fault matrix; writes docs/reliability.md
  publish --dry-run [--allow-dirty]          package every published crate and build the packages
  guest [OPTION..] -- COMMAND                run a command in an emulated machine; without one, lists the options
  guest-test [SUITE..]                       checks in such a machine, on RoCE, NVMe-oF and CXL
  guest-bench [--check] [--rounds N]         RDMA beside perftest in such a machine; writes docs/performance.md
  soak fuzz [--minutes N]                    every fuzz target for N minutes
  soak demo [--rounds N]                     `te demo` again and again
  soak interop [--rounds N]                  the interop checks again and again
  soak applied [--completions N]             completed means applied, terminal means quiescent, N times and N/10
  soak restart [--cycles N]                  a peer is killed in mid-transfer and comes back, N times
  soak asan                                  the tests of what is unsafe, with every access to memory checked

Stages of test: ";

fn main() -> ExitCode {
    let mut args = Args::new(std::env::args().skip(1));
    let result = match args.positional().as_deref() {
        Some("test") => test::command(args),
        Some("tidy") => tidy::command(args),
        Some("matrix") => single(args, matrix::check),
        Some("lean") => single(args, lean::check),
        Some("deny") => single(args, deny::check),
        Some("loom") => single(args, loom::check),
        Some("simulator") => single(args, simulator::check),
        Some("artefacts") => single(args, artefacts::check),
        Some("demo") => single(args, demo::check),
        Some("abi") => single(args, abi::check),
        Some("guest") => return guest::command(args),
        Some("guest-bench") => guest::bench(args),
        Some("guest-test") => guest::test(args),
        Some("bench") => bench::command(args),
        Some("interop") => interop::command(args),
        Some("reliability") => reliability::command(args),
        Some("publish") => publish::command(args),
        Some("soak") => soak::command(args),
        None | Some("help") => {
            println!("{USAGE}{}", test::stage_names().join(", "));
            println!("Suites of guest-test: {}", guest::suite_names().join(", "));
            return ExitCode::SUCCESS;
        }
        Some(other) => Err(format!("no command `{other}`; `cargo xtask help` lists them").into()),
    };
    match result {
        Ok(outcome) if outcome.is_green() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a check that takes no arguments and prints what it found.
fn single(args: Args, check: fn(&workspace::Workspace) -> Result<Outcome>) -> Result<Outcome> {
    args.finish()?;
    let outcome = check(&workspace::Workspace::load()?)?;
    outcome.print();
    Ok(outcome)
}
