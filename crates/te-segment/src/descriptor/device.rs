//! What a descriptor says about devices and services, beside its buffers.

use std::{fmt, num::NonZeroU16, str::FromStr};

use crate::{endpoint::Host, ids::NicName};

/// Where the owner's TCP data listener is and what it understands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpService {
    /// The host, if the record states one; otherwise that of the segment's control location.
    pub host: Option<Host>,
    /// The port.
    pub port: NonZeroU16,
    /// The newest framing of the reference protocol that the listener accepts.
    pub framing: TcpFraming,
}

/// Framing of the reference engine's TCP data protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TcpFraming {
    /// Without status frames: a WRITE is not confirmed.
    V1,
    /// With status frames.
    V2,
}

impl TcpFraming {
    /// The framing that a published version means: an upper bound, so everything above 2 includes version 2.
    pub const fn from_version(version: u64) -> Self {
        if version >= 2 { Self::V2 } else { Self::V1 }
    }

    /// The version to publish.
    pub const fn version(self) -> u64 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// The 16-byte address of an RDMA port, written as colon-separated hexadecimal bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The address with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, in network order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A text is not a 16-byte address in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a device address is 16 bytes in hexadecimal, separated by colons")]
pub struct ParseGidError;

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        let mut bytes = [0; 16];
        let mut groups = text.split(':');
        for byte in &mut bytes {
            let group = groups.next().ok_or(ParseGidError)?;
            if group.len() != 2 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(ParseGidError);
            }
            *byte = u8::from_str_radix(group, 16).map_err(|_| ParseGidError)?;
        }
        if groups.next().is_some() {
            return Err(ParseGidError);
        }
        Ok(Self(bytes))
    }
}

/// A network device of the owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    name: NicName,
    lid: u16,
    gid: Option<Gid>,
    eid: Option<String>,
}

impl Device {
    /// A device with this name and no address.
    pub fn new(name: NicName) -> Self {
        Self { name, lid: 0, gid: None, eid: None }
    }

    /// A device with an InfiniBand or RoCE address; `lid` is 0 on Ethernet.
    pub fn rdma(name: NicName, lid: u16, gid: Gid) -> Self {
        Self { name, lid, gid: Some(gid), eid: None }
    }

    /// The same device with this local identifier.
    #[must_use]
    pub fn with_lid(mut self, lid: u16) -> Self {
        self.lid = lid;
        self
    }

    /// The same device with an entity identifier, as Unified Bus devices have.
    #[must_use]
    pub fn with_eid(mut self, eid: String) -> Self {
        self.eid = Some(eid);
        self
    }

    /// The name.
    pub fn name(&self) -> &NicName {
        &self.name
    }

    /// The local identifier in an InfiniBand subnet, 0 if there is none.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// The address.
    pub fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The entity identifier of a Unified Bus device.
    pub fn eid(&self) -> Option<&str> {
        self.eid.as_deref()
    }

    pub(super) fn with_gid(mut self, gid: Option<Gid>) -> Self {
        self.gid = gid;
        self
    }
}

/// The CXL window of a reference engine: its buffers have offsets in the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CxlWindow {
    /// Path of the device at the owner.
    pub device: String,
    /// Address at which the owner has mapped it.
    pub base: u64,
}
