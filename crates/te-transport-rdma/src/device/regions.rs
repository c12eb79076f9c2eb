//! Memory that the NICs may touch.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use te_memory::{Region, RegionState};
use te_segment::{AddressRange, Generation, Location, MemoryKey, NicName};
use te_sys_verbs::MemoryRegion;

use super::nic::Nic;
use super::registering::Registering;
use crate::registration::{Chunk, Errno, Outcome, Place, Unwind};

/// A region at every NIC that is in use. A NIC whose device has failed keeps the keys that it had until it is back: it is not
/// used meanwhile, and peers find out as with any NIC that is down.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) location: Location,
    /// Its parts, in order.
    pub(crate) chunks: Vec<Chunk>,
    /// Their addresses.
    pub(crate) parts: Vec<AddressRange>,
}

/// What is registered of a region, and the order in which it was.
struct Made {
    region: Region,
    unwind: Unwind,
    regions: HashMap<Place, MemoryRegion>,
}

/// Every region that is registered.
#[derive(Default)]
pub(crate) struct Registry {
    known: RwLock<HashMap<Generation, Arc<Registered>>>,
    /// Locked while one is made or unmade, so that none is twice.
    made: Mutex<HashMap<Generation, Made>>,
}

/// What came of registering a region at a NIC that is back.
pub(crate) enum Restored {
    /// It is registered, or was withdrawn.
    Done,
    /// Something else is being registered.
    Busy,
    /// It cannot be. Why.
    Failed(String),
}

/// Whether a NIC that is back is in use.
pub(crate) enum Joined {
    /// It is: whatever is registered from now on is registered at it too.
    Complete,
    /// Something else is being registered.
    Busy,
    /// These are not registered at it yet.
    Lacks(Vec<Generation>),
}

/// A region was not registered.
#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// No NIC is to touch such memory.
    NotMine(String),
    Failed {
        cause: String,
        retryable: bool,
    },
}

impl Registry {
    pub(crate) fn get(&self, of: Generation) -> Option<Arc<Registered>> {
        self.known.read().get(&of).cloned()
    }

    /// Registers a region at every NIC whose device works, in parts of at most `max` bytes, or nowhere.
    pub(crate) fn register(
        &self,
        region: &Region,
        nics: &[Arc<Nic>],
        max: NonZeroU64,
    ) -> Result<Arc<Registered>, NotRegistered> {
        let mut all = self.made.lock();
        if let Some(known) = self.get(region.generation()) {
            return Ok(known);
        }
        // A device that is gone takes nothing, and must not keep the others from it. It gets what it lacks when it is back.
        let working = nics.iter().filter(|nic| !nic.is_broken()).cloned().collect();
        let Registering { registration, made, .. } = Registering::run(region, working, max);
        let unwind = registration.unwind();
        match registration.outcome() {
            Some(Outcome::Registered(chunks)) => {
                let registered = Arc::new(Registered {
                    location: region.location().clone(),
                    parts: chunks.iter().map(|chunk| chunk.range).collect(),
                    chunks,
                });
                all.insert(region.generation(), Made { region: region.clone(), unwind, regions: made });
                self.known.write().insert(region.generation(), registered.clone());
                Ok(registered)
            }
            Some(Outcome::Stage(reasons)) => Err(NotRegistered::NotMine(reasons.join("; "))),
            Some(Outcome::Failed { cause, retryable, left }) => {
                let left = left.failed().len();
                let cause = match left {
                    0 => cause,
                    _ => format!("{cause}; {left} registrations could not be undone, and keep the memory"),
                };
                Err(NotRegistered::Failed { cause, retryable })
            }
            None => {
                Err(NotRegistered::Failed { cause: "registering did not end".to_owned(), retryable: false })
            }
        }
    }

    /// Gives the keys of a region up. Repeatable: what could not be given up is tried again.
    pub(crate) fn unregister(&self, region: &Region) -> Result<(), String> {
        let mut all = self.made.lock();
        let Some(made) = all.get_mut(&region.generation()) else { return Ok(()) };
        made.revoke()?;
        all.remove(&region.generation());
        self.known.write().remove(&region.generation());
        Ok(())
    }

    /// Closes the device of a NIC that has failed, and gives up what is registered at it. False while somebody still has the
    /// device, or something is being registered. Its queue pairs are gone.
    pub(crate) fn leave(&self, nic: &Nic) -> bool {
        let Some(mut all) = self.made.try_lock() else { return false };
        // Under the lock, so that who unregisters a region finds it given up.
        nic.close_device(|| all.values_mut().flat_map(|made| made.take(nic.name())).collect())
    }

