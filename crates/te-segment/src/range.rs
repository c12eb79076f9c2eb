//! Address ranges with checked arithmetic.

use std::{fmt, num::NonZeroU64};

use serde::{Deserialize, Serialize};

/// Why a range does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range begins at address 0, which no reader of descriptors accepts.
    #[error("range of {len} bytes begins at the null address")]
    Null {
        /// Length asked for, in bytes.
        len: u64,
    },
    /// The range has no bytes.
    #[error("range at {start:#x} is empty")]
    Empty {
        /// Start asked for.
        start: u64,
    },
    /// The end of the range does not fit 64 bits.
    #[error("range at {start:#x} of {len} bytes wraps around the end of the address space")]
    Wraps {
        /// Start asked for.
        start: u64,
        /// Length asked for, in bytes.
        len: u64,
    },
    /// The part asked for does not lie inside the whole.
    #[error("offset {offset} and length {len} do not lie inside {whole}")]
    Outside {
        /// Offset asked for, relative to the start of `whole`.
        offset: u64,
        /// Length asked for, in bytes.
        len: u64,
        /// The range that should contain the part.
        whole: AddressRange,
    },
}

/// A non-empty range of virtual addresses that does not begin at 0 and does not wrap.
///
/// The exclusive end always fits 64 bits, so the last byte of the address space cannot be part of a range.
///
/// ```
/// use te_segment::AddressRange;
/// let whole = AddressRange::new(0x1000, 4096)?;
/// let (head, tail) = whole.split_at(1024)?;
/// assert_eq!(head.end(), tail.start());
/// assert_eq!(whole.offset_of(&tail), Some(1024));
/// # Ok::<(), te_segment::RangeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct AddressRange {
    start: u64,
    len: NonZeroU64,
}

impl AddressRange {
    /// The range of `len` bytes at `start`.
    pub fn new(start: u64, len: u64) -> Result<Self, RangeError> {
        let Some(nonzero) = NonZeroU64::new(len) else {
            return Err(RangeError::Empty { start });
        };
        if start == 0 {
            return Err(RangeError::Null { len });
        }
        if start.checked_add(len).is_none() {
            return Err(RangeError::Wraps { start, len });
        }
        Ok(Self { start, len: nonzero })
    }

    /// The first address.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// The number of bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(&self) -> u64 {
        self.len.get()
    }

    /// The first address behind the range.
    pub const fn end(&self) -> u64 {
        // The constructor has refused every pair whose sum does not fit.
        self.start.saturating_add(self.len.get())
    }

    /// Whether `address` lies inside.
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end()
    }

    /// Whether every byte of `other` lies inside.
    pub const fn contains_range(&self, other: &Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Whether the two share a byte.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// The bytes that both have, if any.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        NonZeroU64::new(end.saturating_sub(start)).map(|len| Self { start, len })
    }

    /// The part of `len` bytes at `offset` from the start.
    ///
    /// Fails with [`RangeError::Empty`] for length 0 and with [`RangeError::Outside`] for a part that does not fit.
    pub fn slice(&self, offset: u64, len: u64) -> Result<Self, RangeError> {
        let outside = RangeError::Outside { offset, len, whole: *self };
        let end = offset.checked_add(len).ok_or(outside)?;
        if end > self.len() {
            return Err(outside);
        }
        let start = self.start.checked_add(offset).ok_or(outside)?;
        Self::new(start, len)
    }

    /// The `offset` bytes at the start and the rest. Both parts must be non-empty.
    pub fn split_at(&self, offset: u64) -> Result<(Self, Self), RangeError> {
        let rest =
            self.len().checked_sub(offset).ok_or(RangeError::Outside { offset, len: 0, whole: *self })?;
        Ok((self.slice(0, offset)?, self.slice(offset, rest)?))
    }

    /// How far the start of `part` lies behind our start, if `part` is inside.
    pub const fn offset_of(&self, part: &Self) -> Option<u64> {
        if self.contains_range(part) { part.start.checked_sub(self.start) } else { None }
    }

    /// The consecutive pieces of at most `size` bytes that make up the range; only the last may be shorter.
    pub fn pieces(&self, size: NonZeroU64) -> Pieces {
        Pieces { rest: Some(*self), size }
    }
}

/// Iterator over the pieces of a range, see [`AddressRange::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    rest: Option<AddressRange>,
    size: NonZeroU64,
}

impl Iterator for Pieces {
    type Item = AddressRange;

    fn next(&mut self) -> Option<AddressRange> {
        let rest = self.rest.take()?;
        match rest.split_at(self.size.get()) {
            Ok((piece, tail)) => {
                self.rest = Some(tail);
                Some(piece)
            }
            Err(_) => Some(rest),
        }
    }
}

impl TryFrom<(u64, u64)> for AddressRange {
    type Error = RangeError;

    fn try_from((start, len): (u64, u64)) -> Result<Self, RangeError> {
        Self::new(start, len)
    }
}

impl From<AddressRange> for (u64, u64) {
    fn from(range: AddressRange) -> Self {
        (range.start, range.len.get())
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.start, self.len)
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({self})")
    }
}
