//! The connections of a listener, and who has to go when there are too many.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::task::AbortHandle;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No whole request yet.
    Waiting,
    /// A request is being handled.
    Serving,
    /// The reply is on its way.
    Sending,
    /// Answered; the peer has not closed yet.
    Answered,
    /// A native connection whose peer has introduced itself.
    Native,
}

#[derive(Debug, Default)]
struct Phases {
    next: u64,
    // Keys count up, so the first entry of a map is its oldest connection.
    waiting: BTreeMap<u64, AbortHandle>,
    serving: BTreeMap<u64, AbortHandle>,
    sending: BTreeMap<u64, AbortHandle>,
    answered: BTreeMap<u64, AbortHandle>,
    native: BTreeMap<u64, AbortHandle>,
    closing: bool,
}

impl Phases {
    fn of(&mut self, phase: Phase) -> &mut BTreeMap<u64, AbortHandle> {
        match phase {
            Phase::Waiting => &mut self.waiting,
            Phase::Serving => &mut self.serving,
            Phase::Sending => &mut self.sending,
            Phase::Answered => &mut self.answered,
            Phase::Native => &mut self.native,
        }
    }

    fn len(&self) -> usize {
        let open = [&self.waiting, &self.serving, &self.sending, &self.answered, &self.native];
        open.into_iter().map(BTreeMap::len).sum()
    }
}

/// All open connections of one listener.
#[derive(Debug)]
pub(crate) struct Table {
    phases: Mutex<Phases>,
    limit: usize,
}

impl Table {
    pub(crate) fn new(limit: usize) -> Self {
        Self { phases: Mutex::default(), limit: limit.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Phases> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Makes room and enters a connection whose task `spawn` starts with its number. False if every connection is
    /// being served, so that the newcomer has to go.
    pub(crate) fn admit(&self, spawn: impl FnOnce(u64) -> AbortHandle) -> bool {
        let mut phases = self.lock();
        if phases.len() >= self.limit && !evict(&mut phases) {
            return false;
        }
        let id = phases.next;
        phases.next += 1;
        // Entered under the lock, so that the task cannot look for itself too early.
        let task = spawn(id);
        phases.waiting.insert(id, task);
        true
    }

    /// Closes one connection that can be spared.
    pub(crate) fn evict_one(&self) -> bool {
        evict(&mut self.lock())
    }

    /// The connection has a whole request. False if it was closed meanwhile.
    pub(crate) fn begin(&self, id: u64) -> bool {
        self.shift(id, Phase::Waiting, Phase::Serving)
    }

    /// The request was handled and its reply goes out. False if the connection was closed meanwhile.
    pub(crate) fn sending(&self, id: u64) -> bool {
        self.shift(id, Phase::Serving, Phase::Sending)
    }

    /// The connection has its reply. False if it should close without waiting for the peer.
    pub(crate) fn answered(&self, id: u64) -> bool {
        self.shift(id, Phase::Sending, Phase::Answered) && !self.lock().closing
    }

    /// The peer of a native connection has introduced itself. False if they are too many, or if the connection was
    /// closed meanwhile. A quarter of the places is left to others, who come and go.
    pub(crate) fn native(&self, id: u64) -> bool {
        self.lock().native.len() < self.limit - self.limit / 4
            && self.shift(id, Phase::Waiting, Phase::Native)
    }

    fn shift(&self, id: u64, from: Phase, to: Phase) -> bool {
        let mut phases = self.lock();
        match phases.of(from).remove(&id) {
            Some(task) => phases.of(to).insert(id, task).is_none(),
            None => false,
        }
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut phases = self.lock();
        for phase in [Phase::Waiting, Phase::Serving, Phase::Sending, Phase::Answered, Phase::Native] {
            phases.of(phase).remove(&id);
        }
    }

    /// Closes every connection that is not being served, from now on; native ones end by themselves.
    pub(crate) fn close_idle(&self) {
        let mut phases = self.lock();
        phases.closing = true;
        for (_, task) in
            std::mem::take(&mut phases.answered).into_iter().chain(std::mem::take(&mut phases.waiting))
        {
            task.abort();
        }
    }
}

/// The oldest connection that has its reply has nothing to lose; next comes the oldest without a whole request, then
/// the oldest that does not take its reply. So neither silence nor a client that never reads or closes can lock
/// newcomers out.
fn evict(phases: &mut Phases) -> bool {
    let Phases { waiting, sending, answered, .. } = phases;
    match answered.pop_first().or_else(|| waiting.pop_first()).or_else(|| sending.pop_first()) {
        Some((_, task)) => {
            task.abort();
            true
        }
        None => false,
    }
}

/// Memory that unfinished requests and replies of one listener may hold together.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    left: AtomicUsize,
}

impl Budget {
    /// Memory of each request or reply that is not counted.
    pub(crate) const FREE: usize = 16 << 10;

    pub(crate) fn new(bytes: usize) -> Self {
        Self { total: bytes, left: AtomicUsize::new(bytes) }
    }

    fn take(&self, bytes: usize) -> bool {
        let taken =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.is_ok()
    }

    fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What one request or reply has taken from a [`Budget`]; dropping gives it back.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    budget: &'a Budget,
    held: usize,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Self {
        Self { budget, held: 0 }
    }

    /// Raises what is held to what `allocated` bytes cost, at most the whole budget: whatever is larger passes alone.
    /// False if there is not enough left.
    pub(crate) fn raise(&mut self, allocated: usize) -> bool {
        let wanted = allocated.saturating_sub(Budget::FREE).min(self.budget.total);
        let more = wanted.saturating_sub(self.held);
        if more > 0 {
            if !self.budget.take(more) {
                return false;
            }
            self.held = wanted;
        }
        true
    }
}

impl Charge<'_> {
    /// Like [`raise`](Self::raise), and gives back what is not needed any more.
    pub(crate) fn set(&mut self, allocated: usize) -> bool {
        let wanted = allocated.saturating_sub(Budget::FREE).min(self.budget.total);
        let excess = self.held.saturating_sub(wanted);
        self.budget.give(excess);
        self.held -= excess;
        self.raise(allocated)
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.budget.give(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_share_one_budget_and_give_it_back() {
        let budget = Budget::new(100);
        let mut first = Charge::new(&budget);
        assert!(first.raise(Budget::FREE + 80));
        assert!(!Charge::new(&budget).raise(Budget::FREE + 40));
        drop(first);
        assert!(Charge::new(&budget).raise(Budget::FREE + 40));
    }

    #[test]
    fn a_charge_that_shrinks_gives_back() {
        let budget = Budget::new(100);
        let mut charge = Charge::new(&budget);
        assert!(charge.set(Budget::FREE + 80));
        assert!(charge.set(Budget::FREE + 20));
        let mut other = Charge::new(&budget);
        assert!(other.raise(Budget::FREE + 80));
        assert!(!charge.set(Budget::FREE + 21));
    }

    #[test]
    fn small_requests_are_free() {
        let budget = Budget::new(0);
        assert!(Charge::new(&budget).raise(Budget::FREE));
    }

    #[test]
    fn one_request_over_the_budget_passes_alone() {
        let budget = Budget::new(100);
        let mut large = Charge::new(&budget);
        assert!(large.raise(1 << 30));
        assert!(!Charge::new(&budget).raise(Budget::FREE + 1));
    }
}
