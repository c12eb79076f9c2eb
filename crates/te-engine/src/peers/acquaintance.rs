//! One life of a peer, as this engine knows it: what is believed of it, and what of its memory is being used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use te_rpc::native::{Expectation, NativePeer, Target};
use te_segment::{Endpoint, Generation, Incarnation};
use te_transport::FailureKind;
use tokio::sync::{Notify, oneshot, watch};

use super::state::PeerState;
use crate::machines::holding::{Holding, NotUsable};
use crate::machines::liveness::{Life, Liveness, LivenessEvent, LivenessSettings};

/// Withdrawn buffers of one life that are remembered one by one.
const WITHDRAWN: usize = 65_536;

/// What a submit is told of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try it.
    Go,
    /// Its process is gone, as far as can be told.
    Lost,
    /// Another life answers in its place.
    Replaced,
}

impl Verdict {
    fn of(life: Life) -> Self {
        match life {
            Life::Lost => Self::Lost,
            Life::Replaced { .. } => Self::Replaced,
            _ => Self::Go,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Go => 0,
            Self::Lost => 1,
            Self::Replaced => 2,
        }
    }
}

/// Of successes in quick succession one is enough to know that a peer lives.
const SUCCESSES: Duration = Duration::from_millis(100);
/// A living peer's code, beside those of the verdicts.
const ALIVE: u8 = 3;

/// One life of a peer.
pub(crate) struct Acquaintance {
    name: String,
    incarnation: Option<Incarnation>,
    /// Where it can be asked; unknown of a peer that only ever came to us.
    control: OnceLock<Endpoint>,
    liveness: Mutex<Liveness>,
    verdict: AtomicU8,
    met: Instant,
    /// When a request last succeeded, in milliseconds since the peer was met.
    moved: AtomicU64,
    state: watch::Sender<PeerState>,
    holdings: Mutex<Holdings>,
    /// The newest version of its descriptor that it spoke of.
    pub(super) served: AtomicU64,
    /// Whether somebody fetches that descriptor.
    pub(super) refreshing: AtomicBool,
    /// Whether somebody asks it whether it lives.
    pub(super) asking: AtomicBool,
    ask: Arc<Notify>,
}

struct Holdings {
    holding: Holding,
    /// The connection on which the owner knows of our interest.
    joined: Option<NativePeer>,
    next: u64,
    acknowledge: HashMap<u64, oneshot::Sender<()>>,
}

impl Acquaintance {
    /// A peer nothing was heard of. Without incarnation it is a reference peer, which cannot be asked.
    pub(super) fn new(
        name: String,
        incarnation: Option<Incarnation>,
        control: Option<Endpoint>,
        ask: Arc<Notify>,
    ) -> Self {
        let now = Instant::now();
        let mut liveness = Liveness::new(now, incarnation, LivenessSettings::default());
        if incarnation.is_none() {
            liveness.on(now, LivenessEvent::CannotBeAsked);
        }
        let state = PeerState::new(name.clone(), incarnation, control.clone(), liveness.snapshot());
        let holdings =
            Holdings { holding: Holding::new(WITHDRAWN), joined: None, next: 0, acknowledge: HashMap::new() };
        Self {
            name,
            incarnation,
            control: control.map_or_else(OnceLock::new, OnceLock::from),
            liveness: Mutex::new(liveness),
            verdict: AtomicU8::new(Verdict::Go.code()),
            met: now,
            moved: AtomicU64::new(0),
            state: watch::Sender::new(state),
            holdings: Mutex::new(holdings),
            served: AtomicU64::new(0),
            refreshing: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            ask,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Where it can be asked, known from now on.
    pub(super) fn found_at(&self, control: &Endpoint) {
        if self.control.set(control.clone()).is_ok() {
            self.state.send_modify(|state| state.control = Some(control.clone()));
        }
    }

    /// Whom to ask, if it can be asked.
    pub(crate) fn target(&self) -> Option<Target> {
        let incarnation = Some(self.incarnation?);
        let expects = Expectation { incarnation, name: Some(self.name.clone()) };
        Some(Target { endpoint: self.control.get()?.clone(), expects })
    }

    pub(crate) fn state(&self) -> &watch::Sender<PeerState> {
        &self.state
    }

    /// What a submit is told. One load.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.verdict.load(Ordering::Acquire) {
            1 => Verdict::Lost,
            2 => Verdict::Replaced,
            _ => Verdict::Go,
        }
    }

    /// Something happened; gives what is believed now.
    pub(crate) fn on(&self, event: LivenessEvent) -> Life {
        let mut liveness = self.liveness.lock();
        liveness.on(Instant::now(), event);
        let now = liveness.snapshot();
        let code = if now.life == Life::Alive { ALIVE } else { Verdict::of(now.life).code() };
        self.verdict.store(code, Ordering::Release);
        // Under the lock, so that watchers see the changes in their order.
        self.state.send_if_modified(|state| state.update(now));
        let asks_soon = matches!(
            event,
            LivenessEvent::DataFailed(_) | LivenessEvent::ControlReset | LivenessEvent::LeaseGone
        );
        if asks_soon {
            self.ask.notify_one();
        }
        now.life
    }

    pub(crate) fn data_succeeded(&self) {
        let now = u64::try_from(self.met.elapsed().as_millis()).unwrap_or(u64::MAX);
        let alive = self.verdict.load(Ordering::Acquire) == ALIVE;
        let last = self.moved.load(Ordering::Relaxed);
        if alive && u128::from(now.saturating_sub(last)) < SUCCESSES.as_millis() {
            return;
        }
        self.moved.store(now, Ordering::Relaxed);
        self.on(LivenessEvent::DataSucceeded);
    }

