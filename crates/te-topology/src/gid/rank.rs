//! Which address of a port to use: a pure function of its table.
//!
//! Where an interface is known the order is that of the reference engine, so that both sides of a transfer choose
//! addresses of one kind: public before private IPv4, link-local last.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv6Addr;

use te_segment::Gid;

use super::{GidEntry, GidTable, GidType, as_ip};
use crate::namespace::Namespace;
use crate::nic::LinkLayer;

/// How good an address is; the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Tier {
    /// InfiniBand: the port's own address, at index 0.
    Subnet,
    /// InfiniBand: another address of the port.
    SubnetAlias,
    /// RoCE version 2, an IP address that can be routed, its interface here.
    Routable,
    /// The same, of 10/8, 172.16/12 or 100.64/10.
    RoutablePrivate,
    /// RoCE version 2, an IP address that can be routed, no interface of it in this network namespace.
    RoutableElsewhere,
    /// RoCE version 2 on the interface of an overlay network such as `docker0`.
    Overlay,
    /// RoCE version 2, link-local: reaches one subnet.
    LinkLocal,
    /// RoCE version 2, link-local, no interface of it in this network namespace.
    LinkLocalElsewhere,
    /// RoCE version 1: reaches one Ethernet segment.
    RoceV1,
    /// The kernel does not say which version it is.
    Untyped,
}

impl Tier {
    /// What an address of this tier is.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Subnet => "the port's own InfiniBand address",
            Self::SubnetAlias => "another InfiniBand address of the port",
            Self::Routable => "RoCE v2, routable",
            Self::RoutablePrivate => "RoCE v2, routable, private",
            Self::RoutableElsewhere => "RoCE v2, routable, its interface not in this network namespace",
            Self::Overlay => "RoCE v2, of an overlay network",
            Self::LinkLocal => "RoCE v2, link-local",
            Self::LinkLocalElsewhere => "RoCE v2, link-local, its interface not in this network namespace",
            Self::RoceV1 => "RoCE v1, not routable",
            Self::Untyped => "of unknown type",
        }
    }

    /// What may go wrong with it.
    #[must_use]
    pub const fn concern(self) -> Option<&'static str> {
        match self {
            Self::Subnet | Self::Routable | Self::RoutablePrivate => None,
            Self::SubnetAlias => Some("the port's own address at index 0 is not set"),
            Self::RoutableElsewhere | Self::LinkLocalElsewhere => {
                Some("queue pairs may fail to connect: give this namespace the interface, or use the host's")
            }
            Self::Overlay => Some("peers on other hosts are not reached through an overlay by RDMA"),
            Self::LinkLocal => {
                Some("peers behind a router are not reached: give the interface an IP address")
            }
            Self::RoceV1 => Some("peers behind a router are not reached, and many switches drop it"),
            Self::Untyped => Some("it may be RoCE v1, which peers of RoCE v2 do not reach"),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An entry with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Index in the table.
    pub index: u16,
    /// The address.
    pub gid: Gid,
    /// How good it is.
    pub tier: Tier,
}

/// Interfaces of overlay networks, by the beginning of their names.
const OVERLAYS: [&str; 5] = ["flannel", "cni", "calico", "vxlan", "docker"];

/// Every entry, the best first. Entries as good as each other stay in order of their index.
#[must_use]
pub fn rank(entries: &[GidEntry], link: LinkLayer, namespace: &Namespace) -> Vec<Ranked> {
    let nonzero = entries.iter().filter(|entry| entry.gid.bytes() != [0; 16]);
    let mut ranked: Vec<Ranked> = nonzero
        .map(|entry| Ranked { index: entry.index, gid: entry.gid, tier: tier(entry, link, namespace) })
        .collect();
    ranked.sort_by_key(|ranked| (ranked.tier, ranked.index));
    ranked
}

fn tier(entry: &GidEntry, link: LinkLayer, namespace: &Namespace) -> Tier {
    if link == LinkLayer::InfiniBand {
        return if entry.index == 0 { Tier::Subnet } else { Tier::SubnetAlias };
    }
    match entry.kind {
        Err(_) => return Tier::Untyped,
        Ok(GidType::IbOrRoceV1) => return Tier::RoceV1,
        Ok(GidType::RoceV2) => {}
    }
    let address = as_ip(entry.gid);
    let is_local = is_link_local(address);
    let netdev = entry.netdev.as_ref().ok().filter(|name| namespace.netdevs.contains(*name));
    // Link-local addresses of a port need not be those of its interface.
    let netdev = netdev.filter(|_| is_local || namespace.may_have(address));
    match (netdev, is_local) {
        (None, true) => Tier::LinkLocalElsewhere,
        (None, false) => Tier::RoutableElsewhere,
        (Some(name), _) if is_overlay(name) => Tier::Overlay,
        (Some(_), true) => Tier::LinkLocal,
        (Some(_), false) if is_private(address) => Tier::RoutablePrivate,
        (Some(_), false) => Tier::Routable,
    }
}

fn is_overlay(netdev: &str) -> bool {
    netdev == "tunl0" || OVERLAYS.iter().any(|prefix| netdev.starts_with(prefix))
}

/// `fe80::/10`, and 169.254/16, which nobody routes either.
fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80 || address.to_ipv4_mapped().is_some_and(|v4| v4.is_link_local())
}

