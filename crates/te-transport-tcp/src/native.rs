//! The data framing between te engines as pure functions: no I/O, no allocation. `docs/wire/native-data.md` has the bytes.
//!
//! A connection begins with a [`Hello`], in which both lives are named, and an [`Answer`]. Then every request is a header
//! of [`REQUEST_LEN`] bytes that names its attempt and the registration of the buffer it means; from version 2 on many small
//! ones can be one [`List`]. Every request or list is answered with a [`Verdict`], in order, which has the shape of a status
//! of version 2 of the reference's framing. Numbers are little endian and fixed in width, as in the codec of control
//! messages.

mod list;

use te_segment::{Generation, Incarnation};
use te_transport::{AttemptId, Op};
use thiserror::Error;

use crate::frame::{STATUS_LEN, STATUS_MAGIC};

pub use list::{ENTRY_LEN, ENTRY_MAX, Entry, LIST_LEN, LIST_MAX, LIST_SINCE, List};

/// Versions of this framing that this engine speaks: the oldest and the newest.
pub const VERSIONS: (u16, u16) = (1, 2);
/// First bytes of a hello and of its answer. As the length of a request of the other framings it is more than any address
/// space has, so no such request begins like this.
pub const MAGIC: [u8; 8] = *b"te-data\n";
/// Bytes of a hello. Its first [`HEADER_LEN`](crate::frame::HEADER_LEN) are to older targets a header that asks for nothing they know.
pub const HELLO_LEN: usize = 56;
/// Bytes of the answer to a hello.
pub const ANSWER_LEN: usize = 32;
/// Bytes of a request header.
pub const REQUEST_LEN: usize = 48;

/// Where a header of the other framings has its opcode: no opcode of theirs.
const NO_OPCODE: u8 = 0x7f;
/// Second half of the first word of a request header, to notice a stream that has lost the framing.
const MARK: [u8; 2] = *b"te";
const READ: u8 = 0;
const WRITE: u8 = 1;
const HAS_GENERATION: u8 = 1;
const HAS_DIGEST: u8 = 2;
/// Bytes of a digest.
pub const DIGEST_LEN: usize = 8;
/// Oldest version of this framing that has digests.
pub const DIGEST_SINCE: u16 = 2;

/// Bytes that no engine sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The magic or the mark is missing: the stream is no native one, or has lost the framing.
    #[error("no native frame begins here")]
    Foreign,
    /// The operation is neither READ nor WRITE.
    #[error("unknown operation {0:#04x}")]
    Operation(u8),
    /// A list, or a request in one, is longer than allowed or empty.
    #[error("a list or a request in it is longer than allowed, or empty")]
    List,
    /// Reserved bits or bytes are set, or a member that is absent has a value.
    #[error("reserved bits are set")]
    Reserved,
    /// The low half of a verdict, which has no such meaning.
    #[error("unknown verdict {0:#010x}")]
    Verdict(u32),
}

/// The first bytes of a connection, from its initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest version that the initiator speaks.
    pub version: u16,
    /// The initiator's life.
    pub from: Incarnation,
    /// The life that the initiator wants to talk to.
    pub to: Incarnation,
}

impl Hello {
    /// The hello on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[16] = NO_OPCODE;
        bytes[24..40].copy_from_slice(&self.from.bits().to_le_bytes());
        bytes[40..56].copy_from_slice(&self.to.bits().to_le_bytes());
        bytes
    }

    /// Reads a hello. Reserved bytes are for later versions and not looked at.
    ///
    /// # Errors
    ///
    /// [`Malformed::Foreign`] without the magic, [`Malformed::Operation`] where the opcode would be one of the other
    /// framings.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, Malformed> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Malformed::Foreign);
        }
        if bytes[16] != NO_OPCODE {
            return Err(Malformed::Operation(bytes[16]));
        }
        Ok(Self {
            version: u16::from_le_bytes(part(bytes, 8)),
            from: Incarnation::from_bits(u128::from_le_bytes(part(bytes, 24))),
            to: Incarnation::from_bits(u128::from_le_bytes(part(bytes, 40))),
        })
    }
}

