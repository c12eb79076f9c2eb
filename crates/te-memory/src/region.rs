//! A registration: a range of owned memory that is counted while it is used.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Instant,
};

use parking_lot::Mutex;
use te_segment::{Access, AddressRange, Generation, Location};

use crate::{
    device::DeviceMemory,
    error::{Refusal, ReleaseError, StillHeld},
    gate::{Gate, NotReleasable, Phase},
    hold::{Hold, HoldKind},
    keep::Keep,
    memory::{Base, Memory, SharedFile},
    table::TableShared,
};

/// Where a region is in its life.
///
/// ```text
/// Reserved --commit--> Active --block--> Blocked --(no holds, no keeps) release--> Released
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionState {
    /// Its range is taken; this process can use it, remote requests do not see it.
    Reserved,
    /// Remote requests see it.
    Active,
    /// Nobody gets a new hold; existing ones may still touch the memory.
    Blocked,
    /// The memory has been given back.
    Released,
}

/// How many holds a region has at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldCount {
    /// Holds of this process.
    pub local: u32,
    /// Holds of requests from peers.
    pub remote: u32,
}

pub(crate) struct RegionShared {
    range: AddressRange,
    base: Base,
    access: Access,
    location: Location,
    device: Option<DeviceMemory>,
    generation: Generation,
    pub(crate) gate: Gate,
    /// Taken exactly once, by whoever releases the gate.
    memory: Mutex<Option<Memory>>,
    table: Weak<TableShared>,
}

/// A handle to one registration. Clones are handles to the same one.
///
/// Handles do not keep the registration: dropping all of them leaves it in the table, and after [`Region::release`]
/// the remaining ones are [`RegionState::Released`] and refuse everything. What keeps the memory in place are holds and,
/// for devices, [`Keep`]s.
#[derive(Clone)]
pub struct Region {
    shared: Arc<RegionShared>,
}

/// What a registration consists of besides its memory.
pub(crate) struct Registered {
    pub(crate) range: AddressRange,
    pub(crate) access: Access,
    pub(crate) location: Location,
    pub(crate) generation: Generation,
}

