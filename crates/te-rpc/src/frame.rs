//! The control frame, without any I/O.
//!
//! ```text
//! offset 0   u64 little endian   length: kind byte and body together
//! offset 8   u8                  kind, 0 to 3
//! offset 9   length - 1 bytes    body, JSON text
//! ```
//!
//! The old form has no kind byte: its payload starts with `{` and is the body of a connection request. It is
//! answered without a kind byte as well. Source: reference engine, wire spec.
//!
//! Native connections of te engines come to the same listener. They begin with eight bytes that no frame begins with,
//! because the length they spell is far over every limit.

use std::fmt;

use crate::native::PREAMBLE;

/// Bytes in front of the body of a frame: the length and the kind.
pub const HEAD_BYTES: usize = 9;

/// The largest frame, kind byte and body, that any limit can be raised to: 128 MiB.
pub const MAX_FRAME: usize = 128 << 20;

const LENGTH_BYTES: usize = 8;
const OLD_FORM: u8 = b'{';
/// First allocation for a body, whatever length its head claims.
const FIRST_ALLOCATION: usize = 4096;

/// What a control frame is about. The number is the kind byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameKind {
    /// Sets up a connection of a transport; see [`ConnectionBody`](crate::message::ConnectionBody).
    Connection = 0,
    /// Exchanges segment descriptors between peers that use no store.
    Metadata = 1,
    /// Delivers a notification; see [`NotifyBody`](crate::message::NotifyBody).
    Notify = 2,
    /// Asks whether the peer is alive; see [`ProbeReply`](crate::message::ProbeReply).
    Probe = 3,
}

impl FrameKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Connection, Self::Metadata, Self::Notify, Self::Probe];

    /// The kind with this number on the wire.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// The number on the wire.
    pub fn byte(self) -> u8 {
        self as u8
    }

    /// Whether a request may be sent again although the first one may have been acted on.
    pub fn is_idempotent(self) -> bool {
        matches!(self, Self::Metadata | Self::Probe)
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connection => "connection",
            Self::Metadata => "metadata",
            Self::Notify => "notify",
            Self::Probe => "probe",
        })
    }
}

/// A whole frame. The body is not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the frame is about.
    pub kind: FrameKind,
    /// Whether it came in the old form, which has no kind byte. Only [`FrameKind::Connection`] can.
    pub legacy: bool,
    /// The body; never empty.
    pub body: Vec<u8>,
}

/// Why bytes are no control frame. Nothing that follows on the connection can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameReject {
    /// The length is zero.
    #[error("frame of length 0")]
    ZeroLength,
    /// The length is over the limit of this receiver. HTTP, TLS and noise usually end here.
    #[error("frame of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// The claimed length in bytes.
        length: u64,
        /// The largest accepted length in bytes.
        limit: usize,
    },
    /// The first byte of the payload is neither a kind nor the start of an old-form body.
    #[error("frame starts with byte {first:#04x}, which is no kind")]
    UnknownKind {
        /// The byte.
        first: u8,
    },
    /// A kind byte without a body.
    #[error("frame has no body")]
    NoBody,
    /// There is no memory for the body.
    #[error("no memory for a frame of {length} bytes")]
    OutOfMemory {
        /// The claimed length in bytes.
        length: usize,
    },
    /// The decoder was fed after it had ended. A connection carries one frame in each direction.
    #[error("bytes after the end of the frame")]
    Finished,
}

/// How far [`FrameDecoder::feed`] came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All bytes were taken and the frame is not whole yet.
    NeedMore,
    /// The frame is whole.
    Frame {
        /// The frame.
        frame: Frame,
        /// How many of the bytes just fed belong to it.
        consumed: usize,
    },
    /// This is no frame but the start of a native connection; only if the decoder
    /// [recognises](FrameDecoder::recognising_native) it.
    Native {
        /// How many of the bytes just fed belong to the preamble. The rest are native frames.
        consumed: usize,
    },
}

#[derive(Clone, Debug)]
enum State {
    Head { bytes: [u8; HEAD_BYTES], have: usize },
    Body { kind: FrameKind, legacy: bool, length: usize, body: Vec<u8> },
    Finished,
}

/// Decodes one frame from bytes that arrive in any portions.
///
/// Memory grows with the bytes that have arrived, never with the length that a peer claims.
///
/// ```
/// use te_rpc::frame::{FrameDecoder, FrameKind, Progress, encode};
/// let bytes = encode(FrameKind::Probe, false, b"{}\n");
/// let mut decoder = FrameDecoder::new(1 << 20);
/// assert_eq!(decoder.feed(&bytes[..5])?, Progress::NeedMore);
/// let Progress::Frame { frame, .. } = decoder.feed(&bytes[5..])? else { unreachable!() };
/// assert_eq!(frame.kind, FrameKind::Probe);
/// # Ok::<(), te_rpc::frame::FrameReject>(())
/// ```
#[derive(Clone, Debug)]
pub struct FrameDecoder {
    limit: usize,
    native: bool,
    state: State,
}

