//! What a segment is and how it is reached: the domain model.

mod buffer;
mod builder;
mod device;
mod encode;
mod extension;
mod reference;
mod value;

use std::collections::BTreeMap;

use serde_json::Value;

pub use buffer::{BufferDescriptor, FileBuffer, Via};
pub use builder::DescriptorBuilder;
pub use device::{CxlWindow, Device, Gid, ParseGidError, TcpFraming, TcpService};
pub use encode::{CompatProtocol, EncodeOptions};

use crate::{
    endpoint::Endpoint,
    error::{DescriptorError, FieldError, FieldProblem},
    ids::{DescriptorVersion, Incarnation, NicName, SegmentName, TransportKind},
    json::{self, Members},
    limits::DecodeLimits,
    range::AddressRange,
    topology::Topology,
    wire,
};

/// Who owns a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A te engine: this life of it, and where it answers control requests.
    Te {
        /// The life of the process.
        incarnation: Incarnation,
        /// The control listener. Not the data address, which each transport publishes for itself (META-06).
        control: Option<Endpoint>,
    },
    /// An engine that says nothing about its life: the reference engine, or a person's tool.
    Reference,
}

/// The description of a segment: who owns it, which buffers it offers, and how each is reached.
///
/// Immutable, and consistent by construction: buffers do not overlap, every key belongs to a listed device, every
/// transport by which a buffer is reached is offered. It comes from [`builder`](Self::builder) or from
/// [`decode`](Self::decode).
///
/// `PartialEq` compares everything; see [`same_content`](Self::same_content) for change detection.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentDescriptor {
    parts: Parts,
}

/// The fields of a descriptor, checked or about to be.
#[derive(Clone, Debug, PartialEq)]
struct Parts {
    name: SegmentName,
    identity: Identity,
    version: Option<DescriptorVersion>,
    protocol: wire::Protocol,
    tcp: Option<TcpService>,
    rdma_server_name: Option<String>,
    cxl: Option<CxlWindow>,
    devices: Vec<Device>,
    topology: Topology,
    locality: Option<Value>,
    data: BTreeMap<TransportKind, Value>,
    buffers: Vec<BufferDescriptor>,
    files: Vec<FileBuffer>,
    timestamp: Option<String>,
}

impl Parts {
    fn new(name: SegmentName) -> Self {
        Self {
            name,
            identity: Identity::Reference,
            version: None,
            protocol: wire::Protocol::One(wire::Word::Tcp),
            tcp: None,
            rdma_server_name: None,
            cxl: None,
            devices: Vec::new(),
            topology: Topology::new(),
            locality: None,
            data: BTreeMap::new(),
            buffers: Vec::new(),
            files: Vec::new(),
            timestamp: None,
        }
    }

    /// Whether the descriptor says what a peer needs, beside the buffer's own entry, to use the transport.
    fn offers(&self, kind: &TransportKind) -> bool {
        *kind != TransportKind::TCP || self.tcp.is_some() || self.data.contains_key(kind)
    }

