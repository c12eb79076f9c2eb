//! The thread that accepts connections and watches those without work.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use socket2::Socket;

use super::pool::{staff, watched};
use super::table::Room;
use super::{Chore, Shared};
use crate::congestion::{self, Chosen};
use crate::counters::add;
use crate::frame::HEADER_LEN;
use crate::io::Wire;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Connections accepted in one go, so that idle ones are not forgotten in a flood of new ones.
const ACCEPT_BURST: usize = 64;
/// Pause after a failed accept, which usually means that descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CHORE_INTERVAL: Duration = Duration::from_secs(1);

/// Owns the listener.
pub(super) struct Poller {
    shared: Arc<Shared>,
    listener: Socket,
    /// The congestion control of connections from other hosts, if it differs from the listener's.
    remote: Option<Chosen>,
    chore: Chore,
    next_chore: Instant,
    /// Until when the listener is left alone.
    paused: Option<Instant>,
}

impl Poller {
    pub(super) fn new(shared: Arc<Shared>, listener: Socket, chore: Chore) -> rustix::io::Result<Self> {
        epoll::add(&shared.epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&shared.epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let remote = congestion::listening(&listener);
        Ok(Self {
            shared,
            listener,
            remote,
            chore,
            next_chore: Instant::now() + CHORE_INTERVAL,
            paused: None,
        })
    }

    pub(super) fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        while !self.shared.is_stopping() {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.shared.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
            {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(target: "te::transport_tcp", %error, "cannot watch connections any more");
                    return;
                }
            }
            let mut table = self.shared.table.lock();
            let mut lent = false;
            let mut accept = false;
            for event in &events {
                match event.data.u64() {
                    LISTENER => accept = true,
                    WAKE => {}
                    id => lent |= table.lend(id),
                }
            }
            if lent {
                staff(&self.shared, table);
            } else {
                drop(table);
            }
            if accept {
                self.accept();
            }
            self.tend(Instant::now());
        }
        // What came in while the target was being stopped.
        let late = self.shared.table.lock().take_waiting();
        drop(late);
    }

    fn timeout(&self) -> Timespec {
        let now = Instant::now();
        let silent =
            self.shared.table.lock().oldest_silent().map(|since| since + self.shared.config.silent_timeout);
        let next = [silent, self.paused].into_iter().flatten().fold(self.next_chore, Instant::min);
        let left = next.saturating_duration_since(now).min(CHORE_INTERVAL);
        Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
    }

    /// What is due by the clock.
    fn tend(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            self.watch_listener(EventFlags::IN);
        }
        if let Some(limit) = now.checked_sub(self.shared.config.silent_timeout) {
            let silent = self.shared.table.lock().take_silent_since(limit);
            if !silent.is_empty() {
                tracing::debug!(target: "te::transport_tcp", count = silent.len(), "closing silent connections");
            }
        }
        if self.next_chore <= now {
            self.next_chore = now + CHORE_INTERVAL;
            (self.chore)();
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BURST {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.admit(socket) {
                        tracing::debug!(target: "te::transport_tcp", %error, "lost a new connection");
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // The newcomer is gone already.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        tracing::warn!(target: "te::transport_tcp", %error, "cannot accept; pausing");
                        self.paused = Some(Instant::now() + ACCEPT_PAUSE);
                        self.watch_listener(EventFlags::empty());
                        return;
                    }
                },
            }
        }
    }

    fn watch_listener(&self, events: EventFlags) {
        if let Err(error) =
            epoll::modify(&self.shared.epoll, &self.listener, EventData::new_u64(LISTENER), events)
        {
            tracing::warn!(target: "te::transport_tcp", %error, "cannot watch the listener");
        }
    }

    fn admit(&self, socket: Socket) -> io::Result<()> {
        congestion::accepted(&socket, self.remote.as_ref());
        let mut wire = Wire::new(socket, self.shared.config.keepalive)?;
        // Reported when a whole header is there: half a header costs no thread.
        wire.set_low_water(i32::try_from(HEADER_LEN).unwrap_or(1))?;
        let mut table = self.shared.table.lock();
        let (room, oldest) = table.make_room(self.shared.config.max_connections);
        if room != Room::Free {
            tracing::warn!(
                target: "te::transport_tcp", limit = self.shared.config.max_connections, "too many connections"
            );
        }
        if room == Room::None {
            return Ok(());
        }
        let admitted = table.admit(wire, Instant::now(), room == Room::Surplus);
        let data = EventData::new_u64(admitted.id);
        let id = admitted.id;
        let added = epoll::add(&self.shared.epoll, &admitted.wire, data, watched());
        let gone = if added.is_err() { table.take_parked(id) } else { None };
        drop(table);
        drop((oldest, gone));
        add(&self.shared.counters.accepted, 1);
        added.map_err(io::Error::from)
    }
}
