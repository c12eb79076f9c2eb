//! What peers may do with a buffer.

use std::{fmt, ops::BitOr, str::FromStr};

use serde::{Deserialize, Serialize};

/// The operations that peers may apply to a buffer. The owner itself may always do both.
///
/// ```
/// use te_segment::Access;
/// assert!(Access::REMOTE.allows_write());
/// assert_eq!("remote_read|remote_write".parse(), Ok(Access::REMOTE_READ | Access::REMOTE_WRITE));
/// assert!(!Access::LOCAL.is_remote());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Access(u8);

impl Access {
    /// Peers may do nothing; the buffer is for local use and never appears in a descriptor.
    pub const LOCAL: Self = Self(0);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read and write.
    pub const REMOTE: Self = Self(3);

    /// Whether peers may read.
    pub const fn allows_read(self) -> bool {
        self.0 & Self::REMOTE_READ.0 != 0
    }

    /// Whether peers may write.
    pub const fn allows_write(self) -> bool {
        self.0 & Self::REMOTE_WRITE.0 != 0
    }

    /// Whether peers may do anything at all.
    pub const fn is_remote(self) -> bool {
        self.0 != 0
    }

    /// Whether everything that `other` allows is allowed here too.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The word for this access.
    pub const fn as_str(self) -> &'static str {
        match (self.allows_read(), self.allows_write()) {
            (false, false) => "local",
            (true, false) => "remote_read",
            (false, true) => "remote_write",
            (true, true) => "remote_read|remote_write",
        }
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A text or number does not name an access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown access {text:?}, expected local, remote_read, remote_write or remote_read|remote_write")]
pub struct ParseAccessError {
    /// The refused text.
    pub text: String,
}

impl FromStr for Access {
    type Err = ParseAccessError;

    fn from_str(text: &str) -> Result<Self, ParseAccessError> {
        match text {
            "local" => Ok(Self::LOCAL),
            "remote_read" => Ok(Self::REMOTE_READ),
            "remote_write" => Ok(Self::REMOTE_WRITE),
            "remote_read|remote_write" | "remote_write|remote_read" => Ok(Self::REMOTE),
            _ => Err(ParseAccessError { text: text.chars().take(64).collect() }),
        }
    }
}

impl TryFrom<u8> for Access {
    type Error = ParseAccessError;

    fn try_from(bits: u8) -> Result<Self, ParseAccessError> {
        if bits <= Self::REMOTE.0 { Ok(Self(bits)) } else { Err(ParseAccessError { text: bits.to_string() }) }
    }
}

impl From<Access> for u8 {
    fn from(access: Access) -> Self {
        access.0
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({self})")
    }
}
