//! What an application does with the requests of its peers.

use std::sync::Arc;

use super::{
    frame::{PeerId, RefuseReason},
    peer::NativePeer,
    request::{Answer, Request},
};
use crate::handler::BoxFuture;

/// The application behind native connections, of those its listener takes and of those its client opens: both ends of
/// a connection may ask.
///
/// A future is dropped when its connection ends or its time is over ([`NativeLimits`](super::NativeLimits)); what must
/// not be cut short belongs into a task of its own. It must not wait for a request to another peer: rings of engines
/// that do so can wait for each other (META-07). A panic closes this one connection.
pub trait NativeHandler: Send + Sync {
    /// Who we are. Peers that mean another life or name are refused without asking [`welcome`](Self::welcome).
    fn identity(&self) -> PeerId;

    /// Whether a peer that opened a connection is welcome. By default everyone is.
    fn welcome(self: Arc<Self>, peer: PeerId) -> BoxFuture<'static, Result<(), RefuseReason>> {
        drop(peer);
        Box::pin(std::future::ready(Ok(())))
    }

    /// A connection is open. Called before any request of it; must not block.
    fn opened(&self, peer: &NativePeer) {
        let _ = peer;
    }

    /// Answers a request. The calls come in the order in which the peer asked, so what is done before a future is
    /// returned keeps that order; the futures then run at the same time. [`Request::Probe`] never comes here. An
    /// answer of another kind than the request closes the connection.
    ///
    /// Keep the [`NativePeer`] to ask in return, for example to push [`Request::Invalidate`] to a peer that told its
    /// [`Request::Interest`].
    fn handle(self: Arc<Self>, peer: NativePeer, request: Request) -> BoxFuture<'static, Answer>;

    /// A connection that was open has ended. Another one of the same peer may be open already; see
    /// [`NativePeer::is_same_connection`].
    fn gone(&self, peer: &NativePeer) {
        let _ = peer;
    }
}
