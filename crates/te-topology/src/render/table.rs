//! Tables.

use std::fmt::Write as _;

use super::{bytes, known, known_bytes, node};
use crate::gid::as_ip;
use crate::host::Host;
use crate::nic::{Nic, Port};

/// Columns with a head line, everything left-aligned, two spaces in between.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Nothing if there is only the head.
    fn append_to(&self, out: &mut String) {
        if self.rows.len() < 2 {
            return;
        }
        if !out.is_empty() {
            out.push('\n');
        }
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        for row in &self.rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = width(column);
                format!("{cell:<width$}")
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

pub(super) fn render(host: &Host) -> String {
    let mut out = String::new();
    nodes(host).append_to(&mut out);
    nics(host).append_to(&mut out);
    gpus(host).append_to(&mut out);
    nvme(host).append_to(&mut out);
    memory(host).append_to(&mut out);
    reasons(host, &mut out);
    if out.is_empty() {
        out.push_str("nothing is known about this host\n");
    }
    out
}

fn nodes(host: &Host) -> Table {
    let mut table = Table::new(&["NUMA", "CPUS", "MEMORY", "FREE", "DISTANCES"]);
    for node in &host.nodes {
        let distances = node.distances.as_ref().map_or_else(
            |_| "-".to_owned(),
            |distances| distances.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        );
        let cpus = match &node.cpus {
            Ok(cpus) if cpus.count() == 0 => "none".to_owned(),
            cpus => known(cpus),
        };
        table.row([
            node.number.to_string(),
            cpus,
            known_bytes(&node.memory),
            known_bytes(&node.free),
            distances,
        ]);
    }
    table
}

fn nics(host: &Host) -> Table {
    let mut table = Table::new(&[
        "RDMA", "NUMA", "PCI", "DRIVER", "FIRMWARE", "PORT", "STATE", "RATE", "MTU", "LINK", "LID", "NETDEV",
        "GID", "ADDRESS",
    ]);
    for nic in &host.nics {
        let pci = nic.pci.as_ref().map_or_else(|_| "-".to_owned(), |path| path.address().to_string());
        let netdevs = if nic.netdevs.is_empty() { "-".to_owned() } else { nic.netdevs.join(",") };
        let usable = host.usable(nic, None).ok();
        for port in &nic.ports {
            let address = usable.as_ref().filter(|usable| usable.port == port.number);
            let gid = address.map_or_else(|| "-".to_owned(), |usable| usable.gid.best.index.to_string());
            let ip = address.map_or_else(|| "-".to_owned(), |usable| as_ip(usable.gid.best.gid).to_string());
            table.row([
                nic.name.to_string(),
                node(&nic.numa),
                pci.clone(),
                known(&nic.driver),
                known(&nic.firmware),
                port.number.to_string(),
                state(port),
                known(&port.rate),
                known(&port.mtu),
                known(&port.link_layer),
                known(&port.lid),
                netdevs.clone(),
                gid,
                ip,
            ]);
        }
    }
    table
}

/// `active`, or `down (Polling)`.
fn state(port: &Port) -> String {
    match (&port.state, &port.link) {
        (Ok(crate::PortState::Active), _) | (_, Err(_)) => known(&port.state),
        (state, Ok(link)) => format!("{} ({link})", known(state)),
    }
}

fn gpus(host: &Host) -> Table {
    let mut table = Table::new(&["GPU", "NUMA", "PCI", "ID", "DRIVER", "WINDOW", "MODEL"]);
    for gpu in &host.gpus {
        let device = gpu.device.as_ref().map_or_else(|_| "-".to_owned(), |device| format!("{device:04x}"));
        table.row([
            gpu.location.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            node(&gpu.numa),
            gpu.address().to_string(),
            format!("{:04x}:{device}", gpu.vendor),
            known(&gpu.driver),
            known_bytes(&gpu.window),
            known(&gpu.model),
        ]);
    }
    table
}

fn nvme(host: &Host) -> Table {
    let mut table = Table::new(&["NVME", "NUMA", "TRANSPORT", "ADDRESS", "FIRMWARE", "NAMESPACES", "MODEL"]);
    for controller in &host.nvme {
        let spaces = controller.namespaces.iter().map(|space| match &space.size {
            Ok(size) => format!("{} ({})", space.name, bytes(*size)),
            Err(_) => space.name.clone(),
        });
        let spaces = spaces.collect::<Vec<_>>().join(", ");
        table.row([
            controller.name.clone(),
            node(&controller.numa),
            known(&controller.transport),
            known(&controller.address),
            known(&controller.firmware),
            if spaces.is_empty() { "-".to_owned() } else { spaces },
            known(&controller.model),
        ]);
    }
    table
}

fn memory(host: &Host) -> Table {
    let mut table = Table::new(&["WINDOW", "NUMA", "SIZE", "HOW", "REGION"]);
    for dax in &host.dax {
        table.row([
            dax.name.clone(),
            node(&dax.numa),
            known_bytes(&dax.size),
            known(&dax.driver),
            dax.region.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    for region in &host.regions {
        let how = format!("{} over {}", known(&region.mode), known(&region.ways));
        let uuid = known(&region.uuid);
        table.row([region.name.clone(), "-".to_owned(), known_bytes(&region.size), how, uuid]);
    }
    table
}

/// Why devices cannot be used, what is to be said about chosen addresses, and about what the host is silent.
fn reasons(host: &Host, out: &mut String) {
    let mut lines = Vec::new();
    for nic in &host.nics {
        match host.usable(nic, None) {
            Ok(usable) if usable.gid.best.tier.concern().is_some() => {
                lines.push(format!("{}: address {}: {}", nic.name, usable.gid.best.index, usable.gid.reason));
            }
            Ok(_) => {}
            Err(why) => lines.push(format!("{}: not usable: {why}", nic.name)),
        }
        lines.extend(malformed(nic).into_iter().map(|unknown| format!("{}: {unknown}", nic.name)));
    }
    lines.extend(host.silent.iter().map(|unknown| format!("nothing said: {unknown}")));
    if !lines.is_empty() && !out.is_empty() {
        out.push('\n');
    }
    for line in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{line}");
    }
}

/// What a device should say and says wrong. What it does not say is no news.
fn malformed(nic: &Nic) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut note = |unknown: Option<&crate::Unknown>| {
        wrong.extend(unknown.filter(|unknown| !unknown.is_absent()).map(ToString::to_string));
    };
    note(nic.numa.as_ref().err());
    note(nic.node_type.as_ref().err());
    for port in &nic.ports {
        note(port.state.as_ref().err());
        note(port.rate.as_ref().err());
        note(port.link_layer.as_ref().err());
        note(port.lid.as_ref().err());
        note(port.mtu.as_ref().err());
    }
    wrong
}