    /// A request failed; only failures that blame the path count.
    pub(crate) fn data_failed(&self, kind: FailureKind) {
        let blames_path =
            matches!(kind, FailureKind::Unreachable | FailureKind::ConnectionLost | FailureKind::TimedOut);
        if blames_path {
            self.on(LivenessEvent::DataFailed(kind));
        }
    }

    /// When it is to be asked whether it lives.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.control.get()?;
        self.liveness.lock().ask_at()
    }

    pub(super) fn asked(&self) {
        self.liveness.lock().asked(Instant::now());
    }

    /// Whether the owner knows of our interest.
    pub(crate) fn is_joined(&self) -> bool {
        self.holdings.lock().joined.is_some()
    }

    /// The owner has registered our interest on this connection and serves this version.
    pub(super) fn joined(&self, on: &NativePeer, version: u64) {
        let mut holdings = self.holdings.lock();
        // Looked at under the lock: when it closes, `gone` comes after this.
        if on.is_open() {
            holdings.holding.joined(version);
            holdings.joined = Some(on.clone());
        }
        self.served.fetch_max(version, Ordering::AcqRel);
    }

    /// A connection ended; whether it was the one of our interest.
    pub(super) fn left(&self, connection: &NativePeer) -> bool {
        let mut holdings = self.holdings.lock();
        let ours = holdings.joined.as_ref().is_some_and(|joined| joined.is_same_connection(connection));
        if ours {
            holdings.joined = None;
            holdings.holding.disconnected();
            holdings.acknowledge.clear();
        }
        ours
    }

    /// The owner withdrew these buffers. The receiver tells when none of them is used any more; it fails if that need not
    /// be told any more.
    pub(super) fn invalidated(&self, version: u64, withdrawn: Vec<Generation>) -> oneshot::Receiver<()> {
        let (sender, quiet) = oneshot::channel();
        self.served.fetch_max(version, Ordering::AcqRel);
        let mut holdings = self.holdings.lock();
        let id = holdings.next;
        holdings.next += 1;
        holdings.acknowledge.insert(id, sender);
        let acknowledged = holdings.holding.invalidated(id, version, withdrawn);
        holdings.acknowledge(acknowledged);
        quiet
    }

    /// Begins a use of a buffer that was found in a snapshot of this version. Refused only when the buffer is withdrawn.
    ///
    /// Where the owner does not know of us, or our snapshot is old, the use is like one of a reference peer: the target's
    /// own checks decide. It is counted all the same, so that an acknowledgement waits for it.
    fn begin(&self, buffer: Generation, snapshot: u64) -> Result<(), BufferWithdrawn> {
        let mut holdings = self.holdings.lock();
        match holdings.holding.begin(buffer, snapshot) {
            Ok(()) => Ok(()),
            Err(NotUsable::Gone) => Err(BufferWithdrawn),
            Err(NotUsable::NotJoined | NotUsable::Stale { .. }) if holdings.holding.is_withdrawn(buffer) => {
                Err(BufferWithdrawn)
            }
            Err(NotUsable::NotJoined | NotUsable::Stale { .. }) => {
                holdings.holding.count(buffer);
                Ok(())
            }
        }
    }

    fn end(&self, buffer: Generation) {
        let mut holdings = self.holdings.lock();
        let acknowledged = holdings.holding.end(buffer);
        holdings.acknowledge(acknowledged);
    }
}

impl Holdings {
    fn acknowledge(&mut self, ids: Vec<u64>) {
        for id in ids {
            if let Some(waiting) = self.acknowledge.remove(&id) {
                // The connection may be gone.
                let _ = waiting.send(());
            }
        }
    }
}

/// The owner withdrew the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferWithdrawn;

/// What a batch uses of peers' memory, each buffer once. Dropping it ends the uses.
#[derive(Default)]
pub(crate) struct Uses {
    // Nearly every batch uses one buffer of one peer, which needs no table.
    first: Option<Use>,
    /// The others, by the address of their peer, which they keep alive, and by buffer.
    more: HashMap<(usize, Generation), Use>,
}

struct Use {
    of: Arc<Acquaintance>,
    buffer: Generation,
}

impl Uses {
    /// Begins to use a buffer that was found in a snapshot of this version.
    pub(crate) fn begin(
        &mut self,
        of: &Arc<Acquaintance>,
        buffer: Generation,
        snapshot: u64,
    ) -> Result<(), BufferWithdrawn> {
        let key = (Arc::as_ptr(of).addr(), buffer);
        let is_first = |used: &Use| used.buffer == buffer && Arc::ptr_eq(&used.of, of);
        if self.first.as_ref().is_some_and(is_first) || self.more.contains_key(&key) {
            return Ok(());
        }
        of.begin(buffer, snapshot)?;
        let used = Use { of: of.clone(), buffer };
        match self.first {
            None => self.first = Some(used),
            Some(_) => drop(self.more.insert(key, used)),
        }
        Ok(())
    }

    /// All of them ended well: the peers live.
    pub(crate) fn succeeded(&self) {
        let mut before: Option<&Arc<Acquaintance>> = None;
        for used in self.first.iter().chain(self.more.values()) {
            if !before.is_some_and(|before| Arc::ptr_eq(before, &used.of)) {
                used.of.data_succeeded();
            }
            before = Some(&used.of);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.of.end(self.buffer);
    }
}
