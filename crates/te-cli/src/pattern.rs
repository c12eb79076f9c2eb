//! Bytes that tell where they belong: byte `i` is `(i ^ i>>8 ^ i>>16 ^ seed) & 0xff`, as in the interop scripts.

use te::{Buffer, Result};

use crate::size::index;

/// How much is made and compared at once.
const CHUNK: u64 = 1 << 20;
/// Bytes whose index differs in the lowest eight bits only.
const RUN: u64 = 256;

/// Fills `bytes` with the pattern of `seed` from index `from`.
pub(crate) fn fill(seed: u8, from: u64, bytes: &mut [u8]) {
    let mut at = from;
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = index(RUN - at % RUN).min(rest.len());
        let (now, later) = rest.split_at_mut(run);
        // Eight bits are kept, so the casts drop nothing that counts.
        let upper = ((at >> 8) ^ (at >> 16)) as u8 ^ seed;
        let first = (at % RUN) as u8;
        for (step, byte) in (0_u8..=255).zip(now) {
            *byte = first.wrapping_add(step) ^ upper;
        }
        at += run as u64;
        rest = later;
    }
}

/// A byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Its offset in the buffer.
    pub(crate) at: u64,
    /// What it should be.
    pub(crate) expected: u8,
    /// What it is.
    pub(crate) found: u8,
}

/// Fills `len` bytes of a buffer from `offset` with the pattern.
pub(crate) fn write_to(buffer: &Buffer, seed: u8, offset: u64, len: u64) -> Result<()> {
    let mut chunk = vec![0; index(CHUNK.min(len))];
    let mut done = 0;
    while done < len {
        let now = index(CHUNK.min(len - done));
        fill(seed, offset + done, &mut chunk[..now]);
        buffer.write_at(offset + done, &chunk[..now])?;
        done += now as u64;
    }
    Ok(())
}

/// Compares `len` bytes of a buffer from `offset` with the pattern.
pub(crate) fn verify(buffer: &Buffer, seed: u8, offset: u64, len: u64) -> Result<Option<Mismatch>> {
    let mut expected = vec![0; index(CHUNK.min(len))];
    let mut found = expected.clone();
    let mut done = 0;
    while done < len {
        let now = index(CHUNK.min(len - done));
        fill(seed, offset + done, &mut expected[..now]);
        buffer.read_at(offset + done, &mut found[..now])?;
        if let Some(at) = (0..now).find(|at| expected[*at] != found[*at]) {
            let mismatch =
                Mismatch { at: offset + done + at as u64, expected: expected[at], found: found[at] };
            return Ok(Some(mismatch));
        }
        done += now as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_follows_the_rule() {
        for from in [0, 1, 255, 65_533, (1 << 24) - 3] {
            let mut bytes = vec![0; 1000];
            fill(7, from, &mut bytes);
            for (at, byte) in (from..).zip(bytes) {
                assert_eq!(u64::from(byte), (at ^ (at >> 8) ^ (at >> 16) ^ 7) & 0xff, "at {at}");
            }
        }
    }
}
