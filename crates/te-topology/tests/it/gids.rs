//! The choice of an address, from tables as devices have them.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use proptest::prelude::*;
use te_segment::Gid;
use te_topology::{
    Cause, GidEntry, GidTable, GidType, LinkLayer, Namespace, NoUsableGid, Tier, Unknown, as_ip, choose, rank,
};

use LinkLayer::{Ethernet, InfiniBand};

/// Lines of index, version (`v1`, `v2`, `?`), interface (`-`: unknown) and address.
fn table(text: &str, len: usize) -> GidTable {
    let entries = text.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [index, version, netdev, address] = words.as_slice() else { panic!("{line}") };
        let unknown = || Unknown { path: "gid_attrs".to_owned(), cause: Cause::Absent };
        GidEntry {
            index: index.parse().unwrap(),
            gid: Gid::from_bytes(address.parse::<Ipv6Addr>().unwrap().octets()),
            kind: match *version {
                "v1" => Ok(GidType::IbOrRoceV1),
                "v2" => Ok(GidType::RoceV2),
                _ => Err(unknown()),
            },
            netdev: if *netdev == "-" { Err(unknown()) } else { Ok((*netdev).to_owned()) },
        }
    });
    GidTable { entries: entries.collect(), len, ..GidTable::default() }
}

/// The interfaces of every test's namespace.
fn here() -> Namespace {
    Namespace::of(["eth0", "eth1", "bond0", "docker0", "veth0", "tunl0"])
}

struct Case {
    name: &'static str,
    link: LinkLayer,
    table: &'static str,
    best: (u16, Tier),
}

const CASES: &[Case] = &[
    Case {
        name: "mlx5: each address twice, private",
        link: Ethernet,
        table: "0 v1 eth0 fe80::1\n1 v2 eth0 fe80::1\n2 v1 eth0 ::ffff:10.0.0.7\n3 v2 eth0 ::ffff:10.0.0.7",
        best: (3, Tier::RoutablePrivate),
    },
    Case {
        name: "mlx5: a public address before a private one, whatever comes first",
        link: Ethernet,
        table: "1 v2 eth0 fe80::1\n3 v2 eth0 ::ffff:10.0.0.7\n5 v2 eth0 ::ffff:203.0.113.7",
        best: (5, Tier::Routable),
    },
    Case {
        name: "bnxt: versions in the other order",
        link: Ethernet,
        table: "0 v2 eth0 fe80::2\n1 v1 eth0 fe80::2\n2 v2 eth0 ::ffff:192.168.1.2\n3 v1 eth0 ::ffff:192.168.1.2",
        best: (2, Tier::Routable),
    },
    Case {
        name: "ionic: version 2 only, a unique local address",
        link: Ethernet,
        table: "0 v2 eth1 fe80::690:81ff:fe30:1\n1 v2 eth1 fd93:16d3:59b6:1::7",
        best: (1, Tier::Routable),
    },
    Case {
        name: "eRDMA: a hardware address and one of IPv4",
        link: Ethernet,
        table: "0 v1 eth0 216:3eff:fe0a:1b2c::\n1 v2 eth0 ::ffff:172.16.3.24",
        best: (1, Tier::RoutablePrivate),
    },
    Case {
        name: "InfiniBand: index 0 though an alias is set",
        link: InfiniBand,
        table: "0 v1 - fe80::9803:9b03:10:5a00\n1 v1 - fe80::9803:9b03:100:1",
        best: (0, Tier::Subnet),
    },
    Case {
        name: "InfiniBand: an alias alone",
        link: InfiniBand,
        table: "2 v1 - fe80::9803:9b03:100:2",
        best: (2, Tier::SubnetAlias),
    },
    Case {
        name: "IPv6 only",
        link: Ethernet,
        table: "0 v1 eth0 fe80::3\n1 v2 eth0 fe80::3\n2 v1 eth0 2001:db8::3\n3 v2 eth0 2001:db8::3",
        best: (3, Tier::Routable),
    },
    Case {
        name: "10/8 before link-local",
        link: Ethernet,
        table: "0 v2 eth0 fe80::4\n1 v2 eth0 ::ffff:10.255.0.4",
        best: (1, Tier::RoutablePrivate),
    },
    Case {
        name: "carrier-grade 100.64/10 is private, 100.128/10 is not",
        link: Ethernet,
        table: "0 v2 eth0 ::ffff:100.127.0.4\n1 v2 eth0 ::ffff:100.128.0.4",
        best: (1, Tier::Routable),
    },
    Case {
        name: "container: the interface is elsewhere",
        link: Ethernet,
        table: "0 v1 ens3 fe80::5\n1 v2 ens3 fe80::5\n2 v2 - ::ffff:172.20.4.9",
        best: (2, Tier::RoutableElsewhere),
    },
    Case {
        name: "container: an own private address before a foreign public one",
        link: Ethernet,
        table: "0 v2 ens3 ::ffff:203.0.113.1\n1 v2 eth0 ::ffff:10.1.1.1",
        best: (1, Tier::RoutablePrivate),
    },
    Case {
        name: "duplicates of version 1 and 2: never version 1",
        link: Ethernet,
        table: "0 v1 eth0 ::ffff:198.51.100.6\n1 v2 eth0 ::ffff:198.51.100.6\n2 v1 eth0 ::ffff:198.51.100.6\n\
                3 v2 eth0 ::ffff:198.51.100.6",
        best: (1, Tier::Routable),
    },
    Case {
        name: "link-local only",
        link: Ethernet,
        table: "0 v1 eth0 fe80::7\n1 v2 eth0 fe80::7",
        best: (1, Tier::LinkLocal),
    },
    Case {
        name: "an address nobody gave: 169.254/16",
        link: Ethernet,
        table: "0 v2 eth0 ::ffff:169.254.3.4\n1 v2 eth1 ::ffff:10.0.0.8",
        best: (1, Tier::RoutablePrivate),
    },
    Case {
        name: "rxe",
        link: Ethernet,
        table: "0 v2 veth0 fe80::5054:ff:fe12:3456\n1 v2 veth0 ::ffff:192.168.77.1",
        best: (1, Tier::Routable),
    },
    Case {
        name: "version 1 only",
        link: Ethernet,
        table: "0 v1 eth0 fe80::8\n1 v1 eth0 ::ffff:10.0.0.8",
        best: (0, Tier::RoceV1),
    },
    Case {
        name: "overlays after everything that is routed, before link-local",
        link: Ethernet,
        table: "0 v2 docker0 ::ffff:172.17.0.1\n1 v2 tunl0 ::ffff:10.2.0.1\n2 v2 eth0 fe80::9\n\
                3 v2 eth0 ::ffff:10.0.0.9",
        best: (3, Tier::RoutablePrivate),
    },
    Case {
        name: "an old kernel without types",
        link: Ethernet,
        table: "0 ? - fe80::a\n1 ? - ::ffff:10.0.0.10",
        best: (0, Tier::Untyped),
    },
    Case {
        name: "a bond",
        link: Ethernet,
        table: "0 v1 bond0 fe80::b\n1 v2 bond0 fe80::b\n2 v1 bond0 ::ffff:100.72.3.41\n3 v2 bond0 ::ffff:100.72.3.41",
        best: (3, Tier::RoutablePrivate),
    },
];

