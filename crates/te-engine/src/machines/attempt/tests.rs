use super::*;

const MS: Duration = Duration::from_millis(1);

fn request(op: Op, paths: &[Fencing], allow_late_duplicate: bool) -> (Instant, Attempts) {
    let now = Instant::now();
    let policy = AttemptPolicy { allow_late_duplicate, ..AttemptPolicy::default() };
    (now, Attempts::new(now, op, paths.into(), now + MS * 30_000, policy))
}

fn on(request: &mut Attempts, now: Instant, event: AttemptEvent) -> Vec<AttemptAction> {
    request.on(now, event).collect()
}

fn failed(attempt: u32, kind: FailureKind, effect: RemoteEffect) -> AttemptEvent {
    AttemptEvent::Failed { attempt, kind, effect }
}

fn over(kind: FailureKind, effect: RemoteEffect, attempts: u32, path: usize) -> Vec<AttemptAction> {
    vec![AttemptAction::Finish(AttemptOutcome::Failed { kind, effect, attempts, path: Some(path) })]
}

fn submit(attempt: u32, path: usize) -> Vec<AttemptAction> {
    vec![AttemptAction::Submit { attempt, path }]
}

/// FO-07
#[test]
fn a_failure_at_submit_moves_to_the_next_path() {
    let (now, mut write) = request(Op::Write, &[Fencing::LocalOnly; 2], false);
    assert_eq!(on(&mut write, now, AttemptEvent::Start), submit(1, 0));
    let event = failed(1, FailureKind::Unreachable, RemoteEffect::None);
    assert_eq!(on(&mut write, now, event), submit(2, 1));
    let done = AttemptOutcome::Done { bytes: 9, attempts: 2, late_duplicate: false };
    let event = AttemptEvent::Done { attempt: 2, bytes: 9 };
    assert_eq!(on(&mut write, now, event), [AttemptAction::Finish(done)]);
}

