//! Registered memory between two canaries.

use std::time::Instant;

use te_memory::{Hold, Memory, Region, RegionTable, Reservation, Sharing};
use te_segment::{Access, AddressRange, Location};

use crate::pattern;
use crate::report::Violation;

/// Bytes of canary on either side, one page.
pub const CANARY: usize = 4096;

const CANARY_SEED: u8 = 0xc5;
const PIECE: usize = 64 << 10;

/// Registered memory whose neighbouring bytes are watched.
///
/// The bytes before and behind belong to nobody else: what changes there was written out of bounds. The whole lies
/// in one leaked allocation, because ranges that touch cannot be had otherwise; that is fine for a test.
#[derive(Debug)]
pub struct Area {
    region: Region,
    // Regions of tables of their own, so that no transport can know them.
    before: Region,
    after: Region,
}

/// An [`Area`] that is reserved and not served yet.
#[derive(Debug)]
pub struct AreaDraft {
    reservation: Reservation,
    before: Region,
    after: Region,
}

impl AreaDraft {
    /// Reserves `len` zeroed, page-aligned bytes in `table`.
    ///
    /// # Errors
    ///
    /// What the table says.
    pub fn new(table: &RegionTable, len: usize, access: Access) -> Result<Self, Violation> {
        let mut drafts = Self::adjacent(table, &[(len, access)])?;
        drafts.pop().ok_or_else(|| Violation::new("no range was asked for"))
    }

    /// Reserves `len` zeroed bytes that other processes can map, to read only unless `access` permits to write. The pages
    /// around them are not accessible: what is written there kills the test.
    ///
    /// # Errors
    ///
    /// What the table says, or the system, if it has no such memory.
    pub fn shareable(table: &RegionTable, len: usize, access: Access) -> Result<Self, Violation> {
        let sharing = if access.allows_write() { Sharing::ReadWrite } else { Sharing::ReadOnly };
        let memory = Memory::allocate_shareable(len, sharing)?;
        let reserved = table.reserve(memory, access, Location::cpu(0));
        let reservation = reserved.map_err(|rejected| Violation::new(rejected.error.to_string()))?;
        let around = || canary(vec![0; CANARY].leak());
        Ok(Self { reservation, before: around()?, after: around()? })
    }

    /// Reserves several ranges of which each begins where the one before ends; the canaries of neighbours lie
    /// outside all of them.
    ///
    /// # Errors
    ///
    /// What the table says.
    pub fn adjacent(table: &RegionTable, ranges: &[(usize, Access)]) -> Result<Vec<Self>, Violation> {
        let total: usize = ranges.iter().map(|(len, _)| len).sum();
        let bytes: &'static mut [u8] = vec![0; total + 4 * CANARY].leak();
        // The start of the ranges is aligned to a page; the canary before them is at least one page.
        let shift = CANARY - bytes.as_ptr().addr() % CANARY;
        let (_, bytes) = bytes.split_at_mut(shift);
        let (before, mut rest) = bytes.split_at_mut(CANARY);
        let before = canary(before)?;
        let mut reservations = Vec::with_capacity(ranges.len());
        for (len, access) in ranges {
            let (own, behind) = rest.split_at_mut(*len);
            rest = behind;
            let memory = Memory::from_static(own);
            let reserved = table.reserve(memory, *access, Location::cpu(0));
            reservations.push(reserved.map_err(|rejected| Violation::new(rejected.error.to_string()))?);
        }
        let after = canary(rest)?;
        let draft = |reservation| Self { reservation, before: before.clone(), after: after.clone() };
        Ok(reservations.into_iter().map(draft).collect())
    }

    /// The reserved region, for transports to register.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.reservation.region()
    }

    /// From now on remote lookups find it.
    #[must_use]
    pub fn commit(self) -> Area {
        Area { region: self.reservation.commit(), before: self.before, after: self.after }
    }
}

fn canary(bytes: &'static mut [u8]) -> Result<Region, Violation> {
    pattern::fill(CANARY_SEED, 0, bytes);
    let reserved = RegionTable::new(1).reserve(Memory::from_static(bytes), Access::LOCAL, Location::Any);
    Ok(reserved.map_err(|rejected| Violation::new(rejected.error.to_string()))?.commit())
}

impl Area {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Its address range.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.region.range()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range().len()
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The addresses of `len` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// When they do not lie inside.
    pub fn part(&self, offset: u64, len: u64) -> Result<AddressRange, Violation> {
        Ok(self.range().slice(offset, len)?)
    }

    /// Holds `len` bytes at `offset` for local use.
    ///
    /// # Errors
    ///
    /// What the region says.
    pub fn hold(&self, offset: u64, len: u64) -> Result<Hold, Violation> {
        Ok(self.region.hold(offset, len)?)
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    ///
    /// What the region says.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Violation> {
        Ok(self.region.write_at(offset, bytes)?)
    }

