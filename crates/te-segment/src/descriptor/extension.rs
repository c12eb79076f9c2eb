//! The extension member `te`: everything that te engines say to each other in a descriptor.
//!
//! It is complete by itself. Readers that find it use nothing else of the record but the name. Members are only ever
//! added: a reader skips those it does not know, whatever the version `v`, and a writer never changes what one means.

use std::{borrow::Cow, collections::BTreeMap, num::NonZeroU16};

use serde_json::{Value, value::RawValue};

use super::{
    BufferDescriptor, DecodeOptions, Decoded, Device, Identity, Parts, RejectedBuffer, TcpFraming,
    TcpService, Via,
    builder::{DisjointRanges, inside},
    reference::{convert_device, name_of},
};
use crate::{
    endpoint::Endpoint,
    error::{DescriptorError, FieldError, FieldProblem, Path},
    ids::{DescriptorVersion, Generation, MemoryKey, NicName, TransportKind},
    json::{self, Members, Node},
    location::Location,
    range::AddressRange,
    topology::Topology,
    wire::{self, Word},
};

/// Name of the member.
pub(super) const MEMBER: &str = "te";

/// Version that is written: the oldest set of members that has all that are used. What every record needs is in the first.
const VERSION: u64 = 1;
/// The version since which a buffer may be in parts.
const VERSION_OF_PARTS: u64 = 2;

/// Decodes a record by its extension.
pub(super) fn read(
    mut record: Members<'_>,
    raw: &RawValue,
    options: &DecodeOptions,
) -> Result<Decoded, DescriptorError> {
    let root = Path::Root;
    let name = record.take_as("name", &root, json::read_text)?;
    let mut parts = Parts::new(name_of(name, options)?);
    let at = root.member("protocol");
    if let Some(raw) = record.take("protocol") {
        parts.protocol = wire::Protocol::read(raw, &at)?;
    }
    parts.timestamp = record.take_as("timestamp", &root, json::read_text)?;
    parts.rdma_server_name =
        record.take_as("rdma_server_name", &root, json::read_text)?.filter(|name| !name.is_empty());

    let te = root.member(MEMBER);
    let mut members = Members::read(raw, &te)?;
    let at = te.member("v");
    let version = json::read_u64(required(&mut members, "v", &te)?, &at)?;
    if version == 0 {
        let problem = FieldProblem::OutOfRange { number: "0".into(), min: 1, max: u64::MAX };
        return Err(at.error(problem).into());
    }
    let at = te.member("incarnation");
    let incarnation = json::read_text(required(&mut members, "incarnation", &te)?, &at)?;
    let incarnation = incarnation.parse().map_err(|e| at.error(FieldProblem::Incarnation(e)))?;
    let control = members.take_as("control", &te, read_control)?;
    parts.identity = Identity::Te { incarnation, control };
    parts.version = members.take_as("version", &te, json::read_u64)?.map(DescriptorVersion::new);
    parts.tcp = members.take_as("tcp", &te, read_tcp)?;
    parts.devices =
        members.take_as("devices", &te, |raw, path| read_devices(raw, path, options))?.unwrap_or_default();
    let at = te.member("topology");
    if let Some(matrix) = members.take_as("topology", &te, wire::read_matrix)? {
        parts.topology = Topology::from_wire(&matrix, &at)?;
        let known: Vec<NicName> = parts.devices.iter().map(|device| device.name().clone()).collect();
        parts.topology.retain_nics(|nic| known.contains(nic));
    }
    parts.locality = members.take_as("locality", &te, read_value)?;
    parts.data = members.take_as("data", &te, read_data)?.unwrap_or_default();
    let rejected = match members.take("buffers") {
        Some(raw) => read_buffers(&mut parts, raw, &te.member("buffers"), options)?,
        None => Vec::new(),
    };
    Ok(Decoded { descriptor: parts.finish(), rejected, ignored: Vec::new() })
}

fn required<'a>(members: &mut Members<'a>, name: &str, path: &Path<'_>) -> Result<&'a RawValue, FieldError> {
    members.take(name).ok_or_else(|| path.member(name).error(FieldProblem::Missing))
}

fn read_control(raw: &RawValue, path: &Path<'_>) -> Result<Endpoint, FieldError> {
    let control: Endpoint =
        json::read_text(raw, path)?.parse().map_err(|e| path.error(FieldProblem::Endpoint(e)))?;
    if control.host().is_unspecified() {
        return Err(path.error(FieldProblem::Wildcard));
    }
    Ok(control)
}

