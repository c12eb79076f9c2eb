//! The target's connections: who has them, and which goes when there are too many.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use te_memory::Hold;
use te_segment::{AddressRange, Incarnation};
use te_transport::AttemptId;

use crate::frame::HEADER_LEN;
use crate::io::{Interrupter, Wire};
use crate::native::{DIGEST_LEN, HELLO_LEN, LIST_MAX, REQUEST_LEN};

/// A connection of the target. It is in exactly one place: parked in the table, waiting for a thread, or with one.
pub(super) struct Connection {
    /// Number of the connection, counting up from 2: older connections have lower numbers.
    pub(super) id: u64,
    pub(super) wire: Wire,
    pub(super) stage: Stage,
    /// The bytes of the next header that are here already.
    pub(super) head: [u8; HEAD_MAX],
    pub(super) have: usize,
    /// The digest behind the payload of a WRITE.
    pub(super) trailer: [u8; DIGEST_LEN],
    /// OK statuses of served requests that are not sent yet. None while the connection waits for anything.
    pub(super) owed: usize,
    /// Whole headers received.
    pub(super) headers: u64,
    /// When it was accepted.
    since: Instant,
    /// When a payload was last seen to come from a peer that has not given up.
    pub(super) looked: Instant,
    /// One more than allowed: it learns that, if it speaks a framing that can say so.
    pub(super) surplus: bool,
    pub(super) current: Arc<Current>,
    pub(super) list: Scratch,
}

/// What a list is taken apart into. Empty between requests; kept for its capacity.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) entries: Vec<u8>,
    pub(super) holds: Vec<Hold>,
    pub(super) attempts: Vec<AttemptId>,
}

/// The longest header: a hello.
const HEAD_MAX: usize = HELLO_LEN;

/// What comes next on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A request of the reference framing, or the beginning of a hello.
    Reference,
    /// A hello whose beginning is here.
    Hello,
    /// A request of this life, in this version.
    Native(Incarnation, u16),
}

impl Connection {
    /// Bytes of what comes next.
    pub(super) fn header_len(&self) -> usize {
        match self.stage {
            Stage::Reference => HEADER_LEN,
            Stage::Hello => HELLO_LEN,
            Stage::Native(..) => REQUEST_LEN,
        }
    }
}

/// What a connection is serving, as seen by others.
pub(super) struct Current {
    /// Start addresses of the memory in use: the first `used` of them.
    addresses: [AtomicU64; LIST_MAX],
    used: AtomicUsize,
    /// Whose it is, once it has said so.
    pub(super) life: OnceLock<Incarnation>,
}

impl Current {
    /// Says which memory is going to be used, at most [`LIST_MAX`] ranges by their starts. Whoever looks up a region
    /// afterwards either finds it blocked, or whoever blocks it finds this.
    pub(super) fn set(&self, addresses: impl IntoIterator<Item = u64>) {
        let mut used = 0;
        for (slot, address) in self.addresses.iter().zip(addresses) {
            slot.store(address, Ordering::Relaxed);
            used += 1;
        }
        self.used.store(used, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    pub(super) fn clear(&self) {
        self.used.store(0, Ordering::Release);
    }

    fn is_idle(&self) -> bool {
        self.used.load(Ordering::Acquire) == 0
    }

    fn is_of(&self, life: Incarnation) -> bool {
        self.life.get() == Some(&life)
    }

    fn is_within(&self, range: &AddressRange) -> bool {
        let used = self.used.load(Ordering::Acquire);
        self.addresses.iter().take(used).any(|address| range.contains(address.load(Ordering::Relaxed)))
    }
}

impl Default for Current {
    fn default() -> Self {
        let addresses = [const { AtomicU64::new(0) }; LIST_MAX];
        Self { addresses, used: AtomicUsize::new(0), life: OnceLock::new() }
    }
}

struct Lent {
    interrupter: Arc<Interrupter>,
    current: Arc<Current>,
}

/// Connections beyond the limit that are accepted to tell them so.
const SURPLUS: usize = 16;

/// Whether one more connection can be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It can.
    Free,
    /// To be told that it cannot.
    Surplus,
    /// Not even that.
    None,
}

/// All connections of a target.
#[derive(Default)]
pub(super) struct Table {
    /// Parked connections that have not sent a whole header yet, by age.
    silent: BTreeMap<u64, Connection>,
    /// Parked connections that have.
    idle: HashMap<u64, Connection>,
    /// Waiting for a thread.
    pub(super) ready: VecDeque<Connection>,
    /// Waiting for a thread or with one.
    lent: HashMap<u64, Lent>,
    /// Serving threads.
    pub(super) threads: usize,
    /// Those of them that wait for a connection.
    pub(super) waiting: usize,
    /// Those of them that are starting.
    pub(super) starting: usize,
    next: u64,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.silent.len() + self.idle.len() + self.lent.len()
    }

