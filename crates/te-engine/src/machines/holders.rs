//! Who holds a segment, and how a buffer is withdrawn from them (contract 3).
//!
//! ```text
//!  Blocked ──run──▶ Announcing ──────▶ Draining ─────▶ Fencing ─────▶ Revoking ─────▶ Releasing ─────▶ Released
//!                   until all holders  until nobody    until each     until each      until the
//!                   acknowledged, or   uses the        holder that    transport gave  memory is
//!                   for the announce   memory; cut     did not is     up its keys     back
//!                   time               after a while   fenced
//!
//! Cutting ends our own requests, and fences the holders that have not acknowledged: theirs may hang for good.
//! ```
//!
//! The phase is kept when the deadline passes: the error says what is missing, and the next run goes on from there.
//! Acknowledgements, fences and drained holds that come in between count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use te_segment::Incarnation;

use super::after;

/// The interest table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyHolders {
    pub(crate) limit: usize,
    /// A holder without connection that has to be fenced and removed before there is room, if there is one.
    pub(crate) replaceable: Option<Incarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holder {
    connected: bool,
}

/// The peers that may use what this segment offers.
///
/// A holder that loses its connection stays one: its queue pairs and mappings may still work. It ends as a holder when
/// it is fenced, or its process is known to be gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InterestTable {
    limit: usize,
    /// Of the descriptor that is served now.
    version: u64,
    holders: BTreeMap<Incarnation, Holder>,
}

impl InterestTable {
    /// Nobody is interested yet.
    pub(crate) fn new(limit: usize, version: u64) -> Self {
        Self { limit, version, holders: BTreeMap::new() }
    }

    /// The descriptor of this version is served from now on.
    pub(crate) fn serve(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// A peer wants to use the segment. Returns the version that is served now: what it knows of an older one is not to
    /// be used before it has seen this one.
    pub(crate) fn join(&mut self, holder: Incarnation) -> Result<u64, TooManyHolders> {
        if !self.holders.contains_key(&holder) && self.holders.len() >= self.limit {
            let replaceable = self.holders.iter().find(|(_, h)| !h.connected).map(|(holder, _)| *holder);
            return Err(TooManyHolders { limit: self.limit, replaceable });
        }
        self.holders.insert(holder, Holder { connected: true });
        Ok(self.version)
    }

    /// Its control connection is gone; it may still use what it holds.
    pub(crate) fn disconnected(&mut self, holder: Incarnation) {
        if let Some(holder) = self.holders.get_mut(&holder) {
            holder.connected = false;
        }
    }

    /// It is fenced, or its process is gone: it uses nothing any more.
    pub(crate) fn remove(&mut self, holder: Incarnation) {
        self.holders.remove(&holder);
    }

    /// Begins to withdraw a buffer: the version that does not have it is served from now on. Returns the withdrawal, to
    /// be told of everything these holders do.
    pub(crate) fn withdraw(
        &mut self,
        version: u64,
        transports: usize,
        settings: WithdrawalSettings,
    ) -> Withdrawal {
        self.serve(version);
        let waiting = self.holders.iter().map(|(holder, state)| (*holder, state.connected)).collect();
        Withdrawal::new(waiting, transports, settings)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }
}

/// How long the steps may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WithdrawalSettings {
    /// Acknowledgements are awaited for this. Default 1 s.
    pub(crate) announce: Duration,
    /// Requests that use the memory are cut after this, or when three quarters of the time to the deadline are over.
    /// Default 5 s.
    pub(crate) drain: Duration,
}

impl Default for WithdrawalSettings {
    fn default() -> Self {
        Self { announce: Duration::from_secs(1), drain: Duration::from_secs(5) }
    }
}

