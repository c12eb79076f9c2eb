//! The reference engine's data-port framing as pure functions: no I/O, no allocation.
//!
//! A request is a header of 24 bytes, little endian: length (8), address (8), opcode (1), padding (7). The low seven
//! bits of the opcode say READ (0) or WRITE (1), the high bit asks for version 2. In version 2 the target answers
//! every request with a status of 8 bytes: the word `0x4D435456` in the high half, a code in the low half.

use te_segment::TcpFraming;
use te_transport::Op;
use thiserror::Error;

/// Bytes of a request header.
pub const HEADER_LEN: usize = 24;
/// Bytes of a status.
pub const STATUS_LEN: usize = 8;
/// High half of every status.
pub const STATUS_MAGIC: u32 = 0x4D43_5456;

const V2_BIT: u8 = 0x80;
const READ: u8 = 0;
const WRITE: u8 = 1;
const CODE_OK: u32 = 0;
const CODE_REJECTED: u32 = 1;

/// A request header. `len` and `addr` are the peer's words and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// READ or WRITE.
    pub op: Op,
    /// Whether the sender expects a status.
    pub framing: TcpFraming,
    /// Start address in the target process.
    pub addr: u64,
    /// Payload bytes.
    pub len: u64,
}

/// The header asks for something that is neither READ nor WRITE.
///
/// The reference serves it as a READ; here the connection is closed, because the stream can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown opcode {opcode:#04x}")]
pub struct UnknownOpcode {
    /// The byte received.
    pub opcode: u8,
}

impl Request {
    /// The header on the wire. Padding is zero.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_le_bytes());
        let op = match self.op {
            Op::Read => READ,
            Op::Write => WRITE,
        };
        bytes[16] = if self.framing == TcpFraming::V2 { op | V2_BIT } else { op };
        bytes
    }

    /// Reads a header. Padding is ignored: the reference sends uninitialised bytes there.
    ///
    /// # Errors
    ///
    /// [`UnknownOpcode`] when the low seven bits of the opcode are neither 0 nor 1.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, UnknownOpcode> {
        let [l0, l1, l2, l3, l4, l5, l6, l7, a0, a1, a2, a3, a4, a5, a6, a7, opcode, ..] = *bytes;
        let op = match opcode & !V2_BIT {
            READ => Op::Read,
            WRITE => Op::Write,
            _ => return Err(UnknownOpcode { opcode }),
        };
        let framing = if opcode & V2_BIT == 0 { TcpFraming::V1 } else { TcpFraming::V2 };
        Ok(Self {
            op,
            framing,
            addr: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
        })
    }
}

/// What the target says about a version 2 request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// WRITE: the last byte is in memory. READ: the payload follows.
    Ok,
    /// The range or the access was refused; the code, 1 in all known engines. The target closes.
    Rejected(u32),
}

/// Eight bytes that are no status: the peer speaks version 1 or lost the framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no status but {found:#018x}: the peer speaks version 1 or lost the framing")]
pub struct BadStatus {
    /// The bytes received, as a little-endian number.
    pub found: u64,
}

impl Status {
    /// The refusal this engine sends.
    pub const REJECTED: Self = Self::Rejected(CODE_REJECTED);

    /// The status on the wire.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_LEN] {
        let code = match self {
            Self::Ok => CODE_OK,
            Self::Rejected(code) => code,
        };
        ((u64::from(STATUS_MAGIC) << 32) | u64::from(code)).to_le_bytes()
    }

    /// Reads a status. Any code but 0 is a refusal.
    ///
    /// # Errors
    ///
    /// [`BadStatus`] when the high half is not [`STATUS_MAGIC`].
    pub fn decode(bytes: [u8; STATUS_LEN]) -> Result<Self, BadStatus> {
        let [c0, c1, c2, c3, m0, m1, m2, m3] = bytes;
        if u32::from_le_bytes([m0, m1, m2, m3]) != STATUS_MAGIC {
            return Err(BadStatus { found: u64::from_le_bytes(bytes) });
        }
        match u32::from_le_bytes([c0, c1, c2, c3]) {
            CODE_OK => Ok(Self::Ok),
            code => Ok(Self::Rejected(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write_v2() -> Request {
        Request { op: Op::Write, framing: TcpFraming::V2, addr: 0x0000_7f00_0000_1000, len: 4096 }
    }

    #[test]
    fn v2_write_header_equals_the_reference_vector() {
        let expected = [
            0x00, 0x10, 0, 0, 0, 0, 0, 0, 0x00, 0x10, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x00, 0x81, 0, 0, 0, 0,
            0, 0, 0,
        ];
        assert_eq!(write_v2().encode(), expected);
    }

    #[test]
    fn v1_read_header_equals_the_reference_vector() {
        let header = Request { op: Op::Read, framing: TcpFraming::V1, len: 8, ..write_v2() }.encode();
        let expected =
            [8, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x10, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x00, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(header, expected);
    }

    #[test]
    fn statuses_equal_the_reference_vectors() {
        assert_eq!(Status::Ok.encode(), [0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d]);
        assert_eq!(Status::REJECTED.encode(), [1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d]);
    }

    #[test]
    fn padding_is_ignored() {
        let mut header = write_v2().encode();
        header[17..].copy_from_slice(b"ey: str");
        assert_eq!(Request::decode(&header), Ok(write_v2()));
    }

    #[test]
    fn unknown_status_code_is_a_refusal() {
        assert_eq!(Status::decode([7, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d]), Ok(Status::Rejected(7)));
    }

    #[test]
    fn wrong_magic_is_no_status() {
        assert!(Status::decode([0; 8]).is_err());
    }

    proptest! {
        #[test]
        fn every_header_decodes_to_what_encodes_the_same_or_is_refused(bytes: [u8; HEADER_LEN]) {
            match Request::decode(&bytes) {
                Ok(request) => {
                    prop_assert!(bytes[16] & 0x7f <= 1);
                    prop_assert_eq!(&request.encode()[..17], &bytes[..17]);
                    prop_assert_eq!(&request.encode()[17..], &[0; 7]);
                }
                Err(UnknownOpcode { opcode }) => prop_assert!(opcode & 0x7f > 1),
            }
        }

        #[test]
        fn every_status_decodes_to_what_encodes_the_same_or_is_refused(bytes: [u8; STATUS_LEN]) {
            match Status::decode(bytes) {
                Ok(status) => prop_assert_eq!(status.encode(), bytes),
                Err(_) => prop_assert_ne!(&bytes[4..], &STATUS_MAGIC.to_le_bytes()),
            }
        }
    }
}
