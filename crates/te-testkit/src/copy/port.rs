//! The serving side and the ways to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use te_memory::RegionTable;
use te_segment::{Incarnation, SegmentDescriptor, TransportKind};

use crate::link::{Link, LinkControl};
use crate::report::Violation;
use crate::transport::redescribe;

/// One installed transport, as its peers reach it.
pub(super) struct Port {
    pub(super) regions: RegionTable,
    pub(super) incarnation: Incarnation,
    state: Mutex<PortState>,
    idle: Condvar,
}

#[derive(Default)]
struct PortState {
    closed: bool,
    serving: usize,
}

impl Port {
    /// Refuses new requests. Those being served notice before their next chunk.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits until no request is being served; how many are left at `until`.
    pub(super) fn wait_idle(&self, until: Instant) -> usize {
        let mut state = self.state.lock();
        while state.serving > 0 {
            if self.idle.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.serving
    }

    /// Counts a request as being served, unless the port is closed.
    pub(super) fn serve(self: &Arc<Self>) -> Option<Serving> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.serving += 1;
        Some(Serving { port: self.clone() })
    }
}

/// A request being served.
pub(super) struct Serving {
    port: Arc<Port>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.port.state.lock().serving -= 1;
        self.port.idle.notify_all();
    }
}

/// The controls of one way to a port.
#[derive(Default)]
pub(super) struct Wire {
    state: Mutex<WireState>,
}

#[derive(Clone, Copy, Default)]
struct WireState {
    stalled: bool,
    cuts: u64,
}

impl Wire {
    pub(super) fn is_stalled(&self) -> bool {
        self.state.lock().stalled
    }

    /// How often it was cut so far: a request that sees the number change was cut.
    pub(super) fn cuts(&self) -> u64 {
        self.state.lock().cuts
    }
}

impl LinkControl for Wire {
    fn stall(&self) {
        self.state.lock().stalled = true;
    }

    fn resume(&self) {
        self.state.lock().stalled = false;
    }

    fn cut(&self) {
        self.state.lock().cuts += 1;
    }
}

#[derive(Default)]
struct Inner {
    next: u64,
    ports: HashMap<u64, Arc<Port>>,
    wires: HashMap<u64, Arc<Wire>>,
}

/// What connects the copy transports of one process. Clones are the same fabric; separate fabrics do not reach each
/// other.
#[derive(Clone, Default)]
pub struct Fabric {
    inner: Arc<Mutex<Inner>>,
}

/// Where a descriptor leads: a port, and the way to it.
pub(super) struct Route {
    pub(super) port: Arc<Port>,
    pub(super) wire: Arc<Wire>,
    pub(super) number: u64,
}

impl Fabric {
    /// A fabric without any transport.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn open(&self, regions: RegionTable, incarnation: Incarnation) -> (u64, Arc<Port>) {
        let (state, idle) = (Mutex::new(PortState::default()), Condvar::new());
        let port = Arc::new(Port { regions, incarnation, state, idle });
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        inner.ports.insert(number, port.clone());
        (number, port)
    }

    /// Where the member of `kind` in the descriptor leads, or why nowhere.
    pub(super) fn route(&self, kind: &TransportKind, peer: &SegmentDescriptor) -> Result<Route, String> {
        let data = peer.data(kind).ok_or_else(|| format!("the peer does not offer {kind}"))?;
        let number = |member| data.get(member).and_then(serde_json::Value::as_u64);
        let port = number("port").ok_or_else(|| format!("the peer's {kind} data has no port"))?;
        let inner = self.inner.lock();
        let unknown = || format!("port {port} is not in this process");
        let found = inner.ports.get(&port).cloned().ok_or_else(unknown)?;
        let wire = number("wire").and_then(|wire| inner.wires.get(&wire)).cloned().unwrap_or_default();
        Ok(Route { port: found, wire, number: port })
    }

    /// A controlled way to the peer of this descriptor, over its transport of `kind`.
    ///
    /// # Errors
    ///
    /// When the descriptor does not lead to a port of this fabric.
    pub fn link(&self, kind: &TransportKind, peer: &SegmentDescriptor) -> Result<Link, Violation> {
        let number = self.route(kind, peer).map_err(Violation::new)?.number;
        let wire = Arc::new(Wire::default());
        let way = {
            let mut inner = self.inner.lock();
            inner.next += 1;
            let way = inner.next;
            inner.wires.insert(way, wire.clone());
            way
        };
        let data = serde_json::json!({ "port": number, "wire": way });
        let descriptor = redescribe(peer, |builder| builder.data(kind.clone(), data))?;
        Ok(Link { descriptor: Arc::new(descriptor), control: wire })
    }
}
