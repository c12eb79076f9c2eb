//! Where a segment's control listener is, as stored under its `rpc_meta` key.

use std::{collections::BTreeMap, num::NonZeroU16};

use crate::{
    endpoint::{Endpoint, Host},
    error::{DescriptorError, FieldProblem, Path},
    json::{self, Members, Node},
    limits::DecodeLimits,
    wire::RawJson,
};

/// The value `{"ip_or_host_name":…,"rpc_port":…}` (reference engine, wire spec: RPC location).
///
/// Members that are not known survive a round trip. An IPv6 host is written without brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcLocation {
    host: Host,
    port: NonZeroU16,
    extra: BTreeMap<String, RawJson>,
}

impl RpcLocation {
    /// The location of a control listener.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { host: endpoint.host().clone(), port: endpoint.nonzero_port(), extra: BTreeMap::new() }
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port.get()
    }

    /// Host and port.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::from_parts(self.host.clone(), self.port)
    }

    /// Decodes a stored value.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        json::check_document(bytes, &DecodeLimits::default())?;
        let mut members = Members::of_document(bytes)?;
        let root = Path::Root;
        let at = root.member("ip_or_host_name");
        let host = members
            .take_as("ip_or_host_name", &root, json::read_text)?
            .ok_or_else(|| at.error(FieldProblem::Missing))?;
        let host = host.parse().map_err(|e| at.error(FieldProblem::Endpoint(e)))?;
        let at = root.member("rpc_port");
        let raw = members.take("rpc_port").ok_or_else(|| at.error(FieldProblem::Missing))?;
        let port = json::read_uint(raw, &at, u16::MAX.into())?;
        let port = u16::try_from(port)
            .ok()
            .and_then(NonZeroU16::new)
            .ok_or_else(|| at.error(FieldProblem::OutOfRange { number: "0".into(), min: 1, max: 65535 }))?;
        Ok(Self { host, port, extra: members.rest() })
    }

    /// Encodes: compact, members sorted, no newline at the end.
    pub fn encode(&self) -> String {
        let members = vec![
            ("ip_or_host_name".into(), Node::text(self.host.bare())),
            ("rpc_port".into(), Node::Unsigned(self.port.get().into())),
        ];
        Node::object(members, &self.extra).into_json()
    }
}

impl From<&Endpoint> for RpcLocation {
    fn from(endpoint: &Endpoint) -> Self {
        Self::new(endpoint)
    }
}

impl From<Endpoint> for RpcLocation {
    fn from(endpoint: Endpoint) -> Self {
        Self::new(&endpoint)
    }
}