/// FO-07
#[test]
fn a_write_that_may_still_apply_moves_after_the_targets_word() {
    let (now, mut write) = request(Op::Write, &[Fencing::Target; 2], false);
    on(&mut write, now, AttemptEvent::Start);
    let event = failed(1, FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    assert_eq!(on(&mut write, now, event), [AttemptAction::FenceTarget { attempt: 1 }]);
    assert_eq!(on(&mut write, now + MS * 20_000, AttemptEvent::Tick), []);
    assert_eq!(on(&mut write, now + MS * 20_000, AttemptEvent::Fenced { attempt: 1 }), submit(2, 1));
}

/// FO-07
#[test]
fn a_write_that_nothing_fences_ends_and_says_that_it_may_still_apply() {
    let (now, mut write) = request(Op::Write, &[Fencing::LocalOnly; 2], false);
    on(&mut write, now, AttemptEvent::Start);
    let event = failed(1, FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    let end = over(FailureKind::ConnectionLost, RemoteEffect::MayStillApply, 1, 0);
    assert_eq!(on(&mut write, now, event), end);
}

/// FO-07
#[test]
fn a_silent_write_that_nothing_fences_is_left_alone_until_the_deadline() {
    let (now, mut write) = request(Op::Write, &[Fencing::LocalOnly; 2], false);
    on(&mut write, now, AttemptEvent::Start);
    assert_eq!(write.wake_at(), Some(now + MS * 30_000));
    assert_eq!(on(&mut write, now + MS * 29_999, AttemptEvent::Tick), []);
    let deadline = now + MS * 30_000;
    assert_eq!(on(&mut write, deadline, AttemptEvent::Tick), [AttemptAction::FenceLocal { attempt: 1 }]);
    let event = failed(1, FailureKind::Cancelled, RemoteEffect::MayStillApply);
    assert_eq!(
        on(&mut write, deadline, event),
        over(FailureKind::TimedOut, RemoteEffect::MayStillApply, 1, 0)
    );
}

/// FO-07
#[test]
fn a_silent_write_that_is_done_locally_moves_without_a_fence() {
    let (now, mut write) = request(Op::Write, &[Fencing::Immediate, Fencing::Target], false);
    on(&mut write, now, AttemptEvent::Start);
    let silent = now + MS * 5_000;
    assert_eq!(write.wake_at(), Some(silent));
    assert_eq!(on(&mut write, silent, AttemptEvent::Tick), [AttemptAction::FenceLocal { attempt: 1 }]);
    let event = failed(1, FailureKind::Cancelled, RemoteEffect::MayHaveApplied);
    assert_eq!(on(&mut write, silent, event), submit(2, 1));
}

/// FO-07
#[test]
fn an_allowed_late_duplicate_is_told() {
    let (now, mut write) = request(Op::Write, &[Fencing::LocalOnly; 2], true);
    on(&mut write, now, AttemptEvent::Start);
    let event = failed(1, FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    assert_eq!(on(&mut write, now, event), submit(2, 1));
    let done = AttemptOutcome::Done { bytes: 9, attempts: 2, late_duplicate: true };
    let event = AttemptEvent::Done { attempt: 2, bytes: 9 };
    assert_eq!(on(&mut write, now, event), [AttemptAction::Finish(done)]);
}

/// FO-07
#[test]
fn a_silent_read_moves_after_the_local_fence_alone() {
    let (now, mut read) = request(Op::Read, &[Fencing::LocalOnly; 2], false);
    on(&mut read, now, AttemptEvent::Start);
    on(&mut read, now + MS * 3_000, AttemptEvent::Heard { attempt: 1 });
    assert_eq!(read.wake_at(), Some(now + MS * 8_000));
    assert_eq!(on(&mut read, now + MS * 7_999, AttemptEvent::Tick), []);
    let stop = [AttemptAction::FenceLocal { attempt: 1 }];
    assert_eq!(on(&mut read, now + MS * 8_000, AttemptEvent::Tick), stop);
    let event = failed(1, FailureKind::Cancelled, RemoteEffect::MayStillApply);
    assert_eq!(on(&mut read, now + MS * 8_001, event), submit(2, 1));
}

/// FO-02
#[test]
fn a_write_is_stopped_in_time_for_the_targets_word_before_the_deadline() {
    let (now, mut write) = request(Op::Write, &[Fencing::Target], false);
    on(&mut write, now, AttemptEvent::Start);
    let cutoff = now + MS * 29_900;
    assert_eq!(write.wake_at(), Some(cutoff));
    on(&mut write, cutoff, AttemptEvent::Tick);
    let event = failed(1, FailureKind::Cancelled, RemoteEffect::MayStillApply);
    assert_eq!(on(&mut write, cutoff, event), [AttemptAction::FenceTarget { attempt: 1 }]);
    let end = over(FailureKind::TimedOut, RemoteEffect::MayHaveApplied, 1, 0);
    assert_eq!(on(&mut write, cutoff + MS * 50, AttemptEvent::Fenced { attempt: 1 }), end);
}

/// FO-02
#[test]
fn without_the_targets_word_a_write_ends_at_the_deadline_and_may_still_apply() {
    let (now, mut write) = request(Op::Write, &[Fencing::Target; 2], false);
    on(&mut write, now, AttemptEvent::Start);
    on(&mut write, now, failed(1, FailureKind::ConnectionLost, RemoteEffect::MayStillApply));
    assert_eq!(write.wake_at(), Some(now + MS * 30_000));
    let end = over(FailureKind::TimedOut, RemoteEffect::MayStillApply, 1, 0);
    assert_eq!(on(&mut write, now + MS * 30_000, AttemptEvent::Tick), end);
}

/// FO-02
#[test]
fn an_attempt_that_stops_late_is_fenced_as_a_last_favour() {
    let (now, mut write) = request(Op::Write, &[Fencing::Target], false);
    on(&mut write, now, AttemptEvent::Start);
    let late = now + MS * 30_001;
    on(&mut write, late, AttemptEvent::Tick);
    let actions = on(&mut write, late, failed(1, FailureKind::Cancelled, RemoteEffect::MayStillApply));
    let mut expected = over(FailureKind::TimedOut, RemoteEffect::MayStillApply, 1, 0);
    expected.push(AttemptAction::FenceTarget { attempt: 1 });
    assert_eq!(actions, expected);
}

#[test]
fn what_the_target_refuses_is_not_tried_elsewhere() {
    let (now, mut read) = request(Op::Read, &[Fencing::Target; 2], false);
    on(&mut read, now, AttemptEvent::Start);
    let event = failed(1, FailureKind::Rejected, RemoteEffect::None);
    assert_eq!(on(&mut read, now, event), over(FailureKind::Rejected, RemoteEffect::None, 1, 0));
}

/// FO-02
#[test]
fn a_cancelled_request_ends_when_its_transport_has_stopped() {
    let (now, mut write) = request(Op::Write, &[Fencing::Target; 2], false);
    on(&mut write, now, AttemptEvent::Start);
    assert_eq!(on(&mut write, now, AttemptEvent::Cancel), [AttemptAction::FenceLocal { attempt: 1 }]);
    assert_eq!(on(&mut write, now, AttemptEvent::Cancel), []);
    let event = failed(1, FailureKind::Cancelled, RemoteEffect::MayHaveApplied);
    assert_eq!(on(&mut write, now, event), over(FailureKind::Cancelled, RemoteEffect::MayHaveApplied, 1, 0));
}

/// FO-08
#[test]
fn a_finished_request_does_nothing_more() {
    let (now, mut read) = request(Op::Read, &[Fencing::Target], false);
    on(&mut read, now, AttemptEvent::Start);
    on(&mut read, now, AttemptEvent::Done { attempt: 1, bytes: 1 });
    assert!(read.is_finished() && read.wake_at().is_none());
    for event in [
        AttemptEvent::Start,
        AttemptEvent::Done { attempt: 1, bytes: 1 },
        failed(1, FailureKind::Dropped, RemoteEffect::None),
        AttemptEvent::Fenced { attempt: 1 },
        AttemptEvent::Unfenceable { attempt: 1 },
        AttemptEvent::Cancel,
        AttemptEvent::Tick,
    ] {
        assert_eq!(on(&mut read, now + MS * 60_000, event), []);
    }
}

#[test]
fn a_request_without_a_path_is_unreachable() {
    let (now, mut read) = request(Op::Read, &[], false);
    let outcome = AttemptOutcome::Failed {
        kind: FailureKind::Unreachable,
        effect: RemoteEffect::None,
        attempts: 0,
        path: None,
    };
    assert_eq!(on(&mut read, now, AttemptEvent::Start), [AttemptAction::Finish(outcome)]);
}
