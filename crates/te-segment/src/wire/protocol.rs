//! The `protocol` member.

use std::{fmt, str::FromStr};

use serde_json::value::RawValue;

use crate::{
    error::{FieldError, FieldProblem, JsonKind, Path, shorten},
    ids::TransportKind,
    json::{self, Node},
};

macro_rules! words {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)*) => {
        /// The words that the reference engine knows as a protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Word {
            $($(#[$doc])* $variant,)*
        }

        impl Word {
            /// Every word.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word as written.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// TCP sockets.
    Tcp = "tcp",
    /// RDMA verbs.
    Rdma = "rdma",
    /// AWS Elastic Fabric Adapter.
    Efa = "efa",
    /// HPE Slingshot.
    Cxi = "cxi",
    /// Alibaba's RDMA library.
    Barex = "barex",
    /// Unified Bus.
    Ub = "ub",
    /// NCCL.
    Nccl = "nccl",
    /// CUDA memory, between nodes.
    Nvlink = "nvlink",
    /// CUDA memory, inside a node.
    NvlinkIntra = "nvlink_intra",
    /// HIP memory.
    Hip = "hip",
    /// MACA memory.
    Maca = "maca",
    /// MUSA memory.
    Musa = "musa",
    /// Unified Bus shared memory.
    Ubshmem = "ubshmem",
    /// Sunrise link.
    SunriseLink = "sunrise_link",
    /// CXL memory window.
    Cxl = "cxl",
    /// Ascend devices.
    Ascend = "ascend",
    /// Files on NVMe-oF devices.
    Nvmeof = "nvmeof",
}

impl Word {
    /// Whether records of this protocol have `devices` and (apart from `ascend`) `priority_matrix`.
    pub const fn has_devices(self) -> bool {
        matches!(self, Self::Rdma | Self::Efa | Self::Cxi | Self::Barex | Self::Ub | Self::Ascend)
    }

    /// Whether buffers of this protocol are reached by one key for each device.
    pub const fn has_keys(self) -> bool {
        matches!(self, Self::Rdma | Self::Efa | Self::Cxi | Self::Barex)
    }

    /// Whether buffers of this protocol are reached by a handle, `shm_name`.
    pub const fn has_handle(self) -> bool {
        matches!(
            self,
            Self::Nvlink
                | Self::NvlinkIntra
                | Self::Hip
                | Self::Maca
                | Self::Musa
                | Self::Ubshmem
                | Self::SunriseLink
        )
    }

    /// The word as a kind of transport.
    pub const fn transport(self) -> TransportKind {
        TransportKind::of_static(self.as_str())
    }

    /// The word of a kind of transport, if the reference engine knows it.
    pub fn of(kind: &TransportKind) -> Option<Self> {
        kind.as_str().parse().ok()
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Word {
    type Err = FieldProblem;

    fn from_str(text: &str) -> Result<Self, FieldProblem> {
        Self::ALL
            .iter()
            .copied()
            .find(|word| word.as_str() == text)
            .ok_or_else(|| FieldProblem::UnknownWord { word: shorten(text) })
    }
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// One word: the only form that every reference engine can read.
    One(Word),
    /// A list of words, in the order the transports were installed; each buffer names its own. Engines built for one
    /// protocol cannot read it.
    Many(Vec<Word>),
    /// Another string. A record with it can be used only by its extension.
    Unknown(String),
}

impl Protocol {
    /// Whether the record has `devices`.
    pub fn has_devices(&self) -> bool {
        match self {
            Self::One(word) => word.has_devices(),
            Self::Many(words) => words.iter().any(|word| word.has_devices()),
            Self::Unknown(_) => false,
        }
    }

    pub(crate) fn read(raw: &RawValue, path: &Path<'_>) -> Result<Self, FieldError> {
        if json::kind(raw) != JsonKind::Array {
            let word = json::read_text(raw, path)?;
            return Ok(word.parse().map_or(Self::Unknown(word), Self::One));
        }
        let mut words = Vec::new();
        for (i, element) in json::elements(raw, path, Word::ALL.len())?.into_iter().enumerate() {
            let at = path.index(i);
            let word: Word = json::read_text(element, &at)?.parse().map_err(|problem| at.error(problem))?;
            if words.contains(&word) {
                return Err(at.error(FieldProblem::Duplicate { name: word.to_string() }));
            }
            words.push(word);
        }
        if words.is_empty() {
            return Err(path.error(FieldProblem::Empty));
        }
        Ok(Self::Many(words))
    }

    pub(crate) fn node(&self) -> Node<'_> {
        match self {
            Self::One(word) => Node::text(word.as_str()),
            Self::Many(words) => Node::Array(words.iter().map(|word| Node::text(word.as_str())).collect()),
            Self::Unknown(word) => Node::text(word.as_str()),
        }
    }
}

impl From<Word> for Protocol {
    fn from(word: Word) -> Self {
        Self::One(word)
    }
}
