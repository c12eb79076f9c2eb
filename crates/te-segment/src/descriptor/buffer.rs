//! One buffer of a segment.

use std::collections::BTreeMap;

use serde_json::Value;

use super::value;
use crate::{
    access::Access,
    error::{FieldError, FieldProblem},
    ids::{Generation, MemoryKey, NicName, TransportKind},
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
            Some(Word::Rdma | Word::Efa | Word::Cxi) => matches!(self, Self::Rdma { .. }),
            Some(Word::Barex) => matches!(self, Self::Rdma { .. } | Self::Other(_)),
            Some(Word::Cxl) => matches!(self, Self::Cxl { .. }),
            Some(Word::Nccl) => matches!(self, Self::Nccl { .. }),
            Some(Word::Ub) => matches!(self, Self::Ub { .. }),
            Some(word) if word.has_handle() => matches!(self, Self::Handle(_) | Self::Other(_)),
            _ => matches!(self, Self::Other(_)),
        }
    }

    fn check(&self, kind: &TransportKind) -> Result<(), FieldProblem> {
        match self {
            _ if !self.fits(kind) => Err(FieldProblem::TransportMismatch { transport: kind.to_string() }),
            Self::Rdma { keys } if keys.is_empty() => Err(FieldProblem::Empty),
            Self::Handle(handle) if handle.is_empty() => Err(FieldProblem::Empty),
            Self::Ub { segments } if segments.is_empty() => Err(FieldProblem::Empty),
            // Null counts as absent in every record.
            Self::Other(Value::Null) => Err(FieldProblem::Missing),
            Self::Other(other) => value::check_depth(other),
            _ => Ok(()),
        }
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
    /// transport, and if a local-only buffer has any entry.
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
            let wrong = |problem| FieldError { field: format!("via.{kind}"), problem };
            if !access.is_remote() {
                return Err(wrong(FieldProblem::LocalOnly));
            }
            entry.check(kind).map_err(wrong)?;
        }
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

    /// Its key at a device, for transport `kind`.
    pub fn key(&self, kind: &TransportKind, device: &NicName) -> Option<MemoryKey> {
        match self.via.get(kind)? {
            Via::Rdma { keys } => keys.get(device).copied(),
            _ => None,
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