impl FrameDecoder {
    /// A decoder that refuses frames of more than `limit` bytes, kind byte included. Limits over [`MAX_FRAME`] count
    /// as that.
    pub fn new(limit: usize) -> Self {
        let state = State::Head { bytes: [0; HEAD_BYTES], have: 0 };
        Self { limit: limit.min(MAX_FRAME), native: false, state }
    }

    /// Takes the [preamble](PREAMBLE) of a native connection for what it is, instead of an impossible length.
    pub fn recognising_native(self) -> Self {
        Self { native: true, ..self }
    }

    /// Takes the next bytes. After a frame or an error every further call is [`FrameReject::Finished`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, FrameReject> {
        let result = self.advance(bytes);
        if !matches!(result, Ok(Progress::NeedMore)) {
            self.state = State::Finished;
        }
        result
    }

    /// Whether any byte of the frame has arrived.
    pub fn has_started(&self) -> bool {
        !matches!(self.state, State::Head { have: 0, .. })
    }

    /// Bytes of memory that the body holds at present.
    pub fn allocated(&self) -> usize {
        match &self.state {
            State::Body { body, .. } => body.capacity(),
            _ => 0,
        }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<Progress, FrameReject> {
        let mut consumed = 0;
        loop {
            let rest = bytes.get(consumed..).unwrap_or_default();
            match &mut self.state {
                State::Finished => return Err(FrameReject::Finished),
                State::Head { bytes: head, have } => {
                    let taken = rest.len().min(HEAD_BYTES - *have);
                    head[*have..*have + taken].copy_from_slice(&rest[..taken]);
                    *have += taken;
                    consumed += taken;
                    if *have < LENGTH_BYTES {
                        return Ok(Progress::NeedMore);
                    }
                    if self.native && head.starts_with(&PREAMBLE) {
                        // The ninth byte, if it is here, came just now and is not ours.
                        return Ok(Progress::Native { consumed: consumed - (*have - LENGTH_BYTES) });
                    }
                    let length = check_length(head, self.limit)?;
                    if *have < HEAD_BYTES {
                        return Ok(Progress::NeedMore);
                    }
                    self.state = start_body(head[LENGTH_BYTES], length)?;
                }
                State::Body { kind, legacy, length, body } => {
                    let taken = rest.len().min(*length - body.len());
                    reserve(body, taken, *length)?;
                    body.extend_from_slice(&rest[..taken]);
                    consumed += taken;
                    if body.len() < *length {
                        return Ok(Progress::NeedMore);
                    }
                    let frame = Frame { kind: *kind, legacy: *legacy, body: std::mem::take(body) };
                    return Ok(Progress::Frame { frame, consumed });
                }
            }
        }
    }
}

fn check_length(head: &[u8; HEAD_BYTES], limit: usize) -> Result<usize, FrameReject> {
    let mut bytes = [0; LENGTH_BYTES];
    bytes.copy_from_slice(&head[..LENGTH_BYTES]);
    let length = u64::from_le_bytes(bytes);
    match usize::try_from(length) {
        Ok(0) => Err(FrameReject::ZeroLength),
        Ok(fitting) if fitting <= limit => Ok(fitting),
        _ => Err(FrameReject::TooLong { length, limit }),
    }
}

/// The state after the head: `first` is the first of `length` payload bytes.
fn start_body(first: u8, length: usize) -> Result<State, FrameReject> {
    match FrameKind::from_byte(first) {
        Some(_) if length == 1 => Err(FrameReject::NoBody),
        Some(kind) => Ok(State::Body { kind, legacy: false, length: length - 1, body: Vec::new() }),
        None if first == OLD_FORM => {
            Ok(State::Body { kind: FrameKind::Connection, legacy: true, length, body: vec![first] })
        }
        None => Err(FrameReject::UnknownKind { first }),
    }
}

/// Makes room for `more` bytes: at least doubles, never beyond the claimed length.
fn reserve(body: &mut Vec<u8>, more: usize, length: usize) -> Result<(), FrameReject> {
    let needed = body.len() + more;
    if needed <= body.capacity() {
        return Ok(());
    }
    let wanted = needed.max(body.capacity() * 2).max(FIRST_ALLOCATION).min(length);
    body.try_reserve_exact(wanted - body.len()).map_err(|_| FrameReject::OutOfMemory { length })
}

/// The bytes in front of a body of `body_len` bytes; [`None`] for the old form, which has only the length.
pub(crate) fn head(kind: FrameKind, legacy: bool, body_len: usize) -> ([u8; HEAD_BYTES], usize) {
    let mut head = [0; HEAD_BYTES];
    let length = body_len as u64 + u64::from(!legacy);
    head[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    head[LENGTH_BYTES] = kind.byte();
    (head, if legacy { LENGTH_BYTES } else { HEAD_BYTES })
}

/// The bytes of a whole frame. With `legacy` it is the old form, where `kind` does not appear.
pub fn encode(kind: FrameKind, legacy: bool, body: &[u8]) -> Vec<u8> {
    let (head, len) = head(kind, legacy, body.len());
    let mut bytes = Vec::with_capacity(len + body.len());
    bytes.extend_from_slice(&head[..len]);
    bytes.extend_from_slice(body);
    bytes
}
