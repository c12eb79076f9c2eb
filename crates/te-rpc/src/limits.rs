//! How long and how large: the limits of listener and client.

use std::time::Duration;

use crate::{frame::MAX_FRAME, native::NativeLimits};

/// Limits of a listener or client. Every one is finite; none counts per byte, so a peer gains nothing by trickling.
///
/// ```
/// use te_rpc::RpcLimits;
/// let limits = RpcLimits { max_frame_strangers: 4 << 20, ..RpcLimits::default() };
/// assert_eq!(limits.max_connections, 4096);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcLimits {
    /// Largest request a listener accepts, in bytes with the kind byte. Default 1 MiB, which is the default of the
    /// reference engine in both directions; at most [`MAX_FRAME`].
    pub max_frame_strangers: usize,
    /// Largest reply a client accepts, in bytes with the kind byte. Default and maximum [`MAX_FRAME`].
    pub max_reply: usize,
    /// Longest connect to one address. Default 2 s.
    pub connect: Duration,
    /// Listener: longest time from the first byte of a request to the last byte of its reply, handler included.
    /// Client: longest time from an established connection to the last byte of the reply. Default 5 s.
    pub request: Duration,
    /// Longest time until the first byte of a request. Default 10 s.
    pub silent: Duration,
    /// Longest wait for the peer to close after the reply. Default 1 s.
    pub linger: Duration,
    /// Most connections of one listener, native ones included. Default 4,096.
    pub max_connections: usize,
    /// Most memory, in bytes, that the unfinished requests, the unsent replies and the native connections of one
    /// listener hold together; what does not fit is closed. The first 16 KiB of each are free, so that large ones cannot lock out small ones, and
    /// one that is larger than this passes alone. Default 256 MiB.
    pub max_buffered: usize,
    /// Limits of native connections.
    pub native: NativeLimits,
}

impl Default for RpcLimits {
    fn default() -> Self {
        Self {
            max_frame_strangers: 1 << 20,
            max_reply: MAX_FRAME,
            connect: Duration::from_secs(2),
            request: Duration::from_secs(5),
            silent: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            max_connections: 4096,
            max_buffered: 256 << 20,
            native: NativeLimits::default(),
        }
    }
}