/// How far a withdrawal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WithdrawalPhase {
    Blocked,
    Announcing,
    Draining,
    Fencing,
    Revoking,
    Releasing,
    Released,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WithdrawalEvent {
    /// Begin, or go on, until this deadline.
    Run { deadline: Instant },
    /// The holder uses the buffer no more and will not.
    Acknowledged { holder: Incarnation },
    /// Its control connection is gone: no acknowledgement will come over it.
    Disconnected { holder: Incarnation },
    /// It is connected again.
    Connected { holder: Incarnation },
    /// Its connections, queue pairs and mappings are cut, or its process is gone.
    Fenced { holder: Incarnation },
    /// So many requests use the memory. After the block these only become fewer.
    Held { local: u32, remote: u32 },
    /// The transport gave up its keys and handles.
    Revoked { transport: usize },
    /// It could not.
    RevokeFailed { transport: usize },
    /// The memory is back.
    Released,
    /// It is not.
    ReleaseFailed,
    /// Time passed; see [`Withdrawal::wake_at`].
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WithdrawalAction {
    /// Publish the descriptor without the buffer, in the background for as long as it takes.
    Publish,
    /// Tell the holder, which is to acknowledge.
    Invalidate { holder: Incarnation },
    /// Cancel the requests that use the memory.
    Cut,
    /// Close the holder's queue pairs, mappings and connections, the control connection too: what still comes over that
    /// one must not make it a holder again, only a new hello does. Can be asked for twice.
    Fence { holder: Incarnation },
    /// Give up keys and handles; can be asked for twice.
    Revoke { transport: usize },
    /// End the reservation.
    Release,
    /// The run is over. Once per run.
    Finish(Result<(), StillHeld>),
}

/// What is missing at the deadline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StillHeld {
    pub(crate) phase: WithdrawalPhase,
    /// Requests of this process that use the memory.
    pub(crate) local: u32,
    /// Requests of peers that use the memory.
    pub(crate) remote: u32,
    /// Holders that neither acknowledged nor are fenced.
    pub(crate) holders: Vec<Incarnation>,
    /// Transports that have keys or handles.
    pub(crate) transports: Vec<usize>,
}

impl fmt::Display for StillHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "still held by {} local and {} remote requests", self.local, self.remote)?;
        if let Some(first) = self.holders.first() {
            write!(f, "; {} holders did not acknowledge, the first is {first}", self.holders.len())?;
        }
        if !self.transports.is_empty() {
            write!(f, "; {} transports have keys of it", self.transports.len())?;
        }
        Ok(())
    }
}

/// The withdrawal of one buffer. Made when the buffer is blocked already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Withdrawal {
    settings: WithdrawalSettings,
    phase: WithdrawalPhase,
    /// The present run's end; `None` between runs.
    deadline: Option<Instant>,
    /// When the phase goes on by itself, or the requests are cut.
    until: Option<Instant>,
    cut: bool,
    /// Holders that may use the buffer, and whether they can be told.
    waiting: BTreeMap<Incarnation, bool>,
    /// Nothing is known before the first `Held`, and nothing is assumed.
    held: Option<(u32, u32)>,
    /// Transports that have keys.
    transports: BTreeSet<usize>,
    /// Those asked in this run that have not answered.
    asked: BTreeSet<usize>,
}

type Actions = Vec<WithdrawalAction>;

impl Withdrawal {
    /// Of a buffer that no peer was ever offered: there is nothing to publish and nobody to tell.
    pub(crate) fn unoffered(transports: usize, settings: WithdrawalSettings) -> Self {
        Self { phase: WithdrawalPhase::Announcing, ..Self::new(BTreeMap::new(), transports, settings) }
    }

    fn new(waiting: BTreeMap<Incarnation, bool>, transports: usize, settings: WithdrawalSettings) -> Self {
        Self {
            settings,
            phase: WithdrawalPhase::Blocked,
            deadline: None,
            until: None,
            cut: false,
            waiting,
            held: None,
            transports: (0..transports).collect(),
            asked: BTreeSet::new(),
        }
    }

    /// How far it is.
    #[cfg(test)]
    pub(crate) fn phase(&self) -> WithdrawalPhase {
        self.phase
    }

    /// The transports that have keys.
    pub(crate) fn transports(&self) -> impl Iterator<Item = usize> {
        self.transports.iter().copied()
    }

    /// Whether the holder may still use the buffer, and if so, whether it can be told.
    pub(crate) fn waits_for(&self, holder: Incarnation) -> Option<bool> {
        self.waiting.get(&holder).copied()
    }

