//! Opens native connections.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
    time::timeout_at,
};

use super::{
    client::Target,
    close::{CloseReason, Violation},
    codec::PREAMBLE,
    error::DialError,
    frame::{PeerId, RefuseReason},
    handler::NativeHandler,
    limits::NativeLimits,
    machine::ControlMachine,
    peer::{Link, NativePeer},
    session::Session,
};
use crate::{
    client::after,
    error::{Attempt, Cause, Stage},
    net,
};

pub(crate) struct Dialer {
    pub(crate) handler: Arc<dyn NativeHandler>,
    pub(crate) limits: NativeLimits,
    pub(crate) closing: watch::Receiver<bool>,
}

/// Why one address gave no connection.
enum Missed {
    /// The next address may do.
    Next(Attempt),
    /// Somebody answered, so there is nothing to look for at other addresses.
    Ended(DialError),
}

impl Dialer {
    /// Tries the addresses of the target in order.
    pub(crate) async fn dial(&self, to: &Target, deadline: Instant) -> Result<NativePeer, DialError> {
        let resolved =
            timeout_at(deadline.into(), net::resolve(to.endpoint.host(), to.endpoint.port())).await;
        let addresses = resolved
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(DialError::Resolve)?;
        let mut attempts = Vec::new();
        for address in addresses {
            match self.attempt(to, address, deadline).await {
                Ok(peer) => return Ok(peer),
                Err(Missed::Ended(error)) => return Err(error),
                Err(Missed::Next(attempt)) => {
                    tracing::debug!(target: "te::rpc", endpoint = %to.endpoint, %attempt, "no native connection");
                    attempts.push(attempt);
                    if Instant::now() >= deadline {
                        break;
                    }
                }
            }
        }
        Err(DialError::Unreachable { attempts })
    }

    async fn attempt(
        &self,
        to: &Target,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<NativePeer, Missed> {
        let started = Instant::now();
        let failed = |stage, cause| Missed::Next(Attempt { address, stage, cause });
        let late = |stage| failed(stage, Cause::DeadlineExceeded { after: started.elapsed() });

        let until = deadline.min(after(started, self.limits.connect));
        let stream = timeout_at(until.into(), TcpStream::connect(address))
            .await
            .map_err(|_| late(Stage::Connect))?
            .map_err(|error| failed(Stage::Connect, Cause::Io(error)))?;
        // Small messages must not wait for each other; if the option cannot be set, they only come later.
        stream.set_nodelay(true).ok();

        let until = deadline.min(after(Instant::now(), self.limits.handshake));
        let (link, opened) = self.start(to, address, stream);
        match timeout_at(until.into(), opened).await {
            Ok(Ok(Ok(id))) => Ok(NativePeer { link, id: Arc::new(id), address }),
            Ok(Ok(Err(CloseReason::NoHandshake))) => Err(late(Stage::Receive)),
            Ok(Ok(Err(reason))) => Err(Missed::Ended(why(to, address, reason))),
            Ok(Err(_)) => Err(failed(Stage::Receive, Cause::Closed)),
            Err(_) => Err(late(Stage::Receive)),
        }
    }

    /// Starts the task of a connection. It ends by itself if nobody waits for the handshake any more.
    fn start(
        &self,
        to: &Target,
        address: SocketAddr,
        mut stream: TcpStream,
    ) -> (Arc<Link>, oneshot::Receiver<Result<PeerId, CloseReason>>) {
        let limits = self.limits.clone();
        let local = self.handler.identity();
        let machine = ControlMachine::open(local, to.expects.clone(), limits.clone(), Instant::now());
        let (sender, opened) = oneshot::channel();
        let link = Arc::new(Link::new(machine, &PREAMBLE, limits.clone(), Some(sender)));
        let (handler, closing) = (Arc::clone(&self.handler), self.closing.clone());
        let session_link = Arc::clone(&link);
        tokio::spawn(async move {
            // Nobody knocks on a connection that we opened.
            let admit = || false;
            let session = Session {
                link: session_link,
                handler,
                address,
                limits,
                charge: None,
                closing,
                admit: &admit,
            };
            let reason = session.run(&mut stream, &[]).await;
            tracing::debug!(target: "te::rpc", peer = %address, %reason, "native connection ended");
        });
        (link, opened)
    }
}

fn why(to: &Target, address: SocketAddr, reason: CloseReason) -> DialError {
    match (reason, to.expects.incarnation) {
        (CloseReason::Refused(RefuseReason::StaleIncarnation { now }), Some(expected)) => {
            DialError::StaleIncarnation { expected, now }
        }
        (CloseReason::Refused(reason), _) => DialError::Refused(reason),
        (CloseReason::Lost { .. }, _) => DialError::NotNative { address, answer: None },
        (CloseReason::Violation(Violation::Reject(reject)), _) => {
            DialError::NotNative { address, answer: Some(reject) }
        }
        (reason, _) => DialError::Handshake(reason),
    }
}
