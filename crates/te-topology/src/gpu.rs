//! Display controllers and accelerators, and which location each is in descriptors.

use te_segment::{DeviceKind, Location};

use crate::pci::{PciAddress, PciPath};
use crate::root::{Fact, Root, numa_node, uint};

/// A display controller or an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Where it is on PCI.
    pub pci: PciPath,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: Fact<u16>,
    /// PCI class: base class, subclass, interface.
    pub class: u32,
    /// What it is called, where a driver says so.
    pub model: Fact<String>,
    /// The kernel driver.
    pub driver: Fact<String>,
    /// The NUMA node it is attached to; `None` if it is attached to none.
    pub numa: Fact<Option<u32>>,
    /// Its largest memory window on PCI, in bytes.
    pub window: Fact<u64>,
    /// What its memory is called in descriptors; `None` if it has none that a transport reaches.
    pub location: Option<Location>,
}

impl Gpu {
    /// Its PCI address.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.pci.address()
    }

    /// The kind of its memory, if a transport reaches it.
    pub(crate) fn kind(&self) -> Option<DeviceKind> {
        match self.location {
            Some(Location::Device { kind, .. }) => Some(kind),
            _ => None,
        }
    }
}

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;

/// Base classes of PCI.
const DISPLAY: u32 = 0x03;
const ACCELERATOR: u32 = 0x12;

const DEVICES: &str = "sys/bus/pci/devices";
const KFD: &str = "sys/class/kfd/kfd/topology/nodes";

/// Every display controller and accelerator, in order of PCI addresses. Ordinals of NVIDIA devices follow that order,
/// those of AMD devices the order of the compute driver. What another driver has, such as one that passes a device to a
/// virtual machine, is no memory that a transport reaches.
pub(crate) fn gpus(root: &Root) -> Fact<Vec<Gpu>> {
    let addresses = root.entries(DEVICES)?;
    let mut gpus: Vec<Gpu> = addresses.iter().filter_map(|address| gpu(root, address)).collect();
    gpus.sort_by_key(Gpu::address);
    let is_nvidia = |gpu: &&Gpu| gpu.vendor == NVIDIA && gpu.driver.as_deref() == Ok("nvidia");
    let nvidia: Vec<PciAddress> = gpus.iter().filter(is_nvidia).map(Gpu::address).collect();
    number(&mut gpus, DeviceKind::Cuda, &nvidia);
    number(&mut gpus, DeviceKind::Hip, &compute_nodes(root));
    Ok(gpus)
}

/// Numbers the devices of a kind in the order of `addresses`; whatever else was of that kind is it no more.
pub(crate) fn number(gpus: &mut [Gpu], kind: DeviceKind, addresses: &[PciAddress]) {
    for gpu in gpus {
        let ordinal = addresses.iter().position(|address| *address == gpu.address());
        match ordinal.and_then(|ordinal| u32::try_from(ordinal).ok()) {
            Some(ordinal) => gpu.location = Some(Location::device(kind, ordinal)),
            None if gpu.kind() == Some(kind) => gpu.location = None,
            None => {}
        }
    }
}

fn gpu(root: &Root, address: &str) -> Option<Gpu> {
    let base = format!("{DEVICES}/{address}");
    let at = |file: &str| format!("{base}/{file}");
    let class = root.read(&at("class"), "a number", |text| u32::try_from(uint(text)?).ok()).ok()?;
    let vendor = root.read(&at("vendor"), "a number", |text| u16::try_from(uint(text)?).ok()).ok()?;
    let is_accelerator = class >> 16 == ACCELERATOR && [NVIDIA, AMD].contains(&vendor);
    if class >> 16 != DISPLAY && !is_accelerator {
        return None;
    }
    let pci = PciPath::of(root, &base).ok()?;
    Some(Gpu {
        pci,
        vendor,
        device: root.read(&at("device"), "a number", |text| u16::try_from(uint(text)?).ok()),
        class,
        model: model(root, &base, address),
        driver: root.target_name(&at("driver")),
        numa: numa_node(root, &at("numa_node")),
        window: root.read(&at("resource"), "begin, end and flags of every window", largest_window),
        location: None,
    })
}

fn model(root: &Root, base: &str, address: &str) -> Fact<String> {
    let information = format!("proc/driver/nvidia/gpus/{address}/information");
    let stated = root.read(&information, "a line that begins with Model:", |text| {
        Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    });
    stated.or_else(|_| root.text(&format!("{base}/product_name")))
}

/// Lines of begin, end and flags; bit 9 of the flags says memory. Unused windows are all zero.
fn largest_window(text: &str) -> Option<u64> {
    const MEMORY: u64 = 0x200;
    let mut largest = 0;
    for line in text.lines() {
        let mut numbers = line.split_whitespace().map(uint);
        let (begin, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        if flags & MEMORY != 0 {
            largest = largest.max(end.checked_sub(begin)?.saturating_add(1));
        }
    }
    Some(largest)
}

/// The devices of AMD's compute driver, in the order of its ordinals; none if it is not loaded.
fn compute_nodes(root: &Root) -> Vec<PciAddress> {
    let nodes = root.entries(KFD).unwrap_or_default();
    let address = |node: &String| {
        let text = root.text(&format!("{KFD}/{node}/properties")).ok()?;
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u32>().ok())
        };
        // Processors are nodes too.
        if value("simd_count")? == 0 {
            return None;
        }
        let id = value("location_id")?;
        Some(PciAddress {
            domain: value("domain").unwrap_or_default(),
            bus: u8::try_from(id >> 8 & 0xff).ok()?,
            device: u8::try_from(id >> 3 & 0x1f).ok()?,
            function: u8::try_from(id & 7).ok()?,
        })
    };
    nodes.iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_window_is_memory() {
        let text = "0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200\n\
                    0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x0000000000001000 0xffffffffffffffff 0x0000000000040101";
        assert_eq!(largest_window(text), Some(32 << 30));
        assert_eq!(largest_window("0x2 0x1 0x200"), None);
        assert_eq!(largest_window("words"), None);
    }
}
