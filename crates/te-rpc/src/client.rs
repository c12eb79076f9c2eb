//! One request, one reply.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use te_segment::Endpoint;
use tokio::{
    net::TcpStream,
    time::{timeout, timeout_at},
};

use crate::{
    error::{Attempt, Cause, RpcError, Stage},
    frame::{FrameDecoder, FrameKind, MAX_FRAME},
    limits::RpcLimits,
    message::{ConnectionBody, MessageError, NotifyBody, ProbeReply, probe_request},
    net::{self, Incoming, ReadError},
};

/// Sends control requests. Holds no connection and no state: every call connects, asks, reads and closes.
///
/// A host name may have several addresses; they are tried in order, each at most [`RpcLimits::connect`] for the
/// connection and [`RpcLimits::request`] for the rest, all together until the deadline. Once a whole request was
/// sent, a further address is tried only for kinds that may be repeated (metadata, probe): a notification is
/// delivered at most once.
///
/// Dropping a call closes its connection.
#[derive(Clone, Debug, Default)]
pub struct RpcClient {
    limits: RpcLimits,
}

impl RpcClient {
    /// A client with these limits.
    pub fn new(limits: RpcLimits) -> Self {
        Self { limits }
    }

    /// The limits.
    pub fn limits(&self) -> &RpcLimits {
        &self.limits
    }

    /// Sends a request and gives the body of its reply, unchecked. Must run inside a tokio runtime with I/O and time.
    ///
    /// # Errors
    ///
    /// [`RpcError::NoReply`] names every address tried and how far each came; it ends at `deadline` at the latest.
    pub async fn call(
        &self,
        to: &Endpoint,
        kind: FrameKind,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, RpcError> {
        let length = body.len().saturating_add(1);
        if length > MAX_FRAME {
            return Err(RpcError::RequestTooLong { endpoint: to.clone(), kind, length, limit: MAX_FRAME });
        }
        let resolved = timeout_at(deadline.into(), net::resolve(to.host(), to.port())).await;
        let addresses = resolved
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|source| RpcError::Resolve { endpoint: to.clone(), source })?;
        self.call_any(to, &addresses, kind, body, deadline).await
    }

    /// Tries the addresses of `to` in order.
    async fn call_any(
        &self,
        to: &Endpoint,
        addresses: &[SocketAddr],
        kind: FrameKind,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, RpcError> {
        let mut attempts = Vec::new();
        for &address in addresses {
            match self.attempt(address, kind, body, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(attempt) => {
                    tracing::debug!(target: "te::rpc", endpoint = %to, %kind, %attempt, "no reply");
                    let ended = attempt.may_have_been_delivered() && !kind.is_idempotent();
                    attempts.push(attempt);
                    if ended || Instant::now() >= deadline {
                        break;
                    }
                }
            }
        }
        Err(RpcError::NoReply { endpoint: to.clone(), kind, attempts })
    }

    /// Asks whether the peer is alive. A peer that answers handles requests; one that predates this kind closes
    /// instead ([`RpcError::is_closed`]), so a failure alone does not prove that it is dead.
    pub async fn probe(&self, to: &Endpoint, deadline: Instant) -> Result<ProbeReply, RpcError> {
        let reply = self.call(to, FrameKind::Probe, &probe_request(), deadline).await?;
        ProbeReply::decode(&reply).map_err(unusable(to, FrameKind::Probe))
    }

    /// Delivers a notification, at most once. An error does not say that it was not delivered; see
    /// [`RpcError::may_have_been_delivered`].
    pub async fn notify(&self, to: &Endpoint, body: &NotifyBody, deadline: Instant) -> Result<(), RpcError> {
        let reply = self.call(to, FrameKind::Notify, &body.encode(), deadline).await?;
        let reply = NotifyBody::decode(&reply).map_err(unusable(to, FrameKind::Notify))?;
        if reply.is_accepted() { Ok(()) } else { Err(RpcError::NotifyRefused { endpoint: to.clone() }) }
    }

    /// Sets up a connection of a transport. A refusal is a reply; see [`ConnectionBody::rejection`].
    pub async fn connect(
        &self,
        to: &Endpoint,
        body: &ConnectionBody,
        deadline: Instant,
    ) -> Result<ConnectionBody, RpcError> {
        let reply = self.call(to, FrameKind::Connection, &body.encode(), deadline).await?;
        ConnectionBody::decode(&reply).map_err(unusable(to, FrameKind::Connection))
    }

    async fn attempt(
        &self,
        address: SocketAddr,
        kind: FrameKind,
        body: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, Attempt> {
        let started = Instant::now();
        let failed = |stage, cause| Attempt { address, stage, cause };
        let late = |stage| failed(stage, Cause::DeadlineExceeded { after: started.elapsed() });

        let left = deadline.saturating_duration_since(started);
        let mut stream = timeout(left.min(self.limits.connect), TcpStream::connect(address))
            .await
            .map_err(|_| late(Stage::Connect))?
            .map_err(|error| failed(Stage::Connect, Cause::Io(error)))?;
        // Small messages must not wait for each other; if the option cannot be set, they only come later.
        stream.set_nodelay(true).ok();

        let until = deadline.min(after(Instant::now(), self.limits.request)).into();
        timeout_at(until, net::write_frame(&mut stream, kind, false, body))
            .await
            .map_err(|_| late(Stage::Send))?
            .map_err(|error| failed(Stage::Send, Cause::Io(error)))?;

        let mut decoder = FrameDecoder::new(self.limits.max_reply);
        let incoming = timeout_at(until, net::read_frame(&stream, &mut decoder, |_| true))
            .await
            .map_err(|_| late(Stage::Receive))?
            .map_err(|error| failed(Stage::Receive, error.into()))?;
        // This decoder takes no preamble for anything but an impossible length.
        let Incoming::Frame(frame) = incoming else { return Err(failed(Stage::Receive, Cause::Closed)) };
        let got = (!frame.legacy).then_some(frame.kind);
        if got != Some(kind) {
            return Err(failed(Stage::Receive, Cause::WrongKind { sent: kind, got }));
        }
        Ok(frame.body)
    }
}

impl From<ReadError> for Cause {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Io(error),
            ReadError::Reject(reject) => Self::BadReply(reject),
            // The client never says no to its own memory.
            ReadError::Closed | ReadError::OverBudget => Self::Closed,
        }
    }
}

fn unusable(to: &Endpoint, kind: FrameKind) -> impl FnOnce(MessageError) -> RpcError {
    let endpoint = to.clone();
    move |source| RpcError::Reply { endpoint, kind, source }
}

/// `start + span`, or an hour later if that does not fit the clock.
pub(crate) fn after(start: Instant, span: Duration) -> Instant {
    start.checked_add(span).unwrap_or_else(|| start + Duration::from_secs(3600))
}

#[cfg(test)]
mod tests;