    /// Checks a buffer against everything but the other buffers. Names the member relative to the buffer.
    fn check_buffer(&self, buffer: &BufferDescriptor) -> Result<(), FieldError> {
        for (kind, via) in buffer.via() {
            let wrong = |member: &str, problem| FieldError {
                field: format!("{}.{kind}{member}", via.member()),
                problem,
            };
            if !self.offers(kind) {
                let problem = FieldProblem::TransportNotOffered { transport: kind.to_string() };
                return Err(wrong("", problem));
            }
            let known = |nic: &NicName| self.devices.iter().any(|device| device.name() == nic);
            if let Some(nic) = via.devices().into_iter().find(|nic| !known(nic)) {
                return Err(wrong(".keys", FieldProblem::UnknownDevice { name: nic.to_string() }));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> SegmentDescriptor {
        self.buffers.sort_by_key(|buffer| buffer.range().start());
        SegmentDescriptor { parts: self }
    }
}

/// A decoded descriptor and what had to be left out of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decoded {
    /// The descriptor, without the rejected buffers.
    pub descriptor: SegmentDescriptor,
    /// Buffers that are wrong. The others are not affected.
    pub rejected: Vec<RejectedBuffer>,
    /// Optional members that are wrong and were taken as absent.
    pub ignored: Vec<FieldError>,
}

/// A buffer that was left out of a decoded descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("buffer {index} rejected: {field}: {reason}")]
pub struct RejectedBuffer {
    /// Its position in the list, from 0.
    pub index: usize,
    /// Path of the wrong member, for example `buffers[3].rkey`.
    pub field: String,
    /// What is wrong with it.
    pub reason: FieldProblem,
}

impl RejectedBuffer {
    fn new(index: usize, error: FieldError) -> Self {
        Self { index, field: error.field, reason: error.problem }
    }
}

/// Why no buffer was found for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The range begins outside every buffer.
    #[error("{range} lies outside every buffer{}", nearest.map(|n| format!(", the nearest is {n}")).unwrap_or_default())]
    OutsideAnyBuffer {
        /// The range asked for.
        range: AddressRange,
        /// The buffer whose start or end is closest, if there is a buffer.
        nearest: Option<AddressRange>,
    },
    /// The range begins inside a buffer and goes on behind its end.
    #[error("{range} goes beyond the end of buffer {buffer}")]
    BeyondEnd {
        /// The range asked for.
        range: AddressRange,
        /// The buffer in which it begins.
        buffer: AddressRange,
    },
}

/// How a document is to be decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Bounds of the document.
    pub limits: DecodeLimits,
    /// The name under which the segment was opened; taken for records that state no name, as the reference engine does.
    pub opened_as: Option<SegmentName>,
}

impl SegmentDescriptor {
    /// Starts a descriptor of a segment with this name.
    pub fn builder(name: SegmentName) -> DescriptorBuilder {
        DescriptorBuilder::new(name)
    }

    /// Decodes a record with the default limits.
    ///
    /// If the record has the extension member `te`, that alone is used (beside the name); otherwise it is a reference
    /// engine's record, all of whose buffers may be read and written by peers. A wrong buffer is left out and reported;
    /// anything else that is wrong is an error that names the member.
    pub fn decode(bytes: &[u8]) -> Result<Decoded, DescriptorError> {
        Self::decode_with(bytes, &DecodeOptions::default())
    }

    /// Decodes a record.
    pub fn decode_with(bytes: &[u8], options: &DecodeOptions) -> Result<Decoded, DescriptorError> {
        json::check_document(bytes, &options.limits)?;
        let mut members = Members::of_document(bytes)?;
        let decoded = match members.take(extension::MEMBER) {
            Some(extension) => extension::read(members, extension, options)?,
            None => reference::interpret(wire::Descriptor::read(members, &options.limits)?, options)?,
        };
        Ok(decoded)
    }

    /// The same descriptor with the TCP data host filled in, for records that state a data port but no host: the
    /// directory finds the host elsewhere (reference engine, wire spec). Without a TCP service nothing changes.
    #[must_use]
    pub fn with_tcp_host(&self, host: crate::Host) -> Self {
        let mut filled = self.clone();
        if let Some(service) = &mut filled.parts.tcp {
            service.host = Some(host);
        }
        filled
    }

    /// The name of the segment.
    pub fn name(&self) -> &SegmentName {
        &self.parts.name
    }

    /// Who owns it.
    pub fn identity(&self) -> &Identity {
        &self.parts.identity
    }

    /// The life of its owner, if it is a te engine.
    pub fn incarnation(&self) -> Option<Incarnation> {
        match self.parts.identity {
            Identity::Te { incarnation, .. } => Some(incarnation),
            Identity::Reference => None,
        }
    }

    /// Where its owner answers control requests, if it is a te engine and says so.
    pub fn control(&self) -> Option<&Endpoint> {
        match &self.parts.identity {
            Identity::Te { control, .. } => control.as_ref(),
            Identity::Reference => None,
        }
    }

    /// Which of its owner's descriptors this is.
    pub fn version(&self) -> Option<DescriptorVersion> {
        self.parts.version
    }

