//! Moves large blocks of memory between the processes that own them.
//!
// The program in it needs both features to run.
#![cfg_attr(all(feature = "tcp", feature = "p2p"), doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod address;
pub mod blocking;
mod builder;
pub mod features;
pub mod metadata;
pub mod settings;

pub use builder::{EngineBuilder, builder};
pub use te_engine::{
    AttemptReport, Batch, BatchBuilder, BatchOutcome, BatchStatus, Buffer, Deadline, Engine, EngineMetrics,
    Error, ErrorKind, Expectation, Expected, LifeCause, LocalSlice, Notification, NotifyOutcome, PathCircuit,
    PathCircuitState, PeerLife, PeerState, PeerWatch, ProbeReport, RegisterFailed, RegisterProgress,
    RemoteRange, Report, RequestReport, Result, Retry, Segment, ShutdownReport, TransportMetrics,
    UnregisterFailed, block_on,
};
pub use te_memory::{Memory, Sharing};
pub use te_segment::{
    Access, AddressRange, Endpoint, Host, Location, NicName, SegmentDescriptor, SegmentName, TransportKind,
};
pub use te_select::{Plan, Policy, Verdict};
pub use te_transport::{Op, RemoteEffect};
pub use te_transport_local::LocalGroup;