impl Region {
    pub(crate) fn new(memory: Memory, registered: Registered, table: Weak<TableShared>) -> Self {
        let Registered { range, access, location, generation } = registered;
        let shared = RegionShared {
            range,
            base: memory.base(),
            access,
            location,
            device: memory.device().cloned(),
            generation,
            gate: Gate::new(),
            memory: Mutex::new(Some(memory)),
            table,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    pub(crate) fn base(&self) -> Base {
        self.shared.base
    }

    /// The addresses it covers.
    pub fn range(&self) -> AddressRange {
        self.shared.range
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Where its memory lies, as stated at registration; memory of a device lies on its device.
    pub fn location(&self) -> &Location {
        &self.shared.location
    }

    /// The device whose memory it is; none for memory of the host, which alone the CPU may touch.
    pub fn device(&self) -> Option<&DeviceMemory> {
        self.shared.device.as_ref()
    }

    /// Its number, unique in the life of the table: a range that is registered again gets a new one.
    pub fn generation(&self) -> Generation {
        self.shared.generation
    }

    /// The file its memory lies in, if other processes can map it: none after release.
    pub fn shared_file(&self) -> Option<SharedFile> {
        self.shared.memory.lock().as_ref().and_then(Memory::shared_file).cloned()
    }

    /// Where it is in its life.
    pub fn state(&self) -> RegionState {
        match self.gate().phase() {
            Phase::Reserved => RegionState::Reserved,
            Phase::Active => RegionState::Active,
            Phase::Blocked => RegionState::Blocked,
            Phase::Released => RegionState::Released,
        }
    }

    /// Holds `len` bytes at `offset` for use by this process.
    ///
    /// Takes no lock and allocates nothing. Refused with [`Refusal::Withdrawn`] once the region is blocked, and with
    /// [`Refusal::EmptyRange`], [`Refusal::Wraps`] or [`Refusal::OutsideRange`] for a part that does not exist.
    pub fn hold(&self, offset: u64, len: u64) -> Result<Hold, Refusal> {
        Hold::enter(self, HoldKind::Local, offset, len)
    }

    /// Copies bytes at `offset` to `buffer`. If others write them meanwhile, the bytes read are unspecified.
    ///
    /// Refused as [`Region::hold`] is, except that an empty buffer inside the range is fine, and with
    /// [`Refusal::DeviceMemory`] for memory that is not the host's.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Refusal> {
        self.whole()?.read_at(offset, buffer)
    }

    /// Copies `bytes` to `offset`. Refused as [`Region::read_at`] is.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.whole()?.write_at(offset, bytes)
    }

    /// Sets every byte. Refused once the region is blocked, and as [`Region::read_at`] is for memory of a device.
    pub fn fill(&self, byte: u8) -> Result<(), Refusal> {
        self.whole()?.fill(byte)
    }

    fn whole(&self) -> Result<Hold, Refusal> {
        self.hold(0, self.range().len())
    }

    /// Refuses new holds, local and remote, from now on. Idempotent; cannot be undone.
    pub fn block(&self) {
        self.gate().block();
    }

    /// How many holds there are now.
    pub fn holds(&self) -> HoldCount {
        let (local, remote) = self.gate().counts();
        HoldCount { local, remote }
    }

    /// Keeps the memory in place for a device that may touch it at any time, until the [`Keep`] is dropped. None once the
    /// region is released.
    ///
    /// Works while it is reserved, active or blocked, any number of times: a device needs one for each registration. Unlike
    /// a hold it does not delay draining; it delays the release, which comes after devices have been told to stop.
    pub fn keep(&self) -> Option<Keep> {
        Keep::new(self)
    }

    /// Waits until the region is blocked and has no holds; keeps do not count. At the deadline, says what is left.
    ///
    /// Blocks the calling thread; [`Region::on_drained`] is for callers that must not.
    pub fn wait_drained(&self, deadline: Instant) -> Result<(), StillHeld> {
        self.gate().wait_drained(deadline).map_err(|(local, remote)| StillHeld { local, remote })
    }

    /// Calls `callback` once when the region is blocked and has no holds: at once if that is so already, else on the
    /// thread that drops the last hold or blocks. Keeps do not count. It must be short and must not panic. Never called if
    /// a hold leaks.
    pub fn on_drained(&self, callback: impl FnOnce() + Send + 'static) {
        self.gate().on_drained(Box::new(callback));
    }

    /// Ends the registration and gives the memory back. Of all handles, exactly one succeeds.
    ///
    /// The range is free for another registration before the call returns. Fails, and changes nothing, if the region
    /// has not been blocked, is still held or is kept: [`ReleaseError::Kept`] means that a device may still touch the memory.
    pub fn release(&self) -> Result<Memory, ReleaseError> {
        self.gate().try_release().map_err(|error| match error {
            NotReleasable::NotBlocked => ReleaseError::NotBlocked,
            NotReleasable::Held { local, remote } => ReleaseError::StillHeld { local, remote },
            NotReleasable::Kept => ReleaseError::Kept,
            NotReleasable::Released => ReleaseError::Released,
        })?;
        self.take().ok_or(ReleaseError::Released)
    }

    /// Takes range and memory back. For whoever has released the gate.
    pub(crate) fn take(&self) -> Option<Memory> {
        if let Some(table) = self.shared.table.upgrade() {
            table.forget(self);
        }
        self.shared.memory.lock().take()
    }

    /// Blocks the region and frees its memory as soon as nobody holds it and no device has it kept: at once if that is so
    /// already, else on the thread that drops the last hold or [`Keep`].
    ///
    /// For who has no use for the memory and cannot wait. Tells no device to stop. If somebody else releases the region
    /// first, the memory is theirs.
    pub fn abandon(&self) {
        self.block();
        let region = self.clone();
        // The callback keeps the region alive until it runs, and after that keeps do; if one leaks, region and memory leak
        // with it.
        self.on_drained(move || {
            if region.gate().abandon() {
                drop(region.take());
            }
        });
    }
}

impl PartialEq for Region {
    /// Whether both are handles to the same registration.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("range", &self.shared.range)
            .field("access", &self.shared.access)
            .field("location", &self.shared.location)
            .field("generation", &self.shared.generation)
            .field("state", &self.state())
            .field("holds", &self.holds())
            .finish()
    }
}

#[cfg(test)]
mod tests;