    /// Fills all of it with the pattern of `seed`.
    ///
    /// # Errors
    ///
    /// What the region says.
    pub fn paint(&self, seed: u8) -> Result<(), Violation> {
        self.put(0, &pattern(seed, self.bytes()))
    }

    /// A copy of the `len` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// What the region says.
    pub fn copy_out(&self, offset: u64, len: usize) -> Result<Vec<u8>, Violation> {
        let mut bytes = vec![0; len];
        self.region.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    ///
    /// What the region says.
    pub fn snapshot(&self) -> Result<Vec<u8>, Violation> {
        self.copy_out(0, self.bytes())
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.len()).unwrap_or(usize::MAX)
    }

    /// Checks that the bytes at `offset` are `expected`.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn expect_at(&self, offset: u64, expected: &[u8]) -> Result<(), Violation> {
        expect(&self.region, offset, expected)
    }

    /// Checks that all of it is `expected` and that the canaries are intact.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn expect(&self, expected: &[u8]) -> Result<(), Violation> {
        ensure_len(self.bytes(), expected.len())?;
        self.expect_at(0, expected)?;
        self.canaries_intact()
    }

    /// Checks that nobody wrote before or behind it.
    ///
    /// # Errors
    ///
    /// The first changed byte.
    pub fn canaries_intact(&self) -> Result<(), Violation> {
        for (side, region) in [("before", &self.before), ("behind", &self.after)] {
            let len = usize::try_from(region.range().len()).unwrap_or(usize::MAX);
            expect(region, 0, &pattern(CANARY_SEED, len))
                .map_err(|violation| violation.at(format_args!("canary {side} the region")))?;
        }
        Ok(())
    }

    /// Blocks the region and waits until nobody holds it.
    ///
    /// # Errors
    ///
    /// What still holds it at `until`.
    pub fn drain(&self, until: Instant) -> Result<(), Violation> {
        self.region.block();
        Ok(self.region.wait_drained(until)?)
    }
}

fn ensure_len(len: usize, expected: usize) -> Result<(), Violation> {
    if len == expected {
        Ok(())
    } else {
        Err(Violation::new(format!("an area of {len} bytes is compared with {expected} bytes")))
    }
}

/// Checks the bytes of `region` at `offset`.
///
/// # Errors
///
/// The first difference.
pub(crate) fn expect(region: &Region, offset: u64, expected: &[u8]) -> Result<(), Violation> {
    let mut found = vec![0; expected.len().min(PIECE)];
    let mut at = offset;
    for expected in expected.chunks(PIECE) {
        let found = found.get_mut(..expected.len()).unwrap_or_default();
        region.read_at(at, found)?;
        pattern::compare(found, expected).map_err(|mismatch| {
            Violation::from(mismatch).at(format_args!("{} bytes at offset {at}", expected.len()))
        })?;
        at += u64::try_from(expected.len()).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(len: usize) -> Area {
        AreaDraft::new(&RegionTable::new(8), len, Access::REMOTE).unwrap().commit()
    }

    #[test]
    fn area_starts_at_a_page_and_is_zeroed() {
        let area = area(5000);
        assert_eq!(area.range().start() % 4096, 0);
        area.expect(&vec![0; 5000]).unwrap();
    }

    #[test]
    fn adjacent_areas_touch() {
        let table = RegionTable::new(8);
        let ranges = [(4096, Access::REMOTE), (100, Access::LOCAL), (4096, Access::REMOTE_READ)];
        let drafts = AreaDraft::adjacent(&table, &ranges).unwrap();
        let areas: Vec<_> = drafts.into_iter().map(AreaDraft::commit).collect();
        assert_eq!(areas[0].range().end(), areas[1].range().start());
        assert_eq!(areas[1].range().end(), areas[2].range().start());
        assert_eq!(areas[2].region().access(), Access::REMOTE_READ);
    }

    #[test]
    fn changed_byte_is_found() {
        let area = area(200_000);
        area.paint(3).unwrap();
        let mut expected = area.snapshot().unwrap();
        area.expect(&expected).unwrap();
        expected[131_073] ^= 1;
        assert!(area.expect(&expected).unwrap_err().to_string().contains("at offset 131072: byte 1 "));
    }

    #[test]
    fn write_past_the_end_breaks_a_canary() {
        let area = area(1000);
        area.canaries_intact().unwrap();
        area.after.write_at(0, &[0]).unwrap();
        assert!(area.canaries_intact().unwrap_err().to_string().starts_with("canary behind the region"));
    }

    #[test]
    fn write_before_the_start_breaks_a_canary() {
        let area = area(1000);
        let last = area.before.range().len() - 1;
        area.before.write_at(last, &[0]).unwrap();
        assert!(area.canaries_intact().unwrap_err().to_string().starts_with("canary before the region"));
    }

    #[test]
    fn held_area_does_not_drain() {
        let area = area(1000);
        let hold = area.hold(0, 10).unwrap();
        assert!(area.drain(Instant::now()).is_err());
        drop(hold);
        area.drain(Instant::now()).unwrap();
    }
}
