//! Facts about tokens, scopes and failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use te_segment::{Incarnation, TransportKind};

use crate::{
    Abort, Admission, Admitted, AttemptId, CancelReason, CancelScope, CompletionSink, CompletionToken,
    Failure, FailureKind, Outcome, PathLabel, RemoteEffect,
};

#[derive(Default)]
struct Log(Mutex<Vec<(u32, Outcome)>>);

impl CompletionSink for Log {
    fn complete(&self, index: u32, outcome: Outcome) {
        self.0.lock().push((index, outcome));
    }
}

#[test]
fn token_reports_once_when_done() {
    let log = Arc::new(Log::default());
    CompletionToken::new(log.clone(), 3).done(10);
    let seen = log.0.lock();
    assert_eq!(seen.len(), 1);
    assert!(matches!(seen[0], (3, Outcome::Done(10))));
}

/// EP-02: a lost slice is a failure, never silence.
#[test]
fn dropped_token_is_a_failure() {
    let log = Arc::new(Log::default());
    drop(CompletionToken::new(log.clone(), 7));
    let seen = log.0.lock();
    let (7, Outcome::Failed(failure)) = &seen[0] else { panic!("not a failure: {seen:?}") };
    assert_eq!(failure.kind(), FailureKind::Dropped);
    assert_eq!(failure.effect(), RemoteEffect::MayHaveApplied);
}

struct Count(AtomicUsize);

impl Abort for Count {
    fn abort(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn cancel_interrupts_each_attached_hook_once() {
    let scope = CancelScope::new();
    let hook = Arc::new(Count(AtomicUsize::new(0)));
    let _guard = scope.attach(hook.clone());
    assert!(scope.cancel(CancelReason::Cancelled));
    assert!(!scope.cancel(CancelReason::Expired));
    assert_eq!(hook.0.load(Ordering::SeqCst), 1);
    assert_eq!(scope.cancelled(), Some(CancelReason::Cancelled));
}

#[test]
fn attaching_to_a_cancelled_scope_interrupts_at_once() {
    let scope = CancelScope::new();
    scope.cancel(CancelReason::Shutdown);
    let hook = Arc::new(Count(AtomicUsize::new(0)));
    drop(scope.attach(hook.clone()));
    assert_eq!(hook.0.load(Ordering::SeqCst), 1);
}

#[test]
fn detached_hooks_are_not_called() {
    let scope = CancelScope::new();
    let hook = Arc::new(Count(AtomicUsize::new(0)));
    drop(scope.attach(hook.clone()));
    scope.cancel(CancelReason::Cancelled);
    assert_eq!(hook.0.load(Ordering::SeqCst), 0);
}

#[test]
fn racing_attach_and_cancel_always_interrupts() {
    for _ in 0..500 {
        let scope = CancelScope::new();
        let hook = Arc::new(Count(AtomicUsize::new(0)));
        std::thread::scope(|threads| {
            threads.spawn(|| scope.cancel(CancelReason::Cancelled));
            let guard = scope.attach(hook.clone());
            while scope.cancelled().is_none() {
                std::hint::spin_loop();
            }
            // The canceller may still be between changing the state and calling us; it holds no lock then.
            while hook.0.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert_eq!(hook.0.load(Ordering::SeqCst), 1);
    }
}

/// OBS-01: the text names kind, cause, path and effect.
#[test]
fn failure_text_names_kind_cause_path_and_effect() {
    let failure = Failure::new(FailureKind::TimedOut, "no status within 5 s")
        .with_effect(RemoteEffect::MayStillApply)
        .on_path(Arc::new(PathLabel::new(TransportKind::TCP, "10.0.0.3:16411 v2")));
    assert_eq!(
        failure.to_string(),
        "timed out: no status within 5 s (tcp 10.0.0.3:16411 v2); part of the range may have been written and may \
         still be written later"
    );
}

/// Neither comes back at the same handle: only a newer descriptor can lead to bytes again.
#[test]
fn retrying_helps_neither_with_another_life_nor_with_a_withdrawn_buffer() {
    for kind in [FailureKind::StaleIncarnation, FailureKind::BufferGone] {
        assert!(!kind.retry_can_help(), "{kind}");
    }
}

/// Counts what is admitted and what ends; admits later attempts only.
#[derive(Default)]
struct Counted {
    admitted: AtomicUsize,
    ended: AtomicUsize,
}

impl Admission for Counted {
    fn admit(&self, _: Incarnation, ids: &[AttemptId], _: &Arc<dyn Abort>) -> bool {
        let admits = ids.iter().all(|id| id.attempt > 1);
        self.admitted.fetch_add(usize::from(admits), Ordering::Relaxed);
        admits
    }

    fn ended(&self, _: Incarnation, _: &[AttemptId], _: &Arc<dyn Abort>) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// FO-03: whoever counts the parts of an attempt that run must not be told of the end of one that never began.
#[test]
fn only_admitted_attempts_end() {
    let (counted, executor) = (Counted::default(), Arc::new(Count(AtomicUsize::new(0))) as Arc<dyn Abort>);
    let peer = Incarnation::from_bits(1);
    let ids = [1, 2].map(|attempt| AttemptId { request: 1, attempt });
    let ask = |attempt: usize| Admitted::ask(&counted, peer, &ids[attempt - 1..attempt], &executor);
    let count = || (counted.admitted.load(Ordering::Relaxed), counted.ended.load(Ordering::Relaxed));
    assert!(ask(1).is_none());
    assert!(Admitted::ask(&counted, peer, &ids, &executor).is_none());
    assert_eq!(count(), (0, 0));
    let admitted = ask(2);
    assert!(admitted.is_some());
    assert_eq!(count(), (1, 0));
    drop(admitted);
    assert_eq!(count(), (1, 1));
}
