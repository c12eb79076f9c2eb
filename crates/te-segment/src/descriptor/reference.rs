//! What a record of the reference engine means.

use std::{collections::BTreeMap, num::NonZeroU16};

use super::{
    BufferDescriptor, CxlWindow, DecodeOptions, Decoded, Device, FileBuffer, Gid, Parts, RejectedBuffer,
    SegmentDescriptor, TcpFraming, TcpService, Via, builder::DisjointRanges,
};
use crate::{
    access::Access,
    endpoint::Host,
    error::{DescriptorError, FieldError, FieldProblem, Path},
    ids::{MemoryKey, NicName, SegmentName, TransportKind},
    location::Location,
    range::AddressRange,
    topology::{Topology, check_location},
    wire::{self, Protocol, Reach, Word},
};

/// The name of a record: its own, else the one it was opened by.
pub(super) fn name_of(name: Option<String>, options: &DecodeOptions) -> Result<SegmentName, FieldError> {
    let at = Path::Root.member("name");
    match name.filter(|name| !name.is_empty()) {
        Some(name) => SegmentName::new(&name).map_err(|e| at.error(FieldProblem::Name(e))),
        None => options.opened_as.clone().ok_or_else(|| at.error(FieldProblem::Missing)),
    }
}

/// Interprets a record without extension.
pub(super) fn interpret(
    record: wire::Descriptor,
    options: &DecodeOptions,
) -> Result<Decoded, DescriptorError> {
    let root = Path::Root;
    if let Protocol::Unknown(word) = &record.protocol {
        let problem = FieldProblem::UnknownWord { word: crate::error::shorten(word) };
        return Err(root.member("protocol").error(problem).into());
    }
    let mut ignored = Vec::new();
    let mut parts = Parts::new(name_of(record.name, options)?);
    parts.timestamp = record.timestamp;
    parts.rdma_server_name = record.rdma_server_name.filter(|name| !name.is_empty());
    parts.tcp = tcp_service(
        record.tcp_data_host.as_deref(),
        record.tcp_data_port,
        record.tcp_proto_version,
        &mut ignored,
    );
    if record.protocol.has_devices() {
        parts.devices = convert_devices(record.devices.unwrap_or_default(), &root.member("devices"))?;
        parts.topology = topology(record.priority_matrix.as_ref(), &parts.devices, &mut ignored);
        if let Some(raw) = record.extra.get("priority_matrix").filter(|raw| raw.as_str() != "null") {
            let at = root.member("priority_matrix");
            ignored.extend(raw.read(|raw| wire::read_matrix(raw, &at)).err());
        }
    }
    if let Some(device) = record.cxl_name {
        parts.cxl = Some(CxlWindow { device, base: record.cxl_base_addr.unwrap_or(0) });
    }
    parts.protocol = record.protocol;
    let entries = record.buffers.unwrap_or_default();
    let mut buffers = Buffers { parts, groups: BTreeMap::new(), rejected: Vec::new() };
    let list = root.member("buffers");
    for (index, entry) in entries.into_iter().enumerate() {
        let added = match entry {
            wire::BufferEntry::Valid(buffer) => buffers.add(index, buffer, &list.index(index)),
            wire::BufferEntry::Invalid { error, .. } => Err(error),
        };
        if let Err(error) = added {
            buffers.rejected.push(RejectedBuffer::new(index, error));
        }
    }
    let (descriptor, rejected) = buffers.finish(&list);
    Ok(Decoded { descriptor, rejected, ignored })
}

fn tcp_service(
    host: Option<&str>,
    port: Option<u16>,
    version: Option<u64>,
    ignored: &mut Vec<FieldError>,
) -> Option<TcpService> {
    let port = port.and_then(NonZeroU16::new)?;
    let at = Path::Root.member("tcp_data_host");
    let host = match host.filter(|host| !host.is_empty()).map(str::parse::<Host>) {
        None => None,
        Some(Ok(host)) if host.is_unspecified() => {
            ignored.push(at.error(FieldProblem::Wildcard));
            None
        }
        Some(Ok(host)) => Some(host),
        Some(Err(e)) => {
            ignored.push(at.error(FieldProblem::Endpoint(e)));
            None
        }
    };
    Some(TcpService { host, port, framing: TcpFraming::from_version(version.unwrap_or(1)) })
}

