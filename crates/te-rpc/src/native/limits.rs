//! How many, how large and how long: the limits of native connections.

use std::time::Duration;

/// The versions of the native protocol that one side speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest; the one this side offers.
    pub newest: u16,
}

impl Versions {
    /// What this build speaks. A build that adds a version keeps the one before it.
    pub const CURRENT: Self = Self { oldest: 1, newest: 1 };

    /// What both speak, given the newest that the other side offers: the lower of the two newest, unless that is too
    /// old for this side.
    pub fn agree(self, offered: u16) -> Option<u16> {
        let version = offered.min(self.newest);
        self.contains(version).then_some(version)
    }

    pub(crate) fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

/// Limits of native connections, of those a listener takes and of those a client opens. Every one is finite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NativeLimits {
    /// Versions to speak. Anything but the default is for tests.
    pub versions: Versions,
    /// Client: longest connect to one address. Default 2 s.
    pub connect: Duration,
    /// Longest time until the handshake is over, the answer of [`welcome`](super::NativeHandler::welcome) included.
    /// Default 5 s.
    pub handshake: Duration,
    /// Longest time a handler may take for one request; then the connection is closed. Default 5 s.
    pub request: Duration,
    /// Time without a frame from the peer after which it is probed. Default 5 s.
    pub idle: Duration,
    /// Time after that probe without any frame, after which the connection is closed. Default 5 s.
    pub silent: Duration,
    /// Time in which the peer takes none of the bytes that wait for it, after which the connection is closed.
    /// Default 5 s.
    pub stall: Duration,
    /// Longest wait for the peer to take the last words and close. Default 1 s.
    pub linger: Duration,
    /// Most requests of one connection without an answer, in each direction. Ours beyond it fail at once; for the
    /// peer's we stop reading. Default 4,096.
    pub max_pending: usize,
    /// Most bytes of one connection that wait to be sent. Requests beyond it wait, answers beyond it close the
    /// connection: their peer asks and does not read. Default 4 MiB.
    pub max_queued: usize,
    /// Client: most endpoints with a connection. Default 16,384.
    pub max_peers: usize,
    /// Client: longest pause after the first failed connection. Each further failure doubles it, and chance takes off
    /// up to a half. Default 50 ms.
    pub first_pause: Duration,
    /// Client: the pause stops growing here. Default 2 s.
    pub last_pause: Duration,
}

impl Default for NativeLimits {
    fn default() -> Self {
        Self {
            versions: Versions::CURRENT,
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            request: Duration::from_secs(5),
            idle: Duration::from_secs(5),
            silent: Duration::from_secs(5),
            stall: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            max_pending: 4096,
            max_queued: 4 << 20,
            max_peers: 16_384,
            first_pause: Duration::from_millis(50),
            last_pause: Duration::from_secs(2),
        }
    }
}
