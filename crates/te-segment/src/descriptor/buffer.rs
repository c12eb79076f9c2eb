//! One buffer of a segment.

use std::collections::BTreeMap;

use serde_json::Value;

use super::value;
use crate::{
    access::Access,
    error::{FieldError, FieldProblem},
    ids::{Generation, MemoryKey, NicName, TransportKind},
    limits::MAX_PARTS,
    location::Location,
    range::AddressRange,
    topology::check_location,
    wire::Word,
};

/// How one transport reaches a buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum Via {
    /// By its address alone: `tcp`.
    Tcp,
    /// By a key for each device: `rdma`, `efa`, `cxi`, `barex`. Keys go by the device's name, never by position.
    Rdma {
        /// Key of the buffer at each device.
        keys: BTreeMap<NicName, MemoryKey>,
    },
    /// In parts that have keys of their own, because no device registers all of it at a time: `rdma`, `efa`, `cxi`. The first
    /// part begins where the buffer does, each other one where the one before it ends, the last one ends where the buffer
    /// does.
    RdmaParts {
        /// Length of each part in bytes, never 0.
        lengths: Vec<u64>,
        /// Keys at each device, one for each part.
        keys: BTreeMap<NicName, Vec<MemoryKey>>,
    },
    /// By an exported handle in text form: `nvlink`, `hip` and their kin.
    Handle(String),
    /// By an offset in the window: `cxl`.
    Cxl {
        /// Offset in bytes.
        offset: u64,
    },
    /// By the ordinal of the device it lies on: `nccl`.
    Nccl {
        /// The ordinal.
        device: u32,
    },
    /// By segment descriptors, one for each device: `ub`.
    Ub {
        /// The segment descriptors.
        segments: Vec<String>,
    },
    /// By whatever the transport has published, uninterpreted.
    Other(Value),
}

impl Via {
    /// Whether an entry of this form can belong to the transport.
    fn fits(&self, kind: &TransportKind) -> bool {
        match Word::of(kind) {
            Some(Word::Tcp) => matches!(self, Self::Tcp),
            Some(Word::Rdma | Word::Efa | Word::Cxi) => {
                matches!(self, Self::Rdma { .. } | Self::RdmaParts { .. })
            }
            Some(Word::Barex) => matches!(self, Self::Rdma { .. } | Self::Other(_)),
            Some(Word::Cxl) => matches!(self, Self::Cxl { .. }),
            Some(Word::Nccl) => matches!(self, Self::Nccl { .. }),
            Some(Word::Ub) => matches!(self, Self::Ub { .. }),
            Some(word) if word.has_handle() => matches!(self, Self::Handle(_) | Self::Other(_)),
            _ => matches!(self, Self::Other(_)),
        }
    }

    fn check(&self, kind: &TransportKind, range: &AddressRange) -> Result<(), FieldProblem> {
        match self {
            _ if !self.fits(kind) => Err(FieldProblem::TransportMismatch { transport: kind.to_string() }),
            Self::Rdma { keys } if keys.is_empty() => Err(FieldProblem::Empty),
            Self::RdmaParts { lengths, keys } => check_parts(lengths, keys, range),
            Self::Handle(handle) if handle.is_empty() => Err(FieldProblem::Empty),
            Self::Ub { segments } if segments.is_empty() => Err(FieldProblem::Empty),
            // Null counts as absent in every record.
            Self::Other(Value::Null) => Err(FieldProblem::Missing),
            Self::Other(other) => value::check_depth(other),
            _ => Ok(()),
        }
    }

    /// The same in the form that decoding gives: a buffer in one part is one that is whole.
    fn canonical(self) -> Self {
        match self {
            Self::RdmaParts { lengths, keys } if lengths.len() == 1 => Self::Rdma {
                keys: keys.into_iter().filter_map(|(nic, keys)| Some((nic, *keys.first()?))).collect(),
            },
            other => other,
        }
    }

    /// The member of a buffer's entry that says it.
    pub(super) fn member(&self) -> &'static str {
        if matches!(self, Self::RdmaParts { .. }) { "parts" } else { "via" }
    }

    /// The devices at which it has keys.
    pub(super) fn devices(&self) -> Vec<&NicName> {
        match self {
            Self::Rdma { keys } => keys.keys().collect(),
            Self::RdmaParts { keys, .. } => keys.keys().collect(),
            _ => Vec::new(),
        }
    }
}

