//! What the transport says about itself in a descriptor, and what it reads in that of a peer.

use std::collections::BTreeMap;

use te_segment::{
    BufferDescriptor, DescriptorBuilder, Device, MemoryKey, NicName, SegmentDescriptor, Topology,
    TransportKind, Via,
};
use te_transport::{Assessment, Capabilities, Fencing, Reach};

use crate::negotiate::{PeerAddress, Scope};
use crate::registration::Chunk;
use crate::wire::{NicPath, NicPathError};

/// What RDMA can do.
#[must_use]
pub fn capabilities() -> Capabilities {
    Capabilities {
        read: true,
        write: true,
        host_memory: true,
        // Where NICs reach it; each registration finds that out.
        device_memory: true,
        max_slice: u64::MAX,
        reach: Reach::Network,
        // As each path says: a rail that could not be cut may still apply what is on it, and the peer acknowledges no fence.
        fencing: Fencing::LocalOnly,
        // Queue pairs are bound to both lives, and keys end with their registration.
        checks_identity: true,
        registers_at_once: false,
    }
}

/// Adds the NICs and what they are close to. `server` is how this engine is called in NIC paths, if not by its name.
pub fn advertise(
    builder: DescriptorBuilder,
    nics: impl IntoIterator<Item = Device>,
    topology: Topology,
    server: Option<String>,
) -> DescriptorBuilder {
    let builder = nics.into_iter().fold(builder, DescriptorBuilder::device).topology(topology);
    match server {
        Some(server) => builder.rdma_server_name(server),
        None => builder,
    }
}

/// How peers reach a buffer that is registered in these parts, at the same NICs each.
#[must_use]
pub fn via(parts: &[Chunk]) -> Via {
    match parts {
        [whole] => {
            Via::Rdma { keys: whole.keys.iter().map(|(nic, keys)| (nic.clone(), keys.remote)).collect() }
        }
        parts => {
            let mut keys: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (nic, of_part) in parts.iter().flat_map(|part| &part.keys) {
                keys.entry(nic.clone()).or_default().push(of_part.remote);
            }
            Via::RdmaParts { lengths: parts.iter().map(|part| part.range.len()).collect(), keys }
        }
    }
}

/// The path of one of the peer's NICs.
///
/// # Errors
///
/// If the peer has a name that cannot stand in a path.
pub fn nic_path(peer: &SegmentDescriptor, nic: &NicName) -> Result<NicPath, NicPathError> {
    let server = peer.rdma_server_name().filter(|server| !server.is_empty());
    NicPath::new(server.unwrap_or_else(|| peer.name().as_str()), nic.clone())
}

/// The address of one of the peer's NICs as its descriptor states it.
#[must_use]
pub fn peer_address(peer: &SegmentDescriptor, nic: &NicName) -> Option<PeerAddress> {
    let device = peer.device(nic).filter(|device| is_usable(device))?;
    Some(PeerAddress { gid: device.gid(), lid: device.lid() })
}

