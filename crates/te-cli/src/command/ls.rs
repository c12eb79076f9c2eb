//! `te ls`: what a metadata store holds, and which of the engines behind it answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use te::metadata::{ClusterId, Listed, Listing, MetadataUrl, Owner};
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
    let Listing { names, others, .. } =
        runtime.block_on(te::metadata::list(&context.settings, Deadline::after(STORE)))?;
    let listed: Vec<_> = names.into_iter().filter(|one| !args.stale || !one.owner.is_alive()).collect();
    if context.json {
        output::json(&Value::Array(listed.iter().map(as_json).collect()))?;
    } else {
        print(&listed)?;
    }
    if let Some(note) = elsewhere(&others) {
        eprintln!("te: {note}");
    }
    Ok(())
}

/// What is not listed because it belongs to other deployments.
fn elsewhere(others: &BTreeMap<ClusterId, usize>) -> Option<String> {
    let (first, _) = others.first_key_value()?;
    let count: usize = others.values().sum();
    let each: Vec<_> = others.iter().map(|(cluster, count)| format!("{cluster} ({count})")).collect();
    let (names, are) = if count == 1 { ("name", "is") } else { ("names", "are") };
    Some(format!(
        "{count} more {names} {are} in other clusters: {}; --set metadata.cluster={first} lists the first of them",
        each.join(", ")
    ))
}

fn print(listed: &[Listed]) -> Result<()> {
    let mut table = Table::new(&[
        ("SEGMENT", Align::Left),
        ("STATE", Align::Left),
        ("ENDPOINT", Align::Left),
        ("BUFFERS", Align::Right),
        ("MEMORY", Align::Left),
        ("TRANSPORTS", Align::Left),
        ("LEASE", Align::Right),
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
            cell(one.lease.map(left)),
        ]);
    }
    table.print()
}

/// `7 s`: whole seconds that are left, `0 s` for less than one.
fn left(lease: Duration) -> String {
    format!("{} s", lease.as_secs())
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
        "lease_ms": one.lease.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "written": descriptor.and_then(|found| found.timestamp()),
        "unreadable": one.unreadable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_elsewhere_are_counted_by_cluster() {
        let cluster = |id: &str| ClusterId::new(id).unwrap();
        assert_eq!(elsewhere(&BTreeMap::new()), None);
        assert_eq!(
            elsewhere(&BTreeMap::from([(cluster("blue"), 1)])).unwrap(),
            "1 more name is in other clusters: blue (1); --set metadata.cluster=blue lists the first of them"
        );
        let both = BTreeMap::from([(cluster("lab"), 2), (cluster("blue"), 1)]);
        assert!(
            elsewhere(&both).unwrap().starts_with("3 more names are in other clusters: blue (1), lab (2);")
        );
    }
}
