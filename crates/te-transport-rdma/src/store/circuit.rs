//! When a peer that failed may be tried again.

use std::fmt;
use std::time::{Duration, Instant};

/// How fast one peer is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The pause after the first failure. Default 1 s.
    pub first: Duration,
    /// The longest pause. Default 30 s.
    pub longest: Duration,
    /// How long nothing may have failed before work that completes makes the failures forgotten. Default 5 s.
    pub steady: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            steady: Duration::from_secs(5),
        }
    }
}

/// What a circuit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// Nothing has failed lately.
    Closed,
    /// Not to be tried until then.
    Open {
        /// Until when.
        until: Instant,
        /// Failures in a row.
        failures: u32,
    },
    /// To be tried, once; what comes of it decides.
    Probing {
        /// Failures in a row.
        failures: u32,
    },
}

impl fmt::Display for CircuitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Open { failures, .. } => write!(f, "open after {failures} failures"),
            Self::Probing { failures } => write!(f, "probing after {failures} failures"),
        }
    }
}

/// Failures of the endpoints toward one peer NIC. That an endpoint could be opened says nothing: only work that completes
/// does, since a path that breaks at its first work would be opened for ever otherwise (EP-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circuit {
    pace: Pace,
    failures: u32,
    last: Option<Instant>,
    until: Option<Instant>,
}

impl Circuit {
    /// A circuit that nothing has happened to.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self { pace, failures: 0, last: None, until: None }
    }

    /// An endpoint could not be opened, or broke. Pauses double with each failure and are spread by a quarter to either
    /// side; `roll` is a random number.
    pub fn failed(&mut self, now: Instant, roll: u32) {
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        let doubled =
            1_u32.checked_shl(self.failures - 1).and_then(|times| self.pace.first.checked_mul(times));
        let pause = doubled.map_or(self.pace.longest, |pause| pause.min(self.pace.longest));
        // Three quarters, and up to a half more.
        let spread = pause.mul_f64(0.75 + 0.5 * f64::from(roll) / f64::from(u32::MAX));
        self.until = Some(crate::after(now, spread));
    }

    /// Work has completed.
    pub fn worked(&mut self, now: Instant) {
        let steady = self.last.is_none_or(|last| now.saturating_duration_since(last) >= self.pace.steady);
        if steady {
            *self = Self::new(self.pace);
        }
    }

    /// Whether an endpoint may be opened now.
    ///
    /// # Errors
    ///
    /// When it may be.
    pub fn may_open(&self, now: Instant) -> Result<(), Instant> {
        match self.until {
            Some(until) if now < until => Err(until),
            _ => Ok(()),
        }
    }

    /// Until when no endpoint may be opened, be that over or not; none where nothing has failed.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// What it says at this moment.
    #[must_use]
    pub fn state(&self, now: Instant) -> CircuitState {
        match self.until {
            None => CircuitState::Closed,
            Some(until) if now < until => CircuitState::Open { until, failures: self.failures },
            Some(_) => CircuitState::Probing { failures: self.failures },
        }
    }
}
