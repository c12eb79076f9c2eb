//! Which life answers at a control endpoint: a probe that says more between te engines.
//!
//! The request of a te engine carries the member `te`; a te engine that sees it adds its own, with its incarnation, to
//! the reply. Reference engines ignore the body of a probe and answer as ever (wire spec).

use std::time::Instant;

use serde_json::{Value, json};
use te_metadata::{HolderAnswer, HolderProbe};
use te_rpc::message::ProbeReply;
use te_rpc::{FrameKind, RpcClient};
use te_segment::{Endpoint, Incarnation};
use te_transport::BoxFuture;

const MEMBER: &str = "te";
const INCARNATION: &str = "incarnation";

/// Asks holders of names through control requests.
#[derive(Debug)]
pub struct ControlProbe {
    rpc: RpcClient,
}

impl ControlProbe {
    /// Asks through this client; its limits for connecting count besides the deadline.
    #[must_use]
    pub fn new(rpc: RpcClient) -> Self {
        Self { rpc }
    }
}

impl HolderProbe for ControlProbe {
    fn ask<'a>(&'a self, endpoint: &'a Endpoint, deadline: Instant) -> BoxFuture<'a, HolderAnswer> {
        Box::pin(async move {
            match self.rpc.call(endpoint, FrameKind::Probe, &request(), deadline).await {
                // Something that answers a probe in other words than an engine does is alive all the same.
                Ok(reply) => HolderAnswer::Alive { incarnation: incarnation_of(&reply) },
                Err(error) if error.is_refused() || error.is_closed() => HolderAnswer::Refused,
                Err(error) if error.is_silence() => HolderAnswer::Silent,
                // Whatever listens there speaks another protocol: not the holder.
                Err(_) => HolderAnswer::Refused,
            }
        })
    }
}

/// The body of a probe between te engines.
pub(crate) fn request() -> Vec<u8> {
    format!("{}\n", json!({ MEMBER: { "v": 1 } })).into_bytes()
}

/// The reply to a probe: with our incarnation if the request is a te engine's.
pub(crate) fn reply(request: &[u8], own: Incarnation) -> ProbeReply {
    let mut reply = ProbeReply::success();
    let asked = serde_json::from_slice::<Value>(request).is_ok_and(|body| body.get(MEMBER).is_some());
    if asked {
        reply.extra.insert(MEMBER.to_owned(), json!({ "v": 1, INCARNATION: own.to_string() }));
    }
    reply
}

/// The life that sent a reply, if it says so.
pub(crate) fn incarnation_of(reply: &[u8]) -> Option<Incarnation> {
    let reply = ProbeReply::decode(reply).ok()?;
    reply.extra.get(MEMBER)?.get(INCARNATION)?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn te_engines_learn_which_life_answers_and_others_see_nothing_new() {
        let own = Incarnation::from_bits(77);
        assert_eq!(incarnation_of(&reply(&request(), own).encode()), Some(own));
        assert_eq!(reply(b"{}\n", own).encode(), b"{\"status\":\"success\"}\n");
        assert_eq!(reply(b"[]", own).encode(), b"{\"status\":\"success\"}\n");
        assert_eq!(incarnation_of(b"{\"status\":\"success\"}\n"), None);
        assert_eq!(incarnation_of(b"{\"status\":\"success\",\"te\":{\"incarnation\":5}}"), None);
    }
}
