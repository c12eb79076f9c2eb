//! What is believed of a peer's life, why, and since when.
//!
//! ```text
//!             data or hello succeeds            hello refused; or hello failed
//!  Unknown ───────────────────────▶ Alive       after a reset or a lost lease
//!     │                             │  ▲        from every state: ──▶ Lost
//!     │ silence, data failed,       │  │
//!     └──────▶ Suspect ◀────────────┘  │        another incarnation answers
//!                 │   a data path or   │        from every state: ──▶ Replaced (for good)
//!                 └── hello succeeds ──┘
//! ```
//!
//! * A success on a data path outranks whatever a probe says: a stopped process still serves one-sided transfers.
//! * `Suspect` and `Unknown` refuse nothing; `Lost` and `Replaced` refuse new requests.
//! * `Lost` is not for ever: the peer is asked further on, with longer pauses, and may answer again (FO-13).
//! * One peer here is one life of it. A new life is another machine.
//!
//! | evidence against it | hello: same life | hello: another life | hello: refused | hello: no answer |
//! |---|---|---|---|---|
//! | none | Alive | Replaced | Lost | Suspect |
//! | control connection reset | Alive | Replaced | Lost | Lost |
//! | lease gone | Alive | Replaced | Lost | Lost |
//! | it said goodbye | Alive | Replaced | Lost | Lost |

use std::time::{Duration, Instant};

use te_segment::Incarnation;
use te_transport::FailureKind;

use super::after;

/// When a peer is asked whether it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LivenessSettings {
    /// A living peer that nothing was heard of for so long is asked. Default 2 s.
    pub(crate) quiet: Duration,
    /// A data success this recent outranks a probe without answer. Default 5 s.
    pub(crate) fresh: Duration,
    /// A suspect is asked again after this; a lost peer after twice, four times as long, and so on. Default 500 ms.
    pub(crate) again: Duration,
    /// The longest pause between two questions. Default 4 s.
    pub(crate) longest: Duration,
}

impl Default for LivenessSettings {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(2),
            fresh: Duration::from_secs(5),
            again: Duration::from_millis(500),
            longest: Duration::from_secs(4),
        }
    }
}

/// What is believed of a peer's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Life {
    /// Nothing was heard, or the peer cannot be asked: it predates probes.
    Unknown,
    /// It answered or moved bytes.
    Alive,
    /// It did not answer, which proves nothing.
    Suspect,
    /// Its process is gone, as far as can be told.
    Lost,
    /// Another life answers in its place.
    Replaced {
        /// The life that answers.
        by: Incarnation,
    },
}

impl Life {
    /// Whether new requests are refused.
    #[must_use]
    pub fn refuses(self) -> bool {
        matches!(self, Self::Lost | Self::Replaced { .. })
    }
}

/// Why something is believed of a peer's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing happened yet.
    Fresh,
    /// The peer has no probe.
    CannotBeAsked,
    /// Bytes were moved.
    DataMoved,
    /// A data path failed.
    DataFailed(FailureKind),
    /// It answered, or another life did.
    HelloAnswered,
    /// It did not answer in time.
    HelloUnanswered,
    /// Its control port refused the connection.
    Refused,
    /// It closed the control connection without a word.
    Reset,
    /// The store says that its record is gone.
    LeaseGone,
    /// It said that it ends.
    Goodbye,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LivenessEvent {
    /// A request over a data path bound to this life succeeded.
    DataSucceeded,
    /// A request over a data path failed for a reason that blames the path.
    DataFailed(FailureKind),
    /// Hello or probe was answered by this life.
    HelloAnswered { by: Incarnation },
    /// Hello or probe was not answered in time.
    HelloTimedOut,
    /// Nobody listens on the control port.
    HelloRefused,
    /// The peer has no probe.
    CannotBeAsked,
    /// An established control connection broke.
    ControlReset,
    /// The store deleted its record.
    LeaseGone,
    /// The store has its record again.
    LeaseBack,
    /// It said that it ends.
    Goodbye,
}

/// A state as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LifeSnapshot {
    pub(crate) life: Life,
    pub(crate) cause: Cause,
    /// When it began to be so.
    pub(crate) since: Instant,
}

/// The machine of one life of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Liveness {
    settings: LivenessSettings,
    incarnation: Option<Incarnation>,
    now: LifeSnapshot,
    /// Evidence that its process ended; a failed hello makes it a verdict.
    doubt: Option<Cause>,
    lease_gone: bool,
    data_at: Option<Instant>,
    askable: bool,
    ask_at: Instant,
    /// Questions without answer since the last good news.
    unanswered: u32,
}

impl Liveness {
    /// A peer nothing was heard of. `incarnation` is `None` for peers that have none.
    pub(crate) fn new(now: Instant, incarnation: Option<Incarnation>, settings: LivenessSettings) -> Self {
        Self {
            settings,
            incarnation,
            now: LifeSnapshot { life: Life::Unknown, cause: Cause::Fresh, since: now },
            doubt: None,
            lease_gone: false,
            data_at: None,
            askable: true,
            ask_at: now,
            unanswered: 0,
        }
    }

