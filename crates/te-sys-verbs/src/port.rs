//! What devices and ports say about themselves.

use std::fmt;
use std::net::Ipv6Addr;

use crate::context::text;
use crate::ffi::*;

/// The most that a device takes. Registrations of the last bit of it may fail all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// The version of its firmware.
    pub firmware: String,
    /// Who made it, and which it is.
    pub vendor: (u32, u32),
    /// Bytes of one registration.
    pub registration_bytes: u64,
    /// Registrations.
    pub registrations: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests that wait in one queue pair.
    pub queue_pair_requests: u32,
    /// Ranges of one request.
    pub ranges: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of one completion queue.
    pub completion_queue_entries: u32,
    /// READs that a queue pair answers at a time.
    pub reads_answered: u8,
    /// READs that a queue pair has under way at a time.
    pub reads_started: u8,
    /// Ports, which count from 1.
    pub ports: u8,
}

impl DeviceLimits {
    pub(crate) fn from_raw(raw: &ibv_device_attr) -> Self {
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let small = |n: i32| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
        Self {
            firmware: text(&raw.fw_ver),
            vendor: (raw.vendor_id, raw.vendor_part_id),
            registration_bytes: raw.max_mr_size,
            registrations: count(raw.max_mr),
            queue_pairs: count(raw.max_qp),
            queue_pair_requests: count(raw.max_qp_wr),
            ranges: count(raw.max_sge),
            completion_queues: count(raw.max_cq),
            completion_queue_entries: count(raw.max_cqe),
            reads_answered: small(raw.max_qp_rd_atom),
            reads_started: small(raw.max_qp_init_rd_atom),
            ports: raw.phys_port_cnt,
        }
    }
}

/// How many bytes of payload a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is that many bytes")]
pub enum Mtu {
    B256,
    B512,
    B1024,
    B2048,
    B4096,
}

impl Mtu {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// The largest that is not above so many bytes.
    #[must_use]
    pub fn at_most(bytes: u32) -> Option<Self> {
        (1..=5).rev().filter_map(Self::from_code).find(|mtu| mtu.bytes() <= bytes)
    }

    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::B256 => 1,
            Self::B512 => 2,
            Self::B1024 => 3,
            Self::B2048 => 4,
            Self::B4096 => 5,
        }
    }

    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// What a port is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are found by LID, a GID is needed between subnets only.
    InfiniBand,
    /// RoCE: peers are found by GID.
    Ethernet,
    /// Not said.
    Unknown,
}

/// How a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Whether it can carry data.
    pub active: bool,
    /// The library's number for its state; 4 is active.
    pub state: u32,
    /// What it uses now; none if the number is not one that is known.
    pub active_mtu: Option<Mtu>,
    /// The most it could use.
    pub max_mtu: Option<Mtu>,
    /// Entries of its table of addresses.
    pub gids: u32,
    /// Entries of its table of partition keys.
    pub pkeys: u16,
    /// Its address in an InfiniBand subnet, else 0.
    pub lid: u16,
    /// Bytes of one request.
    pub message_bytes: u32,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// The library's codes for the width and the speed of a lane.
    pub width_and_speed: (u8, u8),
}

impl PortInfo {
    pub(crate) fn from_raw(raw: &ibv_port_attr) -> Self {
        Self {
            active: raw.state == IBV_PORT_ACTIVE,
            state: raw.state,
            active_mtu: Mtu::from_code(raw.active_mtu),
            max_mtu: Mtu::from_code(raw.max_mtu),
            gids: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkeys: raw.pkey_tbl_len,
            lid: raw.lid,
            message_bytes: raw.max_msg_sz,
            // Unspecified, 0, is InfiniBand from before there was anything else.
            link_layer: match raw.link_layer {
                0 | IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unknown,
            },
            width_and_speed: (raw.active_width, raw.active_speed),
        }
    }
}

/// An address of a port: for RoCE v2, an IP address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether this is the entry of an empty place of the table.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is an IPv4 address.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether it is valid on one link only.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

/// As an IPv6 address.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Which packets an address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the kind of that name")]
pub enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
    Unknown,
}

/// An entry of a port's table of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its place in the table.
    pub index: u8,
    /// Which packets it is for.
    pub kind: GidKind,
    /// The system's index of the network interface that has the address.
    pub interface: Option<u32>,
}

impl GidEntry {
    pub(crate) fn from_raw(raw: &ibv_gid_entry, index: u8) -> Self {
        Self {
            gid: Gid(raw.gid.raw),
            index,
            kind: match raw.gid_type {
                IBV_GID_TYPE_IB => GidKind::InfiniBand,
                IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                _ => GidKind::Unknown,
            },
            interface: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_those_that_exist() {
        let at_most = |bytes| Mtu::at_most(bytes).map(Mtu::bytes);
        assert_eq!(
            [255, 256, 1023, 1024, 1500, u32::MAX].map(at_most),
            [None, Some(256), Some(512), Some(1024), Some(1024), Some(4096)]
        );
    }
}
