//! What a store holds, and which of the engines behind it answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use te_engine::{ControlProbe, Deadline, Error, ErrorKind, Result};
use te_metadata::{HolderAnswer, HolderProbe, Key, KeySubject, Keys, MetadataStore};
use te_rpc::{RpcClient, RpcLimits};
use te_segment::wire::RpcLocation;
use te_segment::{DecodeOptions, Endpoint, SegmentDescriptor, SegmentName};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::open::{open, refused};
use crate::settings::Settings;

/// Engines asked at the same time.
const PROBES: usize = 256;
const OPERATION: &str = "list the metadata store";

/// Whether the owner of a record answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// It does.
    Alive,
    /// Another life answers at its endpoint: the record is an earlier engine's.
    Replaced,
    /// Nobody listens at its endpoint.
    Refused,
    /// Its endpoint gives no answer: stopped, or cut off.
    Silent,
    /// The record leads to no endpoint.
    Unknown,
}

impl Owner {
    /// Whether the record belongs to an engine that answers.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self == Self::Alive
    }

    /// One lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Unknown => "unknown",
        }
    }
}

/// One name in a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// The name.
    pub name: SegmentName,
    /// Its descriptor; `None` if there is none, or none that can be read.
    pub descriptor: Option<SegmentDescriptor>,
    /// Why the descriptor cannot be read, if there is one.
    pub unreadable: Option<String>,
    /// Where its engine is asked.
    pub endpoint: Option<Endpoint>,
    /// Whether the engine answers there.
    pub owner: Owner,
}

/// Lists every name of the deployment in the store that the settings name, ordered by name, and asks each engine
/// whether it is alive, all of them at once. An engine that says nothing for `control.connect` is silent.
///
/// Without a cluster id, records of deployments that have one are listed under names that begin with it; they cannot be
/// told from names with a `/`. Needs a tokio runtime with I/O and time enabled.
///
/// # Errors
///
/// [`ErrorKind::Config`] if the settings name no store, or one that is not compiled in;
/// [`ErrorKind::MetadataUnavailable`] if it does not answer by the deadline, or cannot list, as the reference's HTTP
/// servers.
pub async fn list(settings: &Settings, deadline: Deadline) -> Result<Vec<Listed>> {
    let store = open(settings.clone(), None, deadline.instant()).await?;
    let keys = Keys::new(settings.metadata_cluster.get().clone());
    let mut listed = read(store.as_ref(), &keys, deadline).await?;
    ask(&mut listed, settings).await;
    Ok(listed)
}

async fn read(store: &dyn MetadataStore, keys: &Keys, deadline: Deadline) -> Result<Vec<Listed>> {
    let found = store.list(&keys.prefix(), deadline.instant()).await;
    let found = found.map_err(|error| match error.kind {
        // What the store cannot do is no mistake in the settings.
        te_metadata::StoreErrorKind::Invalid { .. } => {
            Error::new(ErrorKind::MetadataUnavailable, OPERATION, error.to_string()).with_source(error)
        }
        _ => refused(OPERATION, error),
    })?;
    let mut all = BTreeMap::new();
    for (key, entry) in found {
        note(&mut all, keys, &key, &entry.value);
    }
    Ok(all.into_values().collect())
}