/// A device of either reading.
pub(super) fn convert_device(device: wire::Device, path: &Path<'_>) -> Result<Device, FieldError> {
    let at = path.member("name");
    let name = device.name.ok_or_else(|| at.error(FieldProblem::Missing))?;
    let name = NicName::new(&name).map_err(|e| at.error(FieldProblem::Name(e)))?;
    let gid = match device.gid.as_deref() {
        // Written by publishers whose devices have no such address.
        None | Some("ignore") => None,
        Some("") => return Err(path.member("gid").error(FieldProblem::Empty)),
        Some(text) => {
            Some(text.parse::<Gid>().map_err(|_| path.member("gid").error(FieldProblem::InvalidGid))?)
        }
    };
    let converted = Device::new(name).with_lid(device.lid.unwrap_or(0)).with_gid(gid);
    Ok(match device.eid {
        Some(eid) if eid.is_empty() => return Err(path.member("eid").error(FieldProblem::Empty)),
        Some(eid) => converted.with_eid(eid),
        None => converted,
    })
}

fn convert_devices(devices: Vec<wire::Device>, path: &Path<'_>) -> Result<Vec<Device>, FieldError> {
    let mut names = std::collections::BTreeSet::new();
    let mut converted = Vec::with_capacity(devices.len());
    for (i, device) in devices.into_iter().enumerate() {
        let at = path.index(i);
        let device = convert_device(device, &at)?;
        if !names.insert(device.name().clone()) {
            let problem = FieldProblem::Duplicate { name: device.name().to_string() };
            return Err(at.member("name").error(problem));
        }
        converted.push(device);
    }
    Ok(converted)
}

/// The matrix, without devices that are not listed: reference engines withdraw a device from the one list only.
fn topology(matrix: Option<&wire::Matrix>, devices: &[Device], ignored: &mut Vec<FieldError>) -> Topology {
    let Some(matrix) = matrix else { return Topology::new() };
    match Topology::from_wire(matrix, &Path::Root.member("priority_matrix")) {
        Ok(mut topology) => {
            let known: std::collections::BTreeSet<&NicName> = devices.iter().map(Device::name).collect();
            topology.retain_nics(|nic| known.contains(nic));
            topology
        }
        Err(error) => {
            ignored.push(error);
            Topology::new()
        }
    }
}

/// The entries of one range: an engine with several transports lists a range once for each of them.
struct Group {
    index: usize,
    location: String,
    via: BTreeMap<TransportKind, Via>,
    /// Listed, by its location, by a transport that needs keys and without any: its owner wants it local-only.
    withheld: bool,
}

struct Buffers {
    parts: Parts,
    groups: BTreeMap<AddressRange, Group>,
    rejected: Vec<RejectedBuffer>,
}

impl Buffers {
    fn add(&mut self, index: usize, buffer: wire::Buffer, path: &Path<'_>) -> Result<(), FieldError> {
        let word = match (&self.parts.protocol, buffer.protocol) {
            (Protocol::One(word), _) => *word,
            (_, Some(word)) => word,
            _ => return Err(path.member("protocol").error(FieldProblem::Missing)),
        };
        if let Reach::File { file_path, local_path_map } = buffer.reach {
            let path_at = path.member("file_path");
            let file = FileBuffer {
                path: file_path.ok_or_else(|| path_at.error(FieldProblem::Missing))?,
                length: length(buffer.length, path)?,
                local_paths: local_path_map.unwrap_or_default(),
            };
            if file.path.is_empty() {
                return Err(path_at.error(FieldProblem::Empty));
            }
            self.parts.files.push(file);
            return Ok(());
        }
        // Reference readers skip these without a word: the publisher had no handle to give.
        if matches!(&buffer.reach, Reach::Handle(handle) if handle.as_deref().unwrap_or("").is_empty()) {
            return Ok(());
        }
        let at = path.member("name");
        let name = buffer.name.ok_or_else(|| at.error(FieldProblem::Missing))?;
        check_location(&name).map_err(|problem| at.error(problem))?;
        let len = length(buffer.length, path)?;
        let addr = match &buffer.reach {
            Reach::Offset(offset) => self.cxl_address(offset.unwrap_or(0), len, path)?,
            _ => buffer.addr.ok_or_else(|| path.member("addr").error(FieldProblem::Missing))?,
        };
        let range = AddressRange::new(addr, len)
            .map_err(|e| path.member(if addr == 0 { "addr" } else { "length" }).error(e.into()))?;
        let via = self.via(word, &buffer.reach, path)?;
        let named_by_segment = name == self.parts.name.as_str();
        let withheld = word.has_keys() && via.is_none() && !named_by_segment;
        let group = self.groups.entry(range).or_insert_with(|| Group {
            index,
            location: String::new(),
            via: BTreeMap::new(),
            withheld: false,
        });
        // The entry of a transport without locations has the segment's name there.
        if group.location.is_empty() || !named_by_segment {
            group.location = name;
        }
        group.withheld |= withheld;
        group.via.extend(via.map(|via| (word.transport(), via)));
        if self.parts.tcp.is_some() && word != Word::Cxl {
            group.via.insert(TransportKind::TCP, Via::Tcp);
        }
        Ok(())
    }

