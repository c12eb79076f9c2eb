//! All addresses, divided among regions.

use te_segment::{AddressRange, RangeError};

/// The first address that a descriptor claims; readers take none below.
const FIRST: u64 = 4096;
/// Behind the last one; a range cannot contain the last byte of the address space.
const END: u64 = u64::MAX;

/// One claim for each of `ranges`, which are in address order and do not overlap: together all addresses, each beginning where the one
/// before ends. A range lies in its own claim.
pub(super) fn around(ranges: &[AddressRange]) -> Result<Vec<AddressRange>, RangeError> {
    let mut start = FIRST;
    let ends = ranges.iter().skip(1).map(AddressRange::start).chain([END]);
    ranges
        .iter()
        .zip(ends)
        .map(|(_, end)| {
            let claim = AddressRange::new(start, end.saturating_sub(start));
            start = end;
            claim
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(u64, u64)]) -> Vec<AddressRange> {
        pairs.iter().map(|(start, len)| AddressRange::new(*start, *len).unwrap()).collect()
    }

    fn bounds(pairs: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let claims = around(&ranges(pairs)).unwrap();
        claims.iter().map(|claim| (claim.start(), claim.end())).collect()
    }

    #[test]
    fn one_region_claims_all_addresses() {
        assert_eq!(bounds(&[(0x10_000, 64)]), [(FIRST, END)]);
    }

    #[test]
    fn claims_have_neither_gap_nor_overlap_and_contain_their_regions() {
        // With room between them, and touching.
        let regions = [(0x10_000, 0x1000), (0x20_000, 0x1000), (0x21_000, 0x2000)];
        assert_eq!(bounds(&regions), [(FIRST, 0x20_000), (0x20_000, 0x21_000), (0x21_000, END)]);
        for (claim, region) in around(&ranges(&regions)).unwrap().iter().zip(ranges(&regions)) {
            assert!(claim.contains_range(&region), "{claim} and {region}");
        }
    }

    #[test]
    fn regions_at_the_ends_of_the_address_space_are_claimed() {
        assert_eq!(bounds(&[(FIRST, 1), (END - 1, 1)]), [(FIRST, END - 1), (END - 1, END)]);
    }

    #[test]
    fn nothing_registered_claims_nothing() {
        assert_eq!(bounds(&[]), []);
    }
}