    /// Where the owner's TCP data listener is.
    pub fn tcp(&self) -> Option<&TcpService> {
        self.parts.tcp.as_ref()
    }

    /// The name to be used in NIC paths instead of the segment's, if there is one.
    pub fn rdma_server_name(&self) -> Option<&str> {
        self.parts.rdma_server_name.as_deref()
    }

    /// The CXL window that the buffers lie in, of a reference engine's record.
    pub fn cxl(&self) -> Option<&CxlWindow> {
        self.parts.cxl.as_ref()
    }

    /// The buffers, sorted by address. They do not overlap.
    pub fn buffers(&self) -> &[BufferDescriptor] {
        &self.parts.buffers
    }

    /// The files, of a file segment.
    pub fn files(&self) -> &[FileBuffer] {
        &self.parts.files
    }

    /// The buffer that has all of `range`.
    pub fn find(&self, range: AddressRange) -> Result<&BufferDescriptor, FindError> {
        let buffers = self.buffers();
        let behind = buffers.partition_point(|buffer| buffer.range().start() <= range.start());
        let before = behind.checked_sub(1).and_then(|i| buffers.get(i));
        match before {
            Some(buffer) if buffer.range().contains_range(&range) => Ok(buffer),
            Some(buffer) if buffer.range().contains(range.start()) => {
                Err(FindError::BeyondEnd { range, buffer: buffer.range() })
            }
            _ => {
                let distance = |buffer: &&BufferDescriptor| {
                    let candidate = buffer.range();
                    let gap_after = candidate.start().saturating_sub(range.start());
                    gap_after.max(range.start().saturating_sub(candidate.end()))
                };
                let nearest = before.into_iter().chain(buffers.get(behind)).min_by_key(distance);
                Err(FindError::OutsideAnyBuffer { range, nearest: nearest.map(BufferDescriptor::range) })
            }
        }
    }

    /// The network devices, in the order in which they are published.
    pub fn devices(&self) -> &[Device] {
        &self.parts.devices
    }

    /// The device with this name.
    pub fn device(&self, name: &NicName) -> Option<&Device> {
        self.devices().iter().find(|device| device.name() == name)
    }

    /// Which devices are close to which memory.
    pub fn topology(&self) -> &Topology {
        &self.parts.topology
    }

    /// The `protocol` that was published; `tcp` for a descriptor that was built here.
    pub fn protocol(&self) -> &wire::Protocol {
        &self.parts.protocol
    }

    /// What the owner says about its host, uninterpreted.
    pub fn locality(&self) -> Option<&Value> {
        self.parts.locality.as_ref()
    }

    /// What the owner says about a transport as a whole, uninterpreted.
    pub fn data(&self, kind: &TransportKind) -> Option<&Value> {
        self.parts.data.get(kind)
    }

    /// Everything the owner says about transports as a whole.
    pub fn all_data(&self) -> &BTreeMap<TransportKind, Value> {
        &self.parts.data
    }

    /// When the record was encoded, by its owner's clock. Informational.
    pub fn timestamp(&self) -> Option<&str> {
        self.parts.timestamp.as_deref()
    }

    /// Whether both tell peers the same.
    ///
    /// Not compared are what differs without meaning anything (the timestamp, the version, the compat protocol a record
    /// was answered with) and what peers do not see (local-only buffers).
    pub fn same_content(&self, other: &Self) -> bool {
        let (a, b) = (&self.parts, &other.parts);
        a.name == b.name
            && a.identity == b.identity
            && a.tcp == b.tcp
            && a.rdma_server_name == b.rdma_server_name
            && a.cxl == b.cxl
            && a.devices == b.devices
            && a.topology == b.topology
            && a.locality == b.locality
            && a.data == b.data
            && a.files == b.files
            && self.remote_buffers().eq(other.remote_buffers())
    }

    /// The buffers that peers may use, sorted by address: the ones that are published.
    pub fn remote_buffers(&self) -> impl Iterator<Item = &BufferDescriptor> {
        self.buffers().iter().filter(|buffer| buffer.access().is_remote())
    }
}
