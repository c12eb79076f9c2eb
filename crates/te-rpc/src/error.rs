//! What can go wrong, and whether trying again can help.

use std::{fmt, io, net::SocketAddr, time::Duration};

use te_segment::{Endpoint, Host};

use crate::{
    frame::{FrameKind, FrameReject},
    message::MessageError,
};

/// The step of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Turning the host name into addresses.
    Resolve,
    /// Establishing the connection.
    Connect,
    /// Sending the request.
    Send,
    /// Waiting for the reply and reading it.
    Receive,
    /// Understanding the reply.
    Decode,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Decode => "decode",
        })
    }
}

/// Why one address gave no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The operating system reported an error.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// Nothing came in time.
    #[error("no answer within {after:?}")]
    DeadlineExceeded {
        /// How long this address was tried.
        after: Duration,
    },
    /// The peer closed the connection before its reply was whole. Peers close on requests they do not know or refuse.
    #[error("closed by the peer without a reply")]
    Closed,
    /// What came is no control frame. Something else listens there, or the reply is over the limit.
    #[error("no control frame: {0}")]
    BadReply(#[source] FrameReject),
    /// The reply is about something else than the request.
    #[error("reply to a {sent} request is of kind {}", match .got { Some(kind) => kind.to_string(), None => "none".to_owned() })]
    WrongKind {
        /// Kind of the request.
        sent: FrameKind,
        /// Kind of the reply; [`None`] if it came in the old form without a kind.
        got: Option<FrameKind>,
    },
}

/// One address that was tried in vain.
#[derive(Debug, thiserror::Error)]
#[error("{address} {stage}: {cause}")]
pub struct Attempt {
    /// The address, after name resolution.
    pub address: SocketAddr,
    /// How far the call came.
    pub stage: Stage,
    /// What went wrong.
    #[source]
    pub cause: Cause,
}

impl Attempt {
    /// Whether the peer may have acted on the request.
    pub fn may_have_been_delivered(&self) -> bool {
        matches!(self.stage, Stage::Receive | Stage::Decode)
    }

    pub(crate) fn is_refusal(&self) -> bool {
        matches!(&self.cause, Cause::Io(error) if self.stage == Stage::Connect
            && error.kind() == io::ErrorKind::ConnectionRefused)
    }

    pub(crate) fn is_silence(&self) -> bool {
        match &self.cause {
            Cause::DeadlineExceeded { .. } => true,
            Cause::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
            ),
            _ => false,
        }
    }

    fn can_help(&self) -> bool {
        !matches!(self.cause, Cause::BadReply(_) | Cause::WrongKind { .. })
    }
}

/// Whether the same call may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It may: the cause lies in the network or in the state of the peer.
    CanHelp,
    /// It will not, as long as nobody changes the request, the address or the peer.
    Pointless,
}

/// Why a call or a listener failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The host name has no address.
    #[error("cannot resolve {endpoint}: {source}")]
    Resolve {
        /// Where the call should have gone.
        endpoint: Endpoint,
        /// What the resolver said; [`io::ErrorKind::TimedOut`] if it said nothing in time.
        source: io::Error,
    },
    /// No address of the endpoint gave a reply.
    #[error("{kind} request to {endpoint} failed: {}", Attempts(.attempts))]
    NoReply {
        /// Where the call should have gone.
        endpoint: Endpoint,
        /// What the request was about.
        kind: FrameKind,
        /// Every address that was tried, in order; never empty.
        attempts: Vec<Attempt>,
    },
    /// A reply came and its body cannot be understood.
    #[error("{kind} reply from {endpoint} is unusable: {source}")]
    Reply {
        /// Who answered.
        endpoint: Endpoint,
        /// What the request was about.
        kind: FrameKind,
        /// What is wrong with the body.
        source: MessageError,
    },
    /// The peer does not take the notification; reference engines do not say why.
    #[error("notification refused by {endpoint}")]
    NotifyRefused {
        /// Who refused.
        endpoint: Endpoint,
    },
    /// The request is larger than any peer accepts. Nothing was sent.
    #[error("{kind} request of {length} bytes to {endpoint} is over the limit of {limit}")]
    RequestTooLong {
        /// Where the call should have gone.
        endpoint: Endpoint,
        /// What the request is about.
        kind: FrameKind,
        /// Length of the request in bytes, kind byte included.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The listener cannot listen where it was told to.
    #[error("cannot listen on {host} port {port}: {source}")]
    Bind {
        /// The host as it was given.
        host: Host,
        /// The port; 0 if any would have done.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },
    /// Every port of the range is taken.
    #[error("no free port from {min} to {max} on {host}")]
    NoFreePort {
        /// The host as it was given.
        host: Host,
        /// First port of the range.
        min: u16,
        /// Last port of the range.
        max: u16,
    },
    /// The range has no port, or starts at 0.
    #[error("no ports from {min} to {max}")]
    PortRange {
        /// First port of the range.
        min: u16,
        /// Last port of the range.
        max: u16,
    },
    /// A listener was asked for outside an async runtime.
    #[error("no async runtime to listen on")]
    NoRuntime,
}

impl RpcError {
    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        let can_help = match self {
            Self::Resolve { .. }
            | Self::Bind { .. }
            | Self::NoFreePort { .. }
            | Self::NotifyRefused { .. } => true,
            Self::NoReply { attempts, .. } => attempts.iter().any(Attempt::can_help),
            Self::Reply { .. } | Self::RequestTooLong { .. } | Self::PortRange { .. } | Self::NoRuntime => {
                false
            }
        };
        if can_help { Retry::CanHelp } else { Retry::Pointless }
    }

    /// The step that failed last; [`None`] if no call was under way.
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Self::Resolve { .. } => Some(Stage::Resolve),
            Self::NoReply { attempts, .. } => attempts.last().map(|attempt| attempt.stage),
            Self::Reply { .. } | Self::NotifyRefused { .. } => Some(Stage::Decode),
            _ => None,
        }
    }

    /// The addresses that were tried in vain, in order.
    pub fn attempts(&self) -> &[Attempt] {
        match self {
            Self::NoReply { attempts, .. } => attempts,
            _ => &[],
        }
    }

    /// Whether every address refused the connection: nobody listens there.
    pub fn is_refused(&self) -> bool {
        let attempts = self.attempts();
        !attempts.is_empty() && attempts.iter().all(Attempt::is_refusal)
    }

    /// Whether some address stayed silent or could not be reached, so that the peer may well be alive.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Resolve { .. }) || self.attempts().iter().any(Attempt::is_silence)
    }

    /// Whether the peer took the request and closed without a reply, as peers do that do not know its kind.
    pub fn is_closed(&self) -> bool {
        matches!(self.attempts().last(), Some(Attempt { cause: Cause::Closed, .. }))
    }

    /// Whether a peer may have acted on the request although the call failed.
    pub fn may_have_been_delivered(&self) -> bool {
        match self {
            Self::Reply { .. } | Self::NotifyRefused { .. } => true,
            _ => self.attempts().iter().any(Attempt::may_have_been_delivered),
        }
    }
}

/// Shows attempts in one line.
pub(crate) struct Attempts<'a>(pub(crate) &'a [Attempt]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            attempt.fmt(f)?;
        }
        Ok(())
    }
}
