//! The side that is asked.

use std::{future::ready, sync::Arc};

use te_rpc::{BoxFuture, Call, Reply, RpcHandler};
use te_segment::CompatProtocol;

use crate::requester::Requester;

/// Supplies the answer to a metadata request: the own descriptor as JSON, or `null` if there is none.
///
/// Called with the transport that the requester's own record is about (`None`: another one, or none that can be read)
/// and with whether the requester reads the extension. A requester that does not has a limit of 1 MiB, so the
/// extension is left out for it (reference engine, wire spec).
///
/// A plain function on purpose: an answer that waited for another peer could wait in a circle (META-07).
pub type Provider = Arc<dyn Fn(Option<CompatProtocol>, bool) -> String + Send + Sync>;

/// Largest reply that the reference engine takes by default, in bytes with the kind byte (wire spec).
const REFERENCE_MAX_REPLY: usize = 1 << 20;

/// The handler of metadata requests. Takes a body of any JSON; the answer ends in one newline.
pub fn exchange_handler(provider: Provider) -> impl RpcHandler {
    Exchange(provider)
}

struct Exchange(Provider);

impl Exchange {
    fn answer(&self, call: &Call) -> Reply {
        let Some(requester) = Requester::read(&call.body) else { return Reply::Close };
        let mut answer = (self.0)(requester.compat, requester.is_te);
        if !answer.ends_with('\n') {
            answer.push('\n');
        }
        if !requester.is_te && answer.len() >= REFERENCE_MAX_REPLY {
            tracing::warn!(
                target: "te::metadata", peer = %call.peer, bytes = answer.len(), limit = REFERENCE_MAX_REPLY,
                "descriptor is over the default limit of the engine that asks for it"
            );
        }
        Reply::Body(answer.into_bytes())
    }
}

impl RpcHandler for Exchange {
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(ready(self.answer(&call)))
    }
}
