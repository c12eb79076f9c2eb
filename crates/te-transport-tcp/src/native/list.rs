//! Lists: many small requests of one direction in one frame, with one verdict.
//!
//! A header of [`REQUEST_LEN`] bytes says how many there are and how many payload bytes they have together. An [`Entry`]
//! for each follows, then, for a WRITE, their payloads in the same order. A target serves all of a list or nothing of it.

use te_segment::Generation;
use te_transport::{AttemptId, Op};

use super::{MARK, Malformed, REQUEST_LEN, part};

/// Oldest version of this framing that has lists.
pub const LIST_SINCE: u16 = 2;
/// Most requests in a list.
pub const LIST_MAX: usize = 64;
/// Most payload bytes of a request in a list.
pub const ENTRY_MAX: u64 = 64 << 10;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 32;
/// Bytes of the longest list, without payload.
pub const LIST_LEN: usize = REQUEST_LEN + LIST_MAX * ENTRY_LEN;

const READ_LIST: u8 = 2;
const WRITE_LIST: u8 = 3;

/// The header of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// READ or WRITE, the same for all.
    pub op: Op,
    /// Counts the requests of a connection, a list as one.
    pub part: u32,
    /// Entries that follow, 1 to [`LIST_MAX`].
    pub count: usize,
    /// Payload bytes of all of them.
    pub len: u64,
}

impl List {
    /// The header on the wire. A count beyond [`LIST_MAX`] has no encoding that a target accepts.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = match self.op {
            Op::Read => READ_LIST,
            Op::Write => WRITE_LIST,
        };
        bytes[2..4].copy_from_slice(&MARK);
        bytes[4..8].copy_from_slice(&self.part.to_le_bytes());
        bytes[16..20].copy_from_slice(&u32::try_from(self.count).unwrap_or(u32::MAX).to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if it is that of a single request.
    ///
    /// # Errors
    ///
    /// Whatever differs from what [`encode`](Self::encode) makes, and counts that are not allowed.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Option<Self>, Malformed> {
        if bytes[2..4] != MARK {
            return Err(Malformed::Foreign);
        }
        let op = match bytes[0] {
            READ_LIST => Op::Read,
            WRITE_LIST => Op::Write,
            _ => return Ok(None),
        };
        let zeros = [&bytes[1..2], &bytes[8..16], &bytes[20..32], &bytes[40..48]];
        if zeros.iter().any(|part| part.iter().any(|byte| *byte != 0)) {
            return Err(Malformed::Reserved);
        }
        let count = u32::from_le_bytes(part(bytes, 16));
        let (fits, len) = (1..=LIST_MAX as u32, u64::from_le_bytes(part(bytes, 32)));
        if !fits.contains(&count) || len > ENTRY_MAX * u64::from(count) {
            return Err(Malformed::List);
        }
        Ok(Some(Self { op, part: u32::from_le_bytes(part(bytes, 4)), count: count as usize, len }))
    }
}

/// One request of a list. `addr` is the peer's word and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which attempt of which request of the sender this is, or is a part of.
    pub attempt: AttemptId,
    /// Payload bytes, 1 to [`ENTRY_MAX`].
    pub len: u32,
    /// Start address in the target process.
    pub addr: u64,
    /// The registration of the buffer that the sender means.
    pub generation: Generation,
}

impl Entry {
    /// The entry on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[0..8].copy_from_slice(&self.attempt.request.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.attempt.attempt.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.addr.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.generation.value().to_le_bytes());
        bytes
    }

    /// Reads an entry.
    ///
    /// # Errors
    ///
    /// [`Malformed::List`] for a length that is not allowed.
    pub fn decode(bytes: &[u8; ENTRY_LEN]) -> Result<Self, Malformed> {
        let len = u32::from_le_bytes(part(bytes, 12));
        if len == 0 || u64::from(len) > ENTRY_MAX {
            return Err(Malformed::List);
        }
        Ok(Self {
            attempt: AttemptId {
                request: u64::from_le_bytes(part(bytes, 0)),
                attempt: u32::from_le_bytes(part(bytes, 8)),
            },
            len,
            addr: u64::from_le_bytes(part(bytes, 16)),
            generation: Generation::new(u64::from_le_bytes(part(bytes, 24))),
        })
    }
}
