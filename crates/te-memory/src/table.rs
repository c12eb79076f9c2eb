//! The table of registered ranges: reservation, and the look-up that every remote request goes through.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::Arc,
};

use parking_lot::RwLock;
use te_segment::{Access, AddressRange, Generation, Location, RangeError};

use crate::{
    device::DeviceMemory,
    error::{Refusal, RegisterError, ReleaseError, ReserveRejected},
    hold::{Hold, HoldKind},
    memory::Memory,
    region::{Region, Registered},
};

/// How many ranges a table accepts by default.
pub const DEFAULT_REGION_LIMIT: usize = 1_000_000;

/// What a peer asks to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteOp {
    /// Read our memory.
    Read,
    /// Write our memory.
    Write,
}

impl RemoteOp {
    const fn permitted_by(self, access: Access) -> bool {
        match self {
            Self::Read => access.allows_read(),
            Self::Write => access.allows_write(),
        }
    }

    const fn hold_kind(self) -> HoldKind {
        match self {
            Self::Read => HoldKind::RemoteRead,
            Self::Write => HoldKind::RemoteWrite,
        }
    }
}

/// The registered ranges of one engine. Clones are the same table.
///
/// No two ranges share a byte: one that crosses, contains, lies inside or equals a registered range is refused, whatever
/// state that one is in. Adjacent ranges are fine; they stay two regions, and a remote request must fit one of them.
#[derive(Clone)]
pub struct RegionTable {
    shared: Arc<TableShared>,
}

pub(crate) struct TableShared {
    limit: usize,
    ranges: RwLock<Ranges>,
}

struct Ranges {
    /// Disjoint, by first address.
    by_start: BTreeMap<u64, Region>,
    /// The generations of these regions.
    generations: HashSet<Generation>,
    /// The generation of the next reservation; none when the numbers are used up.
    next: Option<Generation>,
}

impl Ranges {
    /// The region with the highest start that is not above `address`.
    fn at_or_below(&self, address: u64) -> Option<&Region> {
        self.by_start.range(..=address).next_back().map(|(_, region)| region)
    }

    /// Because ranges are disjoint, if any overlaps, then so does the one with the highest start below our end.
    fn overlapping(&self, range: &AddressRange) -> Option<AddressRange> {
        let (_, last) = self.by_start.range(..range.end()).next_back()?;
        Some(last.range()).filter(|existing| existing.overlaps(range))
    }
}

impl TableShared {
    /// Takes the region out, if it is still in.
    pub(crate) fn forget(&self, region: &Region) {
        let mut ranges = self.ranges.write();
        let start = region.range().start();
        if ranges.by_start.get(&start) == Some(region) {
            ranges.by_start.remove(&start);
            ranges.generations.remove(&region.generation());
        }
    }
}

impl RegionTable {
    /// An empty table that accepts `limit` ranges, reserved ones included.
    pub fn new(limit: usize) -> Self {
        let next = Some(Generation::new(1));
        let ranges = Ranges { by_start: BTreeMap::new(), generations: HashSet::new(), next };
        Self { shared: Arc::new(TableShared { limit, ranges: RwLock::new(ranges) }) }
    }

    /// Takes the range of `memory` for a registration with this access and location.
    ///
    /// Memory of a device lies on its device, whatever location is stated.
    ///
    /// The region can be used by this process at once and is served to peers after [`Reservation::commit`]. Of
    /// concurrent calls with overlapping ranges exactly one succeeds; the others get [`RegisterError::Overlaps`], with
    /// their memory.
    pub fn reserve(
        &self,
        memory: Memory,
        access: Access,
        location: Location,
    ) -> Result<Reservation, ReserveRejected> {
        match self.try_reserve(memory, access, location) {
            Ok(region) => Ok(Reservation { region, pending: true }),
            Err((error, memory)) => Err(ReserveRejected { error, memory }),
        }
    }

    fn try_reserve(
        &self,
        memory: Memory,
        access: Access,
        location: Location,
    ) -> Result<Region, (RegisterError, Memory)> {
        let range = match memory.range() {
            Ok(range) => range,
            Err(error) => return Err((range_error(error, &memory), memory)),
        };
        if !memory.is_mapped() {
            return Err((RegisterError::Unmapped { range }, memory));
        }
        let location = memory.device().map_or(location, DeviceMemory::location);
        let limit = self.shared.limit;
        let mut ranges = self.shared.ranges.write();
        if let Some(existing) = ranges.overlapping(&range) {
            return Err((RegisterError::Overlaps { range, existing }, memory));
        }
        let Some(generation) = ranges.next.filter(|_| ranges.by_start.len() < limit) else {
            return Err((RegisterError::LimitReached { limit }, memory));
        };
        ranges.next = generation.next();
        let registered = Registered { range, access, location, generation };
        let region = Region::new(memory, registered, Arc::downgrade(&self.shared));
        ranges.by_start.insert(range.start(), region.clone());
        ranges.generations.insert(generation);
        Ok(region)
    }

