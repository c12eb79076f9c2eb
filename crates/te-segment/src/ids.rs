//! Newtypes for the names and numbers that identify segments, lives of a process, buffers and devices.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::limits::MAX_NAME_BYTES;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is the empty string.
    #[error("name is empty")]
    Empty,
    /// The name is longer than [`MAX_NAME_BYTES`].
    #[error("name has {len} bytes, at most {limit} are allowed")]
    TooLong {
        /// Length of the refused name in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The name begins with a slash, so its store key would contain an empty component.
    #[error("name begins with '/'")]
    LeadingSlash,
    /// The first path component of the name is one the key scheme uses itself.
    #[error("first component {component:?} is reserved by the key scheme")]
    Reserved {
        /// The reserved component, `ram` or `rpc_meta`.
        component: &'static str,
    },
    /// The name contains a character that is not allowed in names of this kind.
    #[error("character {character:?} at byte {at} is not allowed")]
    Character {
        /// The refused character.
        character: char,
        /// Its byte offset in the name.
        at: usize,
    },
}

fn check_name(name: &str, allowed: impl Fn(char) -> bool) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong { len: name.len(), limit: MAX_NAME_BYTES });
    }
    match name.char_indices().find(|(_, c)| !allowed(*c)) {
        Some((at, character)) => Err(NameError::Character { character, at }),
        None => Ok(()),
    }
}

/// The name a segment is found by.
///
/// 1 to 1,024 bytes, no control characters, no leading `/`, and a first component other than `ram` or `rpc_meta`,
/// which the key scheme of the metadata store uses itself. Cloning is cheap: the text is shared.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SegmentName(Arc<str>);

impl SegmentName {
    /// Checks `name` and makes it a segment name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_name(name, |c| !c.is_control())?;
        if name.starts_with('/') {
            return Err(NameError::LeadingSlash);
        }
        let first = name.split('/').next().unwrap_or(name);
        if let Some(component) = ["ram", "rpc_meta"].into_iter().find(|reserved| *reserved == first) {
            return Err(NameError::Reserved { component });
        }
        Ok(Self(Arc::from(name)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a network device, for example `mlx5_0`.
///
/// 1 to 1,024 bytes without control characters and without `@`, which separates server and device in NIC paths.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NicName(Arc<str>);

impl NicName {
    /// Checks `name` and makes it a device name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_name(name, |c| !c.is_control() && c != '@')?;
        Ok(Self(Arc::from(name)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.as_str())
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }
    };
}

text_newtype!(SegmentName);
text_newtype!(NicName);
text_newtype!(TransportKind);

/// One word that names a kind of transport, for example `tcp`.
///
/// A lower-case letter followed by lower-case letters, digits or `_`, at most 32 bytes. Words this version does not
/// know are allowed: a descriptor may speak of transports that a newer peer has.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TransportKind(Cow<'static, str>);

impl TransportKind {
    /// Copies inside one process.
    pub const LOCAL: Self = Self(Cow::Borrowed("local"));
    /// TCP sockets.
    pub const TCP: Self = Self(Cow::Borrowed("tcp"));
    /// Shared memory between processes of one host.
    pub const SHM: Self = Self(Cow::Borrowed("shm"));
    /// RDMA verbs (InfiniBand and RoCE).
    pub const RDMA: Self = Self(Cow::Borrowed("rdma"));
    /// CUDA inter-process and fabric memory.
    pub const NVLINK: Self = Self(Cow::Borrowed("nvlink"));
    /// HIP inter-process memory.
    pub const HIP: Self = Self(Cow::Borrowed("hip"));
    /// A CXL memory window shared by hosts.
    pub const CXL: Self = Self(Cow::Borrowed("cxl"));
    /// Files on NVMe-oF devices.
    pub const NVMEOF: Self = Self(Cow::Borrowed("nvmeof"));

    const MAX_BYTES: usize = 32;

    /// Checks `word` and makes it a transport kind.
    pub fn new(word: &str) -> Result<Self, NameError> {
        const KNOWN: [TransportKind; 8] = [
            TransportKind::LOCAL,
            TransportKind::TCP,
            TransportKind::SHM,
            TransportKind::RDMA,
            TransportKind::NVLINK,
            TransportKind::HIP,
            TransportKind::CXL,
            TransportKind::NVMEOF,
        ];
        if let Some(known) = KNOWN.into_iter().find(|kind| kind.as_str() == word) {
            return Ok(known);
        }
        check_name(word, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')?;
        if word.len() > Self::MAX_BYTES {
            return Err(NameError::TooLong { len: word.len(), limit: Self::MAX_BYTES });
        }
        match word.chars().next() {
            Some(first) if !first.is_ascii_lowercase() => {
                Err(NameError::Character { character: first, at: 0 })
            }
            _ => Ok(Self(Cow::Owned(word.to_owned()))),
        }
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A word that the caller knows to be well-formed.
    pub(crate) const fn of_static(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }
}

/// One life of a process that owns a segment: 128 bits drawn at start, never reused.
///
/// This crate draws none; whoever starts the engine does. The text form is 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(u128);

impl Incarnation {
    /// The incarnation with these bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128 bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    /// The first eight digits, enough to tell two lives apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({:08x}…)", self.0 >> 96)
    }
}

/// A text is not an incarnation: 32 hexadecimal digits are due.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an incarnation is 32 hexadecimal digits, this text has {len} bytes")]
pub struct ParseIncarnationError {
    /// Length of the refused text in bytes.
    pub len: usize,
}

impl FromStr for Incarnation {
    type Err = ParseIncarnationError;

    fn from_str(text: &str) -> Result<Self, ParseIncarnationError> {
        let refused = ParseIncarnationError { len: text.len() };
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(refused);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| refused)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(u64);

        impl $name {
            /// Makes it from its number.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn value(self) -> u64 {
                self.0
            }

            /// The one that follows, or `None` when the numbers are used up.
            pub const fn next(self) -> Option<Self> {
                match self.0.checked_add(1) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter! {
    /// Tells one registration of a range from a later one of the same range; unique within one incarnation.
    Generation
}
counter! {
    /// Counts the descriptors that one incarnation has published; a larger one is newer.
    DescriptorVersion
}

/// The key by which a peer's device reaches a buffer. Always 64 bits wide, whatever the device uses (MR-08).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemoryKey(u64);

impl MemoryKey {
    /// Makes it from its number.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number, as published.
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryKey({:#x})", self.0)
    }
}
