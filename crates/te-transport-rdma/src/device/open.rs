//! Opening NICs: which, at which port, under which address, and why not the others.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use te_segment::{Location, NicName, Topology};
use te_sys_verbs::{
    CompletionChannel, CompletionQueue, Context, GidKind, LinkLayer, MemoryRegion, ProtectionDomain,
    QueueSize, Verbs, VerbsError,
};
use te_topology::{Cause, GidEntry, GidTable, GidType, Host, Namespace, NicFilter, Root, Unknown, choose};

use super::nic::{Nic, NicParts, Own};
use super::setup::Errand;
use super::signals::Signals;
use crate::client::Common;
use crate::config::RdmaConfig;
use crate::negotiate::devices::{port, segment_gid};
use crate::slices::completion_entries;
use crate::wire::NicPath;

/// Endpoints that can have their queues full at the same time. What is under way at a NIC is bounded by what its completion
/// queue holds: if queue pairs break, all of it is reported.
const BUSY_AT_ONCE: u32 = 64;

/// What a device that is open consists of, beside queue pairs and registrations.
pub(crate) struct OpenDevice {
    /// Counts how often the device was opened, from 1: what is late of an earlier time is known by it.
    pub(crate) life: u64,
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    pub(crate) queue: CompletionQueue,
}

impl OpenDevice {
    /// Closes it, with all that is registered at it. Its queue pairs are gone, and nobody else has anything of it.
    pub(crate) fn close(self, regions: Vec<MemoryRegion>) {
        let Self { context, domain, channel, queue, .. } = self;
        drop((queue, channel));
        for error in regions.into_iter().filter_map(|region| region.deregister().err()) {
            // One that is gone refuses; its memory is given back when the context is closed.
            tracing::debug!(target: "te::rdma", %error, "not deregistered");
        }
        drop((domain, context));
    }
}

/// Makes what is needed of a device.
///
/// # Errors
///
/// Why it cannot be used, in words. Nothing of it is left.
pub(crate) fn device(context: Context, config: &RdmaConfig, life: u64) -> Result<OpenDevice, String> {
    let words = |error: VerbsError| error.to_string();
    let limits = context.limits().map_err(words)?;
    if limits.queue_pair_requests < config.depth {
        return Err(format!("a queue pair of it holds {} requests (depth)", limits.queue_pair_requests));
    }
    let domain = context.protection_domain().map_err(words)?;
    let channel = context.completion_channel().map_err(words)?;
    let pairs = u32::from(config.queue_pairs).saturating_mul(BUSY_AT_ONCE);
    let entries = completion_entries(pairs, &config.queue()).min(limits.completion_queue_entries);
    let size = QueueSize { entries, vector: 0 };
    let queue = context.completion_queue(size, Some(&channel), 0).map_err(words)?;
    Ok(OpenDevice { life, context, domain, channel, queue })
}

/// A NIC that is open, with the errands of its set-up thread.
pub(crate) type Opened = (Arc<Nic>, Receiver<Errand>);

/// Opens the NICs that are wanted and can be used, and says what is wrong with the others.
pub(crate) fn all(verbs: &Verbs, common: &Arc<Common>) -> (Vec<Opened>, Vec<String>) {
    let (mut opened, mut lacking) = (Vec::new(), Vec::new());
    let devices = match verbs.devices() {
        Ok(devices) => devices,
        Err(unavailable) => return (opened, vec![unavailable.to_string()]),
    };
    let wanted = &common.config.nics;
    for missing in wanted.iter().filter(|name| devices.iter().all(|device| device.name() != name.as_str())) {
        lacking.push(format!("{missing}: there is no such device (nics)"));
    }
    for device in &devices {
        let Ok(name) = NicName::new(device.name()) else { continue };
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let context = match device.open() {
            Ok(context) => context,
            Err(unavailable) => {
                lacking.push(format!("{name}: {unavailable}"));
                continue;
            }
        };
        match one(name.clone(), context, common) {
            Ok(nic) => opened.push(nic),
            Err(cause) => lacking.push(format!("{name}: {cause}")),
        }
    }
    (opened, lacking)
}

