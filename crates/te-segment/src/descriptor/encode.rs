//! Encoding a descriptor as one record with two readings.

use std::borrow::Cow;

use super::{BufferDescriptor, Device, SegmentDescriptor, TcpFraming, extension};
use crate::{
    error::{DescriptorError, FieldProblem},
    ids::{MemoryKey, TransportKind},
    json::Node,
    limits::MAX_DOCUMENT_BYTES,
    range::AddressRange,
    wire::Word,
};

/// The transport that a record names in `protocol`, for reference engines. It decides which of them can reach the
/// segment and which buffers they see; te engines ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompatProtocol {
    /// `tcp`
    Tcp,
    /// `rdma`
    Rdma,
}

/// How a descriptor is to be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// The transport for reference engines.
    pub compat: CompatProtocol,
    /// Whether the extension member is written. Without it a te engine takes the record for a reference engine's.
    pub extension: bool,
    /// Wall-clock time of the encoding, `YYYY-MM-DD HH:MM:SS.ffffff`. This crate reads no clock.
    pub timestamp: String,
}

impl SegmentDescriptor {
    /// Encodes: compact, members sorted, strict ASCII, without the newline that some carriers add.
    ///
    /// The members for reference engines are complete in both readings: only `protocol` and the choice of `buffers`
    /// depend on the compat transport. Each range has one entry, named by its location, and where the compat transport
    /// reaches it by the keys of its parts, one for each part. Left out of it, and found by te engines in the extension, are
    /// buffers that the compat transport cannot reach. Local-only buffers appear nowhere.
    ///
    /// Fails for a file segment, which has no such record, and for a record larger than [`MAX_DOCUMENT_BYTES`], which no
    /// reader would take (with the extension, that is some 750,000 buffers reached by TCP alone).
    pub fn encode(&self, options: &EncodeOptions) -> Result<String, DescriptorError> {
        let parts = &self.parts;
        let word = match options.compat {
            CompatProtocol::Tcp => Word::Tcp,
            CompatProtocol::Rdma => Word::Rdma,
        };
        if !parts.files.is_empty() {
            return Err(FieldProblem::NotCarried { form: word.as_str() }.at("files"));
        }
        let buffers = self.remote_buffers().flat_map(|buffer| self.compat_nodes(buffer, options.compat));
        let framing = parts.tcp.as_ref().map_or(TcpFraming::V1, |tcp| tcp.framing);
        let mut members: Vec<(Cow<'_, str>, Node<'_>)> = vec![
            ("name".into(), Node::text(parts.name.as_str())),
            ("protocol".into(), Node::text(word.as_str())),
            ("timestamp".into(), Node::text(options.timestamp.as_str())),
            ("buffers".into(), Node::Array(buffers.collect())),
            ("rdma_server_name".into(), Node::text(parts.rdma_server_name.as_deref().unwrap_or(""))),
            ("tcp_data_port".into(), Node::Unsigned(parts.tcp.as_ref().map_or(0, |t| t.port.get().into()))),
            ("tcp_proto_version".into(), Node::Unsigned(framing.version())),
        ];
        if let Some(host) = parts.tcp.as_ref().and_then(|tcp| tcp.host.as_ref()) {
            members.push(("tcp_data_host".into(), Node::text(host.bare())));
        }
        if self.has_rdma_reading() {
            let devices = parts.devices.iter().map(extension::device_node);
            members.push(("devices".into(), Node::Array(devices.collect())));
            members.push(("priority_matrix".into(), parts.topology.node()));
        } else if options.compat == CompatProtocol::Rdma {
            members.push(("devices".into(), Node::Array(Vec::new())));
            members.push(("priority_matrix".into(), Node::Null));
        }
        if options.extension
            && let Some(node) = extension::node(parts)
        {
            members.push((extension::MEMBER.into(), node));
        }
        let record = Node::Object(members).into_json();
        if record.len() > MAX_DOCUMENT_BYTES {
            return Err(DescriptorError::TooLarge { len: record.len(), limit: MAX_DOCUMENT_BYTES });
        }
        Ok(record)
    }

    /// Reference readers refuse a record as a whole if one device lacks its address.
    fn has_rdma_reading(&self) -> bool {
        let devices = self.devices();
        !devices.is_empty() && devices.iter().all(|device| device.gid().is_some())
    }

    /// The buffer's entries for reference engines, if the compat transport reaches it.
    fn compat_nodes<'a>(&'a self, buffer: &'a BufferDescriptor, compat: CompatProtocol) -> Vec<Node<'a>> {
        let keyed = self.ordered_keys(buffer);
        let by_tcp = self.tcp().is_some() && buffer.via_transport(&TransportKind::TCP).is_some();
        match compat {
            CompatProtocol::Rdma => {
                keyed.into_iter().map(|(range, keys)| compat_node(buffer, range, Some(&keys))).collect()
            }
            CompatProtocol::Tcp if !by_tcp => Vec::new(),
            // By TCP a request may cross parts: one entry, and no keys, since none is for all of it.
            CompatProtocol::Tcp => {
                let whole = keyed.first().filter(|(range, _)| *range == buffer.range());
                vec![compat_node(buffer, buffer.range(), whole.map(|(_, keys)| keys.as_slice()))]
            }
        }
    }

    /// The ranges of a buffer that have keys, with these in the order of the devices; none unless there is one for each, as
    /// reference readers demand.
    fn ordered_keys(&self, buffer: &BufferDescriptor) -> Vec<(AddressRange, Vec<u64>)> {
        if !self.has_rdma_reading() {
            return Vec::new();
        }
        let names = self.devices().iter().map(Device::name);
        let by_device: Vec<_> = names.map(|nic| buffer.keys(&TransportKind::RDMA, nic)).collect();
        let keyed = |(part, range)| {
            let keys = by_device.iter().map(|keys| keys.get(part).copied().map(MemoryKey::value));
            Some((range, keys.collect::<Option<_>>()?))
        };
        buffer.keyed(&TransportKind::RDMA).into_iter().enumerate().filter_map(keyed).collect()
    }
}

/// An entry for reference engines.
fn compat_node<'a>(buffer: &BufferDescriptor, range: AddressRange, keys: Option<&[u64]>) -> Node<'a> {
    let mut members: Vec<(Cow<'_, str>, Node<'_>)> = vec![
        ("addr".into(), Node::Unsigned(range.start())),
        ("length".into(), Node::Unsigned(range.len())),
        ("name".into(), Node::text(buffer.location().to_string())),
    ];
    if let Some(keys) = keys {
        // Local keys are nobody else's business; only their number is looked at.
        members.push(("lkey".into(), Node::Array(keys.iter().map(|_| Node::Unsigned(0)).collect())));
        members.push(("rkey".into(), Node::numbers(keys)));
    }
    Node::Object(members)
}