    fn cxl_address(&self, offset: u64, len: u64, path: &Path<'_>) -> Result<u64, FieldError> {
        let base = self.parts.cxl.as_ref().map_or(0, |window| window.base);
        if base == 0 {
            return Err(Path::Root.member("cxl_base_addr").error(FieldProblem::Missing));
        }
        let wraps = crate::RangeError::Wraps { start: offset, len };
        base.checked_add(offset).ok_or_else(|| path.member("offset").error(wraps.into()))
    }

    /// How the entry's own transport reaches the range; `None` for an entry without keys.
    fn via(&self, word: Word, reach: &Reach, path: &Path<'_>) -> Result<Option<Via>, FieldError> {
        Ok(match reach {
            // Without a listener nobody is reached: the range is known and no transport offers it.
            Reach::Plain => self.parts.tcp.is_some().then_some(Via::Tcp),
            Reach::Keys { rkey, lkey } => {
                self.keys(word, rkey.as_deref().unwrap_or(&[]), lkey.as_deref().unwrap_or(&[]), path)?
            }
            Reach::Segments(segments) => match segments.as_deref() {
                None | Some([]) => return Err(path.member("tseg").error(FieldProblem::Empty)),
                Some(segments) => Some(Via::Ub { segments: segments.to_vec() }),
            },
            Reach::Device(id) if word == Word::Nccl => {
                let at = path.member("device_id");
                let id = id.ok_or_else(|| at.error(FieldProblem::Missing))?;
                let device = u32::try_from(id).map_err(|_| {
                    let number = id.to_string();
                    at.error(FieldProblem::OutOfRange { number, min: 0, max: u32::MAX.into() })
                })?;
                Some(Via::Nccl { device })
            }
            Reach::Device(id) => Some(Via::Other(serde_json::json!({ "device": id.unwrap_or(-1) }))),
            Reach::Handle(handle) => handle.clone().map(Via::Handle),
            Reach::Offset(offset) => Some(Via::Cxl { offset: offset.unwrap_or(0) }),
            Reach::File { .. } => None,
        })
    }

    fn keys(
        &self,
        word: Word,
        rkey: &[u64],
        lkey: &[u64],
        path: &Path<'_>,
    ) -> Result<Option<Via>, FieldError> {
        let expect = |member: &str, keys: &[u64], expected: usize, of| {
            if keys.len() == expected {
                return Ok(());
            }
            Err(path.member(member).error(FieldProblem::CountMismatch { expected, found: keys.len(), of }))
        };
        if rkey.is_empty() {
            return Ok(None);
        }
        let devices = &self.parts.devices;
        if word == Word::Barex && rkey.len() != devices.len() {
            expect("lkey", lkey, rkey.len(), "rkey")?;
            return Ok(Some(Via::Other(serde_json::json!({ "rkey": rkey }))));
        }
        expect("rkey", rkey, devices.len(), "devices")?;
        expect("lkey", lkey, rkey.len(), "rkey")?;
        let names = devices.iter().map(|device| device.name().clone());
        let keys = names.zip(rkey.iter().copied().map(MemoryKey::new)).collect();
        Ok(Some(Via::Rdma { keys }))
    }

    fn finish(mut self, list: &Path<'_>) -> (SegmentDescriptor, Vec<RejectedBuffer>) {
        let mut groups: Vec<(AddressRange, Group)> = self.groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| group.index);
        let mut ranges = DisjointRanges::default();
        for (range, group) in groups {
            let keyed = group.via.keys().any(|kind| *kind != TransportKind::TCP);
            if group.withheld && !keyed {
                continue;
            }
            let at = list.index(group.index);
            let location = Location::parse(&group.location);
            let buffer = BufferDescriptor::new(range, location, Access::REMOTE, None, group.via)
                .map_err(|error| super::builder::inside(error, at))
                .and_then(|buffer| {
                    ranges.insert(range).map_err(|problem| at.error(problem))?;
                    Ok(buffer)
                });
            match buffer {
                Ok(buffer) => self.parts.buffers.push(buffer),
                Err(error) => self.rejected.push(RejectedBuffer::new(group.index, error)),
            }
        }
        self.rejected.sort_by_key(|rejected| rejected.index);
        (self.parts.finish(), self.rejected)
    }
}

fn length(length: Option<u64>, path: &Path<'_>) -> Result<u64, FieldError> {
    let at = path.member("length");
    match length {
        None => Err(at.error(FieldProblem::Missing)),
        Some(0) => Err(at.error(FieldProblem::Empty)),
        Some(length) => Ok(length),
    }
}