fn one(name: NicName, context: Context, common: &Arc<Common>) -> Result<Opened, String> {
    let own = own(&context, &common.config)?;
    let here = NicPath::new(&common.server, name.clone()).map_err(|error| error.to_string())?;
    let device = device(context, &common.config, 1)?;
    let (errands, received) = std::sync::mpsc::channel();
    let signals = Signals::new(errands).map_err(|error| format!("no eventfd: {error}"))?;
    let parts = NicParts { name, own, signals: Arc::new(signals) };
    Ok((Arc::new(Nic::new(parts, device, here, common.clone())), received))
}

/// The port and its address as they are now.
///
/// # Errors
///
/// Why the port cannot be used.
pub(crate) fn own(context: &Context, config: &RdmaConfig) -> Result<Own, String> {
    let number = config.port;
    let info = context.port(number).map_err(|error| error.to_string())?;
    if !info.active {
        return Err(format!("port {number} is not active: is the link up?"));
    }
    let limits = context.limits().map_err(|error| error.to_string())?;
    let link = match info.link_layer {
        LinkLayer::Ethernet => te_topology::LinkLayer::Ethernet,
        _ => te_topology::LinkLayer::InfiniBand,
    };
    let interfaces = Interfaces::read();
    let table = table(context, number, info.gids, &interfaces);
    let pinned = config.gid_index.map(u16::from);
    let choice = choose(&table, link, &interfaces.namespace, pinned)
        .map_err(|error| format!("port {number}: {error}"))?;
    let gid_index = u8::try_from(choice.best.index).map_err(|_| {
        format!("port {number}: address {} is beyond the 255 that can be named", choice.best.index)
    })?;
    tracing::debug!(target: "te::rdma", nic = context.name(), reason = choice.reason, "address");
    Ok(Own { port: port(&info, &limits, config.mtu), number, gid: choice.best.gid, gid_index, lid: info.lid })
}

/// The addresses of a port as the device tells them.
fn table(context: &Context, port: u8, len: u32, interfaces: &Interfaces) -> GidTable {
    let mut table = GidTable { len: usize::try_from(len).unwrap_or(usize::MAX), ..GidTable::default() };
    for index in 0..u8::try_from(len).unwrap_or(u8::MAX) {
        // An entry that is not set cannot be asked for on some kernels.
        let Ok(entry) = context.gid_entry(port, index) else { continue };
        if entry.gid.is_null() {
            continue;
        }
        let kind = match entry.kind {
            GidKind::RoceV2 => GidType::RoceV2,
            _ => GidType::IbOrRoceV1,
        };
        let netdev = entry.interface.and_then(|number| interfaces.name(number));
        table.entries.push(GidEntry {
            index: index.into(),
            gid: segment_gid(entry.gid),
            kind: Ok(kind),
            netdev: netdev.ok_or_else(|| Unknown {
                path: format!("interface of address {index}"),
                cause: Cause::Absent,
            }),
        });
    }
    table
}

/// The network interfaces of this namespace, by the system's numbers.
struct Interfaces {
    names: Vec<(u32, String)>,
    namespace: Namespace,
}

impl Interfaces {
    fn read() -> Self {
        let namespace = Namespace::discover(&Root::system());
        let number = |name: &String| {
            let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?;
            Some((text.trim().parse().ok()?, name.clone()))
        };
        Self { names: namespace.netdevs.iter().filter_map(number).collect(), namespace }
    }

    fn name(&self, number: u32) -> Option<String> {
        self.names.iter().find(|(known, _)| *known == number).map(|(_, name)| name.clone())
    }
}

/// Which NICs are close to what, of those that are open. Those that the host does not place are close to everything.
pub(crate) fn topology(open: &BTreeSet<NicName>) -> Topology {
    let host = Host::discover(&Root::system(), &NicFilter::all());
    let mut topology = host.map(|host| host.matrix()).unwrap_or_default();
    topology.retain_nics(|nic| open.contains(nic));
    let placed: BTreeSet<_> = topology.nics().into_iter().cloned().collect();
    if !open.is_subset(&placed) {
        topology = Topology::new();
        topology.insert(&Location::cpu(0), open.iter().cloned(), []);
    }
    topology
}
