//! The binary codec of control messages and native data frames between te engines.
//!
//! One format for all of them: bincode 2 in its legacy configuration (fixed-width little-endian integers, 64-bit length
//! prefixes), which is frozen. Every decoding is bounded by the number of bytes that are there: a length prefix that
//! claims more is an error and allocates nothing of that size. Lists must not have elements without content (such as
//! `Vec<()>`), whose number no input bounds.
//!
//! ```
//! use te_segment::codec;
//! let bytes = codec::encode(&(7_u32, "seven"))?;
//! assert_eq!(codec::decode::<(u32, String)>(&bytes)?, (7, "seven".to_owned()));
//! # Ok::<(), te_segment::codec::CodecError>(())
//! ```

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::{Serialize, de::DeserializeOwned};

use crate::limits::MAX_DOCUMENT_BYTES;

/// Largest message in bytes, both ways: the largest control frame.
pub const MAX_MESSAGE_BYTES: usize = MAX_DOCUMENT_BYTES;

/// Why a message was not encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The message is larger than [`MAX_MESSAGE_BYTES`].
    #[error("message has {len} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The bytes end before the message does, or a length prefix claims more bytes than there are.
    #[error("message of {len} bytes ends too early or claims a length beyond its end")]
    Truncated {
        /// Length in bytes.
        len: usize,
    },
    /// Bytes follow the message.
    #[error("{trailing} of {len} bytes follow the end of the message")]
    TrailingBytes {
        /// Number of bytes that follow.
        trailing: usize,
        /// Length of the whole in bytes.
        len: usize,
    },
    /// The bytes are no message of this type, or a value of it is not allowed.
    #[error("message is malformed: {reason}")]
    Malformed {
        /// What the decoder found.
        reason: String,
    },
    /// The value cannot be encoded.
    #[error("value cannot be encoded: {reason}")]
    Unencodable {
        /// What the encoder found.
        reason: String,
    },
}

type Bounded<const N: usize> = Configuration<LittleEndian, Fixint, Limit<N>>;

const fn bounded<const N: usize>() -> Bounded<N> {
    bincode::config::legacy().with_limit::<N>()
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = bincode::serde::encode_to_vec(message, bounded::<MAX_MESSAGE_BYTES>())
        .map_err(|e| CodecError::Unencodable { reason: e.to_string() })?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len(), limit: MAX_MESSAGE_BYTES });
    }
    Ok(bytes)
}

/// Decodes a message that makes up all of `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (message, used) = decode_prefix(bytes)?;
    match bytes.len().saturating_sub(used) {
        0 => Ok(message),
        trailing => Err(CodecError::TrailingBytes { trailing, len: bytes.len() }),
    }
}

/// Decodes a message at the start of `bytes`; also gives the number of bytes it takes.
pub fn decode_prefix<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), CodecError> {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    // The bound is part of the configuration's type, so there are steps: what a hostile prefix can claim, and thereby
    // allocate, is at most 16 times what was sent, or 4 KiB.
    match bytes.len() {
        0..=0x1000 => decode_bounded::<T, { 4 * KIB }>(bytes),
        0x1001..=0x1_0000 => decode_bounded::<T, { 64 * KIB }>(bytes),
        0x1_0001..=0x10_0000 => decode_bounded::<T, MIB>(bytes),
        0x10_0001..=0x100_0000 => decode_bounded::<T, { 16 * MIB }>(bytes),
        0x100_0001..=MAX_MESSAGE_BYTES => decode_bounded::<T, MAX_MESSAGE_BYTES>(bytes),
        len => Err(CodecError::TooLarge { len, limit: MAX_MESSAGE_BYTES }),
    }
}

fn decode_bounded<T: DeserializeOwned, const N: usize>(bytes: &[u8]) -> Result<(T, usize), CodecError> {
    use bincode::error::DecodeError;

    bincode::serde::decode_from_slice(bytes, bounded::<N>()).map_err(|error| match error {
        DecodeError::UnexpectedEnd { .. } | DecodeError::LimitExceeded => {
            CodecError::Truncated { len: bytes.len() }
        }
        other => CodecError::Malformed { reason: crate::error::shorten(&other.to_string()) },
    })
}
