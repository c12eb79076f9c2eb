//! Set-up messages of transports, carried in connection frames of the control listener.
//!
//! RDMA handshakes are what reference engines send in these frames, and go through as they are. All other messages travel
//! in such a handshake object: `local_nic_path` and `peer_nic_path` name the device path, the `payload` member carries the
//! bytes as hexadecimal and the additional member `te_protocol` names the handler. Reference engines ignore both.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use serde_json::{Map, Value};
use te_metadata::Directory;
use te_rpc::message::{ConnectionBody, MessageError};
use te_rpc::{Call, FrameKind, RpcClient};
use te_segment::{Endpoint, SegmentDescriptor, SegmentName};
use te_transport::{Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, LocateError, RDMA_PROTOCOL};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

const PROTOCOL: &str = "te_protocol";
const ENDED: &str = "the engine has ended";

/// What the table needs of its engine. Not the segment itself: that owns the transports, and they own this.
pub(crate) struct BootstrapParts {
    pub(crate) client: RpcClient,
    pub(crate) runtime: Handle,
    pub(crate) directory: Arc<dyn Directory>,
    /// The local segment's name and control endpoint.
    pub(crate) own: (SegmentName, Endpoint),
}

/// The engine's side of [`Bootstrap`]: handlers by protocol, and a client for the other direction.
pub(crate) struct BootstrapTable {
    parts: BootstrapParts,
    handlers: RwLock<HashMap<String, Arc<dyn BootstrapHandler>>>,
}

impl BootstrapTable {
    pub(crate) fn new(parts: BootstrapParts) -> Self {
        Self { parts, handlers: RwLock::new(HashMap::new()) }
    }

    /// The reply to a connection request, an error for a body that makes no sense. Where nobody else answers it is the
    /// empty handshake object, which is what a reference engine without RDMA answers (captured).
    ///
    /// Whoever calls bounds the wait for a handler: the listener does, with the limit of a control request.
    pub(crate) async fn reply(&self, call: &Call) -> Result<Vec<u8>, MessageError> {
        let read = ConnectionBody::decode(&call.body);
        if let Ok(body) = &read {
            if body.is_control_channel() {
                let reason = "no control channel over queue pairs; use notify frames";
                return Ok(ConnectionBody::refusal(reason).encode());
            }
            if let Some(protocol) = body.extra.get(PROTOCOL).and_then(Value::as_str) {
                return Ok(self.answer_wrapped(protocol, body).await.encode());
            }
        }
        if let Some(answer) = self.answer_handshake(call).await {
            return Ok(answer);
        }
        read.map(|_| ConnectionBody::default().encode())
    }

    async fn answer_wrapped(&self, protocol: &str, request: &ConnectionBody) -> ConnectionBody {
        if protocol == RDMA_PROTOCOL {
            return ConnectionBody::refusal(format!("messages of {protocol} are not wrapped"));
        }
        let Some(handler) = self.handler(protocol) else {
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

    /// The answer to an RDMA handshake, if the request is one and somebody here answers it. Which members it must have, and
    /// of which type, is for the handler to say: any object that names the sender's NIC is one.
    async fn answer_handshake(&self, call: &Call) -> Option<Vec<u8>> {
        let handler = self.handler(RDMA_PROTOCOL)?;
        let object: Map<String, Value> = serde_json::from_slice(&call.body).ok()?;
        let ours = object.contains_key(PROTOCOL);
        if ours || object.get("ctrl_channel") == Some(&Value::Bool(true)) {
            return None;
        }
        let text = |member| object.get(member).and_then(Value::as_str).unwrap_or_default();
        if !is_nic_path(text("local_nic_path")) {
            return None;
        }
        let from = Endpoint::try_from(call.peer).ok()?;
        handler.answer(&from, text("peer_nic_path"), &call.body).await
    }

    fn handler(&self, protocol: &str) -> Option<Arc<dyn BootstrapHandler>> {
        self.handlers.read().get(protocol).cloned()
    }

    fn wrap(&self, protocol: &str, device_path: &str, message: &[u8]) -> Vec<u8> {
        let mut request = ConnectionBody {
            local_nic_path: self.parts.own.1.to_string(),
            peer_nic_path: device_path.to_owned(),
            payload: to_hex(message),
            ..ConnectionBody::default()
        };
        request.extra.insert(PROTOCOL.to_owned(), protocol.into());
        request.encode()
    }

    /// Runs a future on the control runtime, as long as somebody waits for it; [`None`] if the runtime has ended.
    async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(future, &self.parts.runtime);
        tasks.join_next().await?.ok()
    }
}

impl Bootstrap for BootstrapTable {
    fn locate<'a>(
        &'a self,
        peer: &'a SegmentDescriptor,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, LocateError>> {
        Box::pin(async move {
            // Peers are reached under the name in the descriptor, not the one it was opened by (wire spec).
            let segment = peer.name();
            let (own_name, own_control) = &self.parts.own;
            if let Some(control) = peer.control().or_else(|| (segment == own_name).then_some(own_control)) {
                return Ok(control.clone());
            }
            let failed = |cause, retryable| LocateError { segment: segment.clone(), cause, retryable };
            let (directory, name) = (self.parts.directory.clone(), segment.clone());
            let located = self.run(async move { directory.locate(&name, deadline).await }).await;
            located
                .ok_or_else(|| failed(ENDED.to_owned(), false))?
                .map_err(|error| failed(error.to_string(), error.is_retryable()))
        })
    }

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
            let verbatim = protocol == RDMA_PROTOCOL;
            let body = if verbatim { message } else { self.wrap(protocol, device_path, &message) };
            let (client, to) = (self.parts.client.clone(), peer.clone());
            let call = async move { client.call(&to, FrameKind::Connection, &body, deadline).await };
            let called = self.run(call).await.ok_or_else(|| failed(ENDED.to_owned(), false))?;
            let reply =
                called.map_err(|error| failed(error.to_string(), error.retry() == te_rpc::Retry::CanHelp))?;
            if verbatim { Ok(reply) } else { unwrap(&reply).map_err(|cause| failed(cause, false)) }
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

/// The bytes in the reply to a wrapped message, or why there are none.
fn unwrap(reply: &[u8]) -> Result<Vec<u8>, String> {
    let reply = ConnectionBody::decode(reply).map_err(|error| error.to_string())?;
    if let Some(reason) = reply.rejection() {
        return Err(format!("refused: {reason}"));
    }
    from_hex(&reply.payload).ok_or_else(|| "the answer is not hexadecimal".to_owned())
}

/// Whether the text is `server@nic`. Server names are whatever the peer calls itself.
fn is_nic_path(text: &str) -> bool {
    text.split_once('@').is_some_and(|(server, nic)| !server.is_empty() && !nic.is_empty())
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
