//! A small Linux guest in an emulator, with RoCE rails, NVMe-oF, CXL or persistent memory that this machine lacks.
//!
//! The host's file system is the guest's, read-only with an overlay in memory: programs that were built here run there as
//! they are. Everything is emulated and 10 to 100 times slower: it shows that things work, never how fast.

mod bench;
mod boot;
mod host;
mod initrd;
mod options;
mod suites;

use std::process::ExitCode;
use std::time::Instant;

use crate::Result;
use crate::args::Args;
use crate::workspace::Workspace;
use boot::Ended;
use options::Options;

pub(crate) use bench::command as bench;
pub(crate) use suites::{check, command as test, endure};

/// `guest [OPTION..] -- COMMAND`: its status is the command's.
pub(crate) fn command(mut args: Args) -> ExitCode {
    let run = || -> Result<u8> {
        let Some(words) = args.trailing() else {
            println!("cargo xtask guest [OPTION..] -- COMMAND [ARGUMENT..]\n\n{}", options::HELP);
            return Err("no command after `--`".into());
        };
        let options = Options::parse(&mut args)?;
        args.finish()?;
        Ok(start(&Workspace::load()?, &options, &suites::words(&words))?.status)
    };
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(125)
        }
    }
}

/// Fetches and builds what is missing, and runs a script in a guest.
fn start(workspace: &Workspace, options: &Options, script: &str) -> Result<Ended> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        return Err("guests are Linux on x86_64, as this machine is not".into());
    }
    let cache = workspace.target.join("guest");
    std::fs::create_dir_all(&cache)?;
    host::programs(&cache)?;
    let kernel = host::kernel(&cache, &options.suite)?;
    let initrd = initrd::make(&cache, &kernel, &options.modules)?;
    let begun = Instant::now();
    let ended = boot::run(&cache, &kernel, &initrd, options, script)?;
    eprintln!("the guest ended with status {} after {:.1} s", ended.status, begun.elapsed().as_secs_f64());
    Ok(ended)
}

/// The names of the suites of `guest-test`.
pub(crate) fn suite_names() -> Vec<&'static str> {
    suites::names()
}
