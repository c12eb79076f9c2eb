//! The engine's limits, with their defaults. Beyond each there is a clear error, never a stall.

use std::time::Duration;

/// Limits of one engine. Times are upper bounds for one step, not for a whole call, unless stated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Deadline of a batch that states none. Default 30 s.
    pub request_deadline: Duration,
    /// How long an attempt of a request may be without progress before the next path is tried. Default 5 s.
    pub silence: Duration,
    /// Connecting to a peer's control endpoint. Default 2 s.
    pub connect: Duration,
    /// One control request, from connect to answer, and one call of a metadata store. Default 5 s.
    pub control_request: Duration,
    /// How long a withdrawal waits for requests that use the memory, where the caller states nothing. Default 5 s.
    pub drain: Duration,
    /// How long a withdrawal waits for its announcement before it goes on. Default 1 s.
    pub announce: Duration,
    /// How long what is published outlives this process. Default 10 s.
    pub lease_ttl: Duration,
    /// Requests in one batch. Default 65,536.
    pub batch: usize,
    /// Registered regions. Default 1,000,000.
    pub regions: usize,
    /// Bytes of a notification, name and message together. Default 64 KiB.
    pub notify_payload: usize,
    /// Notifications received and not yet taken. Default 4,096.
    pub notify_queue: usize,
    /// A control frame from a peer nothing is known of, in bytes. Default 1 MiB.
    pub control_frame: usize,
    /// Connections of the control listener. Default 4,096.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_deadline: Duration::from_secs(30),
            silence: Duration::from_secs(5),
            connect: Duration::from_secs(2),
            control_request: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            announce: Duration::from_secs(1),
            lease_ttl: Duration::from_secs(10),
            batch: 65_536,
            regions: 1_000_000,
            notify_payload: 64 << 10,
            notify_queue: 4_096,
            control_frame: 1 << 20,
            connections: 4_096,
        }
    }
}
