//! Address ranges.

use std::num::NonZeroU64;

use proptest::prelude::*;
use te_segment::{AddressRange, RangeError};

use crate::support::range;

#[test]
fn null_empty_and_wrapping_ranges_are_distinct_errors() {
    assert_eq!(AddressRange::new(0, 1), Err(RangeError::Null { len: 1 }));
    assert_eq!(AddressRange::new(1, 0), Err(RangeError::Empty { start: 1 }));
    assert_eq!(AddressRange::new(2, u64::MAX - 1), Err(RangeError::Wraps { start: 2, len: u64::MAX - 1 }));
}

#[test]
fn end_is_exact_for_the_largest_range() {
    assert_eq!(range(1, u64::MAX - 1).end(), u64::MAX);
}

#[test]
fn neighbours_do_not_overlap() {
    assert!(!range(10, 5).overlaps(&range(15, 5)));
    assert!(range(10, 6).overlaps(&range(15, 5)));
}

#[test]
fn slice_beyond_the_end_is_refused_even_if_it_wraps() {
    let whole = range(0x1000, 64);
    for (offset, len) in [(0, 65), (64, 1), (1, u64::MAX), (u64::MAX, 2)] {
        assert!(matches!(whole.slice(offset, len), Err(RangeError::Outside { .. })), "{offset}+{len}");
    }
    assert!(matches!(whole.slice(3, 0), Err(RangeError::Empty { .. })));
}

#[test]
fn text_shows_start_and_length() {
    assert_eq!(range(0x7f00, 4096).to_string(), "0x7f00+4096");
}

fn any_range() -> impl Strategy<Value = AddressRange> {
    (1..u64::MAX)
        .prop_flat_map(|start| (Just(start), 1..=u64::MAX - start).prop_map(|(start, len)| range(start, len)))
}

proptest! {
    #[test]
    fn every_accepted_range_is_consistent(start: u64, len: u64) {
        if let Ok(range) = AddressRange::new(start, len) {
            prop_assert_eq!((range.start(), range.len()), (start, len));
            prop_assert_eq!(u128::from(range.end()), u128::from(start) + u128::from(len));
            prop_assert!(range.contains(range.end() - 1) && !range.contains(range.end()));
        }
    }

    /// MR-06: cut at the boundaries of both sides, the parts cover the whole exactly once and cross no boundary.
    #[test]
    fn cutting_at_the_boundaries_of_two_sides_covers_the_range_once(
        start in 1_u64..1 << 40,
        source in prop::collection::vec(1_u64..5000, 1..20),
        target in prop::collection::vec(1_u64..5000, 1..20),
    ) {
        let tiles = |sizes: &[u64]| {
            let mut at = start;
            sizes.iter().map(|len| { let tile = range(at, *len); at = tile.end(); tile }).collect::<Vec<_>>()
        };
        let (source, target) = (tiles(&source), tiles(&target));
        let whole = range(start, source.iter().map(AddressRange::len).sum());
        let covered = range(start, target.iter().map(AddressRange::len).sum());
        let Some(common) = whole.intersection(&covered) else { return Ok(()) };

        let mut rest = Some(common);
        let mut parts = Vec::new();
        while let Some(now) = rest {
            let inside = |tiles: &[AddressRange]| *tiles.iter().find(|t| t.contains(now.start())).unwrap();
            let part = now.intersection(&inside(&source)).and_then(|p| p.intersection(&inside(&target))).unwrap();
            rest = now.split_at(part.len()).ok().map(|(_, tail)| tail);
            parts.push(part);
        }
        prop_assert_eq!(parts[0].start(), common.start());
        prop_assert_eq!(parts.last().unwrap().end(), common.end());
        prop_assert!(parts.windows(2).all(|pair| pair[0].end() == pair[1].start()));
        for part in &parts {
            prop_assert_eq!(source.iter().filter(|tile| tile.overlaps(part)).count(), 1);
            prop_assert_eq!(target.iter().filter(|tile| tile.overlaps(part)).count(), 1);
        }
    }

    #[test]
    fn pieces_cover_the_range_once(start in 1_u64..1 << 60, len in 1_u64..10_000, size in 1_u64..3_000) {
        let whole = range(start, len);
        let pieces: Vec<_> = whole.pieces(NonZeroU64::new(size).unwrap()).collect();
        prop_assert_eq!(pieces.iter().map(AddressRange::len).sum::<u64>(), len);
        prop_assert_eq!(pieces[0].start(), start);
        prop_assert!(pieces.windows(2).all(|pair| pair[0].end() == pair[1].start() && pair[0].len() == size));
        prop_assert!(pieces.iter().all(|piece| piece.len() <= size));
    }

    #[test]
    fn intersection_is_what_overlaps(a in any_range(), b in any_range()) {
        let common = a.intersection(&b);
        prop_assert_eq!(common.is_some(), a.overlaps(&b));
        if let Some(common) = common {
            prop_assert!(a.contains_range(&common) && b.contains_range(&common));
            prop_assert_eq!(a.slice(a.offset_of(&common).unwrap(), common.len()), Ok(common));
        }
    }

    #[test]
    fn slices_lie_inside_at_their_offset(whole in any_range(), offset: u64, len: u64) {
        match whole.slice(offset, len) {
            Ok(part) => {
                prop_assert!(whole.contains_range(&part));
                prop_assert_eq!(whole.offset_of(&part), Some(offset));
            }
            Err(_) => prop_assert!(len == 0 || u128::from(offset) + u128::from(len) > u128::from(whole.len())),
        }
    }
}
