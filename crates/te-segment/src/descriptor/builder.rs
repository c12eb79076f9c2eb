//! Building a descriptor of the own segment.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{BufferDescriptor, Device, FileBuffer, Identity, Parts, SegmentDescriptor, TcpService, value};
use crate::{
    endpoint::Host,
    error::{DescriptorError, FieldError, FieldProblem},
    ids::{DescriptorVersion, SegmentName, TransportKind},
    limits::{MAX_BUFFERS, MAX_DEVICES},
    range::AddressRange,
    topology::Topology,
    wire::{Protocol, Word},
};

/// Collects what a descriptor says; [`build`](Self::build) checks it.
///
/// Order does not matter. What is set twice counts as set last.
#[derive(Clone, Debug)]
#[must_use]
pub struct DescriptorBuilder {
    parts: Parts,
}

impl DescriptorBuilder {
    pub(super) fn new(name: SegmentName) -> Self {
        Self { parts: Parts::new(name) }
    }

    /// Who owns the segment. Default [`Identity::Reference`].
    pub fn identity(mut self, identity: Identity) -> Self {
        self.parts.identity = identity;
        self
    }

    /// Which of the owner's descriptors this is.
    pub fn version(mut self, version: DescriptorVersion) -> Self {
        self.parts.version = Some(version);
        self
    }

    /// Where the TCP data listener is.
    pub fn tcp(mut self, service: TcpService) -> Self {
        self.parts.tcp = Some(service);
        self
    }

    /// The name to be used in NIC paths instead of the segment's.
    pub fn rdma_server_name(mut self, name: String) -> Self {
        self.parts.rdma_server_name = Some(name).filter(|name| !name.is_empty());
        self
    }

    /// Adds a buffer.
    pub fn buffer(mut self, buffer: BufferDescriptor) -> Self {
        self.parts.buffers.push(buffer);
        self
    }

    /// Adds buffers.
    pub fn buffers(mut self, buffers: impl IntoIterator<Item = BufferDescriptor>) -> Self {
        self.parts.buffers.extend(buffers);
        self
    }

    /// Adds a file, which makes the segment a file segment.
    pub fn file(mut self, file: FileBuffer) -> Self {
        self.parts.files.push(file);
        self
    }

    /// Adds a network device. Their order is the order in which they are published.
    pub fn device(mut self, device: Device) -> Self {
        self.parts.devices.push(device);
        self
    }

    /// Which devices are close to which memory.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.parts.topology = topology;
        self
    }

    /// What peers may want to know about the own host, in a form they agree on.
    pub fn locality(mut self, locality: Value) -> Self {
        self.parts.locality = Some(locality).filter(|value| !value.is_null());
        self
    }

    /// What peers need to know about a transport as a whole, in a form it agrees on with itself.
    pub fn data(mut self, kind: TransportKind, data: Value) -> Self {
        if data.is_null() {
            self.parts.data.remove(&kind);
        } else {
            self.parts.data.insert(kind, data);
        }
        self
    }

    /// Checks that everything fits together.
    ///
    /// Fails, naming the member, if buffers overlap, a key or the topology names a device that is not listed, a buffer
    /// is reached by TCP and no TCP data listener is given, an address is a wildcard, or a limit is exceeded.
    pub fn build(self) -> Result<SegmentDescriptor, DescriptorError> {
        let mut parts = self.parts;
        check_advertised(&parts)?;
        check_devices(&parts)?;
        check_values(&parts)?;
        if parts.buffers.len() > MAX_BUFFERS {
            let problem = FieldProblem::TooLong { len: parts.buffers.len(), limit: MAX_BUFFERS };
            return Err(problem.at("buffers"));
        }
        for file in &parts.files {
            if file.path.is_empty() || file.length == 0 {
                return Err(FieldProblem::Empty.at("files"));
            }
        }
        let mut ranges = DisjointRanges::default();
        for (i, buffer) in parts.buffers.iter().enumerate() {
            parts.check_buffer(buffer).map_err(|error| inside(error, format_args!("buffers[{i}]")))?;
            ranges.insert(buffer.range()).map_err(|problem| problem.at(format_args!("buffers[{i}]")))?;
        }
        parts.protocol = Protocol::One(if parts.files.is_empty() { Word::Tcp } else { Word::Nvmeof });
        Ok(parts.finish())
    }
}

/// Names the member from the root.
pub(super) fn inside(error: FieldError, parent: impl std::fmt::Display) -> FieldError {
    FieldError { field: format!("{parent}.{}", error.field), problem: error.problem }
}

fn check_advertised(parts: &Parts) -> Result<(), DescriptorError> {
    if let Identity::Te { control: Some(control), .. } = &parts.identity
        && control.host().is_unspecified()
    {
        return Err(FieldProblem::Wildcard.at("control"));
    }
    let host = parts.tcp.as_ref().and_then(|tcp| tcp.host.as_ref());
    if host.is_some_and(Host::is_unspecified) {
        return Err(FieldProblem::Wildcard.at("tcp.host"));
    }
    Ok(())
}

fn check_devices(parts: &Parts) -> Result<(), DescriptorError> {
    if parts.devices.len() > MAX_DEVICES {
        let problem = FieldProblem::TooLong { len: parts.devices.len(), limit: MAX_DEVICES };
        return Err(problem.at("devices"));
    }
    let mut names = std::collections::BTreeSet::new();
    for (i, device) in parts.devices.iter().enumerate() {
        if !names.insert(device.name()) {
            let problem = FieldProblem::Duplicate { name: device.name().to_string() };
            return Err(problem.at(format_args!("devices[{i}].name")));
        }
    }
    match parts.topology.nics().into_iter().find(|nic| !names.contains(nic)) {
        Some(nic) => Err(FieldProblem::UnknownDevice { name: nic.to_string() }.at("topology")),
        None => Ok(()),
    }
}

fn check_values(parts: &Parts) -> Result<(), DescriptorError> {
    if let Some(locality) = &parts.locality {
        value::check_depth(locality).map_err(|problem| problem.at("locality"))?;
    }
    for (kind, data) in &parts.data {
        value::check_depth(data).map_err(|problem| problem.at(format_args!("data.{kind}")))?;
    }
    Ok(())
}

/// Ranges that share no byte, by start.
#[derive(Debug, Default)]
pub(super) struct DisjointRanges(BTreeMap<u64, AddressRange>);

impl DisjointRanges {
    /// Adds a range, or says with which it overlaps.
    pub(super) fn insert(&mut self, range: AddressRange) -> Result<(), FieldProblem> {
        // Ranges that are there do not overlap, so only the last one that begins before our end can.
        if let Some((_, existing)) = self.0.range(..range.end()).next_back()
            && existing.overlaps(&range)
        {
            return Err(FieldProblem::Overlaps { range, existing: *existing });
        }
        self.0.insert(range.start(), range);
        Ok(())
    }
}
