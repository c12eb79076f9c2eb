//! Addresses of an RDMA port: its GID table, and which entry to use.

mod rank;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use te_segment::Gid;

use crate::root::{Fact, Root, Unknown};

pub use rank::{Choice, NoUsableGid, Ranked, Tier, choose, rank};

/// How packets with an address look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, or RoCE version 1 on Ethernet: not routable by IP.
    IbOrRoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::IbOrRoceV1 => "v1",
            Self::RoceV2 => "v2",
        })
    }
}

/// An entry of a GID table that is not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index.
    pub index: u16,
    /// The address.
    pub gid: Gid,
    /// How packets with it look.
    pub kind: Fact<GidType>,
    /// The network interface it belongs to.
    pub netdev: Fact<String>,
}

/// The GID table of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    /// Every entry that is not zero, by index.
    pub entries: Vec<GidEntry>,
    /// How many indexes there are.
    pub len: usize,
    /// Entries that could not be read, and why. An unset one cannot on some kernels, so this is no failure.
    pub unread: BTreeMap<u16, Unknown>,
}

/// An address in the form of IPv6: `fe80::…`, or `::ffff:10.0.0.7` for one of IPv4.
#[must_use]
pub fn as_ip(gid: Gid) -> Ipv6Addr {
    Ipv6Addr::from(gid.bytes())
}

impl GidTable {
    /// Reads the table of the port in `port`, a folder of sysfs.
    pub(crate) fn read(root: &Root, port: &str) -> Fact<Self> {
        let folder = format!("{port}/gids");
        let mut table = Self::default();
        for name in root.entries(&folder)? {
            let Ok(index) = name.parse::<u16>() else { continue };
            table.len += 1;
            let gid = root.read(&format!("{folder}/{name}"), "an address of 16 bytes", gid);
            match gid {
                Ok(gid) if gid.bytes() == [0; 16] => {}
                Ok(gid) => table.entries.push(entry(root, port, index, gid)),
                Err(unknown) => {
                    table.unread.insert(index, unknown);
                }
            }
        }
        Ok(table)
    }
}

/// `fe80:0000:…`: eight groups, all of them written out.
fn gid(text: &str) -> Option<Gid> {
    let whole = text.len() == 39 && text.split(':').all(|group| group.len() == 4);
    let address: Ipv6Addr = whole.then(|| text.parse().ok())??;
    Some(Gid::from_bytes(address.octets()))
}

fn entry(root: &Root, port: &str, index: u16, gid: Gid) -> GidEntry {
    let attribute = |name: &str| format!("{port}/gid_attrs/{name}/{index}");
    let kind = root.read(&attribute("types"), "IB/RoCE v1 or RoCE v2", |text| match text {
        "IB/RoCE v1" => Some(GidType::IbOrRoceV1),
        "RoCE v2" => Some(GidType::RoceV2),
        _ => None,
    });
    // Empty where the interface is in a network namespace that this process does not see.
    let netdev = root.stated(&attribute("ndevs"));
    GidEntry { index, gid, kind, netdev }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_written_out() {
        let text = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456";
        assert_eq!(as_ip(gid(text).unwrap()).to_string(), "fe80::ac0:ebff:fe12:3456");
        let mapped = gid("0000:0000:0000:0000:0000:ffff:0a00:0007").unwrap();
        assert_eq!(as_ip(mapped).to_string(), "::ffff:10.0.0.7");
        for text in
            ["", "fe80::1", "fe80:0000:0000:0000:0ac0:ebff:fe12:345g", "0000:0000:0000:0000:0000:ffff:0:0007"]
        {
            assert!(gid(text).is_none(), "{text}");
        }
    }
}
