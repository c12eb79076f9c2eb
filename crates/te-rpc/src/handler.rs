//! What a listener calls.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc};

use crate::{
    frame::FrameKind,
    message::{NULL_BODY, ProbeReply},
    native::NativeHandler,
};

/// A boxed future, as the handlers return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who asks.
    pub peer: SocketAddr,
    /// What about.
    pub kind: FrameKind,
    /// Whether it came in the old form; the reply then goes out in that form.
    pub legacy: bool,
    /// The body: a JSON text of any type, not nested too deeply.
    pub body: Vec<u8>,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Send this body, a JSON text that ends in a newline.
    Body(Vec<u8>),
    /// Close without a reply, as for a body that makes no sense.
    Close,
}

/// Answers the requests of one kind, any number at the same time.
///
/// The future is dropped when the request runs out of time or the listener ends, at any of its await points; what
/// must not be cut short belongs into a task of its own. It must not wait for a request to another peer: rings of
/// engines that do so can wait for each other (META-07). A panic closes this one connection.
pub trait RpcHandler: Send + Sync {
    /// Answers `call`.
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply>;
}

/// A handler made of an async function.
///
/// ```
/// use te_rpc::{Reply, handler_fn};
/// let handler = handler_fn(|_call| async { Reply::Body(b"{}\n".to_vec()) });
/// # let _: std::sync::Arc<dyn te_rpc::RpcHandler> = std::sync::Arc::new(handler);
/// ```
pub fn handler_fn<F, Fut>(function: F) -> impl RpcHandler
where
    F: Fn(Call) -> Fut + Send + Sync,
    Fut: Future<Output = Reply> + Send + 'static,
{
    HandlerFn(function)
}

struct HandlerFn<F>(F);

impl<F, Fut> RpcHandler for HandlerFn<F>
where
    F: Fn(Call) -> Fut + Send + Sync,
    Fut: Future<Output = Reply> + Send + 'static,
{
    fn handle(&self, call: Call) -> BoxFuture<'_, Reply> {
        Box::pin((self.0)(call))
    }
}

/// Answers every probe with success.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerProbes;

impl RpcHandler for AnswerProbes {
    fn handle(&self, _: Call) -> BoxFuture<'_, Reply> {
        Box::pin(std::future::ready(Reply::Body(ProbeReply::success().encode())))
    }
}

/// One handler per kind. A request without a handler is answered with the JSON literal `null`, as by the reference
/// engine.
#[derive(Clone, Default)]
pub struct Handlers {
    /// Handles [`FrameKind::Connection`], the old form included.
    pub connection: Option<Arc<dyn RpcHandler>>,
    /// Handles [`FrameKind::Metadata`].
    pub metadata: Option<Arc<dyn RpcHandler>>,
    /// Handles [`FrameKind::Notify`].
    pub notify: Option<Arc<dyn RpcHandler>>,
    /// Handles [`FrameKind::Probe`]; usually [`AnswerProbes`].
    pub probe: Option<Arc<dyn RpcHandler>>,
    /// Handles native connections; without it they are closed, as by a reference engine.
    pub native: Option<Arc<dyn NativeHandler>>,
}

impl Handlers {
    /// The handler for `kind`.
    pub fn get(&self, kind: FrameKind) -> Option<&Arc<dyn RpcHandler>> {
        match kind {
            FrameKind::Connection => self.connection.as_ref(),
            FrameKind::Metadata => self.metadata.as_ref(),
            FrameKind::Notify => self.notify.as_ref(),
            FrameKind::Probe => self.probe.as_ref(),
        }
    }

    pub(crate) async fn answer(&self, call: Call) -> Reply {
        match self.get(call.kind) {
            Some(handler) => handler.handle(call).await,
            None => Reply::Body(NULL_BODY.to_vec()),
        }
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = FrameKind::ALL.map(|kind| (kind, self.get(kind).is_some()));
        f.debug_map().entries(kinds).entry(&"native", &self.native.is_some()).finish()
    }
}
