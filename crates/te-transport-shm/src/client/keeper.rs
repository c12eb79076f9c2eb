//! The thread that looks after the connection to one peer: it connects, has buffers attached, and notices the end.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use te_transport::{FailureKind, Op};

use super::greet;
use super::line::{Attached, Line};
use super::peer::{LINGER, Peer, Waiting};
use super::pool::{Job, Work};
use crate::counters::add;
use crate::error::denied;
use crate::frame::Frame;
use crate::socket::{Packet, RecvError, wait};

/// A slice that lost so many connections before it began is given up.
const LOSSES: u32 = 2;

/// Connects while something waits, and looks after the connection until it ends.
pub(super) fn run(peer: &Arc<Peer>) {
    loop {
        let deadline = Instant::now() + peer.common().config.connect_timeout;
        match greet::connect(peer, deadline) {
            Ok(ties) => {
                add(&peer.common().counters.connected, 1);
                let line = Arc::new(Line::new(ties));
                peer.set_line(Some(line.clone()));
                tend(peer, &line);
                end(peer, &line);
            }
            Err((kind, cause)) => return give_up(peer, kind, &cause),
        }
        let mut state = peer.state().lock();
        let (waiting, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|waiting| waiting.lost < LOSSES);
        let kind = if state.closed { FailureKind::Shutdown } else { FailureKind::ConnectionLost };
        let again = !waiting.is_empty() && !state.closed;
        let failed = if again {
            state.waiting = waiting;
            gone
        } else {
            state.keeper = false;
            waiting.into_iter().chain(gone).collect()
        };
        drop(state);
        for waiting in failed {
            peer.fail(waiting.slice, kind, "the connection ended before the copy began", false);
        }
        if !again {
            return;
        }
    }
}

/// Nothing that waits can be done.
fn give_up(peer: &Peer, kind: FailureKind, cause: &str) {
    let waiting = {
        let mut state = peer.state().lock();
        state.keeper = false;
        state.failed += 1;
        state.why = cause.to_owned();
        std::mem::take(&mut state.waiting)
    };
    peer.notify();
    for waiting in waiting {
        peer.fail(waiting.slice, kind, cause.to_owned(), false);
    }
}

/// Closes the connection once nothing is copied over it any more.
fn end(peer: &Peer, line: &Line) {
    peer.set_line(None);
    line.ties.lose();
    while !line.ties.is_quiet() {
        // At most as long as one piece takes.
        thread::sleep(Duration::from_micros(100));
    }
    line.forget_all();
    line.ties.socket.close();
    let mut state = peer.state().lock();
    state.waiting.iter_mut().for_each(|waiting| waiting.lost += 1);
}

/// What the target was asked for: the slice that asks, by the registration it means.
type Asked = HashMap<u64, u64>;

/// Looks after the connection until it ends, or is not needed.
fn tend(peer: &Arc<Peer>, line: &Line) {
    let mut asked = Asked::new();
    let mut unused: Option<Instant> = None;
    loop {
        peer.bell().answer();
        loop {
            match line.ties.socket.recv() {
                Ok(packet) => {
                    if let Err(cause) = take(peer, line, &mut asked, packet) {
                        tracing::warn!(target: "te::shm", path = %peer.label(), cause, "closing a connection");
                        return;
                    }
                }
                Err(RecvError::Nothing) => break,
                Err(RecvError::Closed) => return,
                Err(RecvError::Broken(cause)) => {
                    tracing::warn!(target: "te::shm", path = %peer.label(), cause, "closing a connection");
                    return;
                }
            }
        }
        let look = peer.sweep();
        if peer.common().is_closing() || !ask(peer, line, &mut asked) {
            return;
        }
        unused =
            if peer.is_used() || look.is_some() { None } else { unused.or_else(|| Some(Instant::now())) };
        let end = unused.map(|since| since + LINGER);
        if end.is_some_and(|end| Instant::now() >= end) {
            return;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(line.ties.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(peer.bell().as_fd(), PollFlags::IN),
        ];
        let until = look.into_iter().chain(end).min().map(|until| until + Duration::from_millis(1));
        if wait(&mut fds, until).is_err() {
            return;
        }
    }
}

/// Asks for the buffers of slices that wait, for each once at a time. False: the target does not listen.
fn ask(peer: &Arc<Peer>, line: &Line, asked: &mut Asked) -> bool {
    let (mut frames, mut ready) = (Vec::new(), Vec::new());
    {
        let mut state = peer.state().lock();
        // A buffer may have been attached after the slice was submitted.
        let found = state.waiting.iter().any(|waiting| line.find(waiting.generation()).is_some());
        if found {
            for waiting in std::mem::take(&mut state.waiting) {
                match line.find(waiting.generation()) {
                    Some(attached) => ready.push(job(waiting, attached)),
                    None => state.waiting.push(waiting),
                }
            }
        }
        for waiting in &state.waiting {
            asked.entry(waiting.generation()).or_insert_with(|| {
                let (address, len) = (waiting.slice.remote.start(), waiting.slice.remote.len());
                let write = waiting.slice.op == Op::Write;
                frames.push(Frame::Attach { generation: waiting.generation(), address, len, write });
                waiting.id
            });
        }
    }
    if !ready.is_empty() {
        peer.push(ready);
    }
    frames.iter().all(|frame| line.ties.socket.send(frame, None).is_ok())
}

fn job(waiting: Waiting, attached: Arc<Attached>) -> Work {
    Work::Slice(Job { slice: waiting.slice, attached, group: waiting.group })
}

/// Takes a packet of the target in.
fn take(peer: &Arc<Peer>, line: &Line, asked: &mut Asked, packet: Packet) -> Result<(), String> {
    match packet.frame {
        Frame::Attached { generation, .. } => {
            let Some(asking) = asked.remove(&generation) else {
                return Err("it attaches a buffer that was not asked for".to_owned());
            };
            match Attached::open(&line.ties, &packet.frame, packet.file) {
                Ok(attached) => {
                    add(&peer.common().counters.mappings, u64::from(attached.mapping().is_some()));
                    line.keep(Arc::new(attached));
                }
                Err(cause) => refuse(peer, asking, FailureKind::Protocol, cause),
            }
        }
        Frame::Denied { generation, denial } => {
            let asking = asked.remove(&generation).ok_or("it denies a buffer that was not asked for")?;
            let (kind, cause) = denied(denial);
            refuse(peer, asking, kind, cause.to_owned());
        }
        Frame::Withdrawn { generation } => line.forget(generation),
        _ => return Err("a frame that targets do not send".to_owned()),
    }
    Ok(())
}

/// The slice that asked, if it still waits, is not done. Others that mean the same buffer ask for themselves.
fn refuse(peer: &Peer, asking: u64, kind: FailureKind, cause: String) {
    let refused = {
        let mut state = peer.state().lock();
        let at = state.waiting.iter().position(|waiting| waiting.id == asking);
        at.map(|at| state.waiting.remove(at))
    };
    if let Some(waiting) = refused {
        peer.fail(waiting.slice, kind, cause, false);
    }
}
