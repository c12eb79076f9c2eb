//! The lossless model of a segment descriptor: what is written, member by member, before anything is concluded from it.
//!
//! Every record of the reference engine decodes into it and encodes back into the same bytes, members that this version
//! does not know included: they, and known members that are null or that the record's protocol does not use, are kept as
//! text in `extra`. For what a record *means* see [`SegmentDescriptor`](crate::SegmentDescriptor).

mod buffer;
mod device;
mod protocol;
mod raw;
mod rpc_location;

use std::{borrow::Cow, collections::BTreeMap};

pub use buffer::{Buffer, BufferEntry, Reach};
pub(crate) use device::read_matrix;
pub use device::{Device, Matrix, RankInfo};
pub use protocol::{Protocol, Word};
pub use raw::RawJson;
pub use rpc_location::RpcLocation;

use crate::{
    error::{DescriptorError, FieldError, FieldProblem, Path},
    json::{self, Members, Node},
    limits::DecodeLimits,
};

/// A segment descriptor as written (reference engine, wire spec: segment descriptor).
///
/// `None` means that the record does not have the member, or has it as null (then the null is kept in `extra`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// `name`: the owner's name, by which peers route.
    pub name: Option<String>,
    /// `protocol`: what the record is about.
    pub protocol: Protocol,
    /// `tcp_data_host`: host of the TCP data listener, without brackets and port.
    pub tcp_data_host: Option<String>,
    /// `tcp_data_port`: port of the TCP data listener, 0 without one.
    pub tcp_data_port: Option<u16>,
    /// `tcp_proto_version`: newest TCP framing that the owner's listener accepts; absent means 1.
    pub tcp_proto_version: Option<u64>,
    /// `timestamp`: wall-clock time of the encoding, informational.
    pub timestamp: Option<String>,
    /// `rdma_server_name`: used instead of the name in NIC paths if not empty.
    pub rdma_server_name: Option<String>,
    /// `devices`, of protocols that have them.
    pub devices: Option<Vec<Device>>,
    /// `priority_matrix`, if it has the right form.
    pub priority_matrix: Option<Matrix>,
    /// `cxl_name`: path of the CXL device.
    pub cxl_name: Option<String>,
    /// `cxl_base_addr`: where the owner has mapped the CXL device.
    pub cxl_base_addr: Option<u64>,
    /// `rank_info`, of protocol `ascend`.
    pub rank_info: Option<RankInfo>,
    /// `buffers`.
    pub buffers: Option<Vec<BufferEntry>>,
    /// Every other member.
    pub extra: BTreeMap<String, RawJson>,
}

impl Descriptor {
    /// A descriptor that has only a protocol.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            name: None,
            protocol,
            tcp_data_host: None,
            tcp_data_port: None,
            tcp_proto_version: None,
            timestamp: None,
            rdma_server_name: None,
            devices: None,
            priority_matrix: None,
            cxl_name: None,
            cxl_base_addr: None,
            rank_info: None,
            buffers: None,
            extra: BTreeMap::new(),
        }
    }

    /// Decodes a record with the default limits.
    ///
    /// Fails for what makes the record as a whole unusable. An element of `buffers` that cannot be read is
    /// [`BufferEntry::Invalid`] and does not affect the others.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        Self::decode_within(bytes, &DecodeLimits::default())
    }

    /// Decodes a record.
    pub fn decode_within(bytes: &[u8], limits: &DecodeLimits) -> Result<Self, DescriptorError> {
        json::check_document(bytes, limits)?;
        Ok(Self::read(Members::of_document(bytes)?, limits)?)
    }

    pub(crate) fn read(mut members: Members<'_>, limits: &DecodeLimits) -> Result<Self, FieldError> {
        let root = Path::Root;
        let at = root.member("protocol");
        let raw = members.take("protocol").ok_or_else(|| at.error(FieldProblem::Missing))?;
        let protocol = Protocol::read(raw, &at)?;
        let read_devices = |raw, path: &Path<'_>| Device::read_all(raw, path, limits.max_devices);
        // Where the protocol has no devices, the reference engine does not look at the member at all.
        let devices = if protocol.has_devices() {
            members.take_as("devices", &root, read_devices)?
        } else {
            members.try_take_as("devices", &root, read_devices).unwrap_or_default()
        };
        Ok(Self {
            name: members.take_as("name", &root, json::read_text)?,
            // A host that is no string counts as absent, a bad matrix as an empty one.
            tcp_data_host: members.try_take_as("tcp_data_host", &root, json::read_text).unwrap_or_default(),
            tcp_data_port: members.take_as("tcp_data_port", &root, read_port)?,
            tcp_proto_version: members.take_as("tcp_proto_version", &root, json::read_u64)?,
            timestamp: members.take_as("timestamp", &root, json::read_text)?,
            rdma_server_name: members.take_as("rdma_server_name", &root, json::read_text)?,
            devices,
            priority_matrix: members.try_take_as("priority_matrix", &root, read_matrix).unwrap_or_default(),
            cxl_name: members.take_as("cxl_name", &root, json::read_text)?,
            cxl_base_addr: members.take_as("cxl_base_addr", &root, json::read_u64)?,
            rank_info: members.try_take_as("rank_info", &root, RankInfo::read).unwrap_or_default(),
            buffers: members.take_as("buffers", &root, |raw, path| {
                BufferEntry::read_all(raw, path, &protocol, limits.max_buffers)
            })?,
            protocol,
            extra: members.rest(),
        })
    }

    /// Encodes: compact, members sorted, strict ASCII, no newline at the end.
    pub fn encode(&self) -> String {
        let mut members: Vec<(Cow<'_, str>, Node<'_>)> = vec![("protocol".into(), self.protocol.node())];
        let texts = [
            ("name", &self.name),
            ("tcp_data_host", &self.tcp_data_host),
            ("timestamp", &self.timestamp),
            ("rdma_server_name", &self.rdma_server_name),
            ("cxl_name", &self.cxl_name),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                members.push((key.into(), Node::text(text.as_str())));
            }
        }
        let numbers = [
            ("tcp_data_port", self.tcp_data_port.map(u64::from)),
            ("tcp_proto_version", self.tcp_proto_version),
            ("cxl_base_addr", self.cxl_base_addr),
        ];
        for (key, number) in numbers {
            if let Some(number) = number {
                members.push((key.into(), Node::Unsigned(number)));
            }
        }
        if let Some(devices) = &self.devices {
            members.push(("devices".into(), Node::Array(devices.iter().map(Device::node).collect())));
        }
        if let Some(matrix) = &self.priority_matrix {
            members.push(("priority_matrix".into(), device::matrix_node(matrix)));
        }
        if let Some(rank_info) = &self.rank_info {
            members.push(("rank_info".into(), rank_info.node()));
        }
        if let Some(buffers) = &self.buffers {
            members.push(("buffers".into(), Node::Array(buffers.iter().map(BufferEntry::node).collect())));
        }
        Node::object(members, &self.extra).into_json()
    }
}

fn read_port(raw: &serde_json::value::RawValue, path: &Path<'_>) -> Result<u16, FieldError> {
    let port = json::read_uint(raw, path, u16::MAX.into())?;
    Ok(u16::try_from(port).unwrap_or_default())
}
