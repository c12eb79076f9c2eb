//! The cluster as the page shows it: one line per segment, computed from the records.

use std::{collections::BTreeMap, time::Instant};

use serde::Serialize;
use te_segment::{
    DecodeOptions, Location, SegmentDescriptor, SegmentName, TransportKind,
    wire::{Protocol, RpcLocation},
};

use super::{
    contents::{Contents, Record},
    writer::now_ms,
};

const ROOT: &str = "mooncake/";
const RAM: &str = "ram/";
const RPC_META: &str = "rpc_meta/";
/// Different sizes named per location.
const SIZES: usize = 8;

/// All segments.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// The server's clock, milliseconds since 1970.
    now_ms: u64,
    revision: u64,
    segments: Vec<Segment>,
}

/// One segment.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Segment {
    key: String,
    name: String,
    cluster: Option<String>,
    /// `live`: its lease runs. `unleased`: nobody says whether its owner lives. `unreadable`: no engine can use it.
    state: &'static str,
    /// What is wrong, in words.
    problem: Option<String>,
    owner: Option<String>,
    incarnation: Option<String>,
    protocol: String,
    transports: Vec<String>,
    buffers: usize,
    bytes: u64,
    locations: Vec<Place>,
    record_bytes: usize,
    revision: u64,
    changed_ms: u64,
    lease: Option<LeaseView>,
}

/// The buffers of one location.
#[derive(Debug, Default, Serialize, PartialEq)]
struct Place {
    location: String,
    buffers: usize,
    bytes: u64,
    /// The most frequent sizes with how often they occur.
    sizes: Vec<(u64, usize)>,
}

/// A lease: how long ago it was renewed, and how long it lasts from then on.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct LeaseView {
    age_ms: u64,
    ttl_ms: u64,
}

/// Everything there is to show.
pub(super) fn view(contents: &Contents, now: Instant) -> View {
    let segments = contents
        .range(ROOT, None, now)
        .filter_map(|(key, record)| segment(contents, key, record, now))
        .collect();
    View { now_ms: now_ms(), revision: contents.revision, segments }
}

/// What a page has to be told about changed keys: events with their data.
pub(super) fn touched<'a>(
    contents: &Contents,
    keys: impl Iterator<Item = &'a str>,
    now: Instant,
) -> Vec<(&'static str, serde_json::Value)> {
    // The page has one line for a segment and its RPC location.
    let keys: std::collections::BTreeSet<String> = keys
        .flat_map(|key| match split(key) {
            Some(Split { prefix, name, rpc_meta: true }) => segment_keys(prefix, name),
            Some(_) => vec![key.to_owned()],
            None => Vec::new(),
        })
        .collect();
    keys.into_iter()
        .filter_map(|key| {
            let Some(record) = contents.get(&key, now) else {
                return Some(("gone", serde_json::Value::String(key)));
            };
            let segment = segment(contents, &key, record, now)?;
            Some(("segment", serde_json::to_value(segment).ok()?))
        })
        .collect()
}

/// The leases that were renewed since, by key.
pub(super) fn renewed(contents: &Contents, since: Instant, now: Instant) -> BTreeMap<String, LeaseView> {
    contents
        .range(ROOT, None, now)
        .filter(|(key, record)| {
            record.lease.is_some_and(|lease| lease.renewed >= since)
                && split(key).is_some_and(|s| !s.rpc_meta)
        })
        .filter_map(|(key, record)| Some((key.to_string(), lease(record, now)?)))
        .collect()
}

/// A key, taken apart: `prefix` ends in `/` and has the cluster id, if there is one.
#[derive(Debug, PartialEq)]
struct Split<'a> {
    prefix: &'a str,
    name: &'a str,
    rpc_meta: bool,
}

fn split(key: &str) -> Option<Split<'_>> {
    let rest = key.strip_prefix(ROOT)?;
    for (word, rpc_meta) in [(RPC_META, true), (RAM, false)] {
        let at = match rest.starts_with(word) {
            true => Some(0),
            // After a cluster id. Where a name has such a component itself, the key could be either.
            false => rest.find(&format!("/{word}")).map(|at| at + 1),
        };
        if let Some(at) = at {
            let at = ROOT.len() + at;
            let name = &key[at + word.len()..];
            return (!name.is_empty()).then_some(Split { prefix: &key[..at], name, rpc_meta });
        }
    }
    (!rest.is_empty()).then_some(Split { prefix: ROOT, name: rest, rpc_meta: false })
}

fn segment_keys(prefix: &str, name: &str) -> Vec<String> {
    match name.contains('/') {
        true => vec![format!("{prefix}{name}")],
        false => vec![format!("{prefix}{RAM}{name}")],
    }
}

