//! What the control listener answers.

use std::sync::{Arc, Weak};

use te_rpc::message::{NotifyBody, notify_refused, notify_success};
use te_rpc::{BoxFuture, Call, Handlers, Reply, RpcHandler};

use crate::bootstrap::BootstrapTable;
use crate::core::Core;
use crate::hello;
use crate::inbox::Inbox;

/// Handlers of one engine. `exchange` answers metadata requests; without it they get `null`, as an engine with a
/// metadata store answers (wire spec).
pub(crate) fn handlers(
    core: &Arc<Core>,
    exchange: Option<Arc<dyn RpcHandler>>,
    bootstrap: Arc<BootstrapTable>,
) -> Handlers {
    let notify = NotifyHandler { inbox: core.inbox().clone(), limit: core.limits().notify_payload };
    Handlers {
        connection: Some(Arc::new(ConnectionHandler { bootstrap })),
        metadata: exchange,
        notify: Some(Arc::new(notify)),
        probe: Some(Arc::new(ProbeHandler { core: Arc::downgrade(core) })),
        native: Some(core.peers().handler()),
    }
}

struct ConnectionHandler {
    bootstrap: Arc<BootstrapTable>,
}

impl RpcHandler for ConnectionHandler {
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.bootstrap.reply(&call).await {
                Ok(body) => Reply::Body(body),
                Err(error) => {
                    tracing::debug!(target: "te::engine", peer = %call.peer, %error, "unusable connection request");
                    Reply::Close
                }
            }
        })
    }
}

struct NotifyHandler {
    inbox: Arc<Inbox>,
    limit: usize,
}

impl RpcHandler for NotifyHandler {
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply> {
        let reply = match NotifyBody::decode(&call.body) {
            Ok(body) if body.name.len() + body.msg.len() > self.limit => Reply::Body(notify_refused()),
            Ok(body) => {
                let taken = self.inbox.push(body.name, body.msg);
                Reply::Body(if taken { notify_success() } else { notify_refused() })
            }
            Err(error) => {
                tracing::debug!(target: "te::engine", peer = %call.peer, %error, "unusable notification");
                Reply::Close
            }
        };
        Box::pin(std::future::ready(reply))
    }
}

struct ProbeHandler {
    core: Weak<Core>,
}

impl RpcHandler for ProbeHandler {
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply> {
        let running = self.core.upgrade().filter(|core| core.check_running("answer a probe").is_ok());
        let reply = match running {
            Some(core) => Reply::Body(hello::reply(&call.body, core.local().incarnation()).encode()),
            None => Reply::Close,
        };
        Box::pin(std::future::ready(reply))
    }
}