/// What the target says to a hello. It closes after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Requests may come.
    Welcome {
        /// The version spoken from here on.
        version: u16,
        /// The target's life.
        now: Incarnation,
    },
    /// The hello is for another life.
    StaleIncarnation {
        /// The target's life.
        now: Incarnation,
    },
    /// The target is going down.
    ShuttingDown,
    /// The target serves as many connections as it will. Later there may be room.
    Busy,
    /// The initiator's newest version is too old.
    Version {
        /// Oldest version that the target speaks.
        oldest: u16,
        /// Newest version that the target speaks.
        newest: u16,
    },
    /// A refusal of a later version.
    Other(u8),
}

impl Answer {
    /// The answer on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; ANSWER_LEN] {
        let none = Incarnation::from_bits(0);
        let (code, first, second, now) = match *self {
            Self::Welcome { version, now } => (0, version, 0, now),
            Self::StaleIncarnation { now } => (1, 0, 0, now),
            Self::ShuttingDown => (2, 0, 0, none),
            Self::Busy => (3, 0, 0, none),
            Self::Version { oldest, newest } => (4, oldest, newest, none),
            Self::Other(code) => (code, 0, 0, none),
        };
        let mut bytes = [0; ANSWER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = code;
        bytes[10..12].copy_from_slice(&first.to_le_bytes());
        bytes[12..14].copy_from_slice(&second.to_le_bytes());
        bytes[16..32].copy_from_slice(&now.bits().to_le_bytes());
        bytes
    }

    /// Reads an answer. Bytes that its kind does not use are not looked at.
    ///
    /// # Errors
    ///
    /// [`Malformed::Foreign`] without the magic.
    pub fn decode(bytes: &[u8; ANSWER_LEN]) -> Result<Self, Malformed> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Malformed::Foreign);
        }
        let (first, second) = (u16::from_le_bytes(part(bytes, 10)), u16::from_le_bytes(part(bytes, 12)));
        let now = Incarnation::from_bits(u128::from_le_bytes(part(bytes, 16)));
        Ok(match bytes[8] {
            0 => Self::Welcome { version: first, now },
            1 => Self::StaleIncarnation { now },
            2 => Self::ShuttingDown,
            3 => Self::Busy,
            4 => Self::Version { oldest: first, newest: second },
            code => Self::Other(code),
        })
    }
}

/// A request header. `addr` and `len` are the peer's words and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// READ or WRITE.
    pub op: Op,
    /// Which attempt of which request of the sender this is, or is a part of.
    pub attempt: AttemptId,
    /// Counts the requests of a connection. For people who read captures: answers come in order.
    pub part: u32,
    /// Start address in the target process.
    pub addr: u64,
    /// Payload bytes.
    pub len: u64,
    /// The registration of the buffer that the sender means. A target refuses a request without one.
    pub generation: Option<Generation>,
    /// Whether a digest goes with the payload: behind that of a WRITE, in front of that of a READ. It is the 64 bits of
    /// XXH3, without a seed.
    pub digest: bool,
}

impl Request {
    /// The header on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = match self.op {
            Op::Read => READ,
            Op::Write => WRITE,
        };
        bytes[1] = if self.generation.is_some() { HAS_GENERATION } else { 0 };
        bytes[1] |= if self.digest { HAS_DIGEST } else { 0 };
        bytes[2..4].copy_from_slice(&MARK);
        bytes[4..8].copy_from_slice(&self.part.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.attempt.request.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.attempt.attempt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.addr.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.generation.map_or(0, Generation::value).to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// Whatever differs from what [`encode`](Self::encode) makes: the stream cannot be trusted any more.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, Malformed> {
        if bytes[2..4] != MARK {
            return Err(Malformed::Foreign);
        }
        let op = match bytes[0] {
            READ => Op::Read,
            WRITE => Op::Write,
            other => return Err(Malformed::Operation(other)),
        };
        let value = u64::from_le_bytes(part(bytes, 40));
        let digest = bytes[1] & HAS_DIGEST != 0;
        let generation = match bytes[1] & !HAS_DIGEST {
            HAS_GENERATION => Some(Generation::new(value)),
            0 if value == 0 => None,
            _ => return Err(Malformed::Reserved),
        };
        if bytes[20..24] != [0; 4] {
            return Err(Malformed::Reserved);
        }
        Ok(Self {
            op,
            attempt: AttemptId {
                request: u64::from_le_bytes(part(bytes, 8)),
                attempt: u32::from_le_bytes(part(bytes, 16)),
            },
            part: u32::from_le_bytes(part(bytes, 4)),
            addr: u64::from_le_bytes(part(bytes, 24)),
            len: u64::from_le_bytes(part(bytes, 32)),
            generation,
            digest,
        })
    }
}