    /// When the next `Tick` is due, if time alone can change anything.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let deadline = self.deadline?;
        let waits = match self.phase {
            WithdrawalPhase::Announcing => true,
            WithdrawalPhase::Draining => !self.cut,
            _ => false,
        };
        Some(self.until.filter(|_| waits).map_or(deadline, |until| until.min(deadline)))
    }

    /// Takes an event in and says what follows.
    pub(crate) fn on(&mut self, now: Instant, event: WithdrawalEvent) -> Actions {
        let mut actions = Vec::new();
        match event {
            WithdrawalEvent::Run { deadline } => self.run(now, deadline, &mut actions),
            WithdrawalEvent::Acknowledged { holder } | WithdrawalEvent::Fenced { holder } => {
                self.waiting.remove(&holder);
            }
            WithdrawalEvent::Disconnected { holder } => {
                if let Some(connected) = self.waiting.get_mut(&holder) {
                    *connected = false;
                }
            }
            WithdrawalEvent::Connected { holder } => {
                if let Some(connected) = self.waiting.get_mut(&holder) {
                    *connected = true;
                    actions.push(WithdrawalAction::Invalidate { holder });
                }
            }
            WithdrawalEvent::Held { local, remote } => self.held = Some((local, remote)),
            WithdrawalEvent::Revoked { transport } => {
                self.transports.remove(&transport);
                self.asked.remove(&transport);
            }
            WithdrawalEvent::RevokeFailed { transport } => {
                self.asked.remove(&transport);
            }
            WithdrawalEvent::Released if self.phase == WithdrawalPhase::Releasing => {
                self.phase = WithdrawalPhase::Released;
                if self.deadline.take().is_some() {
                    actions.push(WithdrawalAction::Finish(Ok(())));
                }
            }
            WithdrawalEvent::ReleaseFailed
                if self.phase == WithdrawalPhase::Releasing && self.deadline.is_some() =>
            {
                self.end(&mut actions);
            }
            _ => {}
        }
        self.advance(now, &mut actions);
        actions
    }

    /// Begins, or does again what the phase is about: all of it can be done twice.
    fn run(&mut self, now: Instant, deadline: Instant, actions: &mut Actions) {
        if self.phase == WithdrawalPhase::Released {
            return actions.push(WithdrawalAction::Finish(Ok(())));
        }
        self.deadline = Some(deadline);
        self.enter(now, self.phase, actions);
    }

    fn enter(&mut self, now: Instant, phase: WithdrawalPhase, actions: &mut Actions) {
        self.phase = phase;
        let left = self.deadline.unwrap_or(now).saturating_duration_since(now);
        match phase {
            WithdrawalPhase::Blocked => {
                actions.push(WithdrawalAction::Publish);
                let connected = self.waiting.iter().filter(|(_, connected)| **connected);
                actions.extend(connected.map(|(holder, _)| WithdrawalAction::Invalidate { holder: *holder }));
                self.phase = WithdrawalPhase::Announcing;
                self.until = Some(after(now, self.settings.announce));
            }
            WithdrawalPhase::Draining => {
                self.cut = false;
                self.until = Some(after(now, self.settings.drain.min(left / 4 * 3)));
            }
            WithdrawalPhase::Fencing => {
                actions.extend(self.waiting.keys().map(|holder| WithdrawalAction::Fence { holder: *holder }));
            }
            WithdrawalPhase::Revoking => {
                self.asked.clone_from(&self.transports);
                let revoke = |transport: &usize| WithdrawalAction::Revoke { transport: *transport };
                actions.extend(self.transports.iter().map(revoke));
            }
            WithdrawalPhase::Releasing => actions.push(WithdrawalAction::Release),
            WithdrawalPhase::Announcing | WithdrawalPhase::Released => {}
        }
    }

    /// Goes through the phases whose conditions are met.
    fn advance(&mut self, now: Instant, actions: &mut Actions) {
        while let Some(deadline) = self.deadline {
            let late = self.until.is_none_or(|until| now >= until);
            let next = match self.phase {
                WithdrawalPhase::Announcing if self.is_announced() || late => WithdrawalPhase::Draining,
                WithdrawalPhase::Draining if self.held == Some((0, 0)) => WithdrawalPhase::Fencing,
                WithdrawalPhase::Draining if !self.cut && late => {
                    self.cut = true;
                    actions.push(WithdrawalAction::Cut);
                    // A request that hangs may be that of a holder which stopped in the middle of it.
                    actions.extend(
                        self.waiting.keys().map(|holder| WithdrawalAction::Fence { holder: *holder }),
                    );
                    continue;
                }
                WithdrawalPhase::Fencing if self.waiting.is_empty() => WithdrawalPhase::Revoking,
                WithdrawalPhase::Revoking if self.transports.is_empty() => WithdrawalPhase::Releasing,
                // All have answered and not all could.
                WithdrawalPhase::Revoking if self.asked.is_empty() => return self.end(actions),
                _ if now >= deadline => return self.end(actions),
                _ => return,
            };
            self.enter(now, next, actions);
        }
    }

    /// Nobody is left that could still acknowledge.
    fn is_announced(&self) -> bool {
        self.waiting.values().all(|connected| !connected)
    }

    /// Ends the run, not the withdrawal.
    fn end(&mut self, actions: &mut Actions) {
        self.deadline = None;
        let (local, remote) = self.held.unwrap_or_default();
        actions.push(WithdrawalAction::Finish(Err(StillHeld {
            phase: self.phase,
            local,
            remote,
            holders: self.waiting.keys().copied().collect(),
            transports: self.transports.iter().copied().collect(),
        })));
    }
}

#[cfg(test)]
mod tests;
