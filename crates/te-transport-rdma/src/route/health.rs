//! What is known of the rails to one peer.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use te_segment::NicName;

use super::{Rail, Reason};

/// When a rail is paused, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// Failures within the window that pause a rail. Default 5.
    pub failures: u32,
    /// Failures are forgotten when the last one is this old. Default 5 s.
    pub window: Duration,
    /// How long a rail is paused. Default 30 s, as the reference engine.
    pub pause: Duration,
    /// Failures that fence a rail which has never worked. Default 3.
    pub fence_after: u32,
    /// How long a rail is fenced before it is tried once more. Default 300 s.
    pub fence: Duration,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            window: Duration::from_secs(5),
            pause: Duration::from_secs(30),
            fence_after: 3,
            fence: Duration::from_secs(300),
        }
    }
}

/// What a failure has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// It is counted.
    Counted,
    /// The rail is paused.
    Paused,
    /// The rail has never worked and is fenced: to be reported.
    Fenced,
}

/// What is known of one rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailState {
    /// Failures that count.
    pub failures: u32,
    /// Whether work has ever completed on it.
    pub has_worked: bool,
    last: Option<Instant>,
    until: Option<Instant>,
    fenced: bool,
}

/// The rails to one peer. A failure never lowers a count, and a success never raises one (FO-16).
#[derive(Clone, Debug, Default)]
pub struct Health {
    settings: HealthSettings,
    rails: HashMap<Rail, RailState>,
    down: BTreeSet<NicName>,
}

impl Health {
    /// Rails of which nothing is known.
    #[must_use]
    pub fn new(settings: HealthSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Work on the rail has failed, for a reason that is not the request's own. Work that was flushed behind it does
    /// not count.
    pub fn failed(&mut self, now: Instant, rail: &Rail) -> Blame {
        let settings = self.settings;
        let state = self.rails.entry(rail.clone()).or_default();
        let old = state.last.is_some_and(|last| now.saturating_duration_since(last) > settings.window);
        // What has never worked is counted however slowly it fails.
        if old && state.has_worked {
            state.failures = 0;
        }
        state.failures = state.failures.saturating_add(1);
        state.last = Some(now);
        if !state.has_worked && state.failures >= settings.fence_after {
            state.until = Some(crate::after(now, settings.fence));
            return if std::mem::replace(&mut state.fenced, true) { Blame::Counted } else { Blame::Fenced };
        }
        if state.failures >= settings.failures {
            state.until = Some(crate::after(now, settings.pause));
            return Blame::Paused;
        }
        Blame::Counted
    }

    /// Work on the rail has completed: it is trusted again, and one failure is forgotten.
    pub fn worked(&mut self, rail: &Rail) {
        let state = self.rails.entry(rail.clone()).or_default();
        state.failures = state.failures.saturating_sub(1);
        (state.has_worked, state.until, state.fenced) = (true, None, false);
    }

    /// Pauses a rail, as when the peer cannot be connected over it while others can.
    pub fn pause(&mut self, now: Instant, rail: &Rail) {
        let until = crate::after(now, self.settings.pause);
        let state = self.rails.entry(rail.clone()).or_default();
        state.until = state.until.max(Some(until));
    }

    /// Ends a pause or a fence, as when a port comes up.
    pub fn resume(&mut self, rail: &Rail) {
        self.rails.remove(rail);
    }

    /// A NIC here is down, or is up again; then its rails are as new.
    pub fn set_down(&mut self, nic: &NicName, down: bool) {
        if down {
            self.down.insert(nic.clone());
        } else if self.down.remove(nic) {
            self.rails.retain(|rail, _| rail.local != *nic);
        }
    }

    /// What is known of a rail.
    #[must_use]
    pub fn state(&self, rail: &Rail) -> RailState {
        self.rails.get(rail).copied().unwrap_or_default()
    }

    /// Why the rail cannot be used now, if it cannot.
    #[must_use]
    pub fn bars(&self, now: Instant, rail: &Rail) -> Option<Reason> {
        if self.down.contains(&rail.local) {
            return Some(Reason::Down);
        }
        let state = self.rails.get(rail)?;
        let until = state.until.filter(|until| now < *until)?;
        Some(if state.fenced { Reason::Fenced(until) } else { Reason::Paused(until) })
    }
}
