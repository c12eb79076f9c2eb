//! Which entry of a port's address table is used.

use std::fmt;
use std::net::Ipv4Addr;

use te_segment::Gid;
use thiserror::Error;

use super::{Link, Scope};

/// What packets of an entry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// Of InfiniBand.
    InfiniBand,
    /// Ethernet frames that no router passes on.
    RoceV1,
    /// UDP.
    RoceV2,
}

/// An entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index.
    pub index: u16,
    /// The address; all zero where the entry is not in use.
    pub gid: Gid,
    /// What its packets are.
    pub kind: GidKind,
    /// The network interface that it belongs to, if this network namespace has it.
    pub interface: Option<String>,
}

/// How good an entry is; the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidRank {
    /// An address of InfiniBand.
    Subnet,
    /// An IPv4 address of an interface here. Private ones count as any other: they are what data centres use.
    RoutedV4,
    /// An IPv6 address of an interface here.
    RoutedV6,
    /// Either, of an interface that is not in this network namespace.
    Elsewhere,
    /// Either, of an interface that is laid over another network.
    Overlay,
    /// An address within one link.
    LinkLocal,
    /// Not UDP: it reaches its own link only.
    OldKind,
}

impl fmt::Display for GidRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subnet => "InfiniBand address",
            Self::RoutedV4 => "IPv4 address of an interface",
            Self::RoutedV6 => "IPv6 address of an interface",
            Self::Elsewhere => "address of an interface outside this network namespace",
            Self::Overlay => "address of an overlay network",
            Self::LinkLocal => "link-local address",
            Self::OldKind => "RoCE v1 address",
        })
    }
}

/// The entry that is used, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// Its index.
    pub index: u16,
    /// The address.
    pub gid: Gid,
    /// What it is; [`None`] for an entry that was asked for and would not have been chosen.
    pub rank: Option<GidRank>,
    /// Whether it was asked for by its index.
    pub pinned: bool,
}

impl fmt::Display for ChosenGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gid {} (index {}", self.gid, self.index)?;
        match (self.pinned, self.rank) {
            (true, _) => f.write_str(", as set by gid_index)"),
            (false, Some(rank)) => write!(f, ", {rank})"),
            (false, None) => f.write_str(")"),
        }
    }
}

/// No entry can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoUsableGid {
    /// The table has no address at all.
    #[error(
        "none of the port's {entries} gid entries is in use: RoCE is not set up in this network namespace (use the \
         host's network, or move the NIC here)"
    )]
    Empty {
        /// How many entries there are.
        entries: usize,
    },
    /// There are addresses, but none that fits the port.
    #[error(
        "none of the port's {entries} gid entries fits its link, the first in use is {first} (index {index})"
    )]
    NoneFits {
        /// How many entries there are.
        entries: usize,
        /// The first address.
        first: Gid,
        /// Its index.
        index: u16,
    },
    /// The entry that was asked for is not in use.
    #[error("gid_index = {index} is not in use on this port")]
    Pinned {
        /// The index.
        index: u16,
    },
}

/// Chooses the entry of a port's table: the best by its [`GidRank`], the first among equals; or the one at `pinned`.
///
/// # Errors
///
/// Why there is none. Trying again cannot help until the set-up changes.
pub fn choose_gid(link: Link, table: &[GidEntry], pinned: Option<u16>) -> Result<ChosenGid, NoUsableGid> {
    let in_use = |entry: &&GidEntry| Scope::of(entry.gid) != Scope::Unset;
    if let Some(index) = pinned {
        let found = table.iter().filter(in_use).find(|entry| entry.index == index);
        let entry = found.ok_or(NoUsableGid::Pinned { index })?;
        return Ok(ChosenGid { index, gid: entry.gid, rank: rank(link, entry), pinned: true });
    }
    let ranked = table.iter().filter(in_use).filter_map(|entry| Some((rank(link, entry)?, entry)));
    if let Some((rank, entry)) = ranked.min_by_key(|(rank, entry)| (*rank, entry.index)) {
        return Ok(ChosenGid { index: entry.index, gid: entry.gid, rank: Some(rank), pinned: false });
    }
    Err(match table.iter().find(in_use) {
        Some(first) => NoUsableGid::NoneFits { entries: table.len(), first: first.gid, index: first.index },
        None => NoUsableGid::Empty { entries: table.len() },
    })
}

