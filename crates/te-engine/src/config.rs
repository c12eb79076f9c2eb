//! What an engine is told at its start.

use te_rpc::PortChoice;
use te_segment::{Host, SegmentName};
use te_transport::PortRange;

use crate::limits::Limits;

/// How the engine's segment is named.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Naming {
    /// A name in a metadata store.
    Store(SegmentName),
    /// `host:port` of the control endpoint: peers ask the engine itself.
    Peer,
}

/// What an engine is told at its start. Nothing is read from the environment.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How the segment is named.
    pub naming: Naming,
    /// The address peers are told. Never a wildcard.
    pub advertise: Host,
    /// The address listeners bind; the advertised one unless given.
    pub bind: Option<Host>,
    /// The port of the control listener.
    pub control_port: PortChoice,
    /// Ports for the listeners of transports.
    pub ports: PortRange,
    /// Limits.
    pub limits: Limits,
}

impl EngineConfig {
    /// A configuration with default limits and ports, listening where it advertises.
    #[must_use]
    pub fn new(naming: Naming, advertise: Host) -> Self {
        let ports = PortRange::default();
        Self {
            naming,
            advertise,
            bind: None,
            control_port: PortChoice::Free { min: ports.min, max: ports.max },
            ports,
            limits: Limits::default(),
        }
    }
}
