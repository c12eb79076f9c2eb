//! Frames to bytes and back.
//!
//! ```text
//! once      8 bytes            PREAMBLE, from the side that opened the connection
//! offset 0  u32 little endian  length of what follows
//! offset 4  length bytes       a ControlFrame in the codec of te_segment
//! ```

use te_segment::codec;

use super::frame::{ControlFrame, OverBound};

/// The first bytes of a native connection. Read as the length of an RPC frame they are far over every limit, so a
/// listener that does not know them closes.
pub const PREAMBLE: [u8; 8] = *b"te-ctl\x01\n";

/// Largest frame in bytes, without its length: every frame whose members are within their bounds fits.
pub const MAX_CONTROL_FRAME: usize = 1 << 20;

/// Largest frame before the handshake is over.
pub const MAX_HANDSHAKE_FRAME: usize = 4096;

const LENGTH_BYTES: usize = 4;
/// An empty buffer keeps at most this many bytes.
const KEPT: usize = 16 << 10;

/// Why bytes are no frame. Nothing that follows on the connection can be understood.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ControlReject {
    /// The length is larger than any frame, or than any frame of a handshake.
    #[error("frame of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// The claimed length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A frame of a kind that this version does not have.
    #[error("unknown frame of kind {kind}")]
    UnknownKind {
        /// Its number.
        kind: u32,
    },
    /// The bytes are no frame of their kind.
    #[error("{reason}")]
    Malformed {
        /// What the codec found.
        reason: String,
    },
    /// A member is over its bound.
    #[error(transparent)]
    OverBound(#[from] OverBound),
}

/// The bytes of a frame, with its length in front.
///
/// # Errors
///
/// [`OverBound`] names the member that no receiver would accept.
pub fn encode(frame: &ControlFrame) -> Result<Vec<u8>, ControlReject> {
    frame.check()?;
    let body = codec::encode(frame).map_err(malformed)?;
    let len = body.len();
    let head = u32::try_from(len).ok().filter(|_| len <= MAX_CONTROL_FRAME);
    let head = head.ok_or(ControlReject::TooLong { len, limit: MAX_CONTROL_FRAME })?;
    Ok([&head.to_le_bytes()[..], &body].concat())
}

/// Decodes frames from bytes that arrive in any portions. Memory grows with the bytes that have arrived, never with
/// what a length claims.
///
/// ```
/// use te_rpc::native::{ControlDecoder, ControlFrame, RequestId, encode};
/// let frame = ControlFrame::Probe { id: RequestId::new(1) };
/// let bytes = encode(&frame)?;
/// let mut decoder = ControlDecoder::new();
/// decoder.feed(&bytes[..7]);
/// assert_eq!(decoder.next_frame()?, None);
/// decoder.feed(&bytes[7..]);
/// assert_eq!(decoder.next_frame()?, Some(frame));
/// # Ok::<(), te_rpc::native::ControlReject>(())
/// ```
#[derive(Clone, Debug)]
pub struct ControlDecoder {
    limit: usize,
    bytes: Vec<u8>,
    taken: usize,
    rejected: Option<ControlReject>,
}

impl Default for ControlDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlDecoder {
    /// A decoder for a handshake: frames are at most [`MAX_HANDSHAKE_FRAME`].
    pub fn new() -> Self {
        Self { limit: MAX_HANDSHAKE_FRAME, bytes: Vec::new(), taken: 0, rejected: None }
    }

    /// The handshake is over: frames are at most [`MAX_CONTROL_FRAME`].
    pub fn open(&mut self) {
        self.limit = MAX_CONTROL_FRAME;
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.rejected.is_none() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The next whole frame. After an error every further call gives the same error.
    pub fn next_frame(&mut self) -> Result<Option<ControlFrame>, ControlReject> {
        if let Some(reject) = &self.rejected {
            return Err(reject.clone());
        }
        self.advance().inspect_err(|reject| {
            self.rejected = Some(reject.clone());
            self.bytes = Vec::new();
            self.taken = 0;
        })
    }

    /// Bytes of memory held at present.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity()
    }

    fn advance(&mut self) -> Result<Option<ControlFrame>, ControlReject> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((head, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            self.compact();
            return Ok(None);
        };
        let limit = self.limit;
        let len = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if len > limit {
            return Err(ControlReject::TooLong { len, limit });
        }
        let Some(body) = body.get(..len) else {
            self.compact();
            return Ok(None);
        };
        let frame = decode(body)?;
        self.taken += LENGTH_BYTES + len;
        Ok(Some(frame))
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }
}

fn decode(body: &[u8]) -> Result<ControlFrame, ControlReject> {
    if let Some(kind) = body.first_chunk().map(|kind| u32::from_le_bytes(*kind))
        && kind >= ControlFrame::KINDS
    {
        return Err(ControlReject::UnknownKind { kind });
    }
    let (frame, used) = codec::decode_prefix(body).map_err(malformed)?;
    // A later version may say more in its handshake, before it knows which version is spoken.
    let extensible = matches!(frame, ControlFrame::Hello { .. } | ControlFrame::Welcome { .. });
    if used < body.len() && !extensible {
        let reason = format!("{} of {} bytes follow the end of the frame", body.len() - used, body.len());
        return Err(ControlReject::Malformed { reason });
    }
    frame.check()?;
    Ok(frame)
}

fn malformed(error: codec::CodecError) -> ControlReject {
    ControlReject::Malformed { reason: error.to_string() }
}