fn read_tcp(raw: &RawValue, path: &Path<'_>) -> Result<TcpService, FieldError> {
    let mut members = Members::read(raw, path)?;
    let at = path.member("host");
    let host = match members.take_as("host", path, json::read_text)? {
        Some(text) => Some(text.parse().map_err(|e| at.error(FieldProblem::Endpoint(e)))?),
        None => None,
    };
    if host.as_ref().is_some_and(crate::Host::is_unspecified) {
        return Err(at.error(FieldProblem::Wildcard));
    }
    let at = path.member("port");
    let port = json::read_uint(required(&mut members, "port", path)?, &at, u16::MAX.into())?;
    let port = u16::try_from(port).ok().and_then(NonZeroU16::new).ok_or_else(|| {
        at.error(FieldProblem::OutOfRange { number: "0".into(), min: 1, max: u16::MAX.into() })
    })?;
    let framing = members.take_as("framing", path, json::read_u64)?.unwrap_or(1);
    Ok(TcpService { host, port, framing: TcpFraming::from_version(framing) })
}

fn read_devices(raw: &RawValue, path: &Path<'_>, options: &DecodeOptions) -> Result<Vec<Device>, FieldError> {
    let mut devices: Vec<Device> = Vec::new();
    for (i, device) in wire::Device::read_all(raw, path, options.limits.max_devices)?.into_iter().enumerate()
    {
        let at = path.index(i);
        let device = convert_device(device, &at)?;
        if devices.iter().any(|other| other.name() == device.name()) {
            let problem = FieldProblem::Duplicate { name: device.name().to_string() };
            return Err(at.member("name").error(problem));
        }
        devices.push(device);
    }
    Ok(devices)
}

fn read_value(raw: &RawValue, path: &Path<'_>) -> Result<Value, FieldError> {
    serde_json::from_str(raw.get()).map_err(|_| path.error(FieldProblem::Unrepresentable))
}

fn read_kind(word: &str, path: &Path<'_>) -> Result<TransportKind, FieldError> {
    TransportKind::new(word).map_err(|e| path.error(FieldProblem::Name(e)))
}

fn read_data(raw: &RawValue, path: &Path<'_>) -> Result<BTreeMap<TransportKind, Value>, FieldError> {
    let mut data = BTreeMap::new();
    for (word, raw) in Members::read(raw, path)?.iter() {
        let at = path.member(word);
        let value = read_value(raw, &at)?;
        if !value.is_null() {
            data.insert(read_kind(word, &at)?, value);
        }
    }
    Ok(data)
}

fn read_buffers(
    parts: &mut Parts,
    raw: &RawValue,
    path: &Path<'_>,
    options: &DecodeOptions,
) -> Result<Vec<RejectedBuffer>, FieldError> {
    let mut rejected = Vec::new();
    let mut ranges = DisjointRanges::default();
    for (i, raw) in json::elements(raw, path, options.limits.max_buffers)?.into_iter().enumerate() {
        let at = path.index(i);
        let checked = read_buffer(raw, &at, options).and_then(|buffer| {
            parts.check_buffer(&buffer).map_err(|error| inside(error, at))?;
            ranges.insert(buffer.range()).map_err(|problem| at.error(problem))?;
            Ok(buffer)
        });
        match checked {
            Ok(buffer) => parts.buffers.push(buffer),
            Err(error) => rejected.push(RejectedBuffer::new(i, error)),
        }
    }
    Ok(rejected)
}

fn read_buffer(
    raw: &RawValue,
    path: &Path<'_>,
    options: &DecodeOptions,
) -> Result<BufferDescriptor, FieldError> {
    let mut members = Members::read(raw, path)?;
    let addr = json::read_u64(required(&mut members, "addr", path)?, &path.member("addr"))?;
    let len = json::read_u64(required(&mut members, "length", path)?, &path.member("length"))?;
    let range = AddressRange::new(addr, len).map_err(|e| path.error(FieldProblem::Range(e)))?;
    let generation = members.take_as("gen", path, json::read_u64)?.map(Generation::new);
    let at = path.member("access");
    let access = json::read_text(required(&mut members, "access", path)?, &at)?;
    let access: crate::Access = access.parse().map_err(|e| at.error(FieldProblem::Access(e)))?;
    if !access.is_remote() {
        return Err(at.error(FieldProblem::LocalOnly));
    }
    let location = members.take_as("location", path, json::read_text)?;
    let location = location.map_or(Location::Any, |text| Location::parse(&text));
    let mut via = members.take_as("via", path, read_vias)?.unwrap_or_default();
    let limit = options.limits.max_parts;
    for (kind, parts) in
        members.take_as("parts", path, |raw, path| read_parts(raw, path, limit))?.unwrap_or_default()
    {
        if via.insert(kind.clone(), parts).is_some() {
            let problem = FieldProblem::Duplicate { name: kind.to_string() };
            return Err(path.member("parts").error(problem));
        }
    }
    BufferDescriptor::new(range, location, access, generation, via).map_err(|error| inside(error, path))
}

