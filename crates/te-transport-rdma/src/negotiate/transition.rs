//! Why a queue pair could not be moved to its next state.

use std::fmt;

use te_segment::Gid;

use super::{Mtu, PeerAddress};

/// States of a queue pair on its way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueState {
    /// As created.
    Reset,
    /// Bound to a port.
    Init,
    /// Ready to receive: bound to the peer's queue pair.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Broken or flushed.
    Error,
}

impl fmt::Display for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Init => "init",
            Self::ReadyToReceive => "ready to receive",
            Self::ReadyToSend => "ready to send",
            Self::Error => "error",
        })
    }
}

/// A transition that the device or its driver refused, with everything that it can have been about (RDMA-14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionError {
    /// The NIC here.
    pub nic: String,
    /// The peer's NIC.
    pub peer: String,
    /// The queue pair here.
    pub queue_pair: u32,
    /// The state it is in.
    pub from: QueueState,
    /// The state it was to take.
    pub to: QueueState,
    /// The error number of the call.
    pub errno: i32,
    /// The path MTU asked for, and the active MTU of the port.
    pub mtu: (Mtu, Mtu),
    /// The address here, with its index in the port's table.
    pub local: (Gid, u16),
    /// The peer's address.
    pub remote: PeerAddress,
    /// The peer's queue pair.
    pub remote_queue_pair: u32,
}

impl TransitionError {
    /// What the error number mostly means at this transition.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match (self.errno, self.to) {
            (libc_errno::EINVAL, _) if self.mtu.0 > self.mtu.1 => {
                "the path mtu is larger than the port's active mtu (mtu)"
            }
            (libc_errno::EINVAL, QueueState::ReadyToReceive) => {
                "the gid at this index cannot reach the peer's: wrong index, kind or subnet (gid_index)"
            }
            (libc_errno::EINVAL, QueueState::Init) => {
                "the port or pkey index does not exist (port, pkey_index)"
            }
            (libc_errno::EINVAL, _) => "an attribute is out of the device's range",
            (libc_errno::ENETUNREACH | libc_errno::EHOSTUNREACH, _) => {
                "no route to the peer's gid in this network namespace"
            }
            (libc_errno::ETIMEDOUT, _) => "the peer's address was not resolved: is it on this network?",
            (libc_errno::ENODATA, _) => "the gid table has no usable entry in this network namespace",
            (libc_errno::ENODEV, _) => "the device is gone",
            (libc_errno::ENOMEM | libc_errno::EAGAIN, _) => {
                "the device is out of resources: fewer endpoints (endpoints)"
            }
            _ => "see the kernel log",
        }
    }

    /// Whether trying again can help without a change of set-up.
    #[must_use]
    pub fn retryable(&self) -> bool {
        matches!(self.errno, libc_errno::ETIMEDOUT | libc_errno::ENOMEM | libc_errno::EAGAIN)
    }
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "queue pair {} of {} toward {} could not go from {} to {}: error {}, {}; path mtu {} (port {}), gid {} \
             (index {}), peer ",
            self.queue_pair,
            self.nic,
            self.peer,
            self.from,
            self.to,
            self.errno,
            self.hint(),
            self.mtu.0,
            self.mtu.1,
            self.local.0,
            self.local.1,
        )?;
        match self.remote.gid {
            Some(gid) => write!(f, "gid {gid}")?,
            None => f.write_str("without gid")?,
        }
        write!(f, " lid {} queue pair {}", self.remote.lid, self.remote_queue_pair)
    }
}

impl std::error::Error for TransitionError {}

/// Error numbers of Linux, where these devices are.
mod libc_errno {
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const ENETUNREACH: i32 = 101;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const EHOSTUNREACH: i32 = 113;
}
