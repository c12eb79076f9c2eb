//! Which attempts of peers may touch memory here, and how their senders stop them.
//!
//! Transports ask [`Fences`] before an attempt of a te peer touches memory. Each life of a sender has its own
//! [`FenceLedger`] and its own lock. A life is remembered for as long as it has anything running or refused, or until
//! its process is known to be gone; when there are too many, newcomers are refused: forgetting a fence is not an option.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use te_rpc::native::FenceOutcome;
use te_segment::Incarnation;
use te_transport::{Abort, Admission};
use tokio::sync::oneshot;

use crate::machines::fence::{AttemptId, FenceLedger, FenceStart};

/// Lives of senders with anything to remember.
const LIVES: usize = 16_384;
/// Requests of one life whose fences are remembered one by one.
const REQUESTS: usize = 4_096;

/// All ledgers of one engine.
pub(crate) struct Fences {
    lives: RwLock<HashMap<Incarnation, Arc<SenderLife>>>,
    limit: usize,
    next: AtomicU64,
}

struct SenderLife {
    state: Mutex<Option<State>>,
}

struct State {
    ledger: FenceLedger,
    /// Who runs what; few at a time. What was admitted together stands together.
    executors: Vec<(AttemptId, Arc<dyn Abort>)>,
    acknowledge: HashMap<u64, oneshot::Sender<()>>,
    /// The process is gone: nothing new comes from it.
    over: bool,
}

/// What became of a fence so far.
pub(crate) enum FenceBegun {
    /// Nothing runs.
    Done,
    /// Executors were interrupted.
    Stopping(Stopping),
    /// There is no room to remember it.
    Busy,
}

/// Waits until what was fenced has ended. Dropping it ends the waiting, not the fence.
pub(crate) struct Stopping {
    life: Weak<SenderLife>,
    fence: u64,
    ended: oneshot::Receiver<()>,
}

impl Fences {
    pub(crate) fn new() -> Self {
        Self::with_limit(LIVES)
    }

    fn with_limit(limit: usize) -> Self {
        Self { lives: RwLock::default(), limit, next: AtomicU64::new(1) }
    }

    /// Refuses these attempts of a life from now on and interrupts what runs of them.
    pub(crate) fn fence(&self, peer: Incarnation, attempts: &[AttemptId]) -> FenceBegun {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let begun = self.with(peer, |life, state| match state.ledger.fence(number, attempts) {
            FenceStart::Acknowledge => (FenceBegun::Done, Vec::new()),
            FenceStart::Busy => (FenceBegun::Busy, Vec::new()),
            FenceStart::Stop(running) => {
                let (sender, ended) = oneshot::channel();
                state.acknowledge.insert(number, sender);
                let executors = state.executors.iter().filter(|(id, _)| running.contains(id));
                let executors: Vec<_> = executors.map(|(_, executor)| executor.clone()).collect();
                let stopping = Stopping { life: Arc::downgrade(life), fence: number, ended };
                (FenceBegun::Stopping(stopping), executors)
            }
        });
        let Some((begun, executors)) = begun else { return FenceBegun::Busy };
        // Outside the lock: an executor may end at once, on this thread.
        for executor in executors {
            executor.abort();
        }
        begun
    }

    /// What can be said about each attempt now.
    pub(crate) fn outcomes(&self, peer: Incarnation, attempts: &[AttemptId]) -> Vec<FenceOutcome> {
        let life = self.lives.read().get(&peer).cloned();
        let state = life.as_ref().map(|life| life.state.lock());
        let runs = |id: &AttemptId| {
            state.as_ref().and_then(|state| state.as_ref()).is_some_and(|state| state.ledger.runs(*id))
        };
        let outcome = |id| if runs(id) { FenceOutcome::MayStillApply } else { FenceOutcome::Stopped };
        attempts.iter().map(outcome).collect()
    }

    /// The process of this life is gone: its ledger may be forgotten when room is needed.
    pub(crate) fn over(&self, peer: Incarnation) {
        let life = self.lives.read().get(&peer).cloned();
        if let Some(state) = life.as_ref().map(|life| life.state.lock()).as_deref_mut()
            && let Some(state) = state
        {
            state.over = true;
        }
    }

