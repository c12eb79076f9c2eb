//! NVMe controllers and their namespaces.

use crate::pci::PciPath;
use crate::root::{Cause, Fact, Root, Unknown, numa_node};

/// An NVMe controller: a drive in this host, or a way to one elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmeController {
    /// Its name, such as `nvme0`.
    pub name: String,
    /// How it is reached: `pcie`, `rdma`, `tcp`, `fc` or `loop`.
    pub transport: Fact<String>,
    /// Its address on that transport.
    pub address: Fact<String>,
    /// What it is called.
    pub model: Fact<String>,
    /// Version of its firmware.
    pub firmware: Fact<String>,
    /// The NUMA node it is attached to; `None` if it is attached to none.
    pub numa: Fact<Option<u32>>,
    /// Where it is on PCI, if it is in this host.
    pub pci: Fact<PciPath>,
    /// Its namespaces.
    pub namespaces: Vec<NvmeNamespace>,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmeNamespace {
    /// Name of the block device, such as `nvme0n1`.
    pub name: String,
    /// Its size in bytes.
    pub size: Fact<u64>,
    /// What it is called all over the world.
    pub wwid: Fact<String>,
}

const CLASS: &str = "sys/class/nvme";

pub(crate) fn controllers(root: &Root) -> Fact<Vec<NvmeController>> {
    let names = root.entries(CLASS)?;
    Ok(names.into_iter().map(|name| controller(root, name)).collect())
}

fn controller(root: &Root, name: String) -> NvmeController {
    let base = format!("{CLASS}/{name}");
    let at = |file: &str| format!("{base}/{file}");
    let namespaces = root.entries(&base).unwrap_or_default();
    let pci = PciPath::of(root, &at("device"));
    NvmeController {
        transport: root.stated(&at("transport")),
        address: root.stated(&at("address")),
        model: root.stated(&at("model")),
        firmware: root.stated(&at("firmware_rev")),
        numa: numa_node(root, &at("numa_node")).or_else(|_| numa_node(root, &at("device/numa_node"))),
        pci,
        namespaces: namespaces
            .iter()
            .filter_map(|entry| block(entry))
            .map(|name| namespace(root, name))
            .collect(),
        name,
    }
}

/// The block device of an entry of a controller: `nvme0n1`, also for the path `nvme0c1n1` to it.
fn block(entry: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (subsystem, namespace) = entry.strip_prefix("nvme")?.split_once('n')?;
    let subsystem = match subsystem.split_once('c') {
        Some((subsystem, controller)) if is_number(controller) => subsystem,
        Some(_) => return None,
        None => subsystem,
    };
    (is_number(subsystem) && is_number(namespace)).then(|| format!("nvme{subsystem}n{namespace}"))
}

fn namespace(root: &Root, name: String) -> NvmeNamespace {
    let at = |file: &str| format!("sys/block/{name}/{file}");
    let size = at("size");
    let sectors: Fact<u64> = root.parsed(&size, "a number of sectors");
    NvmeNamespace {
        // Sectors of this file have 512 bytes, whatever those of the device have.
        size: sectors.and_then(|sectors| {
            let found = sectors.to_string();
            let malformed = Cause::Malformed { found, expected: "a number of sectors" };
            sectors.checked_mul(512).ok_or_else(|| Unknown::new(&size, malformed))
        }),
        wwid: root.stated(&at("wwid")),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_their_block_device() {
        let cases = [
            ("nvme0n1", Some("nvme0n1")),
            ("nvme2c3n10", Some("nvme2n10")),
            ("nvme0n1p1", None),
            ("nvme0", None),
            ("nvmecn1", None),
            ("power", None),
            ("ng0n1", None),
        ];
        for (entry, expected) in cases {
            assert_eq!(block(entry).as_deref(), expected, "{entry}");
        }
    }
}
