//! The network namespace of this process: its interfaces and its addresses.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::netdev;
use crate::root::Root;

/// The network namespace of this process: what an address of an RDMA device is compared with.
///
/// Names of interfaces are not enough: another namespace may have an `eth0` too. Where the addresses of this one are
/// known, an address that can be routed must be among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Names of its interfaces.
    pub netdevs: BTreeSet<String>,
    /// Its IPv4 addresses; `None` if they are not known.
    pub v4: Option<BTreeSet<Ipv4Addr>>,
    /// Its IPv6 addresses; `None` if they are not known.
    pub v6: Option<BTreeSet<Ipv6Addr>>,
}

impl Namespace {
    /// A namespace with these interfaces, of whose addresses nothing is known.
    pub fn of<S: Into<String>>(netdevs: impl IntoIterator<Item = S>) -> Self {
        Self { netdevs: netdevs.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The namespace of whoever looks: little is read, unlike for a whole [`Host`](crate::Host).
    #[must_use]
    pub fn discover(root: &Root) -> Self {
        let netdevs = netdev::netdevs(root).unwrap_or_default();
        Self::read(root, netdevs.into_iter().map(|netdev| netdev.name))
    }

    /// Whether an address that can be routed is one of this namespace, as far as that is known.
    pub(crate) fn may_have(&self, address: Ipv6Addr) -> bool {
        match address.to_ipv4_mapped() {
            Some(v4) => self.v4.as_ref().is_none_or(|known| known.contains(&v4)),
            None => self.v6.as_ref().is_none_or(|known| known.contains(&address)),
        }
    }

    pub(crate) fn read(root: &Root, netdevs: impl IntoIterator<Item = String>) -> Self {
        let v4 = root.read("proc/net/fib_trie", "a trie of routes", own_v4);
        let v6 = root.read("proc/net/if_inet6", "a line for each address", own_v6);
        Self { v4: v4.ok(), v6: v6.ok(), ..Self::of(netdevs) }
    }
}

/// Own addresses of the trie: `|-- 10.0.0.7`, and below it `/32 host LOCAL`.
fn own_v4(text: &str) -> Option<BTreeSet<Ipv4Addr>> {
    let (mut own, mut above) = (BTreeSet::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            above = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            own.extend(above);
        }
    }
    Some(own)
}

/// Lines of an address without colons, and more about it.
fn own_v6(text: &str) -> Option<BTreeSet<Ipv6Addr>> {
    let address = |line: &str| {
        let digits = line.split_whitespace().next()?;
        let bits = u128::from_str_radix(digits, 16).ok();
        bits.filter(|_| digits.len() == 32).map(Ipv6Addr::from)
    };
    text.lines().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_told_from_routes() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.0.0\n        \
                    /24 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST";
        assert_eq!(own_v4(trie), Some([Ipv4Addr::new(10, 0, 0, 7)].into()));
        assert_eq!(own_v4(""), Some(BTreeSet::new()));
        let lines = "fd000000000000000000000000000002 04 40 00 82     eth0\n00000000000000000000000000000001 01 80 10 80 lo";
        let expected = ["fd00::2", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(own_v6(lines), Some(expected.into()));
        assert_eq!((own_v6("1 eth0"), own_v6("no address at all")), (None, None));
    }

    #[test]
    fn what_is_not_known_may_be() {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let mut namespace = Namespace::of(["eth0"]);
        assert!(namespace.may_have(address("::ffff:10.0.0.7")) && namespace.may_have(address("2001:db8::1")));
        namespace.v4 = Some([Ipv4Addr::new(10, 0, 0, 8)].into());
        assert!(
            !namespace.may_have(address("::ffff:10.0.0.7")) && namespace.may_have(address("2001:db8::1"))
        );
        assert!(namespace.may_have(address("::ffff:10.0.0.8")));
    }
}
