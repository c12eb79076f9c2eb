//! The members `devices`, `priority_matrix` and `rank_info`.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::value::RawValue;

use crate::{
    error::{FieldError, Path},
    json::{self, Members, Node},
    wire::RawJson,
};

/// An element of `devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `name`
    pub name: Option<String>,
    /// `lid`
    pub lid: Option<u16>,
    /// `gid`, of protocols rdma, efa, cxi and barex.
    pub gid: Option<String>,
    /// `eid`, of protocol ub.
    pub eid: Option<String>,
    /// Every other member.
    pub extra: BTreeMap<String, RawJson>,
}

impl Device {
    fn read(raw: &RawValue, path: &Path<'_>) -> Result<Self, FieldError> {
        let mut members = Members::read(raw, path)?;
        Ok(Self {
            name: members.take_as("name", path, json::read_text)?,
            lid: members.take_as("lid", path, |raw, path| {
                let lid = json::read_uint(raw, path, u16::MAX.into())?;
                Ok(u16::try_from(lid).unwrap_or_default())
            })?,
            gid: members.take_as("gid", path, json::read_text)?,
            eid: members.take_as("eid", path, json::read_text)?,
            extra: members.rest(),
        })
    }

    pub(crate) fn read_all(raw: &RawValue, path: &Path<'_>, limit: usize) -> Result<Vec<Self>, FieldError> {
        json::elements(raw, path, limit)?
            .into_iter()
            .enumerate()
            .map(|(i, element)| Self::read(element, &path.index(i)))
            .collect()
    }

    pub(crate) fn node(&self) -> Node<'_> {
        let mut members: Vec<(Cow<'_, str>, Node<'_>)> = Vec::new();
        for (key, text) in [("name", &self.name), ("gid", &self.gid), ("eid", &self.eid)] {
            if let Some(text) = text {
                members.push((key.into(), Node::text(text.as_str())));
            }
        }
        if let Some(lid) = self.lid {
            members.push(("lid".into(), Node::Unsigned(lid.into())));
        }
        Node::object(members, &self.extra)
    }
}

/// `priority_matrix`: for each location string the preferred and the other available devices, by name.
pub type Matrix = BTreeMap<String, [Vec<String>; 2]>;

pub(crate) fn read_matrix(raw: &RawValue, path: &Path<'_>) -> Result<Matrix, FieldError> {
    use crate::error::FieldProblem::CountMismatch;

    let members = Members::read(raw, path)?;
    let mut matrix = Matrix::new();
    for (location, raw) in members.iter() {
        let at = path.member(location);
        let lists = json::elements(raw, &at, usize::MAX)?;
        let [preferred, available] = lists.as_slice() else {
            return Err(at.error(CountMismatch {
                expected: 2,
                found: lists.len(),
                of: "preferred and available",
            }));
        };
        let lists = [json::read_texts(preferred, &at.index(0))?, json::read_texts(available, &at.index(1))?];
        matrix.insert(location.to_owned(), lists);
    }
    Ok(matrix)
}

pub(crate) fn matrix_node(matrix: &Matrix) -> Node<'_> {
    let members = matrix.iter().map(|(location, [preferred, available])| {
        let lists = vec![Node::texts(preferred), Node::texts(available)];
        (Cow::Borrowed(location.as_str()), Node::Array(lists))
    });
    Node::Object(members.collect())
}

/// `rank_info` of protocol `ascend`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankInfo {
    /// `rankId`
    pub rank_id: Option<u64>,
    /// `hostIp`
    pub host_ip: Option<String>,
    /// `hostPort`
    pub host_port: Option<u64>,
    /// `deviceLogicId`
    pub device_logic_id: Option<u64>,
    /// `devicePhyId`
    pub device_phy_id: Option<u64>,
    /// `deviceType`
    pub device_type: Option<u64>,
    /// `deviceIp`
    pub device_ip: Option<String>,
    /// `devicePort`
    pub device_port: Option<u64>,
    /// `pid`
    pub pid: Option<u64>,
    /// `endpoints`
    pub endpoints: Option<Vec<String>>,
    /// Every other member.
    pub extra: BTreeMap<String, RawJson>,
}

impl RankInfo {
    pub(crate) fn read(raw: &RawValue, path: &Path<'_>) -> Result<Self, FieldError> {
        let mut members = Members::read(raw, path)?;
        Ok(Self {
            rank_id: members.take_as("rankId", path, json::read_u64)?,
            host_ip: members.take_as("hostIp", path, json::read_text)?,
            host_port: members.take_as("hostPort", path, json::read_u64)?,
            device_logic_id: members.take_as("deviceLogicId", path, json::read_u64)?,
            device_phy_id: members.take_as("devicePhyId", path, json::read_u64)?,
            device_type: members.take_as("deviceType", path, json::read_u64)?,
            device_ip: members.take_as("deviceIp", path, json::read_text)?,
            device_port: members.take_as("devicePort", path, json::read_u64)?,
            pid: members.take_as("pid", path, json::read_u64)?,
            endpoints: members.take_as("endpoints", path, json::read_texts)?,
            extra: members.rest(),
        })
    }

    pub(crate) fn node(&self) -> Node<'_> {
        let mut members: Vec<(Cow<'_, str>, Node<'_>)> = Vec::new();
        let numbers = [
            ("rankId", self.rank_id),
            ("hostPort", self.host_port),
            ("deviceLogicId", self.device_logic_id),
            ("devicePhyId", self.device_phy_id),
            ("deviceType", self.device_type),
            ("devicePort", self.device_port),
            ("pid", self.pid),
        ];
        members.extend(numbers.into_iter().filter_map(|(key, n)| Some((key.into(), Node::Unsigned(n?)))));
        for (key, text) in [("hostIp", &self.host_ip), ("deviceIp", &self.device_ip)] {
            if let Some(text) = text {
                members.push((key.into(), Node::text(text.as_str())));
            }
        }
        if let Some(endpoints) = &self.endpoints {
            members.push(("endpoints".into(), Node::texts(endpoints)));
        }
        Node::object(members, &self.extra)
    }
}
