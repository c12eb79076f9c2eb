//! The `te` program: what an operator, a test or a curious person does with engines, on the public API alone.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod child;
mod command;
mod context;
mod demo;
mod failure;
mod latency;
mod output;
mod pattern;
mod size;

use std::process::ExitCode;

use clap::Parser;
use te_memory::CountingAllocator;

use args::{Cli, Command};
use context::Context;
use failure::{Failure, Result};

/// A benchmark reports what both sides allocate.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.global.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(json);
            failure.code()
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let context = Context::load(&cli.global)?;
    match cli.command {
        Command::Demo(args) => demo::run(&context, &args),
        Command::DemoInitiator(args) => demo::initiator::run(&context, &args),
        Command::Serve(args) => command::serve::run(&context, &args),
        Command::Cp(args) => command::cp::run(&context, &args),
        Command::Ls(args) => command::ls::run(&context, &args),
        Command::Metad(args) => command::metad::run(&context, &args),
        Command::Show(args) => command::show::run(&context, &args),
        Command::Probe(args) => command::probe::run(&context, &args),
        Command::Notify(args) => command::notify::run(&context, &args),
        Command::Explain(args) => command::explain::run(&context, &args),
        Command::Features => command::features::run(&context),
        Command::Doctor(args) => command::doctor::run(&context, &args),
        Command::Topology(args) => command::topology::run(&context, &args),
        Command::Config(args) => command::config::run(&context, &args),
        Command::Bench(args) => bench::run(&context, &args),
        Command::Check(args) => command::check::run(&context, &args),
    }
}

/// A command that was asked to be too clever.
fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::Usage(message.into()))
}
