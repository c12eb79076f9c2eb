//! The traits a backend implements.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use te_memory::Region;
use te_segment::{BufferDescriptor, DescriptorBuilder, Incarnation, SegmentDescriptor, TransportKind, Via};
use thiserror::Error;

use crate::capability::{Capabilities, Fencing};
use crate::context::Context;
use crate::slice::{Submission, SubmitMode};

/// Answer of a transport to a registration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Registration {
    /// The region can be used; what peers need to know to reach it.
    Registered(Via),
    /// This transport does not serve such memory. Not a failure: others may.
    NotMine(String),
}

/// A registration, withdrawal or shutdown step failed.
#[derive(Debug, Error)]
#[error("{transport}: {operation} failed: {cause}")]
pub struct TransportError {
    /// Which transport.
    pub transport: TransportKind,
    /// What was attempted, for example `register`.
    pub operation: &'static str,
    /// Why, in one lower-case line.
    pub cause: String,
    /// Whether repeating the call can help.
    pub retryable: bool,
}

/// A transport could not be installed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InstallError {
    /// Something this host lacks: a library, a device, a permission.
    #[error("{transport} is unavailable: {missing}")]
    Unavailable {
        /// Which transport.
        transport: TransportKind,
        /// The missing piece and what would provide it.
        missing: String,
    },
    /// Set-up failed although everything is there.
    #[error("{transport} could not start: {cause}")]
    Failed {
        /// Which transport.
        transport: TransportKind,
        /// Why, in one lower-case line.
        cause: String,
    },
    /// A setting makes no sense.
    #[error("{transport}: invalid setting {key}: {cause}")]
    Config {
        /// Which transport.
        transport: TransportKind,
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        cause: String,
    },
}

/// A backend before it runs: built from its configuration, installed once into an engine.
pub trait Install: Send {
    /// Which transport this becomes.
    fn kind(&self) -> TransportKind;

    /// Starts the transport; its listeners accept before this returns.
    ///
    /// # Errors
    ///
    /// See [`InstallError`]; nothing is left running.
    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError>;

    /// Whether the engine starts without it where this host lacks something, as [`IfAvailable`] says.
    fn may_be_missing(&self) -> bool {
        false
    }
}

/// A transport that nobody asked for by name: an engine goes without it where it is [`InstallError::Unavailable`].
pub struct IfAvailable(pub Box<dyn Install>);

impl Install for IfAvailable {
    fn kind(&self) -> TransportKind {
        self.0.kind()
    }

    fn install(self: Box<Self>, context: &Context) -> Result<Arc<dyn Transport>, InstallError> {
        self.0.install(context)
    }

    fn may_be_missing(&self) -> bool {
        true
    }
}

/// Whether a peer can be reached, with the reason either way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Assessment {
    /// A path can be opened.
    Usable(String),
    /// No path: why.
    Unusable(String),
}

impl Assessment {
    /// Whether a path can be opened.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Usable(_))
    }

    /// The reason in words.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Usable(reason) | Self::Unusable(reason) => reason,
        }
    }
}

/// A running backend.
pub trait Transport: Send + Sync {
    /// Which transport this is.
    fn kind(&self) -> TransportKind;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Adds what peers need to reach this transport to the segment descriptor under construction.
    fn advertise(&self, builder: DescriptorBuilder) -> DescriptorBuilder;

    /// Makes a reserved region usable. Called before the region is served or published.
    ///
    /// # Errors
    ///
    /// When the region should have been registered but could not be; nothing of it remains.
    fn register(&self, region: &Region) -> Result<Registration, TransportError>;

    /// What peers need to know now to reach a region that was registered, where that may have changed since: keys of a device
    /// that was lost and came back. `None`: what [`register`](Self::register) has answered holds. Asked whenever a
    /// descriptor is made: no I/O.
    fn via(&self, region: &Region) -> Option<Via> {
        let _ = region;
        None
    }

