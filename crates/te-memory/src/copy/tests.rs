//! The fast routine means the same as the bytewise one.

use proptest::prelude::*;

use super::*;

type Copy = unsafe fn(*mut u8, *const u8, usize);

/// Copies inside one buffer with `routine`.
fn copied_within(routine: Copy, mut bytes: Vec<u8>, dst: usize, src: usize, len: usize) -> Vec<u8> {
    assert!(dst.max(src) + len <= bytes.len());
    let base = bytes.as_mut_ptr();
    // SAFETY: both ranges are inside the buffer, which is ours.
    unsafe { routine(base.wrapping_add(dst), base.wrapping_add(src), len) };
    bytes
}

proptest! {
    #[test]
    fn fast_and_bytewise_copy_agree_for_all_alignments_and_overlaps(
        bytes in proptest::collection::vec(any::<u8>(), 1..700),
        dst in any::<prop::sample::Index>(),
        src in any::<prop::sample::Index>(),
        len in any::<prop::sample::Index>(),
    ) {
        let (dst, src) = (dst.index(bytes.len()), src.index(bytes.len()));
        let len = len.index(bytes.len() - dst.max(src) + 1);
        let mut expected = bytes.clone();
        expected.copy_within(src..src + len, dst);
        prop_assert_eq!(&copied_within(copy, bytes.clone(), dst, src, len), &expected);
        prop_assert_eq!(&copied_within(bytewise::copy, bytes, dst, src, len), &expected);
    }

    #[test]
    fn copying_around_the_caches_moves_exactly_the_range(
        len in 0_usize..20_000,
        dst in 0_usize..300,
        src in 0_usize..300,
        seed in any::<u8>(),
    ) {
        let from: Vec<u8> = (0..20_400_usize).map(|i| (i ^ (i >> 7)) as u8 ^ seed).collect();
        let mut to = vec![seed; 20_400];
        let mut expected = to.clone();
        expected[dst..dst + len].copy_from_slice(&from[src..src + len]);
        let (start, source) = (to.as_mut_ptr().wrapping_add(dst), from.as_ptr().wrapping_add(src));
        // SAFETY: both ranges are inside buffers of ours, which are two.
        unsafe { copy_around_caches(start, source, len) };
        prop_assert!(to == expected);
    }

    #[test]
    fn fast_and_bytewise_fill_set_exactly_the_range(
        bytes in proptest::collection::vec(any::<u8>(), 1..300),
        at in any::<prop::sample::Index>(),
        len in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let at = at.index(bytes.len());
        let len = len.index(bytes.len() - at + 1);
        let mut expected = bytes.clone();
        expected[at..at + len].fill(byte);
        for routine in [fill, bytewise::fill] {
            let mut bytes = bytes.clone();
            // SAFETY: the range is inside the buffer, which is ours.
            unsafe { routine(bytes.as_mut_ptr().wrapping_add(at), byte, len) };
            prop_assert_eq!(&bytes, &expected);
        }
    }
}

#[test]
fn copying_no_bytes_touches_no_pointer() {
    // SAFETY: no bytes are accessed.
    unsafe { copy(std::ptr::null_mut(), std::ptr::null(), 0) };
    // SAFETY: no bytes are accessed.
    unsafe { fill(std::ptr::null_mut(), 1, 0) };
}

#[test]
fn one_byte_that_differs_is_found_wherever_it_is() {
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
        let left: Vec<u8> = (0..len).map(|at| at as u8).collect();
        // SAFETY: both are as long as is said, and nobody else has them.
        assert!(unsafe { same(left.as_ptr(), left.clone().as_ptr(), len) });
        for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
            let mut right = left.clone();
            right[at] ^= 0x80;
            // SAFETY: as above.
            assert!(!unsafe { same(left.as_ptr(), right.as_ptr(), len) }, "{at} of {len}");
        }
    }
}
