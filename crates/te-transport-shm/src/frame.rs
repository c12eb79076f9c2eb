//! The frames on the Unix socket of a connection, one in each packet.
//!
//! The first byte says which frame it is; numbers follow in little-endian order, without padding. A packet of another length
//! than its frame has is refused, and so is one of a kind that is not known. Files travel beside [`Frame::Welcome`] and
//! beside [`Frame::Attached`] with `file`, and beside nothing else.
//!
//! ```
//! use te_transport_shm::frame::Frame;
//! let frame = Frame::Withdrawn { generation: 7 };
//! assert_eq!(Frame::decode(&frame.encode())?, frame);
//! # Ok::<(), te_transport_shm::frame::FrameError>(())
//! ```

use te_segment::Incarnation;
use thiserror::Error;

/// Oldest and newest version that this crate speaks.
pub const VERSIONS: (u16, u16) = (1, 1);

/// No frame is longer, in bytes.
pub const MAX_FRAME: usize = 64;

/// The first bytes of a [`Frame::Hello`].
const MAGIC: [u8; 4] = *b"tesh";

/// Why a target does not do what it was asked. Part of the wire format: values do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denial {
    /// It is another life than the one that was meant.
    StaleIncarnation,
    /// No version is spoken by both.
    Version,
    /// The registration that was meant has ended, or is ending.
    Gone,
    /// The range is not inside one buffer that peers may reach.
    Range,
    /// The buffer permits other access.
    Access,
    /// Too many buffers are attached.
    Full,
}

impl Denial {
    const ALL: [Self; 6] =
        [Self::StaleIncarnation, Self::Version, Self::Gone, Self::Range, Self::Access, Self::Full];

    fn code(self) -> u8 {
        match self {
            Self::StaleIncarnation => 1,
            Self::Version => 2,
            Self::Gone => 3,
            Self::Range => 4,
            Self::Access => 5,
            Self::Full => 6,
        }
    }

    fn from_code(code: u8) -> Result<Self, FrameError> {
        Self::ALL.into_iter().find(|denial| denial.code() == code).ok_or(FrameError::Value { value: code })
    }
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame {
    /// Initiator: who speaks, to whom, and which versions.
    Hello {
        /// Oldest version it speaks.
        oldest: u16,
        /// Newest version it speaks.
        newest: u16,
        /// Its own life.
        from: Incarnation,
        /// The life that is meant.
        to: Incarnation,
    },
    /// Target: the control page, beside it its file.
    Welcome {
        /// The version spoken from now on.
        version: u16,
        /// Slots of the page.
        slots: u32,
        /// Buffers that the page can tell apart.
        buffers: u32,
        /// Where in the target's memory its nonce lies, to be read by `process_vm_readv`.
        witness: u64,
    },
    /// Target: no connection.
    Refused {
        /// Why.
        denial: Denial,
    },
    /// Initiator: the nonce it has found in the page; its own is in there now.
    Proof {
        /// What it found.
        nonce: [u8; 16],
    },
    /// Target: the nonce of the initiator, as found in the page.
    Proven {
        /// What it found.
        nonce: [u8; 16],
    },
    /// Initiator: wants to use a buffer, for this range first.
    Attach {
        /// The registration that is meant.
        generation: u64,
        /// First address of the range.
        address: u64,
        /// Its length in bytes.
        len: u64,
        /// Whether it is to be written.
        write: bool,
    },
    /// Target: the buffer can be used; beside it its file, if there is one to be mapped.
    Attached {
        /// The registration.
        generation: u64,
        /// Its number in the page.
        buffer: u32,
        /// First address of the buffer, in the target's process.
        address: u64,
        /// Its length in bytes.
        len: u64,
        /// Whether it may be read.
        read: bool,
        /// Whether it may be written.
        write: bool,
        /// Whether a file comes with it; otherwise it is reached by `process_vm_readv`.
        file: bool,
    },
    /// Target: the range cannot be used so.
    Denied {
        /// The registration that was meant.
        generation: u64,
        /// Why.
        denial: Denial,
    },
    /// Initiator: has forgotten the buffer with this number, which can be used again.
    Detach {
        /// The registration.
        generation: u64,
        /// Its number in the page.
        buffer: u32,
    },
    /// Target: the buffer is withdrawn. Its word in the page says so already.
    Withdrawn {
        /// The registration.
        generation: u64,
    },
}

/// A packet is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// There is no such kind.
    #[error("unknown frame kind {kind}")]
    Kind {
        /// The first byte.
        kind: u8,
    },
    /// Too short or too long for its kind.
    #[error("a frame of {len} bytes has another length than its kind")]
    Length {
        /// Length of the packet.
        len: usize,
    },
    /// A member has a value that it cannot have.
    #[error("a member of the frame cannot be {value}")]
    Value {
        /// The value.
        value: u8,
    },
    /// A hello that does not begin as one.
    #[error("the hello is not of this protocol")]
    Magic,
}