/// As the reference engine has it: without 192.168/16.
fn is_private(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_some_and(|v4| match v4.octets() {
        [10, ..] => true,
        [172, second, ..] => second & 0xf0 == 16,
        [100, second, ..] => second & 0xc0 == 64,
        _ => false,
    })
}

/// The address to use, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen one.
    pub best: Ranked,
    /// Why it, in one line.
    pub reason: String,
    /// Every entry, the best first; the chosen one is the first unless it was pinned.
    pub ranking: Vec<Ranked>,
}

impl Choice {
    /// The best entry that has not been tried, for a queue pair that could not connect with those that were.
    #[must_use]
    pub fn after(&self, tried: &BTreeSet<u16>) -> Option<Ranked> {
        self.ranking.iter().find(|ranked| !tried.contains(&ranked.index)).copied()
    }
}

/// Why no address of a port can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoUsableGid {
    /// The port has no table.
    #[error("the port has an empty GID table; its driver offers no addresses")]
    Empty,
    /// Nothing is set.
    #[error(
        "all {len} entries of the GID table are zero: the network interface behind the port has no address or is in \
         another network namespace; give this namespace the interface, or run in the host's"
    )]
    AllZero {
        /// How many entries there are.
        len: usize,
    },
    /// The pinned index is not in the table.
    #[error("GID index {index} is pinned, the table has {len} entries")]
    PinnedOutside {
        /// The index.
        index: u16,
        /// How many entries there are.
        len: usize,
    },
    /// Nothing is set at the pinned index.
    #[error("GID index {index} is pinned, but not set; {}", set_indexes(.set))]
    PinnedUnset {
        /// The index.
        index: u16,
        /// The indexes that are set.
        set: Vec<u16>,
    },
    /// The pinned entry cannot be read.
    #[error("GID index {index} is pinned, but its entry cannot be read: {cause}")]
    PinnedUnread {
        /// The index.
        index: u16,
        /// Why not.
        cause: crate::Unknown,
    },
}

fn set_indexes(set: &[u16]) -> String {
    match set {
        [] => "no entry is, so the network interface may be in another network namespace".to_owned(),
        _ => format!("set are {}", set.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Chooses the address of a port: the pinned index, or the best there is.
///
/// A pinned index is honoured even if it is a poor choice, which its reason says; it is refused if nothing is there.
///
/// ```
/// use te_topology::{GidEntry, GidTable, GidType, LinkLayer, Namespace, Tier, choose};
/// let entry = |index, text: &str, kind| GidEntry {
///     index,
///     gid: te_segment::Gid::from_bytes(text.parse::<std::net::Ipv6Addr>().unwrap().octets()),
///     kind: Ok(kind),
///     netdev: Ok("eth2".to_owned()),
/// };
/// let entries = vec![
///     entry(0, "fe80::1", GidType::IbOrRoceV1),
///     entry(1, "fe80::1", GidType::RoceV2),
///     entry(2, "::ffff:10.0.0.7", GidType::IbOrRoceV1),
///     entry(3, "::ffff:10.0.0.7", GidType::RoceV2),
/// ];
/// let table = GidTable { entries, len: 256, ..GidTable::default() };
/// let choice = choose(&table, LinkLayer::Ethernet, &Namespace::of(["eth2"]), None)?;
/// assert_eq!((choice.best.index, choice.best.tier), (3, Tier::RoutablePrivate));
/// # Ok::<(), te_topology::NoUsableGid>(())
/// ```
///
/// # Errors
///
/// The table has no entry that is set, or nothing is set at the pinned index.
pub fn choose(
    table: &GidTable,
    link: LinkLayer,
    namespace: &Namespace,
    pinned: Option<u16>,
) -> Result<Choice, NoUsableGid> {
    let ranking = rank(&table.entries, link, namespace);
    if let Some(index) = pinned {
        let Some(&best) = ranking.iter().find(|ranked| ranked.index == index) else {
            return Err(unpinnable(table, index, &ranking));
        };
        let reason = reason(table, &best, "pinned: ");
        return Ok(Choice { best, reason, ranking });
    }
    let Some(&best) = ranking.first() else {
        return Err(match table.len {
            0 => NoUsableGid::Empty,
            len => NoUsableGid::AllZero { len },
        });
    };
    let reason = reason(table, &best, "");
    Ok(Choice { best, reason, ranking })
}

fn unpinnable(table: &GidTable, index: u16, ranking: &[Ranked]) -> NoUsableGid {
    if let Some(cause) = table.unread.get(&index) {
        return NoUsableGid::PinnedUnread { index, cause: cause.clone() };
    }
    if usize::from(index) >= table.len {
        return NoUsableGid::PinnedOutside { index, len: table.len };
    }
    let mut set: Vec<u16> = ranking.iter().map(|ranked| ranked.index).collect();
    set.sort_unstable();
    NoUsableGid::PinnedUnset { index, set }
}

fn reason(table: &GidTable, best: &Ranked, prefix: &str) -> String {
    let entry = table.entries.iter().find(|entry| entry.index == best.index);
    let is_elsewhere = matches!(best.tier, Tier::RoutableElsewhere | Tier::LinkLocalElsewhere);
    let netdev = entry.and_then(|entry| entry.netdev.as_deref().ok()).filter(|_| !is_elsewhere);
    let on = netdev.map(|name| format!(" on {name}")).unwrap_or_default();
    let concern = best.tier.concern().map(|concern| format!("; {concern}")).unwrap_or_default();
    format!("{prefix}{}{on}{concern}", best.tier)
}