fn segment(contents: &Contents, key: &str, record: &Record, now: Instant) -> Option<Segment> {
    let Split { prefix, name, rpc_meta } = split(key)?;
    if rpc_meta {
        return None;
    }
    let cluster = prefix.strip_prefix(ROOT).map(|id| id.trim_end_matches('/')).filter(|id| !id.is_empty());
    let mut shown = Segment {
        key: key.to_owned(),
        name: name.to_owned(),
        cluster: cluster.map(str::to_owned),
        state: if record.lease.is_some() { "live" } else { "unleased" },
        problem: None,
        owner: owner(contents, prefix, name, now),
        incarnation: record.holder.map(|bits| format!("{bits:032x}")),
        protocol: String::new(),
        transports: Vec::new(),
        buffers: 0,
        bytes: 0,
        locations: Vec::new(),
        record_bytes: record.value.len(),
        revision: record.revision,
        changed_ms: record.changed_ms,
        lease: lease(record, now),
    };
    let options = DecodeOptions { opened_as: SegmentName::new(name).ok(), ..DecodeOptions::default() };
    match SegmentDescriptor::decode_with(record.value.as_bytes(), &options) {
        Ok(decoded) => {
            describe(&mut shown, &decoded.descriptor);
            if !decoded.rejected.is_empty() {
                shown.problem = Some(format!("{} buffers are unusable", decoded.rejected.len()));
            }
        }
        Err(error) => {
            shown.state = "unreadable";
            shown.problem = Some(error.to_string());
        }
    }
    if shown.owner.is_none() && shown.problem.is_none() {
        shown.problem = Some("its owner's address is not published".to_owned());
    }
    Some(shown)
}

/// The address in the record of the RPC location. A name with a `/` hides where its cluster id ends.
fn owner(contents: &Contents, prefix: &str, name: &str, now: Instant) -> Option<String> {
    let mut places = vec![(prefix.to_owned(), name)];
    if prefix == ROOT {
        places.extend(
            name.match_indices('/').map(|(at, _)| (format!("{prefix}{}", &name[..=at]), &name[at + 1..])),
        );
    }
    let record = places
        .into_iter()
        .filter(|(_, name)| !name.is_empty())
        .find_map(|(prefix, name)| contents.get(&format!("{prefix}{RPC_META}{name}"), now))?;
    RpcLocation::decode(record.value.as_bytes()).ok().map(|location| location.endpoint().to_string())
}

fn words(protocol: &Protocol) -> String {
    match protocol {
        Protocol::One(word) => word.to_string(),
        Protocol::Many(words) => words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        Protocol::Unknown(text) => text.clone(),
    }
}

fn describe(shown: &mut Segment, descriptor: &SegmentDescriptor) {
    shown.protocol = words(descriptor.protocol());
    if let Some(incarnation) = descriptor.incarnation() {
        shown.incarnation = Some(incarnation.to_string());
    }
    if let Some(control) = descriptor.control() {
        shown.owner = Some(control.to_string());
    }
    let mut kinds: Vec<TransportKind> = descriptor.all_data().keys().cloned().collect();
    let mut places: BTreeMap<String, (u64, BTreeMap<u64, usize>)> = BTreeMap::new();
    for buffer in descriptor.buffers() {
        kinds.extend(buffer.via().keys().cloned());
        let place = match buffer.location() {
            Location::Any => "*".to_owned(),
            location => location.to_string(),
        };
        let (bytes, sizes) = places.entry(place).or_default();
        *bytes = bytes.saturating_add(buffer.range().len());
        *sizes.entry(buffer.range().len()).or_default() += 1;
    }
    for file in descriptor.files() {
        let (bytes, sizes) = places.entry("file".to_owned()).or_default();
        *bytes = bytes.saturating_add(file.length);
        *sizes.entry(file.length).or_default() += 1;
    }
    if descriptor.tcp().is_some() {
        kinds.push(TransportKind::TCP);
    }
    if !descriptor.devices().is_empty() {
        kinds.push(TransportKind::RDMA);
    }
    let mut words: Vec<String> = kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
    words.sort();
    words.dedup();
    shown.transports = words;
    shown.locations = places
        .into_iter()
        .map(|(location, (bytes, sizes))| {
            let buffers = sizes.values().sum();
            let mut sizes: Vec<(u64, usize)> = sizes.into_iter().collect();
            sizes.sort_by_key(|(size, count)| (std::cmp::Reverse(*count), std::cmp::Reverse(*size)));
            sizes.truncate(SIZES);
            Place { location, buffers, bytes, sizes }
        })
        .collect();
    shown.buffers = shown.locations.iter().map(|place| place.buffers).sum();
    shown.bytes = shown.locations.iter().fold(0, |bytes, place| bytes.saturating_add(place.bytes));
}

fn lease(record: &Record, now: Instant) -> Option<LeaseView> {
    let lease = record.lease?;
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let age_ms = millis(now.saturating_duration_since(lease.renewed));
    Some(LeaseView { age_ms, ttl_ms: millis(lease.ttl) })
}

#[cfg(test)]
mod tests;