    /// Works with the ledger of a life; `None` if there is no room for another one.
    fn with<T>(&self, peer: Incarnation, work: impl FnOnce(&Arc<SenderLife>, &mut State) -> T) -> Option<T> {
        loop {
            let life = self.life(peer)?;
            let mut state = life.state.lock();
            // Taken out of the table since it was looked up.
            if let Some(state) = state.as_mut() {
                return Some(work(&life, state));
            }
        }
    }

    fn life(&self, peer: Incarnation) -> Option<Arc<SenderLife>> {
        if let Some(life) = self.lives.read().get(&peer) {
            return Some(life.clone());
        }
        let mut lives = self.lives.write();
        if !lives.contains_key(&peer) && lives.len() >= self.limit {
            lives.retain(|_, life| {
                let mut state = life.state.lock();
                let idle = state.as_ref().is_none_or(State::is_forgettable);
                if idle {
                    *state = None;
                }
                !idle
            });
        }
        if !lives.contains_key(&peer) && lives.len() >= self.limit {
            tracing::warn!(target: "te::engine", %peer, "refused: too many peers have fences here");
            return None;
        }
        Some(lives.entry(peer).or_insert_with(|| Arc::new(SenderLife::new())).clone())
    }
}

impl SenderLife {
    fn new() -> Self {
        let ledger = FenceLedger::new(REQUESTS);
        let state = State { ledger, executors: Vec::new(), acknowledge: HashMap::new(), over: false };
        Self { state: Mutex::new(Some(state)) }
    }
}

impl State {
    /// Notes the end of admitted attempts and acknowledges the fences that waited for it.
    fn end(&mut self, ids: &[AttemptId]) {
        for id in ids {
            for fence in self.ledger.ended(*id) {
                if let Some(waiting) = self.acknowledge.remove(&fence) {
                    // Whoever waited may be gone.
                    let _ = waiting.send(());
                }
            }
        }
    }

    fn is_forgettable(&self) -> bool {
        self.ledger.is_blank() || self.over && self.ledger.is_idle()
    }
}

impl Admission for Fences {
    fn admit(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>) -> bool {
        let admitted = self.with(peer, |_, state| {
            let fenced = ids.iter().position(|id| !state.ledger.admit(*id));
            let admitted = &ids[..fenced.unwrap_or(ids.len())];
            if fenced.is_some() {
                state.end(admitted);
                return false;
            }
            state.executors.extend(admitted.iter().map(|id| (*id, executor.clone())));
            true
        });
        admitted.unwrap_or(false)
    }

    fn ended(&self, peer: Incarnation, ids: &[AttemptId], executor: &Arc<dyn Abort>) {
        let Some(life) = self.lives.read().get(&peer).cloned() else { return };
        let mut state = life.state.lock();
        let Some(state) = state.as_mut() else { return };
        let same = |(running, id): (&(AttemptId, Arc<dyn Abort>), &AttemptId)| {
            running.0 == *id && Arc::ptr_eq(&running.1, executor)
        };
        let place = state.executors.windows(ids.len().max(1)).position(|some| some.iter().zip(ids).all(same));
        let Some(place) = place else { return };
        state.executors.drain(place..place + ids.len());
        state.end(ids);
    }
}

