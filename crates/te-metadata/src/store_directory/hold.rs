//! Holding a name in the store: claiming it, keeping it alive, and noticing when it is lost.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use te_segment::{Endpoint, Incarnation, RpcLocation, SegmentDescriptor, SegmentName};

use super::{
    StoreDirectory,
    claim::{self, Claimed, HolderAnswer, Owner},
    publishing::{Abilities, Action, Event, Found, Looked, Publishing, Refusal, Which, looked_after},
};
use crate::{
    directory::Kept,
    error::{DirectoryError, DirectoryOperation, StoreErrorKind},
    key::Key,
    store::{BoxFuture, MetadataStore, PutCondition, PutRequest},
};

/// How often a name is looked at while its silent holder's lease runs out.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Asks the holder of a name whether it is alive.
pub trait HolderProbe: Send + Sync {
    /// Asks at the endpoint and never takes longer than the deadline.
    fn ask<'a>(&'a self, endpoint: &'a Endpoint, deadline: Instant) -> BoxFuture<'a, HolderAnswer>;
}

/// A name as this engine holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) name: SegmentName,
    pub(super) incarnation: Option<Incarnation>,
    /// The place written to `rpc_meta`.
    pub(super) place: Endpoint,
    /// Revisions of what we wrote: the place and the record.
    pub(super) revisions: [u64; 2],
    /// The place was there when last looked at; what is not is written again with the next record.
    pub(super) placed: bool,
    /// Somebody else has the name.
    pub(super) lost: bool,
}

