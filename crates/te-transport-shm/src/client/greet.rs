//! Connecting to a target, and the proof that both share the memory of one host.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use te_transport::FailureKind;

use super::line::Ties;
use super::peer::Peer;
use crate::error::denied;
use crate::frame::{Frame, VERSIONS};
use crate::page::{ControlPage, Nonce};
use crate::process::Process;
use crate::socket::{Packet, RecvError, Socket, is_trusted, wait};

/// Why there is no connection.
pub(super) type Refusal = (FailureKind, String);

/// Connects and greets, at most until the deadline. Slices that wait meanwhile are looked after.
pub(super) fn connect(peer: &Peer, deadline: Instant) -> Result<Ties, Refusal> {
    let (offer, common) = (peer.offer(), peer.common());
    let unreachable = |cause: String| (FailureKind::Unreachable, cause);
    let stopped = || {
        peer.sweep();
        common.is_closing()
    };
    let socket = Socket::connect(&offer.socket, deadline, &stopped).map_err(|error| {
        unreachable(match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "nobody on this host, or not in this network namespace, listens at socket {}",
                peer.label().detail()
            ),
            _ => format!("connecting to socket {}: {error}", peer.label().detail()),
        })
    })?;
    let credentials =
        socket.credentials().map_err(|error| unreachable(format!("who listens is unknown: {error}")))?;
    if !is_trusted(credentials) {
        let cause = format!("the peer runs as user {}, and only the same user is trusted", credentials.uid);
        return Err(unreachable(cause));
    }
    let protocol = |cause: &str| (FailureKind::Protocol, format!("the peer breaks the greeting: {cause}"));

    let (oldest, newest) = VERSIONS;
    let hello = Frame::Hello { oldest, newest, from: common.incarnation, to: offer.life };
    send(&socket, &hello)?;
    let welcome = next(peer, &socket, deadline)?;
    let (slots, buffers, witness, file) = match (welcome.frame, welcome.file) {
        (Frame::Welcome { version, slots, buffers, witness }, Some(file))
            if (oldest..=newest).contains(&version) =>
        {
            (slots, buffers, witness, file)
        }
        (Frame::Refused { denial }, _) => {
            let (kind, cause) = denied(denial);
            return Err((kind, cause.to_owned()));
        }
        _ => return Err(protocol("no welcome")),
    };
    let page = ControlPage::open(file.as_fd(), slots, buffers)
        .map_err(|cause| protocol(&format!("its control page is refused: {cause}")))?;
    let (theirs, own): (Nonce, Nonce) = (page.target_nonce(), rand::random());
    page.answer(&own);
    send(&socket, &Frame::Proof { nonce: theirs })?;
    match next(peer, &socket, deadline)?.frame {
        Frame::Proven { nonce } if nonce == own => {}
        Frame::Proven { .. } => return Err(protocol("it does not see the same page")),
        _ => return Err(protocol("no proof")),
    }
    let process = Process::open(credentials.pid)
        .and_then(|process| process.witness(witness, &theirs).map(|()| process));
    Ok(Ties::new(socket, page, credentials.pid, process))
}

fn send(socket: &Socket, frame: &Frame) -> Result<(), Refusal> {
    let lost = |error| (FailureKind::Unreachable, format!("the peer ended the greeting: {error}"));
    socket.send(frame, None).map_err(lost)
}

/// The next packet of the greeting.
fn next(peer: &Peer, socket: &Socket, deadline: Instant) -> Result<Packet, Refusal> {
    loop {
        match socket.recv() {
            Ok(packet) => return Ok(packet),
            Err(RecvError::Nothing) => {}
            Err(RecvError::Closed) => {
                return Err((FailureKind::Unreachable, "the peer ended the greeting".to_owned()));
            }
            Err(RecvError::Broken(cause)) => return Err((FailureKind::Protocol, cause)),
        }
        let look = peer.sweep();
        if peer.common().is_closing() {
            return Err((FailureKind::Shutdown, "the transport is shutting down".to_owned()));
        }
        if Instant::now() >= deadline {
            let cause = format!("the peer at socket {} does not answer the greeting", peer.label().detail());
            return Err((FailureKind::Unreachable, cause));
        }
        let until = look.map_or(deadline, |look| look.min(deadline));
        // A bell that rings before it is answered wakes at once; sweeping comes after that.
        let mut fds = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(peer.bell().as_fd(), PollFlags::IN),
        ];
        wait(&mut fds, Some(until + Duration::from_millis(1)))
            .map_err(|error| (FailureKind::Unreachable, error.to_string()))?;
        peer.bell().answer();
    }
}
