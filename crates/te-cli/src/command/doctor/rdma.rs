//! What RDMA needs: libraries, devices, an address each, rights, packets of a good size.

use te_topology::{Nic, Port, Usable};

use super::check::Check;
use super::libraries;
use super::subject::Subject;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    let verbs = libraries::find(&subject.root, VERBS);
    let mut checks = vec![library(verbs.as_deref())];
    checks.extend(devices(subject));
    if let Some(verbs) = verbs {
        checks.extend(providers(subject, &verbs));
    }
    checks
}

const VERBS: &str = "libibverbs.so.1";

fn library(path: Option<&str>) -> Check {
    match path {
        Some(path) => Check::ok("rdma", "libibverbs", format!("/{path}")),
        None => {
            let remedy =
                "install rdma-core: libibverbs1 and ibverbs-providers on Debian, libibverbs on Fedora";
            Check::missing(
                "rdma",
                "libibverbs",
                format!("{VERBS} is not there"),
                "no device can be opened",
                remedy,
            )
        }
    }
}

fn devices(subject: &Subject<'_>) -> Vec<Check> {
    let nics = &subject.host.nics;
    if nics.is_empty() {
        // Whether each device belongs to one network namespace, as `rdma system set netns exclusive` makes it.
        let exclusive =
            subject.text("sys/module/ib_core/parameters/netns_mode").is_some_and(|mode| mode == "N");
        let (found, remedy) = if exclusive {
            ("none in this network namespace", "rdma dev set NAME netns PID, or rdma system set netns shared")
        } else {
            (
                "none",
                "load the driver of the device (mlx5_ib, bnxt_re, …), or give this container its devices",
            )
        };
        return vec![Check::missing("rdma", "devices", found, "there is nothing to do RDMA with", remedy)];
    }
    let usable: Vec<_> = nics.iter().map(|nic| (nic, subject.host.usable(nic, None))).collect();
    let any = usable.iter().any(|(_, usable)| usable.is_ok());
    let mut checks = Vec::new();
    for (nic, usable) in usable {
        match usable {
            Ok(usable) => checks.extend(device(subject, nic, &usable)),
            // One that works is enough; the others may be meant to rest.
            Err(why) => {
                let found = format!("{}: {why}", nic.name);
                let means = "te does not use this device";
                let remedy = "see above; `te topology` shows its ports and addresses";
                checks.push(if any {
                    Check::warn("rdma", "device", found, means, remedy)
                } else {
                    Check::missing("rdma", "device", found, means, remedy)
                });
            }
        }
    }
    checks
}

fn device(subject: &Subject<'_>, nic: &Nic, usable: &Usable) -> Vec<Check> {
    let mut checks = Vec::new();
    let best = usable.gid.best;
    let found = format!(
        "{}: port {}, address {} at {}: {}",
        nic.name,
        usable.port,
        te_topology::as_ip(best.gid),
        best.index,
        best.tier
    );
    checks.push(match best.tier.concern() {
        None => Check::ok("rdma", "device", found),
        Some(concern) => {
            Check::warn("rdma", "device", found, concern, "see the guide on topology, \"Which address\"")
        }
    });
    if let Ok(verbs) = &nic.verbs {
        checks.extend(rights(subject, nic, verbs));
    }
    let port = nic.ports.iter().find(|port| port.number == usable.port);
    checks.extend(port.and_then(|port| packets(nic, port)));
    checks
}

/// Whether the character device may be opened; asked without opening it.
fn rights(subject: &Subject<'_>, nic: &Nic, verbs: &str) -> Option<Check> {
    let path = subject.root.path().join("dev/infiniband").join(verbs);
    let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    let error = rustix::fs::access(&path, both).err()?;
    let found = format!("/dev/infiniband/{verbs} of {}: {error}", nic.name);
    let remedy = "a udev rule that gives it to the group of this process, or mode 0666";
    Some(Check::missing("rdma", "rights", found, "the device cannot be opened", remedy))
}

/// The payload of a packet from which on a device reaches its rate.
const GOOD_MTU: u32 = 4096;

fn packets(nic: &Nic, port: &Port) -> Option<Check> {
    let mtu = *port.mtu.as_ref().ok()?;
    let found = format!("{}: {mtu} bytes", nic.name);
    Some(if mtu >= GOOD_MTU {
        Check::ok("rdma", "MTU", found)
    } else {
        let means =
            "packets are small, so a device may not reach its rate; both sides use the smaller of theirs";
        let netdev = nic.netdevs.first().map_or("INTERFACE", String::as_str);
        let remedy = format!("ip link set {netdev} mtu 9000, on every host and switch in between");
        Check::warn("rdma", "MTU", found, means, remedy)
    })
}

/// Kernel drivers, and what their part of `libibverbs` is called.
const PROVIDERS: [(&str, &str); 16] = [
    ("mlx5_core", "mlx5"),
    ("mlx5_core.sf", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ionic", "ionic"),
    ("erdma", "erdma"),
    ("efa", "efa"),
    ("ice", "irdma"),
    ("idpf", "irdma"),
    ("i40e", "irdma"),
    ("hns3", "hns"),
    ("qede", "qedr"),
    ("cxgb4", "cxgb4"),
    ("hfi1", "hfi1verbs"),
    ("mana", "mana"),
    ("vmw_pvrdma", "vmw_pvrdma"),
];

fn provider(nic: &Nic) -> Option<&'static str> {
    match &nic.driver {
        Ok(driver) => PROVIDERS.iter().find(|(kernel, _)| kernel == driver).map(|(_, provider)| *provider),
        // A device of software has no driver, and the name that its maker chose.
        Err(_) if nic.pci.is_err() && nic.name.as_str().starts_with("rxe") => Some("rxe"),
        Err(_) => None,
    }
}

fn providers(subject: &Subject<'_>, verbs: &str) -> Vec<Check> {
    let mut wanted: Vec<&str> = subject.host.nics.iter().filter_map(provider).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let check = |provider: &str| match libraries::find_provider(&subject.root, verbs, provider) {
        Some(path) => Check::ok("rdma", "provider", format!("{provider}: /{path}")),
        None => {
            let found = format!("{provider}: no lib{provider}-rdmav*.so in a folder libibverbs");
            let means = "libibverbs does not see devices of this kind";
            let remedy = "install ibverbs-providers, or what the maker of the device offers";
            Check::missing("rdma", "provider", found, means, remedy)
        }
    };
    wanted.into_iter().map(check).collect()
}