/// Adds what a key says to what is known of its name.
fn note(all: &mut BTreeMap<SegmentName, Listed>, keys: &Keys, key: &Key, value: &str) {
    let (name, place) = match keys.subject(key.as_str()) {
        Some(KeySubject::Segment(name)) => (name, false),
        Some(KeySubject::RpcMeta(name)) => (name, true),
        _ => return,
    };
    // The place of an engine of another deployment looks like a segment here.
    if !place && name.as_str().contains("/rpc_meta/") && RpcLocation::decode(value.as_bytes()).is_ok() {
        return;
    }
    let listed = all.entry(name.clone()).or_insert_with(|| Listed {
        name: name.clone(),
        descriptor: None,
        unreadable: None,
        endpoint: None,
        owner: Owner::Unknown,
    });
    if place {
        // The descriptor of a te engine says it as well, and more exactly.
        if listed.endpoint.is_none() {
            listed.endpoint = RpcLocation::decode(value.as_bytes()).ok().map(|found| found.endpoint());
        }
        return;
    }
    let options = DecodeOptions { opened_as: Some(name), ..DecodeOptions::default() };
    match SegmentDescriptor::decode_with(value.as_bytes(), &options) {
        Ok(decoded) => {
            if let Some(control) = decoded.descriptor.control() {
                listed.endpoint = Some(control.clone());
            }
            listed.descriptor = Some(decoded.descriptor);
        }
        Err(error) => listed.unreadable = Some(error.to_string()),
    }
}

/// Asks all engines.
async fn ask(all: &mut [Listed], settings: &Settings) {
    let patience = *settings.control_connect.get();
    let limits = RpcLimits { connect: patience, request: patience, ..RpcLimits::default() };
    let probe = Arc::new(ControlProbe::new(RpcClient::new(limits)));
    let permits = Arc::new(Semaphore::new(PROBES));
    let mut probes = JoinSet::new();
    for (at, listed) in all.iter().enumerate() {
        let Some(endpoint) = listed.endpoint.clone() else { continue };
        let life = listed.descriptor.as_ref().and_then(SegmentDescriptor::incarnation);
        let (probe, permits) = (Arc::clone(&probe), Arc::clone(&permits));
        probes.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            let answer = probe.ask(&endpoint, Deadline::after(patience).instant()).await;
            let owner = match answer {
                HolderAnswer::Alive { incarnation } => match (life, incarnation) {
                    (Some(life), Some(other)) if life != other => Owner::Replaced,
                    (None, Some(_)) => Owner::Replaced,
                    _ => Owner::Alive,
                },
                HolderAnswer::Refused => Owner::Refused,
                _ => Owner::Silent,
            };
            (at, owner)
        });
    }
    while let Some(asked) = probes.join_next().await {
        if let Ok((at, owner)) = asked
            && let Some(listed) = all.get_mut(at)
        {
            listed.owner = owner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(keys: &Keys, records: &[(&str, &str)]) -> Vec<Listed> {
        let mut all = BTreeMap::new();
        for (key, value) in records {
            note(&mut all, keys, &Key::new(*key), value);
        }
        all.into_values().collect()
    }

    const PLACE: &str = r#"{"ip_or_host_name":"10.0.0.7","rpc_port":15001}"#;

    #[test]
    fn a_record_and_its_place_are_one_line() {
        let record = r#"{"name":"node","protocol":"tcp","tcp_data_port":1,"devices":[],"buffers":[]}"#;
        let all =
            noted(&Keys::default(), &[("mooncake/ram/node", record), ("mooncake/rpc_meta/node", PLACE)]);
        let [listed] = all.as_slice() else { panic!("{all:?}") };
        assert!(listed.descriptor.is_some(), "{:?}", listed.unreadable);
        assert_eq!(listed.endpoint.as_ref().map(ToString::to_string).as_deref(), Some("10.0.0.7:15001"));
    }

    #[test]
    fn what_cannot_be_read_is_listed_with_the_reason() {
        let all = noted(&Keys::default(), &[("mooncake/ram/node", "{")]);
        let [listed] = all.as_slice() else { panic!("{all:?}") };
        assert!(listed.descriptor.is_none() && listed.unreadable.is_some());
    }

    #[test]
    fn places_of_another_deployment_are_no_segments() {
        assert!(noted(&Keys::default(), &[("mooncake/lab/rpc_meta/node", PLACE)]).is_empty());
        let unrelated = [("other", "x"), ("mooncake/x", "x")];
        assert!(noted(&Keys::default(), &unrelated).is_empty());
    }
}
