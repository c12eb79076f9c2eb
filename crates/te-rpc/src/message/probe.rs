//! The question whether a peer is alive, and its answer.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    MessageError,
    json::{Members, Writer},
};

const SUCCESS: &str = "success";

/// The body of a probe request.
pub fn probe_request() -> Vec<u8> {
    Writer::new(&BTreeMap::new()).finish()
}

/// Reply of a probe frame. Source: reference engine, wire spec.
///
/// ```
/// use te_rpc::message::ProbeReply;
/// assert_eq!(ProbeReply::success().encode(), b"{\"status\":\"success\"}\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReply {
    /// What the peer says about itself; empty if it answers but handles no probes.
    pub status: String,
    /// Members that are not listed above, kept as they are.
    pub extra: BTreeMap<String, Value>,
}

impl ProbeReply {
    /// The reply of a healthy engine.
    pub fn success() -> Self {
        Self { status: SUCCESS.to_owned(), extra: BTreeMap::new() }
    }

    /// Whether the peer says that it is well.
    pub fn is_success(&self) -> bool {
        self.status == SUCCESS
    }

    /// Reads a body; null, the answer of a peer that handles no probes, has an empty status.
    pub fn decode(body: &[u8]) -> Result<Self, MessageError> {
        let mut members = Members::parse(body)?;
        Ok(Self { status: members.text("status")?, extra: members.rest() })
    }

    /// Writes the body.
    pub fn encode(&self) -> Vec<u8> {
        Writer::new(&self.extra).member("status", self.status.as_str()).finish()
    }
}
