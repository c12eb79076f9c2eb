//! Cutting a request where either side's registrations end, and at the slice size.

use std::num::NonZeroU64;

use te_segment::AddressRange;
use thiserror::Error;

/// Bytes here and there that lie in one registration on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bytes here.
    pub local: AddressRange,
    /// The peer's bytes, as addresses of its process; as many.
    pub remote: AddressRange,
    /// Which of the registrations here they lie in.
    pub local_part: usize,
    /// Which of the peer's registrations they lie in.
    pub remote_part: usize,
}

/// A byte of a request lies in no registration, or the two sides differ in length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCovered {
    /// The first byte here that no registration covers.
    #[error("address {address:#x} here is in no registration")]
    Local {
        /// Its address.
        address: u64,
    },
    /// The peer's first byte that no registration covers.
    #[error("address {address:#x} of the peer is in no registration")]
    Remote {
        /// Its address.
        address: u64,
    },
    /// The two ranges are not equally long.
    #[error("{local} bytes here against {remote} bytes of the peer")]
    Lengths {
        /// Bytes here.
        local: u64,
        /// The peer's bytes.
        remote: u64,
    },
}

/// Pieces begin at multiples of this within a request, a cache line. Larger steps would cost the last lane its share.
const ALIGNED: u64 = 64;

/// How large pieces become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceSize {
    /// The smallest, in bytes, where there is more than one. Default 64 KiB, the reference engine's only size.
    pub min: NonZeroU64,
    /// The largest, in bytes. Default 1 MiB: fewer completions, and still a fraction of a request.
    pub max: NonZeroU64,
    /// Pieces that each lane gets of one request, if it is large enough, so that lanes that differ in speed end
    /// together. Default 4.
    pub per_lane: NonZeroU64,
}

impl Default for SliceSize {
    fn default() -> Self {
        const fn size(bytes: u64) -> NonZeroU64 {
            match NonZeroU64::new(bytes) {
                Some(size) => size,
                None => NonZeroU64::MIN,
            }
        }
        Self { min: size(64 << 10), max: size(1 << 20), per_lane: size(4) }
    }
}

impl SliceSize {
    /// The piece size for a request of `len` bytes that is spread over `lanes` queue pairs.
    #[must_use]
    pub fn of(&self, len: u64, lanes: u64) -> NonZeroU64 {
        let lanes = lanes.max(1);
        // As many pieces for each lane as the largest size makes necessary, so that all lanes get equally many.
        let needed = len.div_ceil(lanes.saturating_mul(self.max.get()));
        let pieces = lanes.saturating_mul(self.per_lane.get().max(needed));
        let even = len.div_ceil(pieces).checked_next_multiple_of(ALIGNED).unwrap_or(u64::MAX);
        NonZeroU64::new(even).unwrap_or(NonZeroU64::MIN).min(self.max).max(self.min.min(self.max))
    }
}

/// The pieces of a request, in order. Makes no allocation.
#[derive(Clone, Debug)]
pub struct Cut<'a> {
    local: AddressRange,
    remote: AddressRange,
    local_parts: &'a [AddressRange],
    remote_parts: &'a [AddressRange],
    size: NonZeroU64,
    done: u64,
}

impl<'a> Cut<'a> {
    /// Cuts `local` against `remote`. The parts are the registrations on either side, sorted and without overlap.
    ///
    /// # Errors
    ///
    /// If the sides differ in length, or the first byte that lies in no part. Nothing is cut then.
    pub fn new(
        local: AddressRange,
        local_parts: &'a [AddressRange],
        remote: AddressRange,
        remote_parts: &'a [AddressRange],
        size: NonZeroU64,
    ) -> Result<Self, NotCovered> {
        if local.len() != remote.len() {
            return Err(NotCovered::Lengths { local: local.len(), remote: remote.len() });
        }
        if let Some(address) = gap(&local, local_parts) {
            return Err(NotCovered::Local { address });
        }
        if let Some(address) = gap(&remote, remote_parts) {
            return Err(NotCovered::Remote { address });
        }
        Ok(Self { local, remote, local_parts, remote_parts, size, done: 0 })
    }
}

impl Iterator for Cut<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.local.len().checked_sub(self.done).filter(|left| *left > 0)?;
        // None of this can fail: the sides are covered, and what is done is less than their length.
        let here = self.local.slice(self.done, left).ok()?;
        let there = self.remote.slice(self.done, left).ok()?;
        let (local_part, here_end) = part(here.start(), self.local_parts)?;
        let (remote_part, there_end) = part(there.start(), self.remote_parts)?;
        let within = (here_end - here.start()).min(there_end - there.start()).min(left);
        let len = within.min(self.size.get());
        self.done += len;
        let (local, remote) = (here.slice(0, len).ok()?, there.slice(0, len).ok()?);
        Some(Piece { local, remote, local_part, remote_part })
    }
}

/// The part that an address lies in, and where that ends.
fn part(address: u64, parts: &[AddressRange]) -> Option<(usize, u64)> {
    let at = parts.partition_point(|part| part.end() <= address);
    parts.get(at).filter(|part| part.contains(address)).map(|part| (at, part.end()))
}

/// The first address of the range that lies in no part.
fn gap(range: &AddressRange, parts: &[AddressRange]) -> Option<u64> {
    let mut address = range.start();
    while address < range.end() {
        match part(address, parts) {
            Some((_, end)) => address = end,
            None => return Some(address),
        }
    }
    None
}
