//! Everything at once.

use te_segment::{DeviceKind, NicName, Topology};

use crate::cxl::{self, CxlRegion, DaxDevice};
use crate::filter::{NicFilter, NoSuchNic};
use crate::gpu::{self, Gpu};
use crate::namespace::Namespace;
use crate::netdev::{self, Netdev};
use crate::nic::{self, Nic, Unusable, Usable};
use crate::numa::{self, NumaNode};
use crate::pci::PciAddress;
use crate::root::{Fact, Root, Unknown};
use crate::storage::{self, NvmeController};

/// What a host has: a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Host {
    /// NUMA nodes, by number.
    pub nodes: Vec<NumaNode>,
    /// RDMA devices that the filter admits, by name.
    pub nics: Vec<Nic>,
    /// Network interfaces of this network namespace, by name.
    pub netdevs: Vec<Netdev>,
    /// The network namespace itself: names and addresses.
    pub namespace: Namespace,
    /// Display controllers and accelerators, by PCI address.
    pub gpus: Vec<Gpu>,
    /// NVMe controllers, by name.
    pub nvme: Vec<NvmeController>,
    /// Memory windows that programs map, by name.
    pub dax: Vec<DaxDevice>,
    /// CXL regions, by name.
    pub regions: Vec<CxlRegion>,
    /// Whole kinds of devices about which the host says nothing: no such folder, or one that cannot be read.
    pub silent: Vec<Unknown>,
}

impl Host {
    /// Looks at a host. What is missing or malformed is so in the result; nothing of it is a failure.
    ///
    /// # Errors
    ///
    /// The filter names an RDMA device that is not there.
    pub fn discover(root: &Root, filter: &NicFilter) -> Result<Self, NoSuchNic> {
        let mut silent = Vec::new();
        let present: Vec<NicName> = heard(root.entries(nic::CLASS), &mut silent)
            .iter()
            .filter_map(|name| NicName::new(name).ok())
            .collect();
        let admitted = filter.apply(&present)?;
        let netdevs = heard(netdev::netdevs(root), &mut silent);
        Ok(Self {
            nodes: heard(numa::nodes(root), &mut silent),
            nics: admitted.iter().map(|name| nic::nic(root, name)).collect(),
            namespace: Namespace::read(root, netdevs.iter().map(|netdev| netdev.name.clone())),
            netdevs,
            gpus: heard(gpu::gpus(root), &mut silent),
            nvme: heard(storage::controllers(root), &mut silent),
            dax: heard(cxl::dax_devices(root), &mut silent),
            regions: heard(cxl::regions(root), &mut silent),
            silent,
        })
    }

    /// Numbers the GPUs of a kind in the order that their runtime has, which may leave some out
    /// (`CUDA_VISIBLE_DEVICES` and the like). Without it they have the order of the bus.
    pub fn number_gpus(&mut self, kind: DeviceKind, order: &[PciAddress]) {
        gpu::number(&mut self.gpus, kind, order);
    }

    /// The port and address of an RDMA device to use; `gid_index` pins the address.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn usable(&self, nic: &Nic, gid_index: Option<u16>) -> Result<Usable, Unusable> {
        nic.usable(&self.namespace, gid_index)
    }

    /// The RDMA devices that can be used.
    #[must_use]
    pub fn usable_nics(&self) -> Vec<&Nic> {
        self.nics.iter().filter(|nic| nic.usable(&self.namespace, None).is_ok()).collect()
    }

    /// The priority matrix, of the devices that can be used; see [`matrix`](crate::matrix()) for the rule.
    #[must_use]
    pub fn matrix(&self) -> Topology {
        crate::matrix(&self.nodes, &self.gpus, &self.usable_nics())
    }
}

/// What a host says about a kind of device, or nothing.
fn heard<T>(fact: Fact<Vec<T>>, silent: &mut Vec<Unknown>) -> Vec<T> {
    fact.unwrap_or_else(|unknown| {
        silent.push(unknown);
        Vec::new()
    })
}
