//! What programs see of the lives of peers.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use te_memory::ForkMark;
use te_segment::{Endpoint, Incarnation};
use tokio::sync::watch;

use crate::machines::liveness::{Cause, Life, LifeSnapshot};

/// What is believed of one life of a peer, why, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerState {
    /// The name of its segment; empty if it has none.
    pub name: String,
    /// Which life of it; `None` for a reference peer, which does not say.
    pub incarnation: Option<Incarnation>,
    /// Where it can be asked; `None` for a peer that only ever came to us, and for reference peers.
    pub control: Option<Endpoint>,
    /// What is believed.
    pub life: Life,
    /// Why.
    pub cause: Cause,
    /// When it began to be so.
    pub since: Instant,
}

impl PeerState {
    pub(super) fn new(
        name: String,
        incarnation: Option<Incarnation>,
        control: Option<Endpoint>,
        now: LifeSnapshot,
    ) -> Self {
        Self { name, incarnation, control, life: now.life, cause: now.cause, since: now.since }
    }

    /// Takes a newer belief over; whether watchers should look.
    pub(super) fn update(&mut self, now: LifeSnapshot) -> bool {
        let changed = self.life != now.life;
        (self.life, self.cause, self.since) = (now.life, now.cause, now.since);
        changed
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Alive => f.write_str("alive"),
            Self::Suspect => f.write_str("suspect"),
            Self::Lost => f.write_str("lost"),
            Self::Replaced { by } => write!(f, "replaced by incarnation {by}"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh => f.write_str("nothing happened yet"),
            Self::CannotBeAsked => f.write_str("it cannot be asked"),
            Self::DataMoved => f.write_str("bytes were moved"),
            Self::DataFailed(kind) => write!(f, "a data path failed: {kind}"),
            Self::HelloAnswered => f.write_str("its control port answered"),
            Self::HelloUnanswered => f.write_str("it did not answer in time"),
            Self::Refused => f.write_str("its control port refused the connection"),
            Self::Reset => f.write_str("it closed the control connection without a word"),
            Self::LeaseGone => f.write_str("the store says that its record is gone"),
            Self::Goodbye => f.write_str("it said that it ends"),
        }
    }
}

/// The changes of one life of a peer; see [`Engine::watch_peer`](crate::Engine::watch_peer).
#[derive(Clone, Debug)]
pub struct PeerWatch {
    states: watch::Receiver<PeerState>,
    mark: Arc<ForkMark>,
}

impl PeerWatch {
    pub(crate) fn new(states: watch::Receiver<PeerState>, mark: Arc<ForkMark>) -> Self {
        Self { states, mark }
    }

    /// What is believed now.
    #[must_use]
    pub fn now(&self) -> PeerState {
        self.states.borrow().clone()
    }

    /// Waits until something else is believed than at the last call, and says what; changes in between are left out.
    /// `None` when this life is forgotten, which happens some time after the last handle to its segment is gone, and in a
    /// child of fork. Can be awaited from any executor; dropping the future loses nothing.
    pub async fn changed(&mut self) -> Option<PeerState> {
        if self.mark.is_forked() {
            return None;
        }
        self.states.changed().await.ok()?;
        Some(self.states.borrow_and_update().clone())
    }

    /// Waits until what is believed satisfies the condition, which is looked at now and after every change. `None` as for
    /// [`changed`](Self::changed).
    pub async fn until(&mut self, mut condition: impl FnMut(&PeerState) -> bool) -> Option<PeerState> {
        if self.mark.is_forked() {
            return None;
        }
        self.states.wait_for(|state| condition(state)).await.ok().map(|state| state.clone())
    }
}
