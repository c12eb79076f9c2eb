//! A digest of payload bytes, which tells a peer that memory holds what was sent.

use te_memory::Hold;
use xxhash_rust::xxh3::Xxh3Default;

/// Read at a time: small enough for a stack and the nearest cache.
const CHUNK: usize = 16 << 10;

/// The digest of `len` bytes that `read` gives piece by piece, from an offset on. `None` when it cannot.
///
/// The memory may change meanwhile. Then the digest is of no state it ever had, and will be seen not to fit.
pub(crate) fn of(len: u64, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<u64> {
    let mut state = Xxh3Default::new();
    let mut chunk = [0; CHUNK];
    let mut at = 0;
    while at < len {
        let size = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
        if !read(at, &mut chunk[..size]) {
            return None;
        }
        state.update(&chunk[..size]);
        at += size as u64;
    }
    Some(state.digest())
}

/// The digest of all bytes of a hold.
pub(crate) fn of_hold(hold: &Hold) -> Option<u64> {
    of(hold.len(), |at, bytes| hold.read_at(at, bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the specification of XXH3 has it, so that other implementations agree.
    #[test]
    fn digest_is_that_of_the_whole_whatever_the_pieces() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        let read = |at: u64, part: &mut [u8]| {
            part.copy_from_slice(&bytes[at as usize..][..part.len()]);
            true
        };
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 100_000] {
            assert_eq!(of(len as u64, read), Some(xxhash_rust::xxh3::xxh3_64(&bytes[..len])));
        }
        assert_eq!(of(0, read), Some(0x2d06_8005_38d3_94c2));
        assert_eq!(of(1, |_, _| false), None);
    }
}
