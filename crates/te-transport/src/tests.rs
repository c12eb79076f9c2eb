//! Facts about tokens, scopes and failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use te_segment::TransportKind;

use crate::{
    Abort, CancelReason, CancelScope, CompletionSink, CompletionToken, Failure, FailureKind, Outcome,
    PathLabel, RemoteEffect,
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
