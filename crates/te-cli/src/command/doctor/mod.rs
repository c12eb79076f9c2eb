//! `te doctor`: what each path needs of this host, whether it is there, and what to do if not.

mod check;
mod devices;
mod gpu;
mod libraries;
mod memory;
mod network;
mod rdma;
mod shared;
mod subject;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use te::features;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::{output, usage};

use check::{Check, Verdict};
use subject::Subject;

/// Which host.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Looks at a copy of another host's files: the folder that has its `sys`, `proc` and `dev`
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(crate) root: PathBuf,
}

pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Result<()> {
    if !args.root.is_dir() {
        return usage(format!("--root {}: not a folder", args.root.display()));
    }
    let subject = Subject::new(&args.root, &context.settings)?;
    let needed = needed(context);
    let mut checks = network::checks(&subject);
    checks.extend(shared::checks(&subject));
    checks.extend(memory::checks(&subject));
    checks.extend(rdma::checks(&subject));
    checks.extend(gpu::checks(&subject));
    checks.extend(devices::checks(&subject));
    checks.extend(not_here(&needed));
    let is_needed = |check: &Check| check.path == "control" || needed.contains(&check.path);
    let lacking: Vec<&Check> =
        checks.iter().filter(|check| check.verdict == Verdict::Missing && is_needed(check)).collect();
    if context.json {
        let all: Vec<Value> = checks
            .iter()
            .map(|check| {
                json!({
                    "path": check.path,
                    "needed": is_needed(check),
                    "what": check.what,
                    "verdict": check.verdict.as_str(),
                    "found": check.found,
                    "means": check.means,
                    "do": check.remedy,
                })
            })
            .collect();
        output::json(&json!({ "ok": lacking.is_empty(), "transports": needed, "checks": all }))?;
    } else {
        output::line(check::report(&checks, &is_needed).trim_end())?;
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = lacking.iter().map(|check| format!("{} {}", check.path, check.what)).collect();
    Err(Failure::Other(format!("what the configured transports need is missing: {}", names.join(", "))))
}

/// The transports that the settings name, or all that are compiled in.
fn needed(context: &Context) -> Vec<String> {
    match context.settings.transports.get() {
        Some(kinds) => kinds.iter().map(ToString::to_string).collect(),
        None => features::all()
            .filter(|feature| feature.kind() == features::FeatureKind::Transport && feature.is_compiled())
            .map(|feature| feature.name().to_owned())
            .collect(),
    }
}

/// Transports that are named and not part of this build.
fn not_here(needed: &[String]) -> Vec<Check> {
    let known: Vec<&features::Feature> =
        features::all().filter(|feature| feature.kind() == features::FeatureKind::Transport).collect();
    let mut checks = Vec::new();
    for name in needed {
        let feature = known.iter().find(|feature| feature.name() == name);
        let found = match feature {
            Some(feature) if feature.is_compiled() => continue,
            Some(feature) => feature.availability().reason,
            None => "no release has it".to_owned(),
        };
        let means = "an engine with these settings does not start";
        let remedy = "leave it out of `transports`, or use a build that has it";
        checks.push(Check::missing(name, "build", found, means, remedy));
    }
    checks
}
