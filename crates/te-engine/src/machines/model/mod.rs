//! The machines against each other: exhaustively with few messages and one fault, and in the simulator with many seeds.
//!
//! `TE_SEEDS=100000 cargo test -p te-engine --lib model` runs more seeds, `TE_SEED=17` one.
//! `cargo xtask simulator` runs a hundred thousand.

mod attempts;
mod fence;
mod notify;
mod notify_sim;
mod transfer_sim;
mod withdrawal;
mod withdrawal_sim;

use std::ops::Range;

use te_testkit::{Explored, Finding, Model, Ran, explore};

/// Far more states than any of the models has.
const STATES: usize = 3_000_000;

/// The model holds; what was seen.
fn holds<M: Model>(model: &M) -> Explored {
    match explore(model, STATES) {
        Ok(seen) => seen,
        Err(finding) => panic!("{finding}"),
    }
}

/// The model is flawed, and the explorer says how.
fn fails<M: Model>(model: &M) -> String {
    match explore(model, STATES) {
        Err(Finding::Violation { why, .. }) => why,
        other => panic!("the flaw is not found: {other:?}"),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// The seeds to run: one if `TE_SEED` is set, else `TE_SEEDS` many, else a thousand.
fn seeds() -> Range<u64> {
    match number("TE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TE_SEEDS").unwrap_or(1_000),
    }
}

/// Runs the seeds and adds up what they did. A seed that fails is told with what repeats it.
fn all_seeds(name: &str, run: impl Fn(u64) -> Result<Ran, te_testkit::Mishap>) -> usize {
    let mut delivered = 0;
    for seed in seeds() {
        match run(seed) {
            Ok(ran) => delivered += ran.delivered,
            Err(mishap) => panic!("{mishap}TE_SEED={seed} cargo test -p te-engine --lib {name}"),
        }
    }
    delivered
}

/// The first of the seeds that finds the flaw says how. Without one the flaw is not found.
fn some_seed(run: impl Fn(u64) -> Result<Ran, te_testkit::Mishap>) -> String {
    match (0..2_000).find_map(|seed| run(seed).err()) {
        Some(mishap) => mishap.why,
        None => panic!("no seed finds the flaw"),
    }
}