/// The keys of a buffer at those of the peer's NICs that can be used, one for each part that has keys of its own
/// ([`BufferDescriptor::keyed`]). A reference engine lists NICs that it could not open without an address, and with keys that
/// mean nothing.
#[must_use]
pub fn keys<'a>(
    peer: &'a SegmentDescriptor,
    buffer: &'a BufferDescriptor,
) -> BTreeMap<&'a NicName, &'a [MemoryKey]> {
    let usable = peer.devices().iter().filter(|device| is_usable(device)).map(Device::name);
    let keys = usable.map(|nic| (nic, buffer.keys(&TransportKind::RDMA, nic)));
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

/// Whether the peer can be reached at all, judged from its descriptor.
#[must_use]
pub fn assess(peer: &SegmentDescriptor) -> Assessment {
    let nics: Vec<_> = peer.devices().iter().filter(|device| is_usable(device)).collect();
    if nics.is_empty() {
        return Assessment::Unusable(match peer.devices().len() {
            0 => "the peer has no RDMA device".to_owned(),
            count => format!("none of the peer's {count} RDMA devices has an address"),
        });
    }
    if let Err(error) = nic_path(peer, nics[0].name()) {
        return Assessment::Unusable(format!("the peer's name cannot stand in a NIC path: {error}"));
    }
    let names: Vec<_> = nics.iter().map(|device| device.name().as_str()).collect();
    Assessment::Usable(format!("RDMA devices {}", names.join(", ")))
}

/// As [`assess`], for one buffer of the peer.
#[must_use]
pub fn assess_buffer(peer: &SegmentDescriptor, buffer: &BufferDescriptor) -> Assessment {
    match assess(peer) {
        Assessment::Usable(_) if keys(peer, buffer).is_empty() => {
            Assessment::Unusable("the buffer has no key at any usable RDMA device of the peer".to_owned())
        }
        assessment => assessment,
    }
}

fn is_usable(device: &Device) -> bool {
    device.lid() != 0 || device.gid().is_some_and(|gid| Scope::of(gid) != Scope::Unset)
}

#[cfg(test)]
mod tests {
    use te_segment::{
        Access, AddressRange, CompatProtocol, EncodeOptions, Generation, Identity, Incarnation, Location,
        SegmentName,
    };

    use super::*;
    use crate::registration::Keys;

    fn nic(name: &str) -> NicName {
        name.parse().unwrap()
    }

    fn peer(devices: Vec<Device>) -> SegmentDescriptor {
        let keys = |at| Keys { local: MemoryKey::new(at), remote: MemoryKey::new(at + 100) };
        let range = AddressRange::new(0x1000, 4096).unwrap();
        let chunk = Chunk {
            range,
            keys: (1..).zip(&devices).map(|(at, device)| (device.name().clone(), keys(at))).collect(),
        };
        let identity = Identity::Te { incarnation: Incarnation::from_bits(1), control: None };
        let mut builder =
            SegmentDescriptor::builder(SegmentName::new("10.0.0.8:1").unwrap()).identity(identity);
        if !devices.is_empty() {
            let via = BTreeMap::from([(TransportKind::RDMA, via(&[chunk]))]);
            let (access, generation) = (Access::REMOTE_READ, Some(Generation::new(1)));
            let buffer = BufferDescriptor::new(range, Location::cpu(0), access, generation, via).unwrap();
            builder = builder.buffer(buffer);
        }
        advertise(builder, devices, Topology::new(), None).build().unwrap()
    }

    fn device(name: &str, gid: &str) -> Device {
        Device::rdma(nic(name), 0, gid.parse().unwrap())
    }

    const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:08";
    const NULL: &str = "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00";

    #[test]
    fn what_is_advertised_is_read_again() {
        let peer = peer(vec![device("mlx5_0", GID), device("mlx5_1", GID)]);
        let options = EncodeOptions {
            compat: CompatProtocol::Rdma,
            extension: true,
            timestamp: "2026-01-15 09:30:11.004211".to_owned(),
        };
        let record = peer.encode(&options).unwrap();
        let read = SegmentDescriptor::decode(record.as_bytes()).unwrap().descriptor;
        assert_eq!(assess(&read), Assessment::Usable("RDMA devices mlx5_0, mlx5_1".into()));
        let buffer = &read.buffers()[0];
        assert!(assess_buffer(&read, buffer).is_usable());
        assert_eq!(keys(&read, buffer)[&nic("mlx5_1")], [MemoryKey::new(102)]);
        assert_eq!(nic_path(&read, &nic("mlx5_1")).unwrap().to_string(), "10.0.0.8:1@mlx5_1");
        assert_eq!(peer_address(&read, &nic("mlx5_0")).unwrap().gid, Some(GID.parse().unwrap()));
        assert_eq!(peer_address(&read, &nic("mlx5_2")), None);
    }

    #[test]
    fn devices_that_could_not_be_opened_are_not_used() {
        let half = peer(vec![device("mlx5_0", NULL), device("mlx5_1", GID)]);
        assert_eq!(keys(&half, &half.buffers()[0]).into_keys().collect::<Vec<_>>(), [&nic("mlx5_1")]);
        let dead = peer(vec![device("mlx5_0", NULL)]);
        assert_eq!(assess(&dead).reason(), "none of the peer's 1 RDMA devices has an address");
        assert_eq!(assess(&peer(vec![])).reason(), "the peer has no RDMA device");
    }
}