    /// Registers a region at a NIC that is back, all of its parts or none.
    pub(crate) fn restore(&self, of: Generation, nic: &Arc<Nic>) -> Restored {
        let Some(mut all) = self.made.try_lock() else { return Restored::Busy };
        let (Some(made), Some(known)) = (all.get_mut(&of), self.get(of)) else { return Restored::Done };
        if !made.lacks(nic.name()) {
            return Restored::Done;
        }
        // Cut as the others have it.
        let Some(part) = known.chunks.first().and_then(|first| NonZeroU64::new(first.range.len())) else {
            return Restored::Done;
        };
        let Registering { registration, made: regions, .. } =
            Registering::run(&made.region, vec![nic.clone()], part);
        let fresh = match registration.outcome() {
            Some(Outcome::Registered(fresh)) => fresh,
            // A device that refuses keeps the memory until it is closed.
            _ if made.is_withdrawn() => return Restored::Done,
            Some(Outcome::Failed { cause, .. }) => return Restored::Failed(cause),
            Some(Outcome::Stage(reasons)) => return Restored::Failed(reasons.join("; ")),
            None => return Restored::Failed("registering did not end".to_owned()),
        };
        let mut chunks = known.chunks.clone();
        for (chunk, fresh) in chunks.iter_mut().zip(fresh) {
            chunk.keys.extend(fresh.keys);
        }
        for (place, region) in regions {
            made.unwind.push(place.clone());
            made.regions.insert(place, region);
        }
        self.known.write().insert(of, Arc::new(Registered { chunks, ..Registered::clone(&known) }));
        Restored::Done
    }

    /// Puts a NIC that is back to use if every region is registered at it.
    pub(crate) fn join(&self, nic: &Nic) -> Joined {
        let Some(all) = self.made.try_lock() else { return Joined::Busy };
        let lacks = all.iter().filter(|(_, made)| made.lacks(nic.name()));
        let lacks: Vec<_> = lacks.map(|(of, _)| *of).collect();
        if lacks.is_empty() {
            nic.set_working();
            Joined::Complete
        } else {
            Joined::Lacks(lacks)
        }
    }

    /// Gives up every key that is left, as at a shutdown.
    pub(crate) fn close(&self) -> Result<(), String> {
        let mut all = self.made.lock();
        self.known.write().clear();
        let causes: Vec<_> = all.drain().filter_map(|(_, mut made)| made.revoke().err()).collect();
        if causes.is_empty() { Ok(()) } else { Err(causes.join("; ")) }
    }
}

impl Made {
    /// Whether it is to be registered at a NIC, and is not.
    fn lacks(&self, nic: &NicName) -> bool {
        !self.is_withdrawn() && !self.regions.contains_key(&Place { nic: nic.clone(), chunk: 0 })
    }

    fn is_withdrawn(&self) -> bool {
        !matches!(self.region.state(), RegionState::Reserved | RegionState::Active)
    }

    /// Takes what is registered at a NIC.
    fn take(&mut self, nic: &NicName) -> Vec<MemoryRegion> {
        self.unwind.leave_out(nic);
        self.regions.extract_if(|place, _| place.nic == *nic).map(|(_, region)| region).collect()
    }

    /// Ends every registration, the last one first.
    fn revoke(&mut self) -> Result<(), String> {
        let mut causes = Vec::new();
        while let Some(place) = self.unwind.next().cloned() {
            let outcome = self.regions.remove(&place).map_or(Ok(()), MemoryRegion::deregister);
            // What a device refuses to give up is kept for ever, or until the device is closed: there is nothing that could be
            // tried again.
            if let Err(error) = &outcome {
                causes.push(error.to_string());
            }
            self.unwind.done(outcome.map_err(|error| Errno(error.errno)));
        }
        if causes.is_empty() { Ok(()) } else { Err(causes.join("; ")) }
    }
}

impl Registered {
    /// The key here of a part, at a NIC.
    pub(crate) fn key(&self, part: usize, nic: &NicName) -> Option<MemoryKey> {
        self.chunks.get(part)?.keys.get(nic).map(|keys| keys.local)
    }

    /// The keys here of the first part, by NIC.
    pub(crate) fn keys(&self) -> BTreeMap<NicName, MemoryKey> {
        let first = self.chunks.first();
        let keys = first.into_iter().flat_map(|chunk| &chunk.keys);
        keys.map(|(nic, keys)| (nic.clone(), keys.local)).collect()
    }
}