fn read_vias(raw: &RawValue, path: &Path<'_>) -> Result<BTreeMap<TransportKind, Via>, FieldError> {
    let mut vias = BTreeMap::new();
    for (word, raw) in Members::read(raw, path)?.iter() {
        let at = path.member(word);
        if json::kind(raw) != crate::JsonKind::Null {
            let kind = read_kind(word, &at)?;
            let via = read_via(&kind, raw, &at)?;
            vias.insert(kind, via);
        }
    }
    Ok(vias)
}

fn read_via(kind: &TransportKind, raw: &RawValue, path: &Path<'_>) -> Result<Via, FieldError> {
    let word = Word::of(kind);
    if let Some(word) = word.filter(|word| word.has_handle() || *word == Word::Barex) {
        return Ok(match read_value(raw, path)? {
            Value::Object(members) if word.has_handle() && members.len() == 1 => {
                match members.get("handle") {
                    Some(Value::String(handle)) => Via::Handle(handle.clone()),
                    _ => Via::Other(Value::Object(members)),
                }
            }
            other if word == Word::Barex => read_keys(raw, path).unwrap_or(Via::Other(other)),
            other => Via::Other(other),
        });
    }
    let member = |name: &'static str| -> Result<&RawValue, FieldError> {
        let mut members = Members::read(raw, path)?;
        required(&mut members, name, path)
    };
    Ok(match word {
        Some(Word::Tcp) => {
            Members::read(raw, path)?;
            Via::Tcp
        }
        Some(Word::Rdma | Word::Efa | Word::Cxi) => read_keys(raw, path)?,
        Some(Word::Cxl) => Via::Cxl { offset: json::read_u64(member("offset")?, &path.member("offset"))? },
        Some(Word::Nccl) => {
            let device = json::read_uint(member("device")?, &path.member("device"), u32::MAX.into())?;
            Via::Nccl { device: u32::try_from(device).unwrap_or_default() }
        }
        Some(Word::Ub) => {
            Via::Ub { segments: json::read_texts(member("segments")?, &path.member("segments"))? }
        }
        _ => Via::Other(read_value(raw, path)?),
    })
}

/// The parts of a buffer, for each transport that reaches it by their keys. Others are skipped, as a later version may know
/// them.
fn read_parts(
    raw: &RawValue,
    path: &Path<'_>,
    limit: usize,
) -> Result<Vec<(TransportKind, Via)>, FieldError> {
    let mut all = Vec::new();
    for (word, raw) in Members::read(raw, path)?.iter() {
        let at = path.member(word);
        let kind = read_kind(word, &at)?;
        let has_parts = matches!(Word::of(&kind), Some(Word::Rdma | Word::Efa | Word::Cxi));
        if !has_parts || json::kind(raw) == crate::JsonKind::Null {
            continue;
        }
        let mut members = Members::read(raw, &at)?;
        let lengths = read_numbers(required(&mut members, "lengths", &at)?, &at.member("lengths"), limit)?;
        let inside = at.member("keys");
        let mut keys = BTreeMap::new();
        for (nic, raw) in Members::read(required(&mut members, "keys", &at)?, &inside)?.iter() {
            let at = inside.member(nic);
            let name = NicName::new(nic).map_err(|e| at.error(FieldProblem::Name(e)))?;
            let numbers = read_numbers(raw, &at, limit)?;
            keys.insert(name, numbers.into_iter().map(MemoryKey::new).collect());
        }
        all.push((kind, Via::RdmaParts { lengths, keys }));
    }
    Ok(all)
}

fn read_numbers(raw: &RawValue, path: &Path<'_>, limit: usize) -> Result<Vec<u64>, FieldError> {
    let read = |(i, raw)| json::read_u64(raw, &path.index(i));
    json::elements(raw, path, limit)?.into_iter().enumerate().map(read).collect()
}

fn read_keys(raw: &RawValue, path: &Path<'_>) -> Result<Via, FieldError> {
    let mut members = Members::read(raw, path)?;
    let at = path.member("keys");
    let mut keys = BTreeMap::new();
    for (nic, raw) in Members::read(required(&mut members, "keys", path)?, &at)?.iter() {
        let at = at.member(nic);
        let name = NicName::new(nic).map_err(|e| at.error(FieldProblem::Name(e)))?;
        keys.insert(name, MemoryKey::new(json::read_u64(raw, &at)?));
    }
    Ok(Via::Rdma { keys })
}

type NamedNodes<'a> = Vec<(Cow<'a, str>, Node<'a>)>;

