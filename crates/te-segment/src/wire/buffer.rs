//! The elements of `buffers`.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::value::RawValue;

use crate::{
    error::{FieldError, FieldProblem, Path},
    json::{self, Members, Node},
    wire::{Protocol, RawJson, Word},
};

/// One buffer as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// `protocol`: only in records whose own protocol is a list.
    pub protocol: Option<Word>,
    /// `name`: the location string; the segment name in records of protocols tcp and cxl.
    pub name: Option<String>,
    /// `addr`: address in the owner's process.
    pub addr: Option<u64>,
    /// `length` in bytes.
    pub length: Option<u64>,
    /// How the protocol reaches the buffer.
    pub reach: Reach,
    /// Every other member, those of other protocols included.
    pub extra: BTreeMap<String, RawJson>,
}

/// The members by which a protocol reaches a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None beside address and length: tcp, and protocols that are not known.
    Plain,
    /// One key for each device: rdma, efa, cxi, barex.
    Keys {
        /// `rkey`
        rkey: Option<Vec<u64>>,
        /// `lkey`: of no use to peers, but its length is checked by reference readers.
        lkey: Option<Vec<u64>>,
    },
    /// `tseg`: ub.
    Segments(Option<Vec<String>>),
    /// `device_id`: nccl and ascend.
    Device(Option<i64>),
    /// `shm_name`: nvlink, nvlink_intra, hip, maca, musa, ubshmem, sunrise_link.
    Handle(Option<String>),
    /// `offset` in the window: cxl.
    Offset(Option<u64>),
    /// A file or device: nvmeof.
    File {
        /// `file_path` at the owner.
        file_path: Option<String>,
        /// `local_path_map`: for each host the path it has mounted.
        local_path_map: Option<BTreeMap<String, String>>,
    },
}

impl Buffer {
    fn read(raw: &RawValue, path: &Path<'_>, protocol: &Protocol) -> Result<Self, FieldError> {
        let mut members = Members::read(raw, path)?;
        let (own, word) = match protocol {
            Protocol::One(word) => (None, Some(*word)),
            Protocol::Many(_) => {
                let at = path.member("protocol");
                let word = members
                    .take_as("protocol", path, json::read_text)?
                    .ok_or_else(|| at.error(FieldProblem::Missing))?;
                let word = word.parse().map_err(|problem| at.error(problem))?;
                (Some(word), Some(word))
            }
            Protocol::Unknown(_) => (None, None),
        };
        Ok(Self {
            protocol: own,
            name: members.take_as("name", path, json::read_text)?,
            addr: members.take_as("addr", path, json::read_u64)?,
            length: members.take_as("length", path, json::read_u64)?,
            reach: Reach::read(&mut members, path, word)?,
            extra: members.rest(),
        })
    }

    fn node(&self) -> Node<'_> {
        let mut members: Vec<(Cow<'_, str>, Node<'_>)> = Vec::with_capacity(5);
        if let Some(word) = self.protocol {
            members.push(("protocol".into(), Node::text(word.as_str())));
        }
        if let Some(name) = &self.name {
            members.push(("name".into(), Node::text(name.as_str())));
        }
        for (key, number) in [("addr", self.addr), ("length", self.length)] {
            if let Some(number) = number {
                members.push((key.into(), Node::Unsigned(number)));
            }
        }
        self.reach.push(&mut members);
        Node::object(members, &self.extra)
    }
}

impl Reach {
    fn read(members: &mut Members<'_>, path: &Path<'_>, word: Option<Word>) -> Result<Self, FieldError> {
        let Some(word) = word else { return Ok(Self::Plain) };
        Ok(match word {
            Word::Tcp => Self::Plain,
            Word::Ub => Self::Segments(members.take_as("tseg", path, json::read_texts)?),
            Word::Nccl | Word::Ascend => Self::Device(members.take_as("device_id", path, json::read_i64)?),
            Word::Cxl => Self::Offset(members.take_as("offset", path, json::read_u64)?),
            Word::Nvmeof => Self::File {
                file_path: members.take_as("file_path", path, json::read_text)?,
                local_path_map: members.take_as("local_path_map", path, read_path_map)?,
            },
            _ if word.has_handle() => Self::Handle(members.take_as("shm_name", path, json::read_text)?),
            _ => Self::Keys {
                rkey: members.take_as("rkey", path, json::read_u64s)?,
                lkey: members.take_as("lkey", path, json::read_u64s)?,
            },
        })
    }

    fn push<'a>(&'a self, members: &mut Vec<(Cow<'a, str>, Node<'a>)>) {
        let mut push = |key: &'static str, node: Option<Node<'a>>| {
            if let Some(node) = node {
                members.push((key.into(), node));
            }
        };
        match self {
            Self::Plain => {}
            Self::Keys { rkey, lkey } => {
                push("rkey", rkey.as_deref().map(Node::numbers));
                push("lkey", lkey.as_deref().map(Node::numbers));
            }
            Self::Segments(tseg) => push("tseg", tseg.as_deref().map(Node::texts)),
            Self::Device(id) => push("device_id", id.map(Node::Signed)),
            Self::Handle(handle) => push("shm_name", handle.as_deref().map(Node::text)),
            Self::Offset(offset) => push("offset", offset.map(Node::Unsigned)),
            Self::File { file_path, local_path_map } => {
                push("file_path", file_path.as_deref().map(Node::text));
                let map = local_path_map.as_ref().map(|map| {
                    let paths =
                        map.iter().map(|(host, path)| (host.as_str().into(), Node::text(path.as_str())));
                    Node::Object(paths.collect())
                });
                push("local_path_map", map);
            }
        }
    }
}

fn read_path_map(raw: &RawValue, path: &Path<'_>) -> Result<BTreeMap<String, String>, FieldError> {
    let members = Members::read(raw, path)?;
    members
        .iter()
        .map(|(host, raw)| Ok((host.to_owned(), json::read_text(raw, &path.member(host))?)))
        .collect()
}

/// An element of `buffers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferEntry {
    /// One whose members have the right types.
    Valid(Buffer),
    /// Anything else, kept as text.
    Invalid {
        /// The element.
        json: RawJson,
        /// What is wrong with it.
        error: FieldError,
    },
}

impl BufferEntry {
    pub(crate) fn read_all(
        raw: &RawValue,
        path: &Path<'_>,
        protocol: &Protocol,
        limit: usize,
    ) -> Result<Vec<Self>, FieldError> {
        let read = |(i, raw)| match Buffer::read(raw, &path.index(i), protocol) {
            Ok(buffer) => Self::Valid(buffer),
            Err(error) => Self::Invalid { json: RawJson::from_raw(raw), error },
        };
        Ok(json::elements(raw, path, limit)?.into_iter().enumerate().map(read).collect())
    }

    pub(crate) fn node(&self) -> Node<'_> {
        match self {
            Self::Valid(buffer) => buffer.node(),
            Self::Invalid { json, .. } => Node::Raw(json.as_str().into()),
        }
    }
}