struct Reader<'a> {
    rest: &'a [u8],
    whole: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (part, rest) = self.rest.split_first_chunk().ok_or(FrameError::Length { len: self.whole })?;
        self.rest = rest;
        Ok(*part)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.take().map(u64::from_le_bytes)
    }

    fn life(&mut self) -> Result<Incarnation, FrameError> {
        self.take().map(u128::from_le_bytes).map(Incarnation::from_bits)
    }

    fn byte(&mut self) -> Result<u8, FrameError> {
        self.take().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, FrameError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FrameError::Value { value }),
        }
    }
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Proof { .. } => 2,
            Self::Attach { .. } => 3,
            Self::Detach { .. } => 4,
            Self::Welcome { .. } => 16,
            Self::Refused { .. } => 17,
            Self::Proven { .. } => 18,
            Self::Attached { .. } => 19,
            Self::Denied { .. } => 20,
            Self::Withdrawn { .. } => 21,
        }
    }

    /// The packet of the frame, at most [`MAX_FRAME`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_FRAME);
        out.push(self.kind());
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        match self {
            Self::Hello { oldest, newest, from, to } => {
                put(&MAGIC);
                put(&oldest.to_le_bytes());
                put(&newest.to_le_bytes());
                put(&from.bits().to_le_bytes());
                put(&to.bits().to_le_bytes());
            }
            Self::Welcome { version, slots, buffers, witness } => {
                put(&version.to_le_bytes());
                put(&slots.to_le_bytes());
                put(&buffers.to_le_bytes());
                put(&witness.to_le_bytes());
            }
            Self::Refused { denial } => put(&[denial.code()]),
            Self::Proof { nonce } | Self::Proven { nonce } => put(nonce),
            Self::Attach { generation, address, len, write } => {
                put(&generation.to_le_bytes());
                put(&address.to_le_bytes());
                put(&len.to_le_bytes());
                put(&[u8::from(*write)]);
            }
            Self::Attached { generation, buffer, address, len, read, write, file } => {
                put(&generation.to_le_bytes());
                put(&buffer.to_le_bytes());
                put(&address.to_le_bytes());
                put(&len.to_le_bytes());
                put(&[u8::from(*read), u8::from(*write), u8::from(*file)]);
            }
            Self::Denied { generation, denial } => {
                put(&generation.to_le_bytes());
                put(&[denial.code()]);
            }
            Self::Detach { generation, buffer } => {
                put(&generation.to_le_bytes());
                put(&buffer.to_le_bytes());
            }
            Self::Withdrawn { generation } => put(&generation.to_le_bytes()),
        }
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    ///
    /// [`FrameError`] for everything that [`encode`](Self::encode) does not give.
    pub fn decode(packet: &[u8]) -> Result<Self, FrameError> {
        let whole = packet.len();
        let mut from = Reader { rest: packet, whole };
        let frame = match from.byte()? {
            1 => {
                if from.take()? != MAGIC {
                    return Err(FrameError::Magic);
                }
                let (oldest, newest) = (from.u16()?, from.u16()?);
                Self::Hello { oldest, newest, from: from.life()?, to: from.life()? }
            }
            2 => Self::Proof { nonce: from.take()? },
            3 => Self::Attach {
                generation: from.u64()?,
                address: from.u64()?,
                len: from.u64()?,
                write: from.flag()?,
            },
            4 => Self::Detach { generation: from.u64()?, buffer: from.u32()? },
            16 => Self::Welcome {
                version: from.u16()?,
                slots: from.u32()?,
                buffers: from.u32()?,
                witness: from.u64()?,
            },
            17 => Self::Refused { denial: Denial::from_code(from.byte()?)? },
            18 => Self::Proven { nonce: from.take()? },
            19 => Self::Attached {
                generation: from.u64()?,
                buffer: from.u32()?,
                address: from.u64()?,
                len: from.u64()?,
                read: from.flag()?,
                write: from.flag()?,
                file: from.flag()?,
            },
            20 => Self::Denied { generation: from.u64()?, denial: Denial::from_code(from.byte()?)? },
            21 => Self::Withdrawn { generation: from.u64()? },
            kind => return Err(FrameError::Kind { kind }),
        };
        if from.rest.is_empty() { Ok(frame) } else { Err(FrameError::Length { len: whole }) }
    }
}

#[cfg(test)]
mod tests;
