//! Memory that the NICs may touch.
#![allow(unsafe_code, reason = "registering says that memory stays where it is")]

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, RwLock};
use te_memory::Region;
use te_segment::{AddressRange, Generation, Location, MemoryKey};
use te_sys_verbs::{Access, MemoryRegion, VerbsError};

use super::nic::Nic;
use crate::registration::{Chunk, Errno, Keys, Memory, Outcome, Place, Registration, Task, Unwind, Went};

/// From this size on, NICs register a region at the same time: pinning takes longer than starting a thread.
const PARALLEL: u64 = 16 << 20;

/// A region at every NIC that is in use.
pub(crate) struct Registered {
    pub(crate) location: Location,
    /// Its parts, in order.
    pub(crate) chunks: Vec<Chunk>,
    /// Their addresses.
    pub(crate) parts: Vec<AddressRange>,
    /// What is registered, and the order in which it was.
    made: Mutex<(Unwind, HashMap<Place, MemoryRegion>)>,
}

/// Every region that is registered.
#[derive(Default)]
pub(crate) struct Registry {
    known: RwLock<HashMap<Generation, Arc<Registered>>>,
    /// One at a time is made or unmade, so that none is twice.
    changing: Mutex<()>,
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
        let _changing = self.changing.lock();
        if let Some(known) = self.get(region.generation()) {
            return Ok(known);
        }
        // A device that is gone takes nothing, and never comes back: it must not keep the others from it.
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
                    made: Mutex::new((unwind, made)),
                });
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
        let _changing = self.changing.lock();
        let Some(registered) = self.get(region.generation()) else { return Ok(()) };
        registered.revoke()?;
        self.known.write().remove(&region.generation());
        Ok(())
    }

    /// Gives up every key that is left, as at a shutdown.
    pub(crate) fn close(&self) -> Result<(), String> {
        let _changing = self.changing.lock();
        let left: Vec<_> = std::mem::take(&mut *self.known.write()).into_values().collect();
        let causes: Vec<_> = left.iter().filter_map(|registered| registered.revoke().err()).collect();
        if causes.is_empty() { Ok(()) } else { Err(causes.join("; ")) }
    }
}

impl Registered {
    /// Ends every registration, the last one first.
    fn revoke(&self) -> Result<(), String> {
        let (unwind, made) = &mut *self.made.lock();
        let mut causes = Vec::new();
        while let Some(place) = unwind.next().cloned() {
            let outcome = made.remove(&place).map_or(Ok(()), MemoryRegion::deregister);
            // What a device refuses to give up is kept for ever: there is nothing that could be tried again.
            if let Err(error) = &outcome {
                causes.push(error.to_string());
            }
            unwind.done(outcome.map_err(|error| Errno(error.errno)));
        }
        if causes.is_empty() { Ok(()) } else { Err(causes.join("; ")) }
    }

    /// The key here of a part, at a NIC.
    pub(crate) fn key(&self, part: usize, nic: &te_segment::NicName) -> Option<MemoryKey> {
        self.chunks.get(part)?.keys.get(nic).map(|keys| keys.local)
    }

    /// The keys here of the first part, by NIC.
    pub(crate) fn keys(&self) -> BTreeMap<te_segment::NicName, MemoryKey> {
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
    let at = |name: &te_segment::NicName| nics.iter().find(|nic| nic.name() == name);
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
            Ok(made) => {
                let keys = Keys {
                    local: MemoryKey::new(made.lkey().into()),
                    remote: MemoryKey::new(made.rkey().into()),
                };
                (task, Ok(Went::Registered(keys)), Some((place, made)))
            }
            Err(errno) => (task, Err(errno), None),
        }
    };
    places.into_iter().map(one).collect()
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
    // SAFETY: the range is inside the region, whose memory stays in place while the keep lives, which the registration
    // has. Registered memory is never relied on: by the invariant of `te_memory::Memory` everybody reads and writes it by
    // copying alone, and expects others to do so at any moment.
    let made = unsafe { nic.domain().register(start, len, access, Some(Box::new(keep))) };
    made.map_err(|error: VerbsError| {
        tracing::info!(target: "te::rdma", %error, "not registered");
        Errno(error.errno)
    })
}
