//! Reading one RDMA device.

use std::collections::BTreeSet;

use te_segment::NicName;

use super::{LinkLayer, Nic, NodeType, Port, PortState, Rate};
use crate::gid::GidTable;
use crate::natural;
use crate::pci::PciPath;
use crate::root::{Cause, Fact, Root, Unknown, numa_node, uint};

/// The folder of all RDMA devices.
pub(crate) const CLASS: &str = "sys/class/infiniband";

/// What IP, UDP and RDMA need of a packet at most, as the kernel counts it when it derives the MTU of a RoCE port.
const ROCE_OVERHEAD: u32 = 96;

pub(crate) fn nic(root: &Root, name: &NicName) -> Nic {
    let base = format!("{CLASS}/{name}");
    let at = |file: &str| format!("{base}/{file}");
    let ports = root.entries(&at("ports")).unwrap_or_default();
    let ports: Vec<Port> = ports
        .iter()
        .filter_map(|port| port.parse().ok())
        .map(|number| port(root, &format!("{base}/ports/{number}"), number))
        .collect();
    let mut netdevs: BTreeSet<String> =
        root.entries(&at("device/net")).unwrap_or_default().into_iter().collect();
    // A software device says what it is on.
    netdevs.extend(root.stated(&at("parent")));
    let gids = ports.iter().filter_map(|port| port.gids.as_ref().ok()).flat_map(|table| &table.entries);
    netdevs.extend(gids.filter_map(|entry| entry.netdev.clone().ok()));
    let mut netdevs: Vec<String> = netdevs.into_iter().collect();
    netdevs.sort_by(|a, b| natural::compare(a, b));
    let verbs = verbs(root, name);
    let pci = PciPath::of(root, &at("device"));
    let mut nic = Nic {
        name: name.clone(),
        node_type: root.read(&at("node_type"), "a number and a word", |text| {
            Some(match uint(text.split(':').next()?)? {
                1 => NodeType::ChannelAdapter,
                4 => NodeType::Iwarp,
                other => NodeType::Other(other),
            })
        }),
        node_guid: root.stated(&at("node_guid")),
        firmware: root.stated(&at("fw_ver")),
        board: root.stated(&at("board_id")).or_else(|_| root.stated(&at("hca_type"))),
        driver: root.target_name(&at("device/driver")),
        numa: numa(root, &at("device/numa_node"), &pci),
        pci,
        verbs_here: verbs.as_ref().is_ok_and(|device| root.has(&format!("dev/infiniband/{device}"))),
        verbs,
        netdevs,
        ports,
    };
    derive_mtu(root, &mut nic);
    nic
}

/// The node a device states, or that of the function it is a part of.
fn numa(root: &Root, path: &str, pci: &Fact<PciPath>) -> Fact<Option<u32>> {
    let own = numa_node(root, path);
    match (&own, pci) {
        (Err(unknown), Ok(pci)) if unknown.is_absent() => {
            numa_node(root, &format!("sys/bus/pci/devices/{}/numa_node", pci.address())).or(own)
        }
        _ => own,
    }
}

fn port(root: &Root, base: &str, number: u8) -> Port {
    let at = |file: &str| format!("{base}/{file}");
    Port {
        number,
        state: root.read(&at("state"), "a number and a word", state),
        link: root.read(&at("phys_state"), "a number and a word", |text| {
            Some(text.split_once(':')?.1.trim().to_owned())
        }),
        rate: root.read(&at("rate"), "a rate such as 100 Gb/sec (4X EDR)", rate),
        link_layer: root.read(&at("link_layer"), "InfiniBand or Ethernet", |text| match text {
            "InfiniBand" => Some(LinkLayer::InfiniBand),
            "Ethernet" => Some(LinkLayer::Ethernet),
            _ => None,
        }),
        lid: root.read(&at("lid"), "a number of 16 bits", |text| u16::try_from(uint(text)?).ok()),
        mtu: Err(Unknown::new(&at("active_mtu"), Cause::Absent)),
        gids: GidTable::read(root, base),
    }
}

fn state(text: &str) -> Option<PortState> {
    Some(match text.split(':').next()?.trim() {
        "1" => PortState::Down,
        "2" => PortState::Init,
        "3" => PortState::Armed,
        "4" => PortState::Active,
        "5" => PortState::Deferred,
        _ => return None,
    })
}

/// `2.5 Gb/sec (1X SDR)`
fn rate(text: &str) -> Option<Rate> {
    let (amount, rest) = text.split_once(' ')?;
    let signalling = rest.strip_prefix("Gb/sec")?.trim();
    let signalling = signalling.strip_prefix('(').and_then(|s| s.strip_suffix(')')).unwrap_or(signalling);
    let (whole, part) = amount.split_once('.').unwrap_or((amount, "0"));
    let part = format!("{part:0<3}");
    let part: u64 = part.get(..3)?.parse().ok()?;
    let megabits = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)?;
    Some(Rate { megabits, signalling: signalling.to_owned() })
}

/// The character device of a device: below it on PCI, or found by the name it states.
fn verbs(root: &Root, name: &NicName) -> Fact<String> {
    const ALL: &str = "sys/class/infiniband_verbs";
    let devices = root.entries(ALL)?;
    let is_its =
        |device: &&String| root.text(&format!("{ALL}/{device}/ibdev")).is_ok_and(|n| n == name.as_str());
    let found = devices.iter().find(is_its).cloned();
    found.ok_or_else(|| Unknown::new(&format!("{ALL}/*/ibdev"), Cause::Absent))
}

/// On Ethernet the largest payload follows from the interface of the port's addresses, or the only one of the device.
fn derive_mtu(root: &Root, nic: &mut Nic) {
    for port in &mut nic.ports {
        if port.link_layer != Ok(LinkLayer::Ethernet) {
            continue;
        }
        let of_gids = port.gids.as_ref().ok().into_iter().flat_map(|table| &table.entries);
        let netdev =
            of_gids.filter_map(|entry| entry.netdev.as_ref().ok()).next().or_else(|| nic.netdevs.first());
        if let Some(netdev) = netdev {
            let path = format!("sys/class/net/{netdev}/mtu");
            port.mtu = root.read(&path, "at least 352 bytes", |text| {
                let room = text.parse::<u32>().ok()?.checked_sub(ROCE_OVERHEAD)?;
                [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_fractions_and_signalling() {
        let of = |text| rate(text).map(|rate| (rate.megabits, rate.to_string(), rate.signalling));
        let expected =
            |megabits, shown: &str, signalling: &str| Some((megabits, shown.into(), signalling.into()));
        assert_eq!(of("400 Gb/sec (4X NDR)"), expected(400_000, "400 Gb/s", "4X NDR"));
        assert_eq!(of("2.5 Gb/sec (1X SDR)"), expected(2_500, "2.5 Gb/s", "1X SDR"));
        assert_eq!(of("25 Gb/sec"), expected(25_000, "25 Gb/s", ""));
        for text in ["", "fast", "1 Mb/sec", "x Gb/sec", "1.x Gb/sec", "99999999999999999999 Gb/sec"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
