//! Holding a name in the store: claiming it, keeping it alive, and noticing when it is lost.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use te_segment::{Endpoint, Incarnation, RpcLocation, SegmentDescriptor, SegmentName};

use super::{
    StoreDirectory,
    claim::{self, Claimed, Decision, HolderAnswer},
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

/// The two records of a name.
#[derive(Clone, Copy)]
enum Which {
    Place,
    Record,
}

/// A record as it was found.
struct Found {
    revision: u64,
    ours: bool,
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
        let mut conditions = match known {
            Some([place, record]) => [PutCondition::Revision(place), PutCondition::Revision(record)],
            None => self.claim(&held, deadline).await?,
        };
        for (which, text) in [(Which::Place, place), (Which::Record, record)] {
            let at = which as usize;
            match self.write(&held, which, text, conditions[at], deadline).await {
                Ok(revision) => held.revisions[at] = revision,
                Err(error) => {
                    if matches!(error, DirectoryError::NameLost { .. }) && known.is_some() {
                        held.lost = true;
                        *holding = Some(held);
                    }
                    return Err(error);
                }
            }
            conditions[at] = PutCondition::Revision(held.revisions[at]);
        }
        *holding = Some(held);
        Ok(())
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

    /// Makes sure that nobody alive holds the name, and says on which conditions to write.
    async fn claim(&self, held: &Held, deadline: Instant) -> Result<[PutCondition; 2], DirectoryError> {
        let condition = |revision: Option<u64>| match revision {
            _ if !self.info.conditional => PutCondition::Always,
            Some(revision) => PutCondition::Revision(revision),
            None => PutCondition::Absent,
        };
        loop {
            let (claimed, revisions) = self.claimed(held, deadline).await?;
            let mut decision = claim::first(&claimed);
            if let Decision::Ask(endpoint) = &decision {
                // Without a way to ask nobody can be told from a living holder that stays silent.
                let answer = match &self.probe {
                    Some(probe) => probe.ask(endpoint, deadline).await,
                    None => HolderAnswer::Silent,
                };
                decision = claim::answered(
                    &claimed,
                    answer,
                    self.info.leases && matches!(claimed, Claimed::Te { .. }),
                );
            }
            match decision {
                Decision::Take => return Ok(revisions.map(condition)),
                Decision::Wait if tokio::time::Instant::now() + LOOK_AGAIN < deadline.into() => {
                    tokio::time::sleep(LOOK_AGAIN).await
                }
                _ => {
                    let holder = match claimed {
                        Claimed::Te { control, .. } => control,
                        Claimed::Unstated { location } => location,
                        _ => None,
                    };
                    return Err(DirectoryError::NameTaken { name: held.name.clone(), holder });
                }
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
        let descriptor = record.map(|entry| {
            SegmentDescriptor::decode(entry.value.as_bytes()).ok().map(|decoded| decoded.descriptor)
        });
        let claimed = match descriptor {
            None if location.is_none() => Claimed::Nobody,
            None => match location {
                Some(at) if at == held.place => Claimed::Us,
                location => Claimed::Unstated { location },
            },
            Some(None) => Claimed::Unstated { location },
            Some(Some(descriptor)) => match (descriptor.incarnation(), held.incarnation) {
                (Some(found), Some(own)) if found == own => Claimed::Us,
                (Some(incarnation), _) => {
                    Claimed::Te { incarnation, control: descriptor.control().cloned().or(location) }
                }
                (None, None) if location.as_ref() == Some(&held.place) => Claimed::Us,
                (None, _) => Claimed::Unstated { location },
            },
        };
        Ok((claimed, revisions))
    }

    /// Writes one of the records. A condition that does not hold is looked into: what vanished is written anew, what
    /// is ours after all (a write whose answer was lost) is overwritten, anything else means that the name is lost.
    async fn write(
        &self,
        held: &Held,
        which: Which,
        text: String,
        condition: PutCondition,
        deadline: Instant,
    ) -> Result<u64, DirectoryError> {
        let failed =
            |error| DirectoryError::from_store(DirectoryOperation::Publish, held.name.as_str(), error);
        let key = self.key(which, &held.name);
        let mut condition = condition;
        if !self.info.conditional {
            // The store cannot compare, so we do, as close to the write as we can.
            if let PutCondition::Revision(_) = condition
                && let Some(found) = self.found(held, which, &key, deadline).await?
                && !found.ours
            {
                return Err(DirectoryError::NameLost { name: held.name.clone() });
            }
            condition = PutCondition::Always;
        }
        // Each turn needs somebody who changes the key in between; three are more than chance.
        for _ in 0..3 {
            let request = PutRequest { key: key.clone(), value: text.clone(), condition, lease: self.wish };
            match self.store.put(request, deadline).await {
                Ok(revision) => return Ok(revision),
                Err(error) if matches!(error.kind, StoreErrorKind::Conflict { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            condition = match self.found(held, which, &key, deadline).await? {
                None => PutCondition::Absent,
                // A place says the same in every version; some servers refuse to overwrite it even with that.
                Some(found) if found.ours && matches!(which, Which::Place) => return Ok(found.revision),
                Some(found) if found.ours => PutCondition::Revision(found.revision),
                // The holder has been found dead, but the server guards its key from any overwriting.
                Some(_) if condition == PutCondition::Always => {
                    self.store.delete(&key, None, deadline).await.map_err(failed)?;
                    PutCondition::Always
                }
                Some(_) => break,
            };
            if !self.info.conditional {
                condition = PutCondition::Always;
            }
        }
        Err(DirectoryError::NameLost { name: held.name.clone() })
    }

    async fn found(
        &self,
        held: &Held,
        which: Which,
        key: &Key,
        deadline: Instant,
    ) -> Result<Option<Found>, DirectoryError> {
        let entry = self.store.get(key, deadline).await;
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
        for which in [Which::Place, Which::Record] {
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
            match self.found(held, which, &key, deadline).await? {
                // Without leases this is all there is to know; with them, the revision was another one of ours.
                Some(found) if found.ours && self.lease.is_none() => {}
                None => {
                    held.placed = false;
                    return Ok(Kept::Missing);
                }
                Some(found) if found.ours => {
                    held.placed = false;
                    return Ok(Kept::Missing);
                }
                Some(_) => {
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
