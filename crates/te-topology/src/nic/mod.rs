//! RDMA network devices and their ports.

mod read;
mod usable;

use std::fmt;

use te_segment::NicName;

use crate::gid::GidTable;
use crate::pci::PciPath;
use crate::root::Fact;

pub(crate) use read::{CLASS, nic};
pub use usable::{Unusable, Usable};

/// An RDMA network device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// Its name, such as `mlx5_0`.
    pub name: NicName,
    /// What it is.
    pub node_type: Fact<NodeType>,
    /// Its 64-bit identity.
    pub node_guid: Fact<String>,
    /// Version of its firmware.
    pub firmware: Fact<String>,
    /// The kind of board, as its driver names it.
    pub board: Fact<String>,
    /// The kernel driver.
    pub driver: Fact<String>,
    /// The NUMA node it is attached to; `None` if it is attached to none.
    pub numa: Fact<Option<u32>>,
    /// Where it is on PCI; a software device is nowhere.
    pub pci: Fact<PciPath>,
    /// The character device that programs open, such as `uverbs0`.
    pub verbs: Fact<String>,
    /// Whether that is in this file system.
    pub verbs_here: bool,
    /// Its network interfaces, as far as this network namespace or its GID tables name them.
    pub netdevs: Vec<String>,
    /// Its ports, in order of their numbers.
    pub ports: Vec<Port>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// An iWARP device: needs a connection manager that this engine does not use.
    Iwarp,
    /// Anything else, with its number.
    Other(u64),
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub state: Fact<PortState>,
    /// What its link does, such as `LinkUp` or `Polling`.
    pub link: Fact<String>,
    /// How fast it is.
    pub rate: Fact<Rate>,
    /// What it is connected to.
    pub link_layer: Fact<LinkLayer>,
    /// Its local identifier in an InfiniBand subnet; 0 on Ethernet.
    pub lid: Fact<u16>,
    /// The largest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. sysfs does not say it; on Ethernet it
    /// follows from the interface, as the kernel derives it.
    pub mtu: Fact<u32>,
    /// Its addresses.
    pub gids: Fact<GidTable>,
}

/// Whether a port can carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// A link, no subnet manager yet.
    Init,
    /// Configured, not yet in use.
    Armed,
    /// Carries traffic.
    Active,
    /// Active, the link failing.
    Deferred,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::Deferred => "deferred",
        })
    }
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// An InfiniBand subnet.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// How fast a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In 10⁶ bits per second, all lanes together.
    pub megabits: u64,
    /// Lanes and signalling, such as `4X NDR`.
    pub signalling: String,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.megabits / 1000, self.megabits % 1000 / 100);
        let part = if part == 0 { String::new() } else { format!(".{part}") };
        f.pad(&format!("{whole}{part} Gb/s"))
    }
}