/// The extension of a te engine's descriptor; `None` for one without an incarnation.
pub(super) fn node(parts: &Parts) -> Option<Node<'_>> {
    let Identity::Te { incarnation, control } = &parts.identity else { return None };
    let buffers = || parts.buffers.iter().filter(|buffer| buffer.access().is_remote());
    let has_parts = |buffer: &BufferDescriptor| buffer.via().values().any(|via| via.member() == "parts");
    let version = if buffers().any(has_parts) { VERSION_OF_PARTS } else { VERSION };
    let buffers = buffers().map(buffer_node);
    let mut members: NamedNodes<'_> = vec![
        ("v".into(), Node::Unsigned(version)),
        ("incarnation".into(), Node::text(incarnation.to_string())),
        ("buffers".into(), Node::Array(buffers.collect())),
    ];
    if let Some(control) = control {
        members.push(("control".into(), Node::text(control.to_string())));
    }
    if let Some(version) = parts.version {
        members.push(("version".into(), Node::Unsigned(version.value())));
    }
    if let Some(tcp) = &parts.tcp {
        let mut service: NamedNodes<'_> = vec![
            ("port".into(), Node::Unsigned(tcp.port.get().into())),
            ("framing".into(), Node::Unsigned(tcp.framing.version())),
        ];
        if let Some(host) = &tcp.host {
            service.push(("host".into(), Node::text(host.bare())));
        }
        members.push(("tcp".into(), Node::Object(service)));
    }
    if !parts.devices.is_empty() {
        members.push(("devices".into(), Node::Array(parts.devices.iter().map(device_node).collect())));
    }
    if !parts.topology.is_empty() {
        members.push(("topology".into(), parts.topology.node()));
    }
    if let Some(locality) = &parts.locality {
        members.push(("locality".into(), Node::value(locality)));
    }
    if !parts.data.is_empty() {
        let data = parts.data.iter().map(|(kind, data)| (kind.as_str().into(), Node::value(data)));
        members.push(("data".into(), Node::Object(data.collect())));
    }
    Some(Node::Object(members))
}

/// A device, as in the member `devices` of both readings.
pub(super) fn device_node(device: &Device) -> Node<'_> {
    let mut members: NamedNodes<'_> = vec![
        ("name".into(), Node::text(device.name().as_str())),
        ("lid".into(), Node::Unsigned(device.lid().into())),
    ];
    if let Some(gid) = device.gid() {
        members.push(("gid".into(), Node::text(gid.to_string())));
    }
    if let Some(eid) = device.eid() {
        members.push(("eid".into(), Node::text(eid)));
    }
    Node::Object(members)
}

fn buffer_node(buffer: &BufferDescriptor) -> Node<'_> {
    // A reader that does not know parts must not take the keys of one for those of the buffer.
    let (mut via, mut parts): (NamedNodes<'_>, NamedNodes<'_>) = Default::default();
    for (kind, entry) in buffer.via() {
        let member = if entry.member() == "parts" { &mut parts } else { &mut via };
        member.push((kind.as_str().into(), via_node(entry)));
    }
    let mut members: NamedNodes<'_> = vec![
        ("addr".into(), Node::Unsigned(buffer.range().start())),
        ("length".into(), Node::Unsigned(buffer.range().len())),
        ("access".into(), Node::text(buffer.access().as_str())),
        ("location".into(), Node::text(buffer.location().to_string())),
        ("via".into(), Node::Object(via)),
    ];
    if !parts.is_empty() {
        members.push(("parts".into(), Node::Object(parts)));
    }
    if let Some(generation) = buffer.generation() {
        members.push(("gen".into(), Node::Unsigned(generation.value())));
    }
    Node::Object(members)
}

fn via_node(via: &Via) -> Node<'_> {
    let single = |name: &'static str, node| Node::Object(vec![(name.into(), node)]);
    match via {
        Via::Tcp => Node::Object(Vec::new()),
        Via::Rdma { keys } => {
            let keys = keys.iter().map(|(nic, key)| (nic.as_str().into(), Node::Unsigned(key.value())));
            single("keys", Node::Object(keys.collect()))
        }
        Via::RdmaParts { lengths, keys } => {
            let numbers = |keys: &[MemoryKey]| {
                Node::Array(keys.iter().map(|key| Node::Unsigned(key.value())).collect())
            };
            let keys = keys.iter().map(|(nic, keys)| (nic.as_str().into(), numbers(keys)));
            Node::Object(vec![
                ("lengths".into(), Node::numbers(lengths)),
                ("keys".into(), Node::Object(keys.collect())),
            ])
        }
        Via::Handle(handle) => single("handle", Node::text(handle.as_str())),
        Via::Cxl { offset } => single("offset", Node::Unsigned(*offset)),
        Via::Nccl { device } => single("device", Node::Unsigned((*device).into())),
        Via::Ub { segments } => single("segments", Node::texts(segments)),
        Via::Other(value) => Node::value(value),
    }
}
