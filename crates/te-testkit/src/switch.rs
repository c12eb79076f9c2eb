//! A control plane within a process: what transports ask each other to set paths up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use te_segment::{Endpoint, SegmentDescriptor};
use te_transport::{Bootstrap, BootstrapError, BootstrapHandler, BoxFuture, LocateError};

use crate::node::stated_control;

/// Connects the engines of a test. Copies are the same.
#[derive(Clone, Default)]
pub struct Switchboard {
    handlers: Arc<Mutex<Handlers>>,
}

/// By control endpoint and protocol.
type Handlers = HashMap<(Endpoint, String), Arc<dyn BootstrapHandler>>;

impl Switchboard {
    /// The side of the engine at this endpoint.
    #[must_use]
    pub fn desk(&self, own: Endpoint) -> Arc<dyn Bootstrap> {
        Arc::new(Desk { own, switch: self.clone() })
    }

    /// The process at this endpoint has ended: nobody answers there, and another may begin.
    pub fn hang_up(&self, at: &Endpoint) {
        self.handlers.lock().retain(|(endpoint, _), _| endpoint != at);
    }
}

impl std::fmt::Debug for Switchboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switchboard").field("handlers", &self.handlers.lock().len()).finish()
    }
}

struct Desk {
    own: Endpoint,
    switch: Switchboard,
}

impl Bootstrap for Desk {
    fn locate<'a>(
        &'a self,
        peer: &'a SegmentDescriptor,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, LocateError>> {
        Box::pin(std::future::ready(stated_control(peer)))
    }

    fn exchange<'a>(
        &'a self,
        peer: &'a Endpoint,
        protocol: &'a str,
        device_path: &'a str,
        message: Vec<u8>,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<u8>, BootstrapError>> {
        let refused =
            |cause: &str| BootstrapError { peer: peer.clone(), cause: cause.to_owned(), retryable: false };
        Box::pin(async move {
            let handler = self.switch.handlers.lock().get(&(peer.clone(), protocol.to_owned())).cloned();
            let handler = handler.ok_or_else(|| refused("nobody answers for the protocol"))?;
            let answer = handler.answer(&self.own, device_path, &message).await;
            answer.ok_or_else(|| refused("the peer refuses the message"))
        })
    }

    fn handle(&self, protocol: &str, handler: Arc<dyn BootstrapHandler>) -> bool {
        let mut handlers = self.switch.handlers.lock();
        let at = (self.own.clone(), protocol.to_owned());
        if handlers.contains_key(&at) {
            return false;
        }
        handlers.insert(at, handler);
        true
    }
}