    /// Makes room for one more within `limit` by giving up the oldest silent connection. Returns the connection to close
    /// outside the lock.
    pub(super) fn make_room(&mut self, limit: usize) -> (Room, Option<Connection>) {
        if self.len() < limit {
            return (Room::Free, None);
        }
        match self.silent.pop_first() {
            Some((_, oldest)) => (if oldest.surplus { Room::Surplus } else { Room::Free }, Some(oldest)),
            None if self.len() < limit.saturating_add(SURPLUS) => (Room::Surplus, None),
            None => (Room::None, None),
        }
    }

    /// Takes in a new connection.
    pub(super) fn admit(&mut self, wire: Wire, now: Instant, surplus: bool) -> &Connection {
        self.next += 1;
        let id = self.next + 1;
        let (stage, head, current) = (Stage::Reference, [0; HEAD_MAX], Arc::default());
        let connection = Connection {
            id,
            wire,
            stage,
            head,
            have: 0,
            trailer: [0; DIGEST_LEN],
            owed: 0,
            headers: 0,
            since: now,
            looked: now,
            surplus,
            current,
            list: Scratch::default(),
        };
        self.silent.entry(id).or_insert(connection)
    }

    /// Takes back a connection that waits for its next header.
    pub(super) fn park(&mut self, connection: Connection) -> &Connection {
        self.lent.remove(&connection.id);
        let id = connection.id;
        if connection.headers == 0 {
            return self.silent.entry(id).or_insert(connection);
        }
        self.idle.entry(id).or_insert(connection)
    }

    /// Queues a parked connection for a thread; whether it was there.
    pub(super) fn lend(&mut self, id: u64) -> bool {
        let Some(connection) = self.take_parked(id) else { return false };
        let lent =
            Lent { interrupter: connection.wire.interrupter().clone(), current: connection.current.clone() };
        self.lent.insert(id, lent);
        self.ready.push_back(connection);
        true
    }

    /// Forgets a lent connection that is closed.
    pub(super) fn remove(&mut self, id: u64) {
        self.lent.remove(&id);
    }

    /// Forgets a parked connection and returns it.
    pub(super) fn take_parked(&mut self, id: u64) -> Option<Connection> {
        self.silent.remove(&id).or_else(|| self.idle.remove(&id))
    }

    /// The connections that came before `limit` and are still silent.
    pub(super) fn take_silent_since(&mut self, limit: Instant) -> Vec<Connection> {
        let mut old = Vec::new();
        while let Some(entry) = self.silent.first_entry()
            && entry.get().since <= limit
        {
            old.push(entry.remove());
        }
        old
    }

    /// When the oldest silent connection came.
    pub(super) fn oldest_silent(&self) -> Option<Instant> {
        self.silent.first_key_value().map(|(_, connection)| connection.since)
    }

    /// All parked connections and those no thread has taken yet.
    pub(super) fn take_waiting(&mut self) -> Vec<Connection> {
        let mut all: Vec<_> = std::mem::take(&mut self.silent).into_values().collect();
        all.extend(std::mem::take(&mut self.idle).into_values());
        for connection in std::mem::take(&mut self.ready) {
            self.lent.remove(&connection.id);
            all.push(connection);
        }
        all
    }

    /// The connections of one life.
    pub(super) fn of_life(&self, life: Incarnation) -> Vec<u64> {
        let parked = self.silent.values().chain(self.idle.values());
        let parked =
            parked.filter(|connection| connection.current.is_of(life)).map(|connection| connection.id);
        let lent = self.lent.iter().filter(|(_, lent)| lent.current.is_of(life)).map(|(id, _)| *id);
        parked.chain(lent).collect()
    }

    /// Takes out those of the connections that are parked, interrupts the others and leaves only them in the list.
    pub(super) fn cut(&mut self, ids: &mut Vec<u64>) -> Vec<Connection> {
        let mut parked = Vec::new();
        ids.retain(|id| {
            if let Some(lent) = self.lent.get(id) {
                lent.interrupter.interrupt();
                return true;
            }
            parked.extend(self.take_parked(*id));
            false
        });
        parked
    }

    /// Interrupts lent connections: those between requests, or all.
    pub(super) fn interrupt_lent(&self, in_request_too: bool) {
        for lent in self.lent.values() {
            if in_request_too || lent.current.is_idle() {
                lent.interrupter.interrupt();
            }
        }
    }

    /// Interrupts the connections that are using memory within `range`, and says how many do.
    pub(super) fn interrupt_within(&self, range: &AddressRange) -> usize {
        // The region was blocked before; see `Current::set`.
        fence(Ordering::SeqCst);
        let mut count = 0;
        for lent in self.lent.values().filter(|lent| lent.current.is_within(range)) {
            lent.interrupter.interrupt();
            count += 1;
        }
        count
    }
}
