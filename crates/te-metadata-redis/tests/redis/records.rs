//! What engines find in the store.

use std::{num::NonZeroU16, sync::Arc};

use te_metadata::{Directory, Key, Keys, MetadataStore, StoreDirectory};
use te_segment::{
    Access, AddressRange, BufferDescriptor, Endpoint, Identity, Incarnation, Location, SegmentDescriptor,
    SegmentName, TcpFraming, TcpService, Via,
};

use crate::{put, server::Server, soon};

/// What two reference engines, `node-e` and `node-f`, had put into etcd, with other addresses.
const RECORDED: [(&str, &str); 4] = [
    (
        "mooncake/ram/node-e",
        "{\"buffers\":[{\"addr\":94514987073536,\"length\":65536,\"name\":\"node-e\"}],\"name\":\"node-e\",\"protocol\":\"tcp\",\"rdma_server_name\":\"\",\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":16805,\"tcp_proto_version\":2,\"timestamp\":\"2026-11-29 16:23:27.763531\"}\n",
    ),
    (
        "mooncake/ram/node-f",
        "{\"buffers\":[{\"addr\":94817022021632,\"length\":65536,\"name\":\"node-f\"}],\"name\":\"node-f\",\"protocol\":\"tcp\",\"rdma_server_name\":\"\",\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":16732,\"tcp_proto_version\":2,\"timestamp\":\"2026-11-29 16:23:27.777086\"}\n",
    ),
    ("mooncake/rpc_meta/node-e", "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":15996}\n"),
    ("mooncake/rpc_meta/node-f", "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":15629}\n"),
];

fn descriptor(name: &str, address: u64, port: u16, identity: Identity) -> SegmentDescriptor {
    let range = AddressRange::new(address, 65536).unwrap();
    let via = [(te_segment::TransportKind::TCP, Via::Tcp)].into();
    let buffer =
        BufferDescriptor::new(range, Location::Other(name.to_owned()), Access::REMOTE, None, via).unwrap();
    let service = TcpService {
        host: Some("127.0.0.1".parse().unwrap()),
        port: NonZeroU16::new(port).unwrap(),
        framing: TcpFraming::V2,
    };
    let builder = SegmentDescriptor::builder(SegmentName::new(name).unwrap());
    builder.identity(identity).tcp(service).buffer(buffer).build().unwrap()
}

/// The text with its time stamp blanked out.
fn timeless(text: &str) -> String {
    match text.split_once("\"timestamp\":\"") {
        Some((before, after)) => {
            let rest = after.split_once('"').unwrap().1;
            format!("{before}\"timestamp\":\"\"{rest}")
        }
        None => text.to_owned(),
    }
}

fn location(port: u16) -> te_segment::wire::RpcLocation {
    format!("127.0.0.1:{port}").parse::<Endpoint>().unwrap().into()
}

#[tokio::test]
async fn what_is_published_is_byte_for_byte_what_reference_engines_publish() {
    let server = Server::start();
    let directory = StoreDirectory::new(server.store(), Keys::default());
    for (name, address, data, rpc) in
        [("node-e", 94_514_987_073_536, 16805, 15996), ("node-f", 94_817_022_021_632, 16732, 15629)]
    {
        let record = descriptor(name, address, data, Identity::Reference);
        directory.publish(Arc::new(record), location(rpc), soon()).await.unwrap();
    }
    let stored = server.store().list("", soon()).await.unwrap();
    let stored: Vec<_> = stored.iter().map(|(key, entry)| (key.as_str(), timeless(&entry.value))).collect();
    let recorded: Vec<_> = RECORDED.iter().map(|(key, value)| (*key, timeless(value))).collect();
    assert_eq!(stored, recorded);
}

#[tokio::test]
async fn what_reference_engines_published_is_resolved() {
    let server = Server::start();
    for (key, value) in RECORDED {
        server.store().put(put(key, value), soon()).await.unwrap();
    }
    let directory = StoreDirectory::new(server.store(), Keys::default());
    let name = SegmentName::new("node-e").unwrap();
    let found = directory.resolve(&name, soon()).await.unwrap();
    assert_eq!(found.tcp.unwrap().to_string(), "127.0.0.1:16805");
    assert_eq!(found.descriptor.buffers()[0].range().start(), 94_514_987_073_536);
    assert_eq!(directory.locate(&name, soon()).await.unwrap().to_string(), "127.0.0.1:15996");
}

#[tokio::test]
async fn a_withdrawn_record_is_gone_from_the_server() {
    let server = Server::start();
    let directory = StoreDirectory::new(server.store(), Keys::default());
    let identity = Identity::Te {
        incarnation: Incarnation::from_bits(7),
        control: Some("127.0.0.1:15996".parse().unwrap()),
    };
    let record = descriptor("dir/node-c", 4096, 16805, identity);
    directory.publish(Arc::new(record), location(15996), soon()).await.unwrap();
    let ours = server.store().get(&Key::new("mooncake/dir/node-c"), soon()).await.unwrap().unwrap();
    assert!(ours.value.contains("\"te\":{") && ours.value.ends_with("}\n"));
    directory.withdraw(&SegmentName::new("dir/node-c").unwrap(), soon()).await.unwrap();
    assert!(server.store().list("", soon()).await.unwrap().is_empty());
}
