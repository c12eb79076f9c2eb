//! Accepting connections. A stranger costs a thread for a while and delays nobody.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::{Shared, connection};
use crate::counters::add;
use crate::socket::{Listener, is_trusted, wait};

/// Pause when the process has no descriptors left.
const AGAIN: Duration = Duration::from_millis(20);

/// Accepts until the end.
pub(super) fn accept(shared: &Arc<Shared>, listener: &Listener) {
    while !shared.is_stopping() {
        match listener.accept() {
            Ok(socket) => {
                let credentials = socket.credentials().ok().filter(|found| is_trusted(*found));
                let Some(credentials) = credentials.filter(|_| let_in(shared)) else {
                    // Dropping the socket closes it.
                    add(&shared.counters.turned_away, 1);
                    continue;
                };
                let serving = shared.clone();
                let served = shared.threads.spawn("serve", move || {
                    connection::serve(&serving, socket, credentials.pid);
                });
                if served.is_err() {
                    shared.open.lock().strangers -= 1;
                    add(&shared.counters.turned_away, 1);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [
                    PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(shared.bell.as_fd(), PollFlags::IN),
                ];
                if wait(&mut fds, None).is_err() {
                    thread::sleep(AGAIN);
                }
            }
            Err(error) => {
                tracing::warn!(target: "te::shm", %error, "cannot accept a connection");
                thread::sleep(AGAIN);
            }
        }
    }
}

/// Counts one more connection, if there is room for it.
fn let_in(shared: &Shared) -> bool {
    let mut open = shared.open.lock();
    let room = open.strangers + open.greeted.len() < shared.config.max_connections;
    open.strangers += usize::from(room);
    room
}
