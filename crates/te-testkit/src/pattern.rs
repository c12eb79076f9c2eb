//! Bytes that tell where they belong.
//!
//! Byte `i` of a pattern is `(i ^ i>>8 ^ i>>16 ^ seed) & 0xff`: neighbouring bytes, pages and megabytes differ, so a
//! shifted, repeated or swapped piece shows, and the reference interop scripts use the same rule.

use std::fmt;

/// The byte at position `at` of the pattern of `seed`.
#[must_use]
pub const fn byte_at(seed: u8, at: u64) -> u8 {
    let mixed = at ^ (at >> 8) ^ (at >> 16);
    // The mask leaves eight bits, so the cast drops nothing.
    (mixed & 0xff) as u8 ^ seed
}

/// Within 256 bytes only the lowest byte of the position changes; here are all 256 variants of such a block. Tests fill
/// and compare many megabytes, often without optimisation.
static BLOCKS: [[u8; 256]; 256] = {
    let mut blocks = [[0; 256]; 256];
    let mut variant = 0;
    while variant < 256 {
        let mut low = 0;
        while low < 256 {
            blocks[variant][low] = (low ^ variant) as u8;
            low += 1;
        }
        variant += 1;
    }
    blocks
};

/// Fills `bytes` with the pattern of `seed`, beginning at position `from`.
pub fn fill(seed: u8, from: u64, bytes: &mut [u8]) {
    let (mut at, mut rest) = (from, bytes);
    while !rest.is_empty() {
        let block = &BLOCKS[usize::from(byte_at(seed, at & !0xff))];
        let inside = (at & 0xff) as usize;
        let count = rest.len().min(block.len() - inside);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&block[inside..inside + count]);
        rest = later;
        at += count as u64;
    }
}

/// `len` bytes of the pattern of `seed`, beginning at position 0.
#[must_use]
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

/// The first byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} is {found:#04x} instead of {expected:#04x}, {wrong} of {of} bytes differ")]
pub struct Mismatch {
    /// Offset of the first wrong byte.
    pub at: u64,
    /// What it should be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
    /// How many bytes differ.
    pub wrong: u64,
    /// How many bytes were compared.
    pub of: u64,
}

/// Compares two byte strings of one length; the shorter one decides how much is compared.
///
/// # Errors
///
/// The first difference and how many there are.
pub fn compare(found: &[u8], expected: &[u8]) -> Result<(), Mismatch> {
    if found == expected {
        return Ok(());
    }
    let mut first = None;
    let mut wrong = 0;
    let mut of = 0;
    for (at, (found, expected)) in (0_u64..).zip(found.iter().zip(expected)) {
        of = at + 1;
        if found != expected {
            wrong += 1;
            first.get_or_insert((at, *found, *expected));
        }
    }
    match first {
        Some((at, found, expected)) => Err(Mismatch { at, expected, found, wrong, of }),
        None => Ok(()),
    }
}

/// Checks that `bytes` are the pattern of `seed` from position `from` on.
///
/// # Errors
///
/// The first wrong byte; its offset is counted from the start of `bytes`.
pub fn verify(seed: u8, from: u64, bytes: &[u8]) -> Result<(), Mismatch> {
    let mut expected = vec![0; bytes.len()];
    fill(seed, from, &mut expected);
    compare(bytes, &expected)
}

/// How bytes are shown in a message: the first few of them.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 16;
        for byte in self.0.iter().take(MOST) {
            write!(f, "{byte:02x}")?;
        }
        if self.0.len() > MOST { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_follows_the_published_rule() {
        for at in [0_u64, 1, 255, 256, 65_535, 65_536, 1 << 20, (1 << 24) + 77] {
            let rule = ((at ^ (at >> 8) ^ (at >> 16) ^ 0x5a) & 0xff) as u8;
            assert_eq!(byte_at(0x5a, at), rule, "at {at}");
        }
    }

    #[test]
    fn fill_gives_each_byte_its_value_from_any_position() {
        for from in [0_u64, 1, 255, 256, 65_500, 0xff_ff00] {
            let mut bytes = vec![0; 1000];
            fill(9, from, &mut bytes);
            for (at, byte) in (from..).zip(&bytes) {
                assert_eq!(*byte, byte_at(9, at), "at {at}");
            }
        }
    }

    #[test]
    fn filled_bytes_verify() {
        let bytes = pattern(7, 70_000);
        assert_eq!(verify(7, 0, &bytes), Ok(()));
        assert_eq!(verify(7, 65_530, &bytes[65_530..]), Ok(()));
    }

    #[test]
    fn one_wrong_byte_is_located() {
        let mut bytes = pattern(7, 70_000);
        bytes[66_000] ^= 0x10;
        let found = verify(7, 0, &bytes).unwrap_err();
        assert_eq!((found.at, found.wrong, found.of), (66_000, 1, 70_000));
    }

    #[test]
    fn shifted_pages_do_not_verify() {
        let bytes = pattern(7, 3 * 65_536);
        assert!(verify(7, 0, &bytes[256..]).is_err());
        assert!(verify(7, 0, &bytes[65_536..]).is_err());
    }
}