/// Why a target does not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The range is empty, wraps, or is not inside one buffer.
    OutOfRange,
    /// The buffer does not permit the operation.
    Access,
    /// The registration has ended; somebody else may have the range now.
    Gone,
    /// The buffer is being withdrawn.
    Withdrawn,
    /// The request names no registration.
    Unnamed,
    /// The target cannot serve it now.
    Overload,
}

/// What the target says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// WRITE: the last byte is in memory. READ: the payload follows.
    Ok,
    /// Refused before a byte was touched. Of a WRITE the payload is thrown away and the connection goes on, unless the
    /// verdict is the last; after a refused READ it is.
    Rejected(Why),
    /// The attempt has been given up by its sender, who said so elsewhere. Otherwise like a rejection.
    Fenced,
    /// The payload of a WRITE is in memory and does not fit its digest. The connection goes on.
    Damaged,
}

const REASONS: [(Why, u32); 6] = [
    (Why::OutOfRange, 0),
    (Why::Access, 1),
    (Why::Gone, 2),
    (Why::Withdrawn, 3),
    (Why::Unnamed, 4),
    (Why::Overload, 5),
];
const CODE_REJECTED: u32 = 1;
const CODE_FENCED: u32 = 2;
const CODE_DAMAGED: u32 = 3;
/// Beside a refusal: it is the last verdict.
const LAST: u32 = 1 << 16;

impl Verdict {
    /// The low half on the wire: the verdict in the low byte, the reason in the next, zeros.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::Rejected(why) => {
                let reason = REASONS.iter().find(|(reason, _)| *reason == why);
                CODE_REJECTED | reason.map_or(0, |(_, code)| code << 8)
            }
            Self::Fenced => CODE_FENCED,
            Self::Damaged => CODE_DAMAGED,
        }
    }

    /// The verdict on the wire.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_LEN] {
        ((u64::from(STATUS_MAGIC) << 32) | u64::from(self.code())).to_le_bytes()
    }

    /// The verdict on the wire, as the last one: nothing that was sent behind the request is served. `Ok` is never the last.
    #[must_use]
    pub fn encode_last(self) -> [u8; STATUS_LEN] {
        let last = if self == Self::Ok { 0 } else { LAST };
        ((u64::from(STATUS_MAGIC) << 32) | u64::from(self.code() | last)).to_le_bytes()
    }

    /// Whether the low half of a refusal says that it is the last verdict. One that makes no sense is taken for it.
    #[must_use]
    pub fn is_last(code: u32) -> bool {
        code & LAST != 0 || Self::from_code(code).is_err()
    }

    /// What the low half of a status means in this framing.
    ///
    /// # Errors
    ///
    /// [`Malformed::Verdict`] for a meaning that this engine does not know.
    pub fn from_code(code: u32) -> Result<Self, Malformed> {
        let plain = code & !LAST;
        match (plain & 0xff, plain >> 8) {
            (0, 0) if plain == code => Ok(Self::Ok),
            (CODE_FENCED, 0) => Ok(Self::Fenced),
            (CODE_DAMAGED, 0) => Ok(Self::Damaged),
            (CODE_REJECTED, reason) => match REASONS.iter().find(|(_, code)| *code == reason) {
                Some((why, _)) => Ok(Self::Rejected(*why)),
                None => Err(Malformed::Verdict(code)),
            },
            _ => Err(Malformed::Verdict(code)),
        }
    }
}

/// `N` bytes from `at`, which is a constant within the frame at every call.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}