fn rank(link: Link, entry: &GidEntry) -> Option<GidRank> {
    match (link, entry.kind) {
        (Link::InfiniBand, GidKind::InfiniBand) => return Some(GidRank::Subnet),
        (Link::InfiniBand, _) | (Link::Ethernet, GidKind::InfiniBand) => return None,
        (Link::Ethernet, GidKind::RoceV1) => return Some(GidRank::OldKind),
        (Link::Ethernet, GidKind::RoceV2) => {}
    }
    let bytes = entry.gid.bytes();
    let v4 = Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
    let overlay = |name: &String| {
        let begins = ["flannel", "cni", "cali", "vxlan", "docker", "cilium"];
        begins.iter().any(|begin| name.starts_with(begin)) || name == "tunl0"
    };
    Some(match Scope::of(entry.gid) {
        Scope::V4 if v4.is_loopback() || v4.is_unspecified() => return None,
        Scope::V4 if v4.is_link_local() => GidRank::LinkLocal,
        Scope::LinkLocal => GidRank::LinkLocal,
        _ if entry.interface.is_none() => GidRank::Elsewhere,
        _ if entry.interface.as_ref().is_some_and(overlay) => GidRank::Overlay,
        Scope::V4 => GidRank::RoutedV4,
        _ => GidRank::RoutedV6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4_10: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:07";
    const V4_100: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:64:40:00:07";
    const V4_192: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:c0:a8:00:07";
    const V4_PUBLIC: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:cb:00:71:07";
    const V4_OVERLAY: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:ac:11:00:01";
    const V4_AUTO: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:a9:fe:00:07";
    const V4_LOOP: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:01";
    const V6: &str = "20:01:0d:b8:00:00:00:00:00:00:00:00:00:00:00:07";
    const ULA: &str = "fd:00:00:00:00:00:00:00:00:00:00:00:00:00:00:07";
    const LINK: &str = "fe:80:00:00:00:00:00:00:0e:42:a1:ff:fe:00:00:07";
    const SUBNET: &str = "fe:c0:00:00:00:00:00:01:0e:42:a1:ff:fe:00:00:07";
    const ZERO: &str = "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00";

    /// One entry a row: address, kind, interface (`-`: none).
    fn table(rows: &[(&str, GidKind, &str)]) -> Vec<GidEntry> {
        let entry = |(index, (gid, kind, interface)): (u16, &(&str, GidKind, &str))| GidEntry {
            index,
            gid: gid.parse().unwrap(),
            kind: *kind,
            interface: (*interface != "-").then(|| (*interface).to_owned()),
        };
        (0..).zip(rows).map(entry).collect()
    }

    /// RDMA-01: tables of the kinds that devices and hosts have, and what is chosen of each.
    #[test]
    fn the_best_entry_is_chosen_for_a_reason() {
        use GidKind::{InfiniBand as Ib, RoceV1 as V1, RoceV2 as V2};
        use GidRank::*;
        use Link::{Ethernet, InfiniBand};
        type Row = (&'static str, GidKind, &'static str);
        let cases: &[(&str, Link, &[Row], u16, GidRank)] = &[
            (
                "both kinds of each address",
                Ethernet,
                &[(LINK, V1, "eth0"), (LINK, V2, "eth0"), (V4_10, V1, "eth0"), (V4_10, V2, "eth0")],
                3,
                RoutedV4,
            ),
            ("10/8 before link-local", Ethernet, &[(LINK, V2, "eth0"), (V4_10, V2, "eth0")], 1, RoutedV4),
            ("shared address space", Ethernet, &[(LINK, V2, "eth0"), (V4_100, V2, "eth0")], 1, RoutedV4),
            (
                "several IPv4 addresses: the first",
                Ethernet,
                &[(LINK, V2, "eth0"), (V4_192, V2, "eth0"), (V4_PUBLIC, V2, "eth0")],
                1,
                RoutedV4,
            ),
            ("UDP only", Ethernet, &[(V4_192, V2, "ens1np0"), (LINK, V2, "ens1np0")], 0, RoutedV4),
            (
                "IPv6 only",
                Ethernet,
                &[(LINK, V1, "eth0"), (LINK, V2, "eth0"), (V6, V1, "eth0"), (V6, V2, "eth0")],
                3,
                RoutedV6,
            ),
            ("unique local", Ethernet, &[(LINK, V2, "eth0"), (ULA, V2, "eth0")], 1, RoutedV6),
            ("IPv4 before IPv6", Ethernet, &[(V6, V2, "eth0"), (V4_10, V2, "eth0")], 1, RoutedV4),
            (
                "an overlay beside the network",
                Ethernet,
                &[(V4_OVERLAY, V2, "docker0"), (V4_10, V2, "bond0")],
                1,
                RoutedV4,
            ),
            (
                "an overlay before link-local",
                Ethernet,
                &[(LINK, V2, "eth0"), (V4_OVERLAY, V2, "cni0")],
                1,
                Overlay,
            ),
            (
                "a container without the interface",
                Ethernet,
                &[(ZERO, V2, "-"), (ZERO, V2, "-"), (LINK, V2, "-"), (V4_10, V2, "-")],
                3,
                Elsewhere,
            ),
            (
                "an interface here before one elsewhere",
                Ethernet,
                &[(V4_10, V2, "-"), (V6, V2, "eth0")],
                1,
                RoutedV6,
            ),
            (
                "automatic addresses only",
                Ethernet,
                &[(V4_LOOP, V2, "lo"), (V4_AUTO, V2, "eth0")],
                1,
                LinkLocal,
            ),
            (
                "link-local only, UDP before the old kind",
                Ethernet,
                &[(LINK, V1, "eth0"), (LINK, V2, "eth0")],
                1,
                LinkLocal,
            ),
            ("the old kind only", Ethernet, &[(ZERO, V1, "-"), (V4_10, V1, "eth0")], 1, OldKind),
            ("a subnet with the default prefix", InfiniBand, &[(LINK, Ib, "-")], 0, Subnet),
            (
                "a subnet with a prefix of its own",
                InfiniBand,
                &[(ZERO, Ib, "-"), (SUBNET, Ib, "ib0")],
                1,
                Subnet,
            ),
        ];
        for (name, link, rows, index, rank) in cases {
            let chosen = choose_gid(*link, &table(rows), None).unwrap();
            assert_eq!((chosen.index, chosen.rank), (*index, Some(*rank)), "{name}");
            assert_eq!(
                chosen.to_string(),
                format!("gid {} (index {index}, {rank})", rows[usize::from(*index)].0)
            );
        }
    }

    /// RDMA-02
    #[test]
    fn a_table_without_addresses_names_the_network_namespace() {
        let zero = table(&[(ZERO, GidKind::RoceV2, "-"), (ZERO, GidKind::RoceV1, "-")]);
        let error = choose_gid(Link::Ethernet, &zero, None).unwrap_err();
        assert!(error.to_string().contains("network namespace"), "{error}");
        let loopback = table(&[(V4_LOOP, GidKind::RoceV2, "lo")]);
        let error = choose_gid(Link::Ethernet, &loopback, None).unwrap_err();
        assert!(error.to_string().contains("fits its link"), "{error}");
        assert_eq!(choose_gid(Link::InfiniBand, &[], None), Err(NoUsableGid::Empty { entries: 0 }));
    }

    #[test]
    fn an_entry_that_is_asked_for_is_used_or_refused() {
        let table = table(&[
            (LINK, GidKind::RoceV2, "eth0"),
            (V4_10, GidKind::RoceV2, "eth0"),
            (ZERO, GidKind::RoceV2, "-"),
        ]);
        let chosen = choose_gid(Link::Ethernet, &table, Some(0)).unwrap();
        assert_eq!(chosen.to_string(), format!("gid {LINK} (index 0, as set by gid_index)"));
        for index in [2, 3] {
            assert_eq!(choose_gid(Link::Ethernet, &table, Some(index)), Err(NoUsableGid::Pinned { index }));
        }
    }
}