impl Stopping {
    /// Waits at most so long; whether all has ended.
    pub(crate) async fn ended_within(mut self, time: Duration) -> bool {
        tokio::time::timeout(time, &mut self.ended).await.is_ok_and(|ended| ended.is_ok())
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let Some(life) = self.life.upgrade() else { return };
        if let Some(state) = life.state.lock().as_mut()
            && state.acknowledge.remove(&self.fence).is_some()
        {
            state.ledger.forget(self.fence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const PEER: Incarnation = Incarnation::from_bits(1);

    #[derive(Default)]
    struct Executor(AtomicUsize);

    impl Abort for Executor {
        fn abort(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn executor() -> (Arc<Executor>, Arc<dyn Abort>) {
        let executor = Arc::new(Executor::default());
        (executor.clone(), executor)
    }

    fn id(request: u64, attempt: u32) -> AttemptId {
        AttemptId { request, attempt }
    }

    fn running() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// FO-07
    #[test]
    fn a_fence_interrupts_who_runs_and_waits_for_all_parts() {
        let fences = Fences::new();
        let ((one, first), (two, second)) = (executor(), executor());
        assert!(fences.admit(PEER, &[id(5, 1)], &first) && fences.admit(PEER, &[id(5, 1)], &second));
        let (other, innocent) = executor();
        assert!(fences.admit(PEER, &[id(6, 1)], &innocent));
        let FenceBegun::Stopping(stopping) = fences.fence(PEER, &[id(5, 2)]) else { panic!("runs") };
        let aborted = |executor: &Executor| executor.0.load(Ordering::SeqCst);
        assert_eq!((aborted(&one), aborted(&two), aborted(&other)), (1, 1, 0));
        assert_eq!(fences.outcomes(PEER, &[id(5, 2)]), [FenceOutcome::MayStillApply]);
        assert!(!fences.admit(PEER, &[id(5, 2)], &first));
        fences.ended(PEER, &[id(5, 1)], &first);
        fences.ended(PEER, &[id(5, 1)], &second);
        assert!(running().block_on(stopping.ended_within(Duration::from_secs(10))));
        assert_eq!(fences.outcomes(PEER, &[id(5, 2)]), [FenceOutcome::Stopped]);
        assert!(fences.admit(PEER, &[id(5, 3)], &first), "a newer attempt may run");
    }

    /// FO-07
    #[test]
    fn what_is_admitted_together_is_refused_and_ends_together() {
        let fences = Fences::new();
        let (one, by) = executor();
        let list = [id(5, 1), id(5, 1), id(6, 1), id(7, 1)];
        assert!(fences.admit(PEER, &list, &by));
        let FenceBegun::Stopping(stopping) = fences.fence(PEER, &[id(6, 1)]) else { panic!("runs") };
        assert_eq!(one.0.load(Ordering::SeqCst), 1);
        assert!(!fences.admit(PEER, &[id(8, 1), id(6, 1)], &by), "one is fenced");
        assert!(matches!(fences.fence(PEER, &[id(8, 1)]), FenceBegun::Done), "so the other does not run");
        fences.ended(PEER, &list, &by);
        assert!(running().block_on(stopping.ended_within(Duration::from_secs(10))));
        for id in list {
            assert!(matches!(fences.fence(PEER, &[id]), FenceBegun::Done), "{id} has ended");
        }
    }

    #[test]
    fn a_fence_that_is_not_waited_for_any_more_still_refuses() {
        let fences = Fences::new();
        let (_, by) = executor();
        assert!(fences.admit(PEER, &[id(5, 1)], &by));
        drop(fences.fence(PEER, &[id(5, 1)]));
        fences.ended(PEER, &[id(5, 1)], &by);
        assert!(!fences.admit(PEER, &[id(5, 1)], &by));
    }

    #[test]
    fn lives_with_fences_are_not_forgotten_before_they_are_over() {
        let fences = Fences::with_limit(2);
        let (_, by) = executor();
        let life = Incarnation::from_bits;
        assert!(matches!(fences.fence(life(1), &[id(1, 1)]), FenceBegun::Done));
        assert!(fences.admit(life(2), &[id(1, 1)], &by));
        assert!(!fences.admit(life(3), &[id(1, 1)], &by), "both are needed");
        fences.ended(life(2), &[id(1, 1)], &by);
        assert!(fences.admit(life(3), &[id(1, 1)], &by), "the second has nothing to remember");
        assert!(!fences.admit(life(1), &[id(1, 1)], &by), "the first is remembered");
        fences.over(life(1));
        assert!(fences.admit(life(4), &[id(1, 1)], &by), "the first is over");
    }
}
