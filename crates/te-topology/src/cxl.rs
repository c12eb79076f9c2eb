//! Memory behind CXL: regions, and the DAX devices that programs map.

use crate::root::{Fact, Root, numa_node, uint};

/// A memory window that programs map as a file of `/dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DaxDevice {
    /// Its name, such as `dax0.0`.
    pub name: String,
    /// Its size in bytes.
    pub size: Fact<u64>,
    /// What mappings are aligned to, in bytes.
    pub align: Fact<u64>,
    /// The NUMA node that is closest.
    pub numa: Fact<Option<u32>>,
    /// The NUMA node it would be as system memory; `None` if it would be none.
    pub target: Fact<Option<u32>>,
    /// Who has it: `device_dax` for programs, `kmem` once it is system memory.
    pub driver: Fact<String>,
    /// The CXL region behind it.
    pub region: Option<String>,
}

/// A CXL region: memory of one or more devices, interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CxlRegion {
    /// Its name, such as `region0`.
    pub name: String,
    /// Its size in bytes.
    pub size: Fact<u64>,
    /// Its identity; only persistent memory has one.
    pub uuid: Fact<String>,
    /// `ram`, `pmem` or `dc`.
    pub mode: Fact<String>,
    /// How many devices it is spread over.
    pub ways: Fact<u64>,
    /// How many bytes go to one device before the next.
    pub granularity: Fact<u64>,
    /// Whether it is in use by the host bridge.
    pub committed: Fact<bool>,
}

const DAX: &str = "sys/bus/dax/devices";
const CXL: &str = "sys/bus/cxl/devices";

pub(crate) fn dax_devices(root: &Root) -> Fact<Vec<DaxDevice>> {
    let names = root.entries(DAX)?;
    let is_device = |name: &String| name.strip_prefix("dax").is_some_and(|rest| rest.contains('.'));
    Ok(names.into_iter().filter(is_device).map(|name| dax_device(root, name)).collect())
}

fn dax_device(root: &Root, name: String) -> DaxDevice {
    let at = |file: &str| format!("{DAX}/{name}/{file}");
    let bytes = |file: &str| root.read(&at(file), "a number of bytes", uint);
    let is_region = |part: &&str| {
        part.strip_prefix("region")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let target = root.target(&format!("{DAX}/{name}")).unwrap_or_default();
    // Persistent memory has regions of its own, which are not those of CXL.
    let region = target.split('/').find(is_region).filter(|region| root.has(&format!("{CXL}/{region}")));
    DaxDevice {
        size: bytes("size"),
        align: bytes("align"),
        numa: numa_node(root, &at("numa_node")),
        target: numa_node(root, &at("target_node")),
        driver: root.target_name(&at("driver")),
        region: region.map(str::to_owned),
        name,
    }
}

pub(crate) fn regions(root: &Root) -> Fact<Vec<CxlRegion>> {
    let names = root.entries(CXL)?;
    Ok(names.into_iter().filter(|name| name.starts_with("region")).map(|name| region(root, name)).collect())
}

fn region(root: &Root, name: String) -> CxlRegion {
    let at = |file: &str| format!("{CXL}/{name}/{file}");
    let amount = |file: &str| root.read(&at(file), "a number", uint);
    CxlRegion {
        size: amount("size"),
        uuid: root.stated(&at("uuid")),
        mode: root.text(&at("mode")),
        ways: amount("interleave_ways"),
        granularity: amount("interleave_granularity"),
        committed: root.read(&at("commit"), "0 or 1", |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }),
        name,
    }
}
