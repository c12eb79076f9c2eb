//! Set-up messages of transports, carried in connection frames of the control listener.
//!
//! A message travels in the handshake object that reference engines use too: `local_nic_path` and `peer_nic_path`
//! name the device path, the `payload` member carries the bytes as hexadecimal and the additional member
//! `te_protocol` names the handler. Reference engines ignore both.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use te_rpc::message::ConnectionBody;
use te_rpc::{FrameKind, RpcClient};
use te_segment::Endpoint;
use te_transport::{Bootstrap, BootstrapError, BootstrapHandler, BoxFuture};

const PROTOCOL: &str = "te_protocol";

/// The engine's side of [`Bootstrap`]: handlers by protocol, and a client for the other direction.
pub(crate) struct BootstrapTable {
    client: RpcClient,
    own: Endpoint,
    handlers: RwLock<HashMap<String, Arc<dyn BootstrapHandler>>>,
}

impl BootstrapTable {
    pub(crate) fn new(client: RpcClient, own: Endpoint) -> Self {
        Self { client, own, handlers: RwLock::new(HashMap::new()) }
    }

    /// The reply to a connection request. Without `te_protocol` it is the empty handshake object, which is what a
    /// reference engine without RDMA answers (captured).
    ///
    /// Whoever calls bounds the wait for a handler: the listener does, with the limit of a control request.
    pub(crate) async fn answer(&self, request: &ConnectionBody) -> ConnectionBody {
        let Some(protocol) = request.extra.get(PROTOCOL).and_then(|value| value.as_str()) else {
            return ConnectionBody::default();
        };
        let Some(handler) = self.handlers.read().get(protocol).cloned() else {
            return ConnectionBody::refusal(format!("no transport here speaks {protocol}"));
        };
        let Ok(from) = request.local_nic_path.parse::<Endpoint>() else {
            return ConnectionBody::refusal("local_nic_path is not an endpoint");
        };
        let Some(message) = from_hex(&request.payload) else {
            return ConnectionBody::refusal("payload is not hexadecimal");
        };
        match handler.answer(&from, &request.peer_nic_path, &message).await {
            Some(answer) => ConnectionBody { payload: to_hex(&answer), ..ConnectionBody::default() },
            None => ConnectionBody::refusal(format!("{protocol} refused the message")),
        }
    }
}

impl Bootstrap for BootstrapTable {
    fn exchange<'a>(
        &'a self,
        peer: &'a Endpoint,
        protocol: &'a str,
        device_path: &'a str,
        message: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<u8>, BootstrapError>> {
        Box::pin(async move {
            let failed = |cause: String, retryable| BootstrapError { peer: peer.clone(), cause, retryable };
            let mut request = ConnectionBody {
                local_nic_path: self.own.to_string(),
                peer_nic_path: device_path.to_owned(),
                payload: to_hex(&message),
                ..ConnectionBody::default()
            };
            request.extra.insert(PROTOCOL.to_owned(), protocol.into());
            let reply = self
                .client
                .call(peer, FrameKind::Connection, &request.encode(), deadline)
                .await
                .map_err(|error| failed(error.to_string(), error.retry() == te_rpc::Retry::CanHelp))?;
            let reply = ConnectionBody::decode(&reply).map_err(|error| failed(error.to_string(), false))?;
            if let Some(reason) = reply.rejection() {
                return Err(failed(format!("refused: {reason}"), false));
            }
            from_hex(&reply.payload).ok_or_else(|| failed("the answer is not hexadecimal".to_owned(), false))
        })
    }

    fn handle(&self, protocol: &str, handler: Arc<dyn BootstrapHandler>) -> bool {
        let mut handlers = self.handlers.write();
        if handlers.contains_key(protocol) {
            return false;
        }
        handlers.insert(protocol.to_owned(), handler);
        true
    }
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_round_trips_and_refuses_anything_else() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
        assert_eq!(from_hex("éa"), None);
    }
}
