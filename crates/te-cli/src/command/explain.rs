//! `te explain`: how a request would travel, and why not otherwise.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use te::{Deadline, Location, Op, Policy, Verdict};

use super::standing;
use crate::context::Context;
use crate::failure::Result;
use crate::output::{self, Align, Table};
use crate::size;

/// A request that is not sent.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The segment's name
    pub(crate) segment: String,
    /// Address in the peer's memory, as `te show` prints it
    #[arg(value_parser = size::address)]
    pub(crate) address: u64,
    /// How many bytes
    #[arg(value_parser = size::size)]
    pub(crate) length: u64,
    /// The direction
    #[arg(long, value_enum, default_value_t = OpArg::Read)]
    pub(crate) op: OpArg,
}

/// A direction on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpArg {
    /// Remote to local
    Read,
    /// Local to remote
    Write,
}

impl From<OpArg> for Op {
    fn from(op: OpArg) -> Self {
        match op {
            OpArg::Read => Self::Read,
            OpArg::Write => Self::Write,
        }
    }
}

pub(crate) fn run(context: &Context, args: &ExplainArgs) -> Result<()> {
    let engine = context.client(&args.segment)?;
    let segment = engine.open(&args.segment)?;
    let range = segment.range(args.address, args.length)?;
    let plan = segment.explain(args.op.into(), &range, &Location::Any, &Policy::default())?;
    let (peer, circuits) = (segment.peer(), segment.circuits());
    engine.shutdown(Deadline::after_secs(1));
    let circuit_of = |kind| circuits.iter().find(|circuit| circuit.path.transport() == kind);
    let word = |verdict: Verdict| match verdict {
        Verdict::Chosen => "CHOSEN",
        Verdict::Next => "yes",
        _ => "no",
    };
    if context.json {
        let candidates: Vec<Value> = plan
            .candidates()
            .iter()
            .map(|candidate| {
                let verdict = word(candidate.verdict).to_lowercase();
                json!({
                    "transport": candidate.kind.as_str(),
                    "verdict": verdict,
                    "reason": candidate.reason,
                    "path": circuit_of(&candidate.kind).map(standing::circuit_as_json),
                })
            })
            .collect();
        return output::json(&json!({
            "peer": standing::life_as_json(&peer),
            "chosen": plan.chosen().as_str(),
            "candidates": candidates,
        }));
    }
    output::line(&format!("peer {}", standing::life(&peer)))?;
    let mut table = Table::new(&[
        ("", Align::Right),
        ("TRANSPORT", Align::Left),
        ("CIRCUIT", Align::Left),
        ("REASON", Align::Left),
    ]);
    for candidate in plan.candidates() {
        table.row([
            word(candidate.verdict).to_owned(),
            candidate.kind.to_string(),
            circuit_of(&candidate.kind).map_or_else(|| "-".to_owned(), ToString::to_string),
            candidate.reason.clone(),
        ]);
    }
    table.print()
}
