//! Registering one region at NICs, as [`Registration`] says.
#![allow(unsafe_code, reason = "registering says that memory stays where it is")]

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use te_memory::{DmaBuf, Region};
use te_segment::{AddressRange, Location, MemoryKey, NicName};
use te_sys_verbs::{Access, MemoryRegion, VerbsError};

use super::nic::Nic;
use crate::registration::{Errno, Keys, Memory, Outcome, Place, Registration, Task, Went};

/// From this size on, NICs register a region at the same time: pinning takes longer than starting a thread.
const PARALLEL: u64 = 16 << 20;

/// A region on its way, and what was made of it so far.
pub(super) struct Registering<'a> {
    region: &'a Region,
    nics: Vec<Arc<Nic>>,
    pub(super) registration: Registration,
    pub(super) made: HashMap<Place, MemoryRegion>,
    /// Open until the last import.
    export: Option<DmaBuf>,
}

/// A part at a NIC, and where it begins in the region if it is imported.
type Part = (Place, AddressRange, Option<u64>);
type Made = (Task, Result<MemoryRegion, Errno>);

impl<'a> Registering<'a> {
    /// Registers a region at all of these NICs, in parts of at most `max` bytes, or undoes what was done.
    pub(super) fn run(region: &'a Region, nics: Vec<Arc<Nic>>, max: NonZeroU64) -> Self {
        let names = nics.iter().map(|nic| nic.name().clone()).collect();
        let memory = if is_on_device(region) { Memory::Device } else { Memory::Host };
        let registration = Registration::new(region.range(), names, max, memory);
        let mut new = Self { region, nics, registration, made: HashMap::new(), export: None };
        let mut imports = 0;
        loop {
            let tasks = new.registration.tasks();
            if tasks.is_empty() {
                break;
            }
            imports += tasks.iter().filter(|task| matches!(task, Task::Import(..))).count();
            new.carry_out(tasks);
        }
        if memory == Memory::Device {
            new.report(imports);
        }
        new
    }

    /// Carries out tasks that may run at the same time.
    fn carry_out(&mut self, tasks: Vec<Task>) {
        let mut by_nic: BTreeMap<NicName, Vec<Part>> = BTreeMap::new();
        for task in tasks {
            match task {
                Task::Register(place, range) => {
                    by_nic.entry(place.nic.clone()).or_default().push((place, range, None));
                }
                Task::Import(place, range, offset) => {
                    by_nic.entry(place.nic.clone()).or_default().push((place, range, Some(offset)));
                }
                Task::Deregister(place) => {
                    let outcome = self.made.remove(&place).map_or(Ok(()), MemoryRegion::deregister);
                    let outcome = outcome.map(|()| Went::Done).map_err(|error| Errno(error.errno));
                    self.registration.done(Task::Deregister(place), outcome);
                }
                Task::Export => match export(self.region) {
                    Ok(exported) => {
                        self.export = Some(exported);
                        self.registration.done(Task::Export, Ok(Went::Done));
                    }
                    Err(cause) => self.registration.not_exported(&cause),
                },
                Task::CloseExport => {
                    self.export = None;
                    self.registration.done(Task::CloseExport, Ok(Went::Done));
                }
            }
        }
        for (task, outcome) in self.make(by_nic) {
            let outcome = outcome.map(|made| {
                let keys = Keys {
                    local: MemoryKey::new(made.lkey().into()),
                    remote: MemoryKey::new(made.rkey().into()),
                };
                if let Task::Register(place, _) | Task::Import(place, ..) = &task {
                    self.made.insert(place.clone(), made);
                }
                Went::Registered(keys)
            });
            self.registration.done(task, outcome);
        }
    }

    fn make(&self, by_nic: BTreeMap<NicName, Vec<Part>>) -> Vec<Made> {
        let at = |name: &NicName| self.nics.iter().find(|nic| nic.name() == name);
        let work = by_nic.into_iter().filter_map(|(name, parts)| Some((at(&name)?, parts)));
        if self.nics.len() < 2 || self.region.range().len() < PARALLEL {
            return work.flat_map(|(nic, parts)| self.at_nic(nic, parts)).collect();
        }
        thread::scope(|scope| {
            let threads: Vec<_> =
                work.map(|(nic, parts)| scope.spawn(move || self.at_nic(nic, parts))).collect();
            // A thread that panicked has registered nothing that is known of.
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        })
    }

    fn at_nic(&self, nic: &Nic, parts: Vec<Part>) -> Vec<Made> {
        let one = |(place, range, offset): Part| {
            let made = register(nic, self.region, range, offset.zip(self.export.as_ref()));
            let task = match offset {
                Some(offset) => Task::Import(place, range, offset),
                None => Task::Register(place, range),
            };
            (task, made)
        };
        parts.into_iter().map(one).collect()
    }

    /// Says how NICs reach memory of a device, or why they do not.
    fn report(&self, imports: usize) {
        let (range, location) = (self.region.range(), self.region.location());
        let tried = self.registration.reasons().collect::<Vec<_>>().join("; ");
        if let Some(Outcome::Registered(parts)) = self.registration.outcome() {
            let all: usize = parts.iter().map(|part| part.keys.len()).sum();
            let by_address = all.saturating_sub(imports);
            tracing::info!(target: "te::rdma", %range, %location, by_address, by_dma_buf = imports, tried, "device memory registered");
        } else {
            tracing::info!(target: "te::rdma", %range, %location, tried, "device memory not registered");
        }
    }
}

/// Whether a region is memory of a device, or said to be.
fn is_on_device(region: &Region) -> bool {
    region.device().is_some() || matches!(region.location(), Location::Device { .. })
}

/// Exports a region as one dma-buf.
fn export(region: &Region) -> Result<DmaBuf, String> {
    let exporter = region.device().and_then(|device| device.exporter());
    let exporter = exporter.ok_or_else(|| "nobody who can export it was named with it".to_owned())?;
    let exported = exporter.export(region.range())?;
    let due = region.range().len();
    // A registration beyond it would reach memory of somebody else.
    if exported.len < due || exported.offset.checked_add(due).is_none() {
        let (len, offset) = (exported.len, exported.offset);
        return Err(format!("the export has {len} bytes from {offset} on, for a range of {due}"));
    }
    Ok(exported)
}

/// Registers a part of a region at a NIC: by its address, or from the export by where it begins in the region.
fn register(
    nic: &Nic,
    region: &Region,
    range: AddressRange,
    import: Option<(u64, &DmaBuf)>,
) -> Result<MemoryRegion, Errno> {
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
    let keep = Box::new(region.keep().ok_or_else(invalid)?);
    let device = nic.device().ok_or(Errno(libc::ENODEV))?;
    let made = match import {
        // SAFETY: the range is inside the region, whose memory stays in place while the keep lives, which the registration
        // has. Registered memory is never relied on: by the invariant of `te_memory::Memory` everybody reads and writes it by
        // copying alone, and expects others to do so at any moment; that of devices is not used by the CPU at all.
        None => unsafe { device.domain.register(start, len, access, Some(keep)) },
        Some((offset, exported)) => {
            let offset = exported.offset.checked_add(offset).ok_or_else(invalid)?;
            let fd = exported.fd.as_fd();
            // SAFETY: as above. What was exported for the region is its memory, by the contract of `Memory::from_device`, and
            // is as long as the region at least; the part lies inside of that.
            unsafe { device.domain.register_dmabuf(fd, offset, len, range.start(), access, Some(keep)) }
        }
    };
    made.map_err(|error: VerbsError| {
        tracing::info!(target: "te::rdma", %error, "not registered");
        Errno(error.errno)
    })
}
