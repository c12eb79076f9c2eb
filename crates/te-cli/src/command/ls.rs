//! `te ls`: what a metadata store holds, and which of the engines behind it answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use te::metadata::{Listed, MetadataUrl, Owner};
use te::{Deadline, SegmentDescriptor};

use super::transports;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{self, Align, Table};
use crate::usage;

/// Time for the store; engines have their own.
const STORE: Duration = Duration::from_secs(10);
/// What stands where nothing is known.
const NOTHING: &str = "-";

/// What to list.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only records whose engine does not answer
    #[arg(long)]
    stale: bool,
}

pub(crate) fn run(context: &Context, args: &LsArgs) -> Result<()> {
    let url = context.settings.metadata.get();
    if let MetadataUrl::Peer { .. } = url {
        return usage(format!("{url} holds no list: engines ask each other. Name a store with --metadata"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start a runtime", &error))?;
    let listed = runtime.block_on(te::metadata::list(&context.settings, Deadline::after(STORE)))?;
    let listed: Vec<_> = listed.into_iter().filter(|one| !args.stale || !one.owner.is_alive()).collect();
    if context.json {
        return output::json(&Value::Array(listed.iter().map(as_json).collect()));
    }
    print(&listed)
}

fn print(listed: &[Listed]) -> Result<()> {
    let mut table = Table::new(&[
        ("SEGMENT", Align::Left),
        ("STATE", Align::Left),
        ("ENDPOINT", Align::Left),
        ("BUFFERS", Align::Right),
        ("MEMORY", Align::Left),
        ("TRANSPORTS", Align::Left),
        ("WRITTEN", Align::Left),
    ]);
    for one in listed {
        let known = |show: fn(&SegmentDescriptor) -> String| {
            one.descriptor.as_ref().map(show).filter(|text| !text.is_empty())
        };
        let cell = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
        table.row([
            one.name.to_string(),
            state(one).to_owned(),
            cell(one.endpoint.as_ref().map(ToString::to_string)),
            cell(known(|descriptor| descriptor.buffers().len().to_string())),
            cell(known(|descriptor| memory(descriptor).join(", "))),
            cell(known(|descriptor| ways(descriptor).join(" "))),
            cell(known(|descriptor| descriptor.timestamp().unwrap_or_default().to_owned())),
        ]);
    }
    table.print()
}

fn state(one: &Listed) -> &'static str {
    match one.owner {
        Owner::Unknown if one.unreadable.is_some() => "unreadable",
        owner => owner.as_str(),
    }
}

/// `4 GiB cuda:0`, for every location.
fn memory(descriptor: &SegmentDescriptor) -> Vec<String> {
    let mut sizes = BTreeMap::<String, u64>::new();
    for buffer in descriptor.buffers() {
        let size = sizes.entry(buffer.location().to_string()).or_default();
        *size = size.saturating_add(buffer.range().len());
    }
    sizes.into_iter().map(|(location, size)| format!("{} {location}", te_engine::size::bytes(size))).collect()
}

/// The transports that reach any of it: those of the buffers, or those it would have with buffers.
fn ways(descriptor: &SegmentDescriptor) -> Vec<String> {
    let mut ways: BTreeSet<String> =
        descriptor.buffers().iter().flat_map(transports).map(ToOwned::to_owned).collect();
    ways.extend(descriptor.tcp().map(|_| "tcp".to_owned()));
    ways.extend(descriptor.all_data().keys().map(ToString::to_string));
    ways.into_iter().collect()
}

fn as_json(one: &Listed) -> Value {
    let descriptor = one.descriptor.as_ref();
    json!({
        "segment": one.name.as_str(),
        "state": state(one),
        "endpoint": one.endpoint.as_ref().map(ToString::to_string),
        "engine": descriptor.map(|found| if found.incarnation().is_some() { "te" } else { "reference" }),
        "incarnation": descriptor.and_then(|found| found.incarnation()).map(|life| life.to_string()),
        "buffers": descriptor.map(|found| found.buffers().len()),
        "bytes": descriptor.map(|found| {
            found.buffers().iter().fold(0_u64, |sum, buffer| sum.saturating_add(buffer.range().len()))
        }),
        "memory": descriptor.map(memory),
        "transports": descriptor.map(ways),
        "written": descriptor.and_then(|found| found.timestamp()),
        "unreadable": one.unreadable,
    })
}