/// RDMA-01, RDMA-02
#[test]
fn the_best_address_is_chosen() {
    for case in CASES {
        let choice = choose(&table(case.table, 256), case.link, &here(), None).unwrap();
        assert_eq!((choice.best.index, choice.best.tier), case.best, "{}", case.name);
        assert!(choice.reason.starts_with(case.best.1.as_str()), "{}: {}", case.name, choice.reason);
        assert_eq!(choice.ranking.first(), Some(&choice.best));
        assert_eq!(choice.ranking.len(), case.table.lines().count());
    }
}

#[test]
fn reasons_name_the_interface_and_the_concern() {
    let reason = |text| choose(&table(text, 16), Ethernet, &here(), None).unwrap().reason;
    assert_eq!(reason("3 v2 eth0 ::ffff:10.0.0.7"), "RoCE v2, routable, private on eth0");
    assert_eq!(
        reason("1 v2 eth0 fe80::1"),
        "RoCE v2, link-local on eth0; peers behind a router are not reached: give the interface an IP address"
    );
}

#[test]
fn an_interface_of_the_same_name_is_not_enough() {
    let table = table("0 v2 eth0 fe80::1\n1 v2 eth0 ::ffff:10.77.0.2\n2 v2 eth0 2001:db8::2", 16);
    let tier = |namespace: &Namespace| choose(&table, Ethernet, namespace, None).unwrap().best.tier;
    let mut namespace = here();
    assert_eq!(tier(&namespace), Tier::Routable);
    namespace.v6 = Some(BTreeSet::new());
    assert_eq!(tier(&namespace), Tier::RoutablePrivate);
    namespace.v4 = Some(["10.77.0.1".parse().unwrap()].into());
    assert_eq!(tier(&namespace), Tier::RoutableElsewhere);
    namespace.v4 = Some(["10.77.0.2".parse().unwrap()].into());
    assert_eq!(tier(&namespace), Tier::RoutablePrivate);
}

#[test]
fn an_empty_table_points_to_the_namespace() {
    let none = |len| choose(&table("", len), Ethernet, &here(), None).unwrap_err();
    assert_eq!(none(0), NoUsableGid::Empty);
    assert_eq!(none(256), NoUsableGid::AllZero { len: 256 });
    let text = none(256).to_string();
    assert!(text.starts_with("all 256 entries of the GID table are zero"), "{text}");
    assert!(text.contains("network namespace"), "{text}");
}

