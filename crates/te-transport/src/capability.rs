//! What a transport can do, as data: selection and the conformance suite read it, nothing downcasts.

/// How far a transport reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Within this process only.
    Process,
    /// Processes of one host; locality must be proven by an exchange before use.
    Host,
    /// Any peer that a network address reaches.
    Network,
}

/// How an older attempt of a WRITE is kept from taking effect after a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// The local side can stop an attempt; what is on the wire or in the peer may still be applied.
    LocalOnly,
    /// The local side does all of it: an attempt that has ended here has no effect anywhere any more. Such a path never
    /// reports [`MayStillApply`](crate::RemoteEffect::MayStillApply).
    Immediate,
    /// The target refuses older attempts and acknowledges that it does.
    Target,
}

/// What a transport can do. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Remote-to-local transfers.
    pub read: bool,
    /// Local-to-remote transfers.
    pub write: bool,
    /// Host memory on the local side.
    pub host_memory: bool,
    /// Device memory on the local side.
    pub device_memory: bool,
    /// Largest slice accepted; larger requests are cut by the engine.
    pub max_slice: u64,
    /// How far it reaches.
    pub reach: Reach,
    /// How attempts are fenced.
    pub fencing: Fencing,
    /// Whether the target checks incarnation and generation of each request.
    pub checks_identity: bool,
    /// Whether registering only notes the region and pins or maps nothing: the engine then asks on the caller's thread and
    /// spares it the change to another.
    pub registers_at_once: bool,
}
