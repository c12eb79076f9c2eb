//! Whether a path to a peer may be tried now: a circuit per peer and path, with jittered back-off (FO-06, EP-07).
//!
//! ```text
//!             failed                      the time is over: one is admitted
//!  Closed ───────────────▶ Open{until} ───────────────────────────────────▶ HalfOpen
//!    ▲                        ▲                                                │  │
//!    │                        └──── failed (longer), abandoned (as long) ──────┘  │
//!    └─────────────────────────────── succeeded ──────────────────────────────────┘
//! ```
//!
//! No path is given up for good: after at most [`CircuitSettings::longest`] and its jitter one attempt is let through.
//! A success closes the circuit at once, but the length of the next back-off is forgotten only after a calm time, so that
//! a path that works for a moment after each reconnect does not make a storm.

use std::time::{Duration, Instant};

use te_transport::FailureKind;

use super::after;

/// How long a circuit stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CircuitSettings {
    /// The first back-off; each further one is twice as long. Default 500 ms.
    pub(crate) first: Duration,
    /// The longest back-off, without jitter. Default 4 s, so that a path is used again within 5 s of its recovery.
    pub(crate) longest: Duration,
    /// So long after a success the back-off begins at the first again. Default 10 s.
    pub(crate) calm: Duration,
    /// An attempt let through while half open counts as abandoned after this. Default 30 s.
    pub(crate) patience: Duration,
}

impl Default for CircuitSettings {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(4),
            calm: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }
}

/// Permission for one attempt, to be given back with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub(crate) struct Ticket {
    epoch: u64,
}

impl Ticket {
    /// The one that a closed circuit of this epoch gives to everybody.
    pub(crate) fn closed(epoch: u64) -> Self {
        Self { epoch }
    }
}

/// The path is not to be tried before this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CircuitOpen {
    pub(crate) until: Instant,
}

/// What a circuit is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CircuitState {
    /// Used freely.
    Closed,
    /// Not used before `until`.
    Open { until: Instant },
    /// One attempt, admitted at `since`, decides.
    HalfOpen { since: Instant },
}

/// A circuit as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CircuitSnapshot {
    pub(crate) state: CircuitState,
    /// Failures that opened it or kept it open, since it was last calm.
    pub(crate) failures: u32,
    /// What the last of them was.
    pub(crate) last: Option<FailureKind>,
}

/// The circuit of one path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Circuit {
    settings: CircuitSettings,
    state: CircuitState,
    /// Counts openings; outcomes of attempts from before the last one say nothing new.
    epoch: u64,
    failures: u32,
    last: Option<FailureKind>,
    succeeded_at: Option<Instant>,
}

/// Whether such a failure says something of the path, and not of the request.
pub(crate) fn blames_path(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Unreachable
            | FailureKind::ConnectionLost
            | FailureKind::TimedOut
            | FailureKind::Damaged
            | FailureKind::Protocol
            | FailureKind::Dropped
    )
}

impl Circuit {
    /// A closed circuit.
    pub(crate) fn new(settings: CircuitSettings) -> Self {
        let state = CircuitState::Closed;
        Self { settings, state, epoch: 0, failures: 0, last: None, succeeded_at: None }
    }

    /// Asks to make an attempt.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<Ticket, CircuitOpen> {
        if self.state == CircuitState::Closed {
            return Ok(Ticket { epoch: self.epoch });
        }
        if let Some(open) = self.refuses(now) {
            return Err(open);
        }
        // The ticket of an attempt nobody heard of again is void.
        self.epoch += 1;
        self.state = CircuitState::HalfOpen { since: now };
        Ok(Ticket { epoch: self.epoch })
    }

    /// Until when an attempt would be refused, if it would be now.
    pub(crate) fn refuses(&self, now: Instant) -> Option<CircuitOpen> {
        let until = match self.state {
            CircuitState::Closed => return None,
            CircuitState::Open { until } => until,
            CircuitState::HalfOpen { since } => after(since, self.settings.patience),
        };
        (now < until).then_some(CircuitOpen { until })
    }

    /// Whether nothing is to be remembered of it: closed, and calm since the last failure.
    pub(crate) fn is_untroubled(&self) -> bool {
        self.state == CircuitState::Closed && self.failures == 0
    }

    /// Changes with every opening.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes were moved over the path.
    pub(crate) fn succeeded(&mut self, now: Instant, ticket: Ticket) {
        if ticket.epoch != self.epoch {
            return;
        }
        self.state = CircuitState::Closed;
        // Begins with the first success; later ones do not put it off.
        self.succeeded_at.get_or_insert(now);
        if self.is_calm(now) {
            self.failures = 0;
        }
    }

    /// The path failed. `jitter` is a random number: of the back-off up to a quarter is added by it.
    pub(crate) fn failed(&mut self, now: Instant, ticket: Ticket, kind: FailureKind, jitter: u16) {
        let already_open = matches!(self.state, CircuitState::Open { .. });
        if ticket.epoch != self.epoch || already_open {
            return;
        }
        if self.is_calm(now) {
            self.failures = 0;
        }
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let wait = self.settings.first.saturating_mul(doubled).min(self.settings.longest);
        let jitter = wait.mul_f64(f64::from(jitter) / f64::from(u16::MAX) / 4.0);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(kind);
        self.succeeded_at = None;
        self.epoch += 1;
        self.state = CircuitState::Open { until: after(now, wait.saturating_add(jitter)) };
    }

    /// The attempt ended without saying anything of the path: cancelled, refused by the target.
    pub(crate) fn abandoned(&mut self, now: Instant, ticket: Ticket) {
        if ticket.epoch == self.epoch && matches!(self.state, CircuitState::HalfOpen { .. }) {
            self.epoch += 1;
            self.state = CircuitState::Open { until: now };
        }
    }

    /// What can be told of it.
    pub(crate) fn snapshot(&self) -> CircuitSnapshot {
        CircuitSnapshot { state: self.state, failures: self.failures, last: self.last }
    }

    fn is_calm(&self, now: Instant) -> bool {
        self.succeeded_at.is_some_and(|at| now.saturating_duration_since(at) >= self.settings.calm)
    }
}

#[cfg(test)]
mod tests;
