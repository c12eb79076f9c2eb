//! Memory that the NICs may touch.
#![allow(unsafe_code, reason = "registering says that memory stays where it is")]

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, RwLock};
use te_memory::{Region, RegionState};
use te_segment::{AddressRange, Generation, Location, MemoryKey, NicName};
use te_sys_verbs::{Access, MemoryRegion, VerbsError};

use super::nic::Nic;
use crate::registration::{Chunk, Errno, Keys, Memory, Outcome, Place, Registration, Task, Unwind, Went};

/// From this size on, NICs register a region at the same time: pinning takes longer than starting a thread.
const PARALLEL: u64 = 16 << 20;

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
        let working = nics.iter().filter(|nic| !nic.is_broken());
        let names = working.map(|nic| nic.name().clone()).collect();
        let mut registration = Registration::new(region.range(), names, max, Memory::Host);
        let mut made = HashMap::new();
        loop {
            let tasks = registration.tasks();
            if tasks.is_empty() {
                break;
            }
            for (task, outcome, place) in run(tasks, region, nics, &mut made) {
                if let Some((place, region)) = place {
                    made.insert(place, region);
                }
                registration.done(task, outcome);
            }
        }
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
    pub(crate) fn restore(&self, of: Generation, nic: &Nic) -> Restored {
        let Some(mut all) = self.made.try_lock() else { return Restored::Busy };
        let (Some(made), Some(known)) = (all.get_mut(&of), self.get(of)) else { return Restored::Done };
        if !made.lacks(nic.name()) {
            return Restored::Done;
        }
        let (mut chunks, mut regions) = (known.chunks.clone(), Vec::new());
        for (at, chunk) in chunks.iter_mut().enumerate() {
            match register(nic, &made.region, chunk.range) {
                Ok(region) => {
                    chunk.keys.insert(nic.name().clone(), keys(&region));
                    regions.push((Place { nic: nic.name().clone(), chunk: at }, region));
                }
                Err(errno) => {
                    // A device that refuses keeps the memory until it is closed.
                    regions.into_iter().for_each(|(_, region)| drop(region.deregister()));
                    if made.is_withdrawn() {
                        return Restored::Done;
                    }
                    return Restored::Failed(format!("{} cannot be registered: {errno}", chunk.range));
                }
            }
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

type Ran = (Task, Result<Went, Errno>, Option<(Place, MemoryRegion)>);

/// Runs tasks that may run at the same time.
fn run(
    tasks: Vec<Task>,
    region: &Region,
    nics: &[Arc<Nic>],
    made: &mut HashMap<Place, MemoryRegion>,
) -> Vec<Ran> {
    let mut ran = Vec::new();
    let mut by_nic: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for task in tasks {
        match task {
            Task::Register(place, range) => {
                by_nic.entry(place.nic.clone()).or_default().push((place, range));
            }
            Task::Deregister(place) => {
                let outcome = made.remove(&place).map_or(Ok(()), MemoryRegion::deregister);
                let outcome = outcome.map(|()| Went::Done).map_err(|error| Errno(error.errno));
                ran.push((Task::Deregister(place), outcome, None));
            }
            // Host memory is registered by its address alone.
            other => ran.push((other, Err(Errno(libc::EOPNOTSUPP)), None)),
        }
    }
    let at = |name: &NicName| nics.iter().find(|nic| nic.name() == name);
    let work = by_nic.into_iter().filter_map(|(name, places)| Some((at(&name)?, places)));
    if nics.len() > 1 && region.range().len() >= PARALLEL {
        let all: Vec<Vec<Ran>> = thread::scope(|scope| {
            let threads: Vec<_> =
                work.map(|(nic, places)| scope.spawn(move || one_nic(nic, region, places))).collect();
            // A thread that panicked has registered nothing that is known of.
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        ran.extend(all.into_iter().flatten());
    } else {
        ran.extend(work.flat_map(|(nic, places)| one_nic(nic, region, places)));
    }
    ran
}

fn one_nic(nic: &Arc<Nic>, region: &Region, places: Vec<(Place, AddressRange)>) -> Vec<Ran> {
    let one = |(place, range): (Place, AddressRange)| {
        let task = Task::Register(place.clone(), range);
        match register(nic, region, range) {
            Ok(made) => (task, Ok(Went::Registered(keys(&made))), Some((place, made))),
            Err(errno) => (task, Err(errno), None),
        }
    };
    places.into_iter().map(one).collect()
}

fn keys(made: &MemoryRegion) -> Keys {
    Keys { local: MemoryKey::new(made.lkey().into()), remote: MemoryKey::new(made.rkey().into()) }
}

/// Registers a part of a region at a NIC.
fn register(nic: &Nic, region: &Region, range: AddressRange) -> Result<MemoryRegion, Errno> {
    let permits = region.access();
    // The device writes what it reads from peers; what peers may write, it must be permitted to write as well.
    let mut access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    if permits.allows_read() {
        access = access | Access::REMOTE_READ;
    }
    if permits.allows_write() {
        access = access | Access::REMOTE_WRITE;
    }
    let invalid = || Errno(libc::EINVAL);
    let start = usize::try_from(range.start()).map_err(|_| invalid())?;
    let len = usize::try_from(range.len()).map_err(|_| invalid())?;
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start)).ok_or_else(invalid)?;
    let keep = region.keep().ok_or_else(invalid)?;
    let device = nic.device().ok_or(Errno(libc::ENODEV))?;
    // SAFETY: the range is inside the region, whose memory stays in place while the keep lives, which the registration
    // has. Registered memory is never relied on: by the invariant of `te_memory::Memory` everybody reads and writes it by
    // copying alone, and expects others to do so at any moment.
    let made = unsafe { device.domain.register(start, len, access, Some(Box::new(keep))) };
    made.map_err(|error: VerbsError| {
        tracing::info!(target: "te::rdma", %error, "not registered");
        Errno(error.errno)
    })
}
