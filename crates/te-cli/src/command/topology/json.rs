//! A host as JSON.

use serde_json::{Value, json};
use te_segment::Topology;
use te_topology::{
    CxlRegion, DaxDevice, Gpu, Host, Netdev, Nic, NodeType, NumaNode, NvmeController, PciPath, Port,
    Unusable, Usable, as_ip,
};

use super::facts::Facts;

/// Everything that is known of a host, with the matrix that counts.
pub(super) fn host(host: &Host, matrix: &Topology) -> Value {
    json!({
        "nodes": host.nodes.iter().map(node).collect::<Value>(),
        "nics": host.nics.iter().map(|found| nic(found, host.usable(found, None))).collect::<Value>(),
        "netdevs": host.netdevs.iter().map(netdev).collect::<Value>(),
        "gpus": host.gpus.iter().map(gpu).collect::<Value>(),
        "nvme": host.nvme.iter().map(controller).collect::<Value>(),
        "dax": host.dax.iter().map(dax).collect::<Value>(),
        "cxl_regions": host.regions.iter().map(region).collect::<Value>(),
        "silent": host.silent.iter().map(ToString::to_string).collect::<Value>(),
        "matrix": matrix.to_matrix(),
    })
}

fn text(value: &impl ToString) -> Value {
    value.to_string().into()
}

fn pci(path: &PciPath) -> Value {
    json!({ "address": path.address().to_string(), "path": path.components().join("/") })
}

fn node(node: &NumaNode) -> Value {
    let facts = Facts::default().with("number", node.number).shown("cpus", &node.cpus, text);
    let facts = facts.fact("memory", &node.memory).fact("free", &node.free);
    facts.fact("distances", &node.distances).object()
}

fn netdev(netdev: &Netdev) -> Value {
    let facts = Facts::default().with("name", netdev.name.as_str()).fact("mtu", &netdev.mtu);
    facts.fact("state", &netdev.state).with("bonded", netdev.bonded.clone()).object()
}

fn nic(nic: &Nic, usable: Result<Usable, Unusable>) -> Value {
    let node_type = |node_type: &NodeType| match node_type {
        NodeType::ChannelAdapter => "channel adapter".into(),
        NodeType::Iwarp => "iWARP".into(),
        NodeType::Other(number) => Value::from(*number),
        _ => Value::Null,
    };
    let facts = Facts::default()
        .with("name", nic.name.as_str())
        .shown("type", &nic.node_type, node_type)
        .fact("node_guid", &nic.node_guid)
        .fact("firmware", &nic.firmware)
        .fact("board", &nic.board)
        .fact("driver", &nic.driver)
        .fact("numa", &nic.numa)
        .shown("pci", &nic.pci, pci)
        .fact("verbs", &nic.verbs)
        .with("netdevs", nic.netdevs.clone())
        .with("ports", nic.ports.iter().map(port).collect::<Value>());
    let facts = match usable {
        Ok(usable) => facts.with(
            "usable",
            json!({
                "port": usable.port,
                "gid_index": usable.gid.best.index,
                "gid": usable.gid.best.gid.to_string(),
                "address": as_ip(usable.gid.best.gid).to_string(),
                "reason": usable.gid.reason,
            }),
        ),
        Err(why) => facts.with("usable", false).with("why", why.to_string()),
    };
    facts.object()
}

fn port(port: &Port) -> Value {
    let facts = Facts::default()
        .with("number", port.number)
        .shown("state", &port.state, text)
        .fact("link", &port.link)
        .shown("rate", &port.rate, |rate| json!({ "megabits": rate.megabits, "signalling": rate.signalling }))
        .shown("link_layer", &port.link_layer, text)
        .fact("lid", &port.lid)
        .fact("mtu", &port.mtu);
    let gids = |table: &te_topology::GidTable| {
        let entries = table.entries.iter().map(|entry| {
            let facts = Facts::default()
                .with("index", entry.index)
                .with("address", as_ip(entry.gid).to_string())
                .shown("type", &entry.kind, text)
                .fact("netdev", &entry.netdev);
            facts.object()
        });
        json!({ "len": table.len, "entries": entries.collect::<Value>() })
    };
    facts.shown("gids", &port.gids, gids).object()
}

fn gpu(gpu: &Gpu) -> Value {
    Facts::default()
        .with("location", gpu.location.as_ref().map(ToString::to_string))
        .with("pci", pci(&gpu.pci))
        .with("vendor", format!("{:04x}", gpu.vendor))
        .shown("device", &gpu.device, |device| format!("{device:04x}").into())
        .with("class", format!("{:06x}", gpu.class))
        .fact("model", &gpu.model)
        .fact("driver", &gpu.driver)
        .fact("numa", &gpu.numa)
        .fact("window", &gpu.window)
        .object()
}

fn controller(nvme: &NvmeController) -> Value {
    let spaces = nvme.namespaces.iter().map(|space| {
        let facts = Facts::default().with("name", space.name.as_str()).fact("size", &space.size);
        facts.fact("wwid", &space.wwid).object()
    });
    Facts::default()
        .with("name", nvme.name.as_str())
        .fact("transport", &nvme.transport)
        .fact("address", &nvme.address)
        .fact("model", &nvme.model)
        .fact("firmware", &nvme.firmware)
        .fact("numa", &nvme.numa)
        .shown("pci", &nvme.pci, pci)
        .with("namespaces", spaces.collect::<Value>())
        .object()
}

fn dax(dax: &DaxDevice) -> Value {
    Facts::default()
        .with("name", dax.name.as_str())
        .fact("size", &dax.size)
        .fact("align", &dax.align)
        .fact("numa", &dax.numa)
        .fact("target", &dax.target)
        .fact("driver", &dax.driver)
        .with("region", dax.region.clone())
        .object()
}

fn region(region: &CxlRegion) -> Value {
    Facts::default()
        .with("name", region.name.as_str())
        .fact("size", &region.size)
        .fact("uuid", &region.uuid)
        .fact("mode", &region.mode)
        .fact("ways", &region.ways)
        .fact("granularity", &region.granularity)
        .fact("committed", &region.committed)
        .object()
}