    /// What is believed now.
    pub(crate) fn snapshot(&self) -> LifeSnapshot {
        self.now
    }

    /// When the peer should be asked; `None` when that is pointless.
    pub(crate) fn ask_at(&self) -> Option<Instant> {
        let replaced = matches!(self.now.life, Life::Replaced { .. });
        (self.askable && !replaced).then_some(self.ask_at)
    }

    /// The peer is being asked; the next time comes later, whatever the answer.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.ask_at = after(now, self.pause());
    }

    /// Takes an event in; returns the new state if the belief has changed.
    pub(crate) fn on(&mut self, now: Instant, event: LivenessEvent) -> Option<LifeSnapshot> {
        use LivenessEvent as Event;
        if matches!(self.now.life, Life::Replaced { .. }) {
            return None;
        }
        match event {
            Event::DataSucceeded => {
                self.data_at = Some(now);
                self.good_news(now, Cause::DataMoved)
            }
            Event::HelloAnswered { by } if self.incarnation.is_some_and(|ours| ours != by) => {
                self.become_(now, Life::Replaced { by }, Cause::HelloAnswered)
            }
            Event::HelloAnswered { .. } => {
                self.askable = true;
                self.good_news(now, Cause::HelloAnswered)
            }
            Event::DataFailed(kind) => {
                self.ask_soon(now);
                self.suspect(now, Cause::DataFailed(kind))
            }
            Event::HelloTimedOut => self.unanswered(now),
            Event::HelloRefused => {
                self.unanswered = self.unanswered.saturating_add(1);
                self.become_(now, Life::Lost, Cause::Refused)
            }
            Event::CannotBeAsked => {
                self.askable = false;
                let news = matches!(self.now.life, Life::Unknown | Life::Suspect | Life::Lost);
                if news { self.become_(now, Life::Unknown, Cause::CannotBeAsked) } else { None }
            }
            Event::ControlReset => self.doubts(now, Cause::Reset),
            Event::LeaseGone => {
                self.lease_gone = true;
                self.doubts(now, Cause::LeaseGone)
            }
            Event::LeaseBack => {
                self.lease_gone = false;
                if self.doubt == Some(Cause::LeaseGone) {
                    self.doubt = None;
                }
                None
            }
            Event::Goodbye => {
                self.doubt = Some(Cause::Goodbye);
                self.become_(now, Life::Lost, Cause::Goodbye)
            }
        }
    }

    fn good_news(&mut self, now: Instant, cause: Cause) -> Option<LifeSnapshot> {
        // A lease that is gone stays gone: the next unanswered hello counts fully.
        self.doubt = self.lease_gone.then_some(Cause::LeaseGone);
        self.unanswered = 0;
        self.ask_at = after(now, self.settings.quiet);
        self.become_(now, Life::Alive, cause)
    }

    fn doubts(&mut self, now: Instant, cause: Cause) -> Option<LifeSnapshot> {
        self.doubt = Some(cause);
        self.ask_soon(now);
        self.suspect(now, cause)
    }

    fn unanswered(&mut self, now: Instant) -> Option<LifeSnapshot> {
        self.unanswered = self.unanswered.saturating_add(1);
        let moves = self.data_at.is_some_and(|at| now.saturating_duration_since(at) < self.settings.fresh);
        match self.doubt {
            _ if moves && self.now.life == Life::Alive => None,
            Some(evidence) => self.become_(now, Life::Lost, evidence),
            None => self.suspect(now, Cause::HelloUnanswered),
        }
    }

    /// Doubt does not make a lost peer better.
    fn suspect(&mut self, now: Instant, cause: Cause) -> Option<LifeSnapshot> {
        if self.now.life == Life::Lost { None } else { self.become_(now, Life::Suspect, cause) }
    }

    fn ask_soon(&mut self, now: Instant) {
        if self.now.life != Life::Lost && self.unanswered == 0 {
            self.ask_at = self.ask_at.min(now);
        }
    }

    fn pause(&self) -> Duration {
        match self.now.life {
            Life::Alive => self.settings.quiet,
            Life::Lost => {
                let times = 1_u32.checked_shl(self.unanswered).unwrap_or(u32::MAX);
                self.settings.again.saturating_mul(times).min(self.settings.longest)
            }
            _ => self.settings.again,
        }
    }

    fn become_(&mut self, now: Instant, life: Life, cause: Cause) -> Option<LifeSnapshot> {
        let changed = self.now.life != life;
        let since = if changed { now } else { self.now.since };
        self.now = LifeSnapshot { life, cause, since };
        changed.then_some(self.now)
    }
}

#[cfg(test)]
mod tests;