#[test]
fn a_pinned_index_is_honoured_even_if_it_is_poor() {
    let table = table("0 v1 eth0 fe80::1\n1 v2 ens9 fe80::1\n3 v2 eth0 ::ffff:10.0.0.7", 16);
    let choice = choose(&table, Ethernet, &here(), Some(1)).unwrap();
    assert_eq!((choice.best.index, choice.best.tier), (1, Tier::LinkLocalElsewhere));
    assert!(
        choice.reason.starts_with("pinned: RoCE v2, link-local, its interface not in"),
        "{}",
        choice.reason
    );
    // The others are still ranked, for whoever wants to know what was passed over.
    assert_eq!(choice.ranking[0].index, 3);
}

#[test]
fn a_pinned_index_with_nothing_there_is_refused() {
    let mut table = table("0 v1 eth0 fe80::1\n3 v2 eth0 ::ffff:10.0.0.7", 16);
    let refused = |table: &GidTable, index| choose(table, Ethernet, &here(), Some(index)).unwrap_err();
    assert_eq!(refused(&table, 2), NoUsableGid::PinnedUnset { index: 2, set: vec![0, 3] });
    assert_eq!(refused(&table, 16), NoUsableGid::PinnedOutside { index: 16, len: 16 });
    assert_eq!(refused(&table, 2).to_string(), "GID index 2 is pinned, but not set; set are 0, 3");
    let cause = Unknown { path: "gids/5".to_owned(), cause: Cause::Refused("no".to_owned()) };
    table.unread.insert(5, cause.clone());
    assert_eq!(refused(&table, 5), NoUsableGid::PinnedUnread { index: 5, cause });
    table.entries.clear();
    assert!(refused(&table, 2).to_string().contains("network namespace"));
}

#[test]
fn what_could_not_connect_is_not_tried_again() {
    let table = table("1 v2 eth0 fe80::1\n3 v2 eth0 ::ffff:10.0.0.7\n5 v2 eth0 ::ffff:10.0.0.8", 16);
    let choice = choose(&table, Ethernet, &here(), None).unwrap();
    let next = |tried: &[u16]| choice.after(&tried.iter().copied().collect()).map(|ranked| ranked.index);
    assert_eq!((next(&[3]), next(&[3, 5]), next(&[1, 3, 5])), (Some(5), Some(1), None));
}

fn entries() -> impl Strategy<Value = Vec<GidEntry>> {
    let address = prop_oneof![
        Just([0; 16]),
        any::<[u8; 16]>(),
        any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets()),
        any::<u64>().prop_map(|low| ((0xfe80_u128 << 112) | u128::from(low)).to_be_bytes()),
    ];
    let unknown = || Unknown { path: String::new(), cause: Cause::Absent };
    let kind = prop_oneof![Just(Ok(GidType::IbOrRoceV1)), Just(Ok(GidType::RoceV2)), Just(Err(unknown()))];
    let netdev = prop_oneof![Just(Ok("eth0".to_owned())), Just(Ok("ens9".to_owned())), Just(Err(unknown()))];
    proptest::collection::vec((address, kind, netdev), 0..12).prop_map(|parts| {
        let entry = |(index, (gid, kind, netdev)): (usize, ([u8; 16], _, _))| GidEntry {
            index: u16::try_from(index).unwrap(),
            gid: Gid::from_bytes(gid),
            kind,
            netdev,
        };
        parts.into_iter().enumerate().map(entry).collect()
    })
}

proptest! {
    /// Every address that is set is ranked once, tiers ascend, and the order of the input does not matter.
    #[test]
    fn ranking_is_total(entries in entries(), infiniband in any::<bool>()) {
        let link = if infiniband { InfiniBand } else { Ethernet };
        let ranked = rank(&entries, link, &here());
        let set: BTreeSet<u16> =
            entries.iter().filter(|entry| !as_ip(entry.gid).is_unspecified()).map(|entry| entry.index).collect();
        prop_assert_eq!(ranked.iter().map(|ranked| ranked.index).collect::<BTreeSet<_>>(), set.clone());
        prop_assert_eq!(ranked.len(), set.len());
        prop_assert!(ranked.is_sorted_by_key(|ranked| (ranked.tier, ranked.index)));
        let backwards: Vec<GidEntry> = entries.iter().rev().cloned().collect();
        prop_assert_eq!(rank(&backwards, link, &here()), ranked);
    }

    /// A choice exists exactly if an address is set; a pin is honoured exactly if it is set.
    #[test]
    fn a_choice_is_an_address_that_is_set(entries in entries(), pin in proptest::option::of(0_u16..14)) {
        let len = entries.len();
        let is_set = |index| entries.iter().any(|e| e.index == index && !as_ip(e.gid).is_unspecified());
        let any_set = entries.iter().any(|e| is_set(e.index));
        let table = GidTable { entries: entries.clone(), len, ..GidTable::default() };
        match choose(&table, Ethernet, &here(), pin) {
            Ok(choice) => {
                prop_assert!(is_set(choice.best.index));
                prop_assert!(pin.is_none_or(|pin| pin == choice.best.index));
            }
            Err(_) => prop_assert!(!pin.map_or(any_set, is_set)),
        }
    }
}
