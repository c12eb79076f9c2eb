//! What a store holds, and which of the engines behind it answer.

mod clusters;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use te_engine::{ControlProbe, Deadline, Error, ErrorKind, Result};
use te_metadata::{ClusterId, HolderAnswer, HolderProbe, KeySubject, Keys, LeasedEntry, MetadataStore};
use te_rpc::{RpcClient, RpcLimits};
use te_segment::wire::RpcLocation;
use te_segment::{DecodeOptions, DescriptorError, Endpoint, SegmentDescriptor, SegmentName};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::clusters::{Places, Subject};
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
    /// The name vanishes after this time unless its engine renews it. `None` if nothing ends it.
    pub lease: Option<Duration>,
}

/// What a store holds, as far as one deployment is concerned.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The names of the deployment, ordered.
    pub names: Vec<Listed>,
    /// How many names there are of other deployments that share the store, as far as their keys lie below those of this
    /// one: all of them if this one has no cluster id.
    pub others: BTreeMap<ClusterId, usize>,
}

/// Lists every name of the deployment in the store that the settings name, ordered by name, and asks each engine
/// whether it is alive, all of them at once. An engine that says nothing for `control.connect` is silent.
///
/// Names of deployments with another cluster id are counted and not listed. A key with a `/` alone does not tell
/// whether it begins with a cluster id; the place of its engine does, and where there is none the name in the record.
/// Needs a tokio runtime with I/O and time enabled.
///
/// # Errors
///
/// [`ErrorKind::Config`] if the settings name no store, or one that is not compiled in;
/// [`ErrorKind::MetadataUnavailable`] if it does not answer by the deadline, or cannot list, as the reference's HTTP
/// servers.
pub async fn list(settings: &Settings, deadline: Deadline) -> Result<Listing> {
    let store = open(settings.clone(), None, deadline.instant()).await?;
    let keys = Keys::new(settings.metadata_cluster.get().clone());
    let mut listing = read(store.as_ref(), &keys, deadline).await?;
    ask(&mut listing.names, settings).await;
    Ok(listing)
}

async fn read(store: &dyn MetadataStore, keys: &Keys, deadline: Deadline) -> Result<Listing> {
    let found = store.list_with_leases(&keys.prefix(), deadline.instant()).await;
    let found = found.map_err(|error| match error.kind {
        // What the store cannot do is no mistake in the settings.
        te_metadata::StoreErrorKind::Invalid { .. } => {
            Error::new(ErrorKind::MetadataUnavailable, OPERATION, error.to_string()).with_source(error)
        }
        _ => refused(OPERATION, error),
    })?;
    Ok(sort_out(keys, &found))
}

/// Tells the names of the deployment from those of others, and puts together what belongs to one name.
fn sort_out(keys: &Keys, found: &[LeasedEntry]) -> Listing {
    let places = Places::of(keys, found);
    let mut own = BTreeMap::new();
    let mut others: BTreeMap<ClusterId, BTreeSet<&str>> = BTreeMap::new();
    for one in found {
        match places.subject(keys, one) {
            Some(Subject::Own(subject)) => note(&mut own, subject, one),
            Some(Subject::Other { cluster, name }) => {
                others.entry(cluster).or_default().insert(name);
            }
            None => {}
        }
    }
    let others = others.into_iter().map(|(cluster, names)| (cluster, names.len())).collect();
    Listing { names: own.into_values().collect(), others }
}

/// Adds what a key says to what is known of its name.
fn note(all: &mut BTreeMap<SegmentName, Listed>, subject: KeySubject, found: &LeasedEntry) {
    let (name, place) = match subject {
        KeySubject::Segment(name) => (name, false),
        KeySubject::RpcMeta(name) => (name, true),
        _ => return,
    };
    let value = &found.entry.value;
    let listed = all.entry(name.clone()).or_insert_with(|| Listed {
        name: name.clone(),
        descriptor: None,
        unreadable: None,
        endpoint: None,
        owner: Owner::Unknown,
        lease: None,
    });
    // The name is gone when one of its records is.
    listed.lease = [listed.lease, found.remaining].into_iter().flatten().min();
    if place {
        // The descriptor of a te engine says it as well, and more exactly.
        if listed.endpoint.is_none() {
            listed.endpoint = RpcLocation::decode(value.as_bytes()).ok().map(|found| found.endpoint());
        }
        return;
    }
    match decode(name, value) {
        Ok(descriptor) => {
            if let Some(control) = descriptor.control() {
                listed.endpoint = Some(control.clone());
            }
            listed.descriptor = Some(descriptor);
        }
        Err(error) => listed.unreadable = Some(error.to_string()),
    }
}

fn decode(name: SegmentName, value: &str) -> std::result::Result<SegmentDescriptor, DescriptorError> {
    let options = DecodeOptions { opened_as: Some(name), ..DecodeOptions::default() };
    SegmentDescriptor::decode_with(value.as_bytes(), &options).map(|decoded| decoded.descriptor)
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
mod tests;
