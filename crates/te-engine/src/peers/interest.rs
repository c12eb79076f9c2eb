//! Who holds the local segment: the shell of [`InterestTable`].
//!
//! A peer that told its interest is a holder until it is fenced, even without a connection. Holders hear of every
//! published version, and of every withdrawal, on the connection on which they last told their interest.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_rpc::native::{CallError, NativePeer, Request};
use te_segment::{DescriptorVersion, Generation, Incarnation};
use tokio::runtime::Handle;

use crate::machines::holders::{InterestTable, Withdrawal, WithdrawalEvent, WithdrawalSettings};
use crate::withdraw::Course;

/// Holders of one segment (documented limit).
const HOLDERS: usize = 16_384;

/// The holders of the local segment and the withdrawals under way.
pub(crate) struct Interest {
    state: Mutex<State>,
    runtime: Handle,
    /// How long a holder may take to answer.
    patience: Duration,
}

struct State {
    table: InterestTable,
    holders: HashMap<Incarnation, Holder>,
    courses: Vec<Weak<Course>>,
    /// The newest version to tell.
    announced: u64,
}

struct Holder {
    name: String,
    connection: Option<NativePeer>,
    /// The newest version it was told of.
    told: u64,
    telling: bool,
}

/// Why a peer did not become a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotJoined {
    /// Its connection has ended meanwhile.
    Disconnected,
    /// There are too many; the one to remove, if any can be.
    TooMany { replaceable: Option<Incarnation> },
}

impl Interest {
    pub(crate) fn new(runtime: Handle, patience: Duration, version: u64) -> Self {
        let state = State {
            table: InterestTable::new(HOLDERS, version),
            holders: HashMap::new(),
            courses: Vec::new(),
            announced: version,
        };
        Self { state: Mutex::new(state), runtime, patience }
    }

    /// A peer wants to hear of changes on this connection. `version` is served now; gives the version that the peer's
    /// copy must not be older than.
    pub(super) fn join(&self, peer: &NativePeer, version: u64) -> Result<u64, NotJoined> {
        let holder = peer.id().incarnation;
        let (served, courses) = {
            let mut state = self.state.lock();
            // Looked at under the lock: whoever fences a holder closes its connections first.
            if !peer.is_open() {
                return Err(NotJoined::Disconnected);
            }
            state.table.serve(version);
            let joined = state.table.join(holder);
            let served = joined.map_err(|full| NotJoined::TooMany { replaceable: full.replaceable })?;
            let entry = Holder {
                name: peer.id().name.clone(),
                connection: Some(peer.clone()),
                told: served,
                telling: false,
            };
            state.holders.insert(holder, entry);
            (served, state.courses())
        };
        for course in courses {
            course.tell(WithdrawalEvent::Connected { holder });
        }
        Ok(served)
    }

    /// A connection ended.
    pub(super) fn left(&self, peer: &NativePeer) {
        let holder = peer.id().incarnation;
        let courses = {
            let mut state = self.state.lock();
            let Some(entry) = state.holders.get_mut(&holder) else { return };
            if !entry.connection.as_ref().is_some_and(|ours| ours.is_same_connection(peer)) {
                return;
            }
            entry.connection = None;
            state.table.disconnected(holder);
            state.courses()
        };
        for course in courses {
            course.tell(WithdrawalEvent::Disconnected { holder });
        }
    }

    /// The holder is cut off: it uses nothing any more and hears nothing more.
    pub(super) fn fenced(&self, holder: Incarnation) {
        let courses = {
            let mut state = self.state.lock();
            state.table.remove(holder);
            state.holders.remove(&holder);
            state.courses()
        };
        for course in courses {
            course.tell(WithdrawalEvent::Fenced { holder });
        }
    }

    /// Begins a withdrawal whose buffer is not in the descriptor of this version any more, and keeps the course informed.
    pub(crate) fn withdraw(
        &self,
        version: u64,
        transports: usize,
        settings: WithdrawalSettings,
        course: impl FnOnce(Withdrawal) -> Arc<Course>,
    ) -> Arc<Course> {
        let mut state = self.state.lock();
        let course = course(state.table.withdraw(version, transports, settings));
        state.courses.retain(|known| known.strong_count() > 0);
        state.courses.push(Arc::downgrade(&course));
        course
    }

    /// Tells a holder that the buffer is withdrawn; its acknowledgement goes to the course.
    pub(crate) fn invalidate(
        &self,
        course: &Arc<Course>,
        holder: Incarnation,
        version: u64,
        buffer: Generation,
    ) {
        let connection = {
            let state = self.state.lock();
            state.holders.get(&holder).and_then(|holder| holder.connection.clone())
        };
        let Some(connection) = connection else {
            return course.tell(WithdrawalEvent::Disconnected { holder });
        };
        let (course, deadline) = (Arc::downgrade(course), Instant::now() + self.patience);
        self.runtime.spawn(async move {
            let version = DescriptorVersion::new(version);
            let request = Request::Invalidate { version, withdrawn: vec![buffer] };
            let acknowledged = connection.call(request, deadline).await;
            match (acknowledged, course.upgrade()) {
                (Ok(_), Some(course)) => course.tell(WithdrawalEvent::Acknowledged { holder }),
                (Err(error), Some(_)) => {
                    tracing::debug!(target: "te::engine", %holder, %error, "a withdrawal was not acknowledged");
                }
                (_, None) => {}
            }
        });
    }

    /// Tells every holder that this version is out now.
    pub(crate) fn announce(self: &Arc<Self>, version: u64) {
        let mut state = self.state.lock();
        state.announced = state.announced.max(version);
        let version = state.announced;
        for (holder, entry) in &mut state.holders {
            if let Some(connection) = &entry.connection
                && entry.told < version
                && !std::mem::replace(&mut entry.telling, true)
            {
                let telling = self.clone().tell(*holder, connection.clone());
                self.runtime.spawn(telling);
            }
        }
    }

    /// Tells one holder until it has heard of the newest version.
    async fn tell(self: Arc<Self>, holder: Incarnation, connection: NativePeer) {
        loop {
            let version = self.state.lock().announced;
            let request =
                Request::Invalidate { version: DescriptorVersion::new(version), withdrawn: Vec::new() };
            let told = connection.call(request, Instant::now() + self.patience).await;
            let mut state = self.state.lock();
            let newest = state.announced;
            let Some(entry) = state.holders.get_mut(&holder) else { return };
            if !entry.connection.as_ref().is_some_and(|ours| ours.is_same_connection(&connection)) {
                return;
            }
            match told {
                Ok(_) => entry.told = entry.told.max(version),
                // Whatever else goes wrong ends the connection, and with the next one the holder asks anew.
                Err(CallError::DeadlineExceeded { .. }) => {}
                Err(_) => entry.told = newest,
            }
            if entry.told >= newest {
                entry.telling = false;
                return;
            }
        }
    }

    /// The holder's name, for people.
    pub(crate) fn name_of(&self, holder: Incarnation) -> Option<String> {
        self.state.lock().holders.get(&holder).map(|holder| holder.name.clone())
    }
}

impl State {
    fn courses(&self) -> Vec<Arc<Course>> {
        self.courses.iter().filter_map(Weak::upgrade).collect()
    }
}
