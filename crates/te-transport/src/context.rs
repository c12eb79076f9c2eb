//! What the engine hands to a transport.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use te_memory::RegionTable;
use te_segment::{Endpoint, Host, Incarnation, SegmentDescriptor, SegmentName};
use thiserror::Error;

use crate::admission::Admission;

/// A boxed future that can be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Ports a listener may take, inclusive. The reference engine's range is 15000 to 17000 (wire spec, RPC port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest port.
    pub min: u16,
    /// Highest port.
    pub max: u16,
}

impl Default for PortRange {
    fn default() -> Self {
        Self { min: 15_000, max: 17_000 }
    }
}

/// What the engine hands to a transport at installation.
#[derive(Clone)]
pub struct Context {
    /// How peers find the engine: its segment's name.
    pub name: SegmentName,
    /// This life of the engine.
    pub incarnation: Incarnation,
    /// The regions peers may reach; every remote request is checked against it.
    pub regions: RegionTable,
    /// The address listeners bind.
    pub bind: Host,
    /// The address peers are told. Never a wildcard.
    pub advertise: Host,
    /// Ports for listeners.
    pub ports: PortRange,
    /// Reaches peers for set-up.
    pub bootstrap: Arc<dyn Bootstrap>,
    /// Asked before a request of a te peer touches memory.
    pub admission: Arc<dyn Admission>,
    /// Told when what peers are told has changed.
    pub publisher: Arc<dyn Publisher>,
}

/// Has the engine's descriptor made and published anew.
pub trait Publisher: Send + Sync {
    /// What [`Transport::advertise`](crate::Transport::advertise) or [`Transport::via`](crate::Transport::via) answers has
    /// changed, by itself: a network card has another address, or other keys. What is served from now on has it, and it is
    /// published soon, together with other changes. Never waits, and can be called at any time from any thread, but not
    /// with a lock held that those two take.
    fn changed(&self);
}

/// Publishes nothing: for transports that run without an engine, as in tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpublished;

impl Publisher for Unpublished {
    fn changed(&self) {}
}

/// An exchange with a peer failed.
#[derive(Debug, Error)]
#[error("bootstrap with {peer} failed: {cause}")]
pub struct BootstrapError {
    /// The control endpoint tried.
    pub peer: Endpoint,
    /// Why, in one lower-case line.
    pub cause: String,
    /// Whether repeating can help.
    pub retryable: bool,
}

/// Nobody can say where a peer takes control requests.
#[derive(Debug, Error)]
#[error("no control endpoint of {segment}: {cause}")]
pub struct LocateError {
    /// The name in the peer's descriptor.
    pub segment: SegmentName,
    /// Why, in one lower-case line.
    pub cause: String,
    /// Whether repeating can help.
    pub retryable: bool,
}

/// The protocol of RDMA handshakes, which reference engines speak too.
///
/// A message of this protocol is the connection object of the reference engine itself, a JSON text. It goes over the wire
/// as it is, in both directions, and so does its answer; whether that refuses is said inside. Messages of all other
/// protocols, and their refusals, are wrapped, and only te engines understand them. It follows:
///
/// * [`Bootstrap::exchange`] ignores the device path. Whatever a peer answers is returned: also the empty object of an
///   engine without such a transport, and `null` of one that takes no connections at all.
/// * The handler gets all connection objects whose `local_nic_path` is `server@nic`, the asked one's `peer_nic_path` as
///   device path. Nothing in them says reliably where the sender takes control requests: `from` is the address and port
///   that the connection came from, where nobody listens.
/// * `None` from the handler is answered as if there were no handler: with the empty object.
pub const RDMA_PROTOCOL: &str = "rdma";

/// Answers set-up messages of peers for one protocol, any number at the same time.
///
/// Answers are awaited on the engine's control runtime, which serves all peers: what takes a while belongs on a thread of
/// the transport. The future is dropped, at any of its await points, when the request runs out of time or the engine
/// ends; the peer then gets no answer. It must not wait for an exchange with another peer: rings of engines that do so
/// can wait for each other.
pub trait BootstrapHandler: Send + Sync {
    /// Answers one message; `None` refuses it.
    fn answer<'a>(
        &'a self,
        from: &'a Endpoint,
        device_path: &'a str,
        message: &'a [u8],
    ) -> BoxFuture<'a, Option<Vec<u8>>>;
}

/// The only way a transport reaches peers for set-up: one message, one answer, over the engine's listener. The futures can
/// be awaited from any executor, and end what they do when they are dropped.
pub trait Bootstrap: Send + Sync {
    /// Says where the peer of this descriptor takes control requests: its own statement, or, where there is none, what is
    /// published beside it.
    ///
    /// # Errors
    ///
    /// When neither is there, or the directory did not answer by the deadline.
    fn locate<'a>(
        &'a self,
        peer: &'a SegmentDescriptor,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Endpoint, LocateError>>;

    /// Sends `message` to the handler of `protocol` at the peer and returns its answer.
    ///
    /// # Errors
    ///
    /// When there is no answer by the deadline, or the peer refuses; a refusal of [`RDMA_PROTOCOL`] is an answer.
    fn exchange<'a>(
        &'a self,
        peer: &'a Endpoint,
        protocol: &'a str,
        device_path: &'a str,
        message: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<u8>, BootstrapError>>;

    /// Installs the handler of `protocol`. The first one stays; returns whether this one was installed. It is kept as long
    /// as this is: a handler that owns its transport, and with it the [`Context`], keeps both for ever.
    fn handle(&self, protocol: &str, handler: Arc<dyn BootstrapHandler>) -> bool;
}