    /// Gives up keys and handles of a blocked region. Repeatable: a call after success succeeds.
    ///
    /// # Errors
    ///
    /// When something could not be given up yet; the call may be repeated.
    fn unregister(&self, region: &Region) -> Result<(), TransportError>;

    /// Whether the peer can be reached, judged from its descriptor and from what [`prove`](Self::prove) found: no I/O.
    fn assess(&self, peer: &SegmentDescriptor) -> Assessment;

    /// As [`assess`](Self::assess), for one buffer of the peer. Transports that reach all buffers alike need not say more.
    fn assess_buffer(&self, peer: &SegmentDescriptor, buffer: &BufferDescriptor) -> Assessment {
        let _ = buffer;
        self.assess(peer)
    }

    /// Tries to prove by an exchange that the peer runs on this host, if this transport can. Blocks until there is an
    /// answer, at most until the deadline. A peer of which nothing was proven is not reached by a transport of
    /// [`Reach::Host`](crate::Reach::Host).
    ///
    /// # Errors
    ///
    /// Why it is not proven, in one lower-case line.
    fn prove(&self, peer: &Arc<SegmentDescriptor>, deadline: Instant) -> Result<(), String> {
        let _ = (peer, deadline);
        Err("this transport proves no locality".to_owned())
    }

    /// Whether [`prove`](Self::prove) has succeeded for this life of the peer: no I/O.
    fn has_proven(&self, peer: &SegmentDescriptor) -> bool {
        let _ = peer;
        false
    }

    /// Opens a path to the peer as described by this snapshot. No I/O; connections are made when needed. The
    /// path is pinned to the snapshot: a changed descriptor needs a new path.
    ///
    /// # Errors
    ///
    /// [`Assessment::Unusable`] as a reason in words.
    fn path(&self, peer: &Arc<SegmentDescriptor>) -> Result<Arc<dyn Path>, String>;

    /// Cuts off one life of a peer: its connections, queue pairs and mappings are closed, and when this returns nothing of
    /// what they carried touches memory here any more. The peer may connect anew. Repeatable.
    ///
    /// # Errors
    ///
    /// What may still touch memory at the deadline; the call may be repeated.
    fn fence(&self, peer: Incarnation, deadline: Instant) -> Result<(), TransportError>;

    /// Stops accepting, resolves everything in flight as `Shutdown` or better, and closes. Idempotent.
    ///
    /// # Errors
    ///
    /// What is still running at the deadline.
    fn shutdown(&self, deadline: Instant) -> Result<(), TransportError>;
}

/// A way to one peer over one transport.
pub trait Path: Send + Sync {
    /// How the path is called in errors and tables.
    fn label(&self) -> &Arc<PathLabel>;

    /// Executes the slices; outcomes go to their tokens. Never fails by itself: what cannot be accepted is
    /// resolved with a failure.
    fn submit(&self, submission: Submission, mode: SubmitMode);

    /// How older attempts are fenced on this path. A transport that can fence at te peers cannot at others.
    fn fencing(&self) -> Fencing;

    /// What is known of the path's state.
    fn health(&self) -> PathHealth;
}

/// What is known of a path's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathHealth {
    /// Open connections or queue pairs.
    pub connections: usize,
    /// Slices waiting or in flight.
    pub in_flight: usize,
    /// The last failure, if the last attempt failed.
    pub last_failure: Option<String>,
}

/// How a path is called in errors and tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathLabel {
    transport: TransportKind,
    detail: String,
}

impl PathLabel {
    /// `detail` names the endpoints or devices, for example `10.0.0.3:16411 v2`.
    #[must_use]
    pub fn new(transport: TransportKind, detail: impl Into<String>) -> Self {
        Self { transport, detail: detail.into() }
    }

    /// Which transport.
    #[must_use]
    pub fn transport(&self) -> &TransportKind {
        &self.transport
    }

    /// The endpoints or devices.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for PathLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.detail)
    }
}
