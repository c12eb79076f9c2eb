//! The tree: NUMA nodes, below them what is on PCI with bridges where ways part, and what is nowhere on PCI.

use std::collections::BTreeMap;

use super::{bytes, known, known_bytes};
use crate::host::Host;
use crate::pci::PciPath;
use crate::root::Fact;

/// A line and what is below it.
#[derive(Default)]
struct Branch {
    label: String,
    children: Vec<Self>,
}

impl Branch {
    fn new(label: String) -> Self {
        Self { label, children: Vec::new() }
    }

    fn append_to(&self, prefix: &str, out: &mut String) {
        for (i, child) in self.children.iter().enumerate() {
            let last = i + 1 == self.children.len();
            let (joint, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            out.extend([prefix, joint, &child.label, "\n"]);
            child.append_to(&format!("{prefix}{below}"), out);
        }
    }
}

/// A bridge or a function, by the names on the way to it.
#[derive(Default)]
struct Step {
    below: BTreeMap<String, Self>,
    devices: Vec<String>,
}

impl Step {
    fn insert(&mut self, way: &[String], device: String) {
        match way.split_first() {
            Some((name, rest)) => self.below.entry(name.clone()).or_default().insert(rest, device),
            None => self.devices.push(device),
        }
    }

    /// Bridges with one way below them are left out.
    fn branches(&self) -> Vec<Branch> {
        self.below.iter().map(|(name, step)| step.branch(name)).collect()
    }

    fn branch(&self, name: &str) -> Branch {
        if let (true, 1, Some((name, only))) =
            (self.devices.is_empty(), self.below.len(), self.below.iter().next())
        {
            return only.branch(name);
        }
        let label = match self.devices.as_slice() {
            [] => name.to_owned(),
            devices => format!("{name}  {}", devices.join("; ")),
        };
        Branch { label, children: self.branches() }
    }
}

/// What is at one node.
#[derive(Default)]
struct Place {
    pci: Step,
    elsewhere: Vec<String>,
}

pub(super) fn render(host: &Host) -> String {
    let mut places: BTreeMap<Option<u32>, Place> = BTreeMap::new();
    for node in &host.nodes {
        places.entry(Some(node.number)).or_default();
    }
    for (numa, pci, label) in devices(host) {
        let place = places.entry(numa.unwrap_or_default()).or_default();
        match pci {
            Some(path) => place.pci.insert(path.components(), label),
            None => place.elsewhere.push(label),
        }
    }
    let mut top = Branch::default();
    // The place that is none comes last.
    let (nowhere, somewhere): (Vec<_>, Vec<_>) = places.into_iter().partition(|(numa, _)| numa.is_none());
    for (numa, place) in somewhere.into_iter().chain(nowhere) {
        let mut branch = Branch::new(place_label(host, numa));
        branch.children = place.pci.branches();
        branch.children.extend(place.elsewhere.into_iter().map(Branch::new));
        top.children.push(branch);
    }
    let mut out = "host\n".to_owned();
    top.append_to("", &mut out);
    out
}

fn place_label(host: &Host, numa: Option<u32>) -> String {
    let Some(number) = numa else { return "no NUMA node".to_owned() };
    let Some(node) = host.nodes.iter().find(|node| node.number == number) else {
        return format!("node {number}, of which nothing is known");
    };
    let cpus = match &node.cpus {
        Ok(cpus) if cpus.count() == 0 => "no processors".to_owned(),
        cpus => format!("processors {}", known(cpus)),
    };
    format!("node {number}: {cpus}, {}", known_bytes(&node.memory))
}

type Placed<'a> = (Fact<Option<u32>>, Option<&'a PciPath>, String);

fn devices(host: &Host) -> Vec<Placed<'_>> {
    let mut all: Vec<Placed<'_>> = Vec::new();
    for gpu in &host.gpus {
        let name = gpu.location.as_ref().map_or_else(|| "display".to_owned(), ToString::to_string);
        let model = gpu.model.as_ref().map(|model| format!(" {model}")).unwrap_or_default();
        all.push((gpu.numa.clone(), Some(&gpu.pci), format!("{name}{model}")));
    }
    for nic in &host.nics {
        let ports = nic.ports.iter().map(|port| format!("{} {}", known(&port.state), known(&port.rate)));
        let ports = ports.collect::<Vec<_>>().join(", ");
        let usable = if host.usable(nic, None).is_ok() { "" } else { ", not usable" };
        all.push((nic.numa.clone(), nic.pci.as_ref().ok(), format!("{} {ports}{usable}", nic.name)));
    }
    for controller in &host.nvme {
        let size: u64 = controller.namespaces.iter().filter_map(|space| space.size.clone().ok()).sum();
        let how = match controller.transport.as_deref() {
            Ok("pcie") | Err(_) => String::new(),
            Ok(transport) => format!(" over {transport} {}", known(&controller.address)),
        };
        let label = format!("{} {}{how}", controller.name, bytes(size));
        all.push((controller.numa.clone(), controller.pci.as_ref().ok(), label));
    }
    for dax in &host.dax {
        let of = dax.region.as_ref().map(|region| format!(" of {region}")).unwrap_or_default();
        all.push((dax.numa.clone(), None, format!("{} {}{of}", dax.name, known_bytes(&dax.size))));
    }
    all
}