/// Whether parts make up the range, and have a key at each device.
fn check_parts(
    lengths: &[u64],
    keys: &BTreeMap<NicName, Vec<MemoryKey>>,
    range: &AddressRange,
) -> Result<(), FieldProblem> {
    if lengths.len() > MAX_PARTS {
        return Err(FieldProblem::TooLong { len: lengths.len(), limit: MAX_PARTS });
    }
    if keys.is_empty() || lengths.contains(&0) {
        return Err(FieldProblem::Empty);
    }
    let found = lengths.iter().fold(0_u64, |sum, length| sum.saturating_add(*length));
    if found != range.len() {
        return Err(FieldProblem::PartsMismatch { found, length: range.len() });
    }
    match keys.values().find(|keys| keys.len() != lengths.len()) {
        Some(keys) => {
            Err(FieldProblem::CountMismatch { expected: lengths.len(), found: keys.len(), of: "lengths" })
        }
        None => Ok(()),
    }
}

/// A buffer: where it is, what peers may do with it, and how each transport reaches it.
///
/// A local-only buffer has no way to be reached and never appears in an encoded descriptor (MR-07).
#[derive(Clone, Debug, PartialEq)]
pub struct BufferDescriptor {
    range: AddressRange,
    location: Location,
    access: Access,
    generation: Option<Generation>,
    via: BTreeMap<TransportKind, Via>,
}

impl BufferDescriptor {
    /// A buffer. `generation` is `None` for buffers of reference engines, which have none.
    ///
    /// Fails, naming the member, if the location is empty or too long, if an entry does not have the form of its
    /// transport or has parts that do not make up the range, and if a local-only buffer has any entry.
    pub fn new(
        range: AddressRange,
        location: Location,
        access: Access,
        generation: Option<Generation>,
        via: BTreeMap<TransportKind, Via>,
    ) -> Result<Self, FieldError> {
        check_location(&location.to_string())
            .map_err(|problem| FieldError { field: "location".into(), problem })?;
        for (kind, entry) in &via {
            let wrong = |problem| FieldError { field: format!("{}.{kind}", entry.member()), problem };
            if !access.is_remote() {
                return Err(wrong(FieldProblem::LocalOnly));
            }
            entry.check(kind, &range).map_err(wrong)?;
        }
        let via = via.into_iter().map(|(kind, entry)| (kind, entry.canonical())).collect();
        Ok(Self { range, location: location.canonical(), access, generation, via })
    }

    /// Its addresses in the owner's process.
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// Where its memory lies.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Which registration of the range it is; `None` if the owner does not say.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// How each transport reaches it.
    pub fn via(&self) -> &BTreeMap<TransportKind, Via> {
        &self.via
    }

    /// How one transport reaches it.
    pub fn via_transport(&self, kind: &TransportKind) -> Option<&Via> {
        self.via.get(kind)
    }

    /// The ranges that have keys of their own for transport `kind`, in order; none if it is not reached by keys.
    pub fn keyed(&self, kind: &TransportKind) -> Vec<AddressRange> {
        match self.via.get(kind) {
            Some(Via::Rdma { .. }) => vec![self.range],
            Some(Via::RdmaParts { lengths, .. }) => {
                let mut offset = 0_u64;
                let part = |length: &u64| {
                    let part = self.range.slice(offset, *length).ok();
                    offset = offset.saturating_add(*length);
                    part
                };
                // They make up the range, so that none is left out.
                lengths.iter().filter_map(part).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Its keys at a device for transport `kind`, one for each range of [`keyed`](Self::keyed); none if it has none there.
    pub fn keys(&self, kind: &TransportKind, device: &NicName) -> &[MemoryKey] {
        match self.via.get(kind) {
            Some(Via::Rdma { keys }) => keys.get(device).map_or(&[], std::slice::from_ref),
            Some(Via::RdmaParts { keys, .. }) => keys.get(device).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }
}

/// A file or device of a file segment (protocol `nvmeof`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileBuffer {
    /// Path at the owner.
    pub path: String,
    /// Length in bytes, never 0.
    pub length: u64,
    /// For each host, by segment name, the path it has mounted.
    pub local_paths: BTreeMap<String, String>,
}