impl<S: MetadataStore> StoreDirectory<S> {
    /// Publishes under a name that is ours, or makes it ours first.
    pub(super) async fn publish_both(
        &self,
        descriptor: &SegmentDescriptor,
        location: &RpcLocation,
        deadline: Instant,
    ) -> Result<(), DirectoryError> {
        let name = descriptor.name();
        // Both are checked before either is sent.
        let record = self.descriptor_text(descriptor)?;
        let place = self.text(location.encode())?;
        let mut holding = self.holding.lock().await;
        if holding.as_ref().is_some_and(|held| held.lost && held.name == *name) {
            return Err(DirectoryError::NameLost { name: name.clone() });
        }
        let same = |held: &&mut Held| held.name == *name && held.incarnation == descriptor.incarnation();
        let mut known = holding.as_mut().filter(same);
        if let Some(held) = &mut known
            && self.update_record(held, location, &record, deadline).await?
        {
            return Ok(());
        }
        let known = known.map(|held| held.revisions);
        let mut held = Held {
            name: name.clone(),
            incarnation: descriptor.incarnation(),
            place: location.endpoint(),
            revisions: known.unwrap_or_default(),
            placed: true,
            lost: false,
        };
        let abilities = Abilities { conditional: self.info.conditional, leases: self.info.leases };
        let (mut machine, mut action) = Publishing::begin(abilities, known);
        loop {
            let event = match action {
                Action::Read => {
                    let (claimed, revisions) = self.claimed(&held, deadline).await?;
                    Event::Read { claimed, revisions }
                }
                Action::Ask(endpoint) => Event::Answered(match &self.probe {
                    Some(probe) => probe.ask(&endpoint, deadline).await,
                    // Without a way to ask nobody can be told from a living holder that stays silent.
                    None => HolderAnswer::Silent,
                }),
                Action::Wait if tokio::time::Instant::now() + LOOK_AGAIN < deadline.into() => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    Event::Waited
                }
                Action::Wait => Event::OutOfTime,
                Action::Look(which) => Event::Found(self.found(&held, which, deadline).await?),
                Action::Put(which, condition) => {
                    let text = match which {
                        Which::Place => place.clone(),
                        Which::Record => record.clone(),
                    };
                    self.put(&held, which, text, condition, deadline).await?
                }
                Action::Delete(which) => {
                    let deleted = self.store.delete(&self.key(which, name), None, deadline).await;
                    deleted.map_err(|error| {
                        DirectoryError::from_store(DirectoryOperation::Publish, name.as_str(), error)
                    })?;
                    Event::Deleted
                }
                Action::Finish(Ok(revisions)) => {
                    held.revisions = revisions;
                    *holding = Some(held);
                    return Ok(());
                }
                Action::Finish(Err(Refusal::Taken { holder })) => {
                    return Err(DirectoryError::NameTaken { name: held.name, holder });
                }
                Action::Finish(Err(Refusal::Lost)) => {
                    if known.is_some() {
                        held.lost = true;
                        *holding = Some(held);
                    }
                    return Err(DirectoryError::NameLost { name: name.clone() });
                }
            };
            action = machine.on(event);
        }
    }

    /// Writes the record alone, if that is all there is to write: the place says the same in every version, and its
    /// lease is renewed by itself. `false` if both have to be looked into.
    async fn update_record(
        &self,
        held: &mut Held,
        location: &RpcLocation,
        record: &str,
        deadline: Instant,
    ) -> Result<bool, DirectoryError> {
        // A store that cannot compare would overwrite whoever has the name by now.
        if !held.placed || !self.info.conditional || held.place != location.endpoint() {
            return Ok(false);
        }
        let revision = &mut held.revisions[Which::Record as usize];
        let key = self.keys.segment(&held.name);
        let request = PutRequest {
            key,
            value: record.to_owned(),
            condition: PutCondition::Revision(*revision),
            lease: self.wish,
        };
        match self.store.put(request, deadline).await {
            Ok(now) => {
                *revision = now;
                Ok(true)
            }
            Err(error) if matches!(error.kind, StoreErrorKind::Conflict { .. }) => Ok(false),
            Err(error) => {
                Err(DirectoryError::from_store(DirectoryOperation::Publish, held.name.as_str(), error))
            }
        }
    }

    /// What the store says about the owner of a name, with the revisions of place and record.
    async fn claimed(
        &self,
        held: &Held,
        deadline: Instant,
    ) -> Result<(Claimed, [Option<u64>; 2]), DirectoryError> {
        let failed =
            |error| DirectoryError::from_store(DirectoryOperation::Publish, held.name.as_str(), error);
        let place = self.store.get(&self.keys.rpc_meta(&held.name), deadline).await.map_err(failed)?;
        let record = self.store.get(&self.keys.segment(&held.name), deadline).await.map_err(failed)?;
        let revisions = [&place, &record].map(|entry| entry.as_ref().map(|entry| entry.revision));
        // An unreadable location leads nowhere, so it is the same as none.
        let location =
            place.and_then(|entry| RpcLocation::decode(entry.value.as_bytes()).ok()).map(|l| l.endpoint());
        let owner = record.map(|entry| {
            let decoded = SegmentDescriptor::decode(entry.value.as_bytes()).ok()?;
            let (incarnation, control) =
                (decoded.descriptor.incarnation(), decoded.descriptor.control().cloned());
            Some(Owner { incarnation, control })
        });
        let claimed = claim::sort(location, owner, held.incarnation, &held.place);
        Ok((claimed, revisions))
    }

    async fn put(
        &self,
        held: &Held,
        which: Which,
        value: String,
        condition: PutCondition,
        deadline: Instant,
    ) -> Result<Event, DirectoryError> {
        let request = PutRequest { key: self.key(which, &held.name), value, condition, lease: self.wish };
        match self.store.put(request, deadline).await {
            Ok(revision) => Ok(Event::Written { revision }),
            Err(error) if matches!(error.kind, StoreErrorKind::Conflict { .. }) => Ok(Event::Conflict),
            Err(error) => {
                Err(DirectoryError::from_store(DirectoryOperation::Publish, held.name.as_str(), error))
            }
        }
    }

    async fn found(
        &self,
        held: &Held,
        which: Which,
        deadline: Instant,
    ) -> Result<Option<Found>, DirectoryError> {
        let entry = self.store.get(&self.key(which, &held.name), deadline).await;
        let entry = entry.map_err(|error| {
            DirectoryError::from_store(DirectoryOperation::Publish, held.name.as_str(), error)
        })?;
        Ok(entry.map(|entry| {
            let bytes = entry.value.as_bytes();
            let ours = match which {
                Which::Place => RpcLocation::decode(bytes).is_ok_and(|found| found.endpoint() == held.place),
                Which::Record => SegmentDescriptor::decode(bytes)
                    .is_ok_and(|found| found.descriptor.incarnation() == held.incarnation),
            };
            Found { revision: entry.revision, ours }
        }))
    }

    fn key(&self, which: Which, name: &SegmentName) -> Key {
        match which {
            Which::Place => self.keys.rpc_meta(name),
            Which::Record => self.keys.segment(name),
        }
    }

    /// Renews the leases of what is published; without leases, looks whether it is still there.
    pub(super) async fn keep_both(&self, deadline: Instant) -> Result<Kept, DirectoryError> {
        let mut holding = self.holding.lock().await;
        let Some(held) = holding.as_mut() else { return Ok(Kept::Kept) };
        if held.lost {
            return Err(DirectoryError::NameLost { name: held.name.clone() });
        }
        for which in [Which::Record, Which::Place] {
            let key = self.key(which, &held.name);
            if let Some(lease) = self.lease {
                let renewed = self.store.renew(&key, held.revisions[which as usize], lease, deadline).await;
                let operation = DirectoryOperation::Publish;
                if renewed
                    .map_err(|error| DirectoryError::from_store(operation, held.name.as_str(), error))?
                {
                    continue;
                }
            }
            let found = self.found(held, which, deadline).await?;
            match looked_after(which, found, self.lease.is_some()) {
                Looked::There => {}
                Looked::Missing => {
                    held.placed = false;
                    return Ok(Kept::Missing);
                }
                Looked::Lost => {
                    held.lost = true;
                    return Err(DirectoryError::NameLost { name: held.name.clone() });
                }
            }
        }
        Ok(Kept::Kept)
    }

    /// Takes out what this engine wrote, and nothing that somebody else wrote since.
    pub(super) async fn withdraw_both(
        &self,
        name: &SegmentName,
        deadline: Instant,
    ) -> Result<(), DirectoryError> {
        let mut holding = self.holding.lock().await;
        let held = holding.take_if(|held| held.name == *name);
        if held.as_ref().is_some_and(|held| held.lost) {
            return Ok(());
        }
        let mut outcome = Ok(());
        for which in [Which::Place, Which::Record] {
            let key = self.key(which, name);
            let revision =
                held.as_ref().filter(|_| self.info.conditional).map(|held| held.revisions[which as usize]);
            // The second is tried even if the first failed: each record left behind misleads somebody.
            match self.store.delete(&key, revision, deadline).await {
                Ok(_) => {}
                Err(error) if matches!(error.kind, StoreErrorKind::Conflict { .. }) => {}
                Err(error) => {
                    outcome =
                        Err(DirectoryError::from_store(DirectoryOperation::Withdraw, name.as_str(), error));
                }
            }
        }
        outcome
    }
}

/// What a directory knows of its own publishing.
pub(super) type Holding = Arc<tokio::sync::Mutex<Option<Held>>>;
