//! Slices and outcomes that wait for their batch to end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use te_transport::{
    Abort, CancelReason, CancelScope, CompletionSink, CompletionToken, Failure, FailureKind, Outcome,
    PathLabel, Slice,
};

use super::script::Fault;

/// What waits of one submission.
pub(super) struct Parked {
    shared: Arc<Shared>,
}

struct Shared {
    label: Arc<PathLabel>,
    scope: CancelScope,
    deadline: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    // Slices that hang.
    slices: Vec<Slice>,
    // Outcomes that come late, and when.
    outcomes: Vec<(Instant, CompletionToken, Outcome)>,
    // Tokens that are still with the transport and may give late outcomes.
    expected: usize,
}

impl Abort for Shared {
    fn abort(&self) {
        // Under the lock, so that the watching thread is either before its check or asleep.
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}

impl Parked {
    pub(super) fn new(label: &Arc<PathLabel>, scope: &CancelScope, deadline: Instant) -> Self {
        let shared = Shared {
            label: label.clone(),
            scope: scope.clone(),
            deadline,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Keeps a slice until its batch ends.
    pub(super) fn park(&self, slice: Slice) {
        self.shared.state.lock().slices.push(slice);
    }

    /// A token whose outcome is changed or kept back.
    pub(super) fn intercept(&self, token: CompletionToken, fault: Fault) -> CompletionToken {
        if matches!(fault, Fault::Delay(_)) {
            self.shared.state.lock().expected += 1;
        }
        let index = token.index();
        let shared = self.shared.clone();
        CompletionToken::new(Arc::new(Interceptor { token: Mutex::new(Some(token)), fault, shared }), index)
    }

    /// Starts waiting, if anything waits.
    pub(super) fn watch(self) {
        let idle = {
            let state = self.shared.state.lock();
            state.slices.is_empty() && state.expected == 0
        };
        if !idle {
            let shared = self.shared;
            thread::spawn(move || shared.wait());
        }
    }
}

impl Shared {
    fn wait(self: Arc<Self>) {
        let _interrupts = self.scope.attach(self.clone());
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let ended = self.scope.cancelled().is_some() || self.deadline <= now;
            let due = |at: Instant| ended || at <= now;
            let outcomes = std::mem::take(&mut state.outcomes);
            let (late, rest) = outcomes.into_iter().partition::<Vec<_>, _>(|(at, ..)| due(*at));
            state.outcomes = rest;
            let slices = if ended { std::mem::take(&mut state.slices) } else { Vec::new() };
            if !late.is_empty() || !slices.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut state, || self.resolve(late, slices));
                continue;
            }
            if state.slices.is_empty() && state.outcomes.is_empty() && state.expected == 0 {
                return;
            }
            let next = state.outcomes.iter().map(|(at, ..)| *at).min();
            // After the end only outcomes are awaited, which the transport reports soon.
            let until = next.unwrap_or(now + Duration::from_secs(1)).min(self.deadline.max(now));
            let until = if ended { now + Duration::from_secs(1) } else { until };
            self.changed.wait_until(&mut state, until);
        }
    }

    fn resolve(&self, outcomes: Vec<(Instant, CompletionToken, Outcome)>, slices: Vec<Slice>) {
        for (_, token, outcome) in outcomes {
            token.resolve(outcome);
        }
        for slice in slices {
            let kind = match self.scope.cancelled() {
                None | Some(CancelReason::Expired) => FailureKind::TimedOut,
                Some(CancelReason::Shutdown) => FailureKind::Shutdown,
                Some(_) => FailureKind::Cancelled,
            };
            slice.token.fail(Failure::new(kind, "no answer, by script").on_path(self.label.clone()));
        }
    }

    fn arrived(&self, after: Duration, token: CompletionToken, outcome: Outcome) {
        let mut state = self.state.lock();
        state.expected -= 1;
        state.outcomes.push((Instant::now() + after, token, outcome));
        self.changed.notify_all();
    }
}

struct Interceptor {
    token: Mutex<Option<CompletionToken>>,
    fault: Fault,
    shared: Arc<Shared>,
}

impl CompletionSink for Interceptor {
    fn complete(&self, _index: u32, outcome: Outcome) {
        let Some(token) = self.token.lock().take() else { return };
        match &self.fault {
            Fault::FailAfter(kind, effect) => {
                let failure = Failure::new(*kind, "the acknowledgement was lost, by script");
                token.fail(failure.with_effect(*effect).on_path(self.shared.label.clone()));
            }
            Fault::DropAfter => drop(token),
            Fault::Delay(after) => self.shared.arrived(*after, token, outcome),
            _ => token.resolve(outcome),
        }
    }
}