    /// Holds `len` bytes at `addr` on behalf of a peer, if they lie inside one region that is served and permits `op`.
    ///
    /// This and [`remote_of`](Self::remote_of) are the only ways from an address of a peer to memory. Any values are fine;
    /// nothing wraps. Memory of a device is refused with [`Refusal::DeviceMemory`]: devices serve it, and check its keys.
    pub fn remote(&self, addr: u64, len: u64, op: RemoteOp) -> Result<Hold, Refusal> {
        self.enter(addr, len, op, None)
    }

    /// Like [`remote`](Self::remote), for a peer that says which registration of the range it means.
    ///
    /// Refused with [`Refusal::Gone`] if that one has ended, whoever has the range now.
    pub fn remote_of(&self, addr: u64, len: u64, op: RemoteOp, of: Generation) -> Result<Hold, Refusal> {
        self.enter(addr, len, op, Some(of))
    }

    fn enter(&self, addr: u64, len: u64, op: RemoteOp, of: Option<Generation>) -> Result<Hold, Refusal> {
        let range = match AddressRange::new(addr, len) {
            Ok(range) => range,
            Err(RangeError::Empty { .. }) => return Err(Refusal::EmptyRange),
            Err(RangeError::Wraps { .. }) => return Err(Refusal::Wraps),
            Err(_) => return Err(Refusal::OutsideAnyRegion),
        };
        let region = {
            let ranges = self.shared.ranges.read();
            let region = ranges
                .at_or_below(addr)
                .filter(|region| region.range().contains(addr) && region.gate().was_active())
                .ok_or_else(|| match of {
                    Some(of) if !ranges.generations.contains(&of) => Refusal::Gone,
                    _ => Refusal::OutsideAnyRegion,
                })?;
            if of.is_some_and(|of| of != region.generation()) {
                return Err(Refusal::Gone);
            }
            if !region.range().contains_range(&range) {
                let adjacent = ranges.by_start.get(&region.range().end());
                return Err(match adjacent {
                    Some(next) if next.gate().was_active() => Refusal::CrossesRegions,
                    _ => Refusal::OutsideAnyRegion,
                });
            }
            region.clone()
        };
        if !op.permitted_by(region.access()) {
            return Err(Refusal::PermissionDenied);
        }
        if region.device().is_some() {
            return Err(Refusal::DeviceMemory);
        }
        Hold::enter_range(region, op.hold_kind(), range)
    }

    /// The region that contains all of `range`, whatever its access and state, for use by this process.
    pub fn find(&self, range: &AddressRange) -> Option<Region> {
        let ranges = self.shared.ranges.read();
        ranges.at_or_below(range.start()).filter(|region| region.range().contains_range(range)).cloned()
    }

    /// The regions that have been committed and not released, in the order of addresses.
    ///
    /// Blocked ones are among them; the caller asks each for its state.
    pub fn regions(&self) -> Vec<Region> {
        let ranges = self.shared.ranges.read();
        ranges.by_start.values().filter(|region| region.gate().was_active()).cloned().collect()
    }

    /// The number of ranges taken, reserved ones included.
    pub fn len(&self) -> usize {
        self.shared.ranges.read().by_start.len()
    }

    /// Whether no range is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many ranges it accepts.
    pub fn limit(&self) -> usize {
        self.shared.limit
    }
}

fn range_error(error: RangeError, memory: &Memory) -> RegisterError {
    let (address, len) = (memory.address(), memory.len() as u64);
    match error {
        RangeError::Null { len } => RegisterError::Null { len },
        RangeError::Empty { start } => RegisterError::Empty { address: start },
        _ => RegisterError::Wraps { address, len },
    }
}

impl Default for RegionTable {
    /// An empty table with [`DEFAULT_REGION_LIMIT`].
    fn default() -> Self {
        Self::new(DEFAULT_REGION_LIMIT)
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable")
            .field("limit", &self.shared.limit)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A range that is taken but not yet served: the time in which transports register it.
///
/// Dropping it gives the range up and frees the memory, as soon as nobody holds or keeps it. Leaking it keeps both for
/// ever.
#[derive(Debug)]
#[must_use = "dropping a reservation gives the range up and frees the memory"]
pub struct Reservation {
    region: Region,
    /// Whether dropping it must give the range up.
    pending: bool,
}

impl Reservation {
    /// The region, usable by this process.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Serves the region to peers from now on.
    pub fn commit(mut self) -> Region {
        self.region.gate().activate();
        self.pending = false;
        self.region.clone()
    }

    /// Gives the range up and returns the memory.
    ///
    /// Fails with [`ReleaseError::StillHeld`] if somebody still holds a part, and with [`ReleaseError::Kept`] if a device may
    /// still touch the memory; then the region stays blocked, and range and memory are freed when the last hold and the
    /// last keep are dropped.
    pub fn abort(mut self) -> Result<Memory, ReleaseError> {
        self.region.block();
        let memory = self.region.release()?;
        self.pending = false;
        Ok(memory)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.pending {
            self.region.abandon();
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
