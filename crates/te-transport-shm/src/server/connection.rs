//! One connection of a peer, from its hello to its end.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use te_segment::Incarnation;

use super::Shared;
use super::attach::Numbers;
use crate::counters::add;
use crate::frame::{Denial, Frame, VERSIONS};
use crate::hold::{self, Words};
use crate::page::{ControlPage, Nonce};
use crate::process::Process;
use crate::socket::{RecvError, Socket, wait};

/// How often a peer that broke the protocol is looked at until it copies nothing any more.
const LOOK: Duration = Duration::from_millis(5);

/// A greeted connection.
pub(super) struct Connection {
    peer: Incarnation,
    pid: i32,
    /// Tells of the end of the peer's process even if somebody else keeps its socket open.
    process: Option<Process>,
    pub(super) socket: Socket,
    pub(super) page: ControlPage,
    pub(super) numbers: Mutex<Numbers>,
    /// Read by the peer, to find out whether it may read this process.
    _witness: Box<Nonce>,
    ended: AtomicBool,
}

impl Connection {
    pub(super) fn peer(&self) -> Incarnation {
        self.peer
    }

    /// Revokes one buffer; its number, if the peer has one for it.
    pub(super) fn revoke(&self, generation: u64) -> Option<u32> {
        let buffer = self.numbers.lock().of(generation)?;
        hold::revoke(&self.page, buffer);
        // A peer that has no room for it finds out by the page.
        let _ = self.socket.try_send(&Frame::Withdrawn { generation }, None);
        Some(buffer)
    }

    pub(super) fn revoke_all(&self) {
        hold::close(&self.page);
    }

    /// Ends it; the thread that serves it finds out.
    pub(super) fn cut(&self) {
        self.socket.close();
    }

    /// Whether the peer may be copying that buffer, or any.
    pub(super) fn is_copying(&self, buffer: Option<(u64, u32)>) -> bool {
        if self.is_over() {
            return false;
        }
        match buffer {
            None => hold::copying(&self.page, None) > 0,
            Some((generation, number)) => {
                // The number may serve another buffer once the peer has given it back.
                hold::copying(&self.page, Some(number)) > 0
                    && self.numbers.lock().of(generation) == Some(number)
            }
        }
    }

    /// Whether the peer can copy nothing any more, because it has let go of its socket or its process has ended.
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
            || self.socket.has_hung_up()
            || self.process.as_ref().is_some_and(|process| !process.lives())
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (incarnation {})", self.pid, self.peer)
    }
}

/// Greets and serves one connection, which is counted as a stranger.
pub(super) fn serve(shared: &Arc<Shared>, socket: Socket, pid: i32) {
    let until = Instant::now() + shared.config.silent_timeout;
    let greeted = greet(shared, socket, pid, until);
    let (connection, number) = {
        let mut open = shared.open.lock();
        open.strangers -= 1;
        let Some(connection) = greeted.map(Arc::new) else {
            drop(open);
            return add(&shared.counters.turned_away, 1);
        };
        let number = open.next;
        open.next += 1;
        open.greeted.insert(number, connection.clone());
        (connection, number)
    };
    add(&shared.counters.accepted, 1);
    let welcome = Frame::Proven { nonce: connection.page.initiator_nonce() };
    // Whoever stops this side looks for connections after saying so: one of the two sees the other.
    if !shared.is_stopping() && connection.socket.send(&welcome, None).is_ok() {
        answer(shared, &connection);
    }
    settle(&connection);
    connection.ended.store(true, Ordering::Release);
    shared.open.lock().greeted.remove(&number);
}

/// The next frame. Frames from initiators carry no files: the socket has refused those.
fn next(shared: &Shared, socket: &Socket, until: Option<Instant>) -> Result<Frame, RecvError> {
    loop {
        match socket.recv() {
            Err(RecvError::Nothing) => {
                if shared.is_stopping() || until.is_some_and(|until| Instant::now() >= until) {
                    return Err(RecvError::Nothing);
                }
                let mut fds = [
                    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(shared.bell.as_fd(), PollFlags::IN),
                ];
                wait(&mut fds, until).map_err(|error| RecvError::Broken(error.to_string()))?;
            }
            outcome => return outcome.map(|packet| packet.frame),
        }
    }
}

/// Hello, page, proof. Until the proof is there, the peer can use nothing.
fn greet(shared: &Shared, socket: Socket, pid: i32, until: Instant) -> Option<Connection> {
    let Ok(Frame::Hello { oldest, newest, from, to }) = next(shared, &socket, Some(until)) else {
        return None;
    };
    let denial = if to != shared.incarnation {
        Some(Denial::StaleIncarnation)
    } else if newest < VERSIONS.0 || oldest > VERSIONS.1 || oldest > newest {
        Some(Denial::Version)
    } else {
        None
    };
    if let Some(denial) = denial {
        // A peer that does not hear it finds the socket closed.
        let _ = socket.send(&Frame::Refused { denial }, None);
        return None;
    }
    let nonce: Box<Nonce> = Box::new(rand::random());
    let (page, file): (_, OwnedFd) = match ControlPage::create(shared.config.max_buffers, &nonce) {
        Ok(made) => made,
        Err(error) => {
            tracing::warn!(target: "te::shm", %error, "cannot make a control page");
            return None;
        }
    };
    let welcome = Frame::Welcome {
        version: newest.min(VERSIONS.1),
        slots: u32::try_from(page.slots()).unwrap_or_default(),
        buffers: page.buffers(),
        witness: nonce.as_ptr().expose_provenance() as u64,
    };
    socket.send(&welcome, Some(file.as_fd())).ok()?;
    match next(shared, &socket, Some(until)) {
        Ok(Frame::Proof { nonce: found }) if found == *nonce => {}
        _ => return None,
    }
    Some(Connection {
        peer: from,
        pid,
        process: Process::open(pid).ok(),
        socket,
        numbers: Mutex::new(Numbers::new(page.buffers())),
        page,
        _witness: nonce,
        ended: AtomicBool::new(false),
    })
}

/// Answers until the peer or this engine ends it.
fn answer(shared: &Shared, connection: &Connection) {
    loop {
        let sent = match next(shared, &connection.socket, None) {
            Ok(Frame::Attach { generation, address, len, write }) => {
                connection.attach(shared, generation, (address, len), write)
            }
            Ok(Frame::Detach { generation, buffer }) => connection.detach(generation, buffer),
            Ok(_) => Err("a frame that initiators do not send".to_owned()),
            Err(RecvError::Closed | RecvError::Nothing) => return,
            Err(RecvError::Broken(cause)) => Err(cause),
        };
        if let Err(cause) = sent {
            tracing::warn!(target: "te::shm", %connection, cause, "closing a connection");
            return;
        }
    }
}

/// Keeps the connection in the table until the peer copies nothing any more, so that withdrawals go on waiting for it.
fn settle(connection: &Connection) {
    connection.revoke_all();
    while connection.is_copying(None) {
        let mut fds = [PollFd::from_borrowed_fd(connection.socket.as_fd(), PollFlags::empty())];
        // What it says is not listened to any more; only its end matters.
        let _ = wait(&mut fds, Some(Instant::now() + LOOK));
    }
}
