//! Requests that fail on one path and go on over the next.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::Duration;

use common::pair::{Pair, content, kinds};
use common::soon;
use te_engine::{BatchStatus, ErrorKind, Limits, NotifyOutcome, block_on};
use te_segment::TransportKind;
use te_testkit::{Fault, Site, When, pattern, verify};
use te_transport::{FailureKind, Fencing, RemoteEffect};

const LEN: usize = 64 << 10;
const QUIET: Duration = Duration::from_millis(60);

/// Reads and writes over a first path that has this fault: all is done over the second one.
fn moves(fencing: Fencing, fault: &Fault) {
    let pair = Pair::new(fencing);
    pair.first.add(Site::Slice, When::Always, fault.clone());
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(3, LEN)).await;
        let write = pair.initiator.batch().write(local.slice(..), &range).silence(QUIET);
        let report = write.submit().unwrap().await.unwrap();
        verify(3, 0, &content(&offered)).unwrap();
        assert_eq!((report.bytes(), kinds(&report)), (LEN as u64, vec![&TransportKind::CXL]), "{fault:?}");
        assert_eq!(report.requests()[0].earlier[0].path().unwrap().transport(), &TransportKind::SHM);

        local.write_at(0, &vec![0; LEN]).unwrap();
        // The circuit of the first path may be open by now: an explicit list keeps its order.
        let only = [TransportKind::SHM, TransportKind::CXL];
        let read = pair.initiator.batch().read(&range, local.slice(..)).silence(QUIET).transports(only);
        let report = read.run().unwrap();
        assert_eq!((report.bytes(), kinds(&report)), (LEN as u64, vec![&TransportKind::CXL]), "{fault:?}");
        assert_eq!(report.requests()[0].attempts, 2);
        verify(3, 0, &content(&local)).unwrap();
    });
}

/// FO-07
#[test]
fn failure_at_submit_moves_to_the_next_path() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        moves(fencing, &Fault::Refuse(FailureKind::Unreachable));
        moves(fencing, &Fault::Refuse(FailureKind::Unsupported));
    }
}

/// FO-07
#[test]
fn failure_at_completion_moves_to_the_next_path() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        moves(fencing, &Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayHaveApplied));
        moves(fencing, &Fault::FailAfter(FailureKind::Protocol, RemoteEffect::MayHaveApplied));
    }
}

/// FO-07, FO-11: a lost slice is a failure like others.
#[test]
fn a_dropped_slice_moves_to_the_next_path() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        moves(fencing, &Fault::Drop);
        moves(fencing, &Fault::DropAfter);
    }
}

/// FO-07, FO-12: what never finishes is given up after a while of silence.
#[test]
fn silence_moves_to_the_next_path() {
    moves(Fencing::Target, &Fault::Hang);
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Hang);
    block_on(async {
        let (_offered, local, range) = pair.memory(pattern(4, LEN), vec![0; LEN]).await;
        let report = pair.initiator.batch().read(&range, local.slice(..)).silence(QUIET).run().unwrap();
        verify(4, 0, &content(&local)).unwrap();
        let request = &report.requests()[0];
        assert_eq!((request.bytes, request.attempts), (LEN as u64, 2));
        assert!(request.earlier[0].cause().starts_with("no progress for "), "{}", request.earlier[0]);
        assert_eq!(request.earlier[0].kind(), FailureKind::TimedOut);
    });
}

/// FO-07: a silent write that its target cannot refuse is left alone, unless late duplicates are allowed.
#[test]
fn a_silent_write_moves_only_where_late_duplicates_are_allowed() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Hang);
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(5, LEN)).await;
        let write = || pair.initiator.batch().write(local.slice(..), &range).silence(QUIET);
        let error = write().deadline(Duration::from_millis(400)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.report().unwrap().requests()[0].attempts, 1);
        assert_eq!(pair.second.count(Site::Slice), 0);
        let only = [TransportKind::SHM, TransportKind::CXL];
        let report = write().transports(only).allow_late_duplicates().run().unwrap();
        assert_eq!(report.bytes(), LEN as u64);
        verify(5, 0, &content(&offered)).unwrap();
    });
}

/// FO-07, contract 9: a write that may still apply is never re-sent without the target's word.
#[test]
fn a_write_that_may_still_apply_is_not_sent_again() {
    let pair = Pair::new(Fencing::LocalOnly);
    let lost = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    pair.first.add(Site::Slice, When::Always, lost);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], pattern(6, LEN)).await;
        let write = || pair.initiator.batch().write(local.slice(..), &range);
        let error = write().run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        assert_eq!(error.remote_effect(), RemoteEffect::MayStillApply);
        assert_eq!(pair.second.count(Site::Slice), 0);
        let report = write()
            .transports([TransportKind::SHM, TransportKind::CXL])
            .allow_late_duplicates()
            .run()
            .unwrap();
        assert_eq!(report.bytes(), LEN as u64);
    });
}

/// FO-07, contract 9: a target that refuses the earlier attempt from then on gives its word, and the write goes on.
#[test]
fn a_write_whose_target_refuses_its_earlier_attempt_is_sent_again() {
    let pair = Pair::new(Fencing::Target);
    let lost = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    pair.first.add(Site::Slice, When::Always, lost);
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(6, LEN)).await;
        let report = pair.initiator.batch().write(local.slice(..), &range).run().unwrap();
        assert_eq!((report.requests()[0].attempts, report.requests()[0].late_duplicate), (2, false));
        assert_eq!(pair.second.count(Site::Slice), 1);
        verify(6, 0, &content(&offered)).unwrap();
    });
}

/// FO-07: the caller is told that an allowed duplicate may come.
#[test]
fn an_allowed_late_duplicate_is_reported() {
    let pair = Pair::new(Fencing::LocalOnly);
    let lost = Fault::FailAfter(FailureKind::ConnectionLost, RemoteEffect::MayStillApply);
    pair.first.add(Site::Slice, When::Nth(1), lost);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], pattern(6, LEN)).await;
        let write = || pair.initiator.batch().write(local.slice(..), &range).allow_late_duplicates();
        let report = write().run().unwrap();
        assert_eq!((report.requests()[0].attempts, report.requests()[0].late_duplicate), (2, true));
        let report = write().run().unwrap();
        assert_eq!((report.requests()[0].attempts, report.requests()[0].late_duplicate), (1, false));
    });
}

/// FO-17, OBS-01: an error over all paths names each attempt.
#[test]
fn the_error_names_every_attempt() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    pair.second.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::ConnectionLost));
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let error = pair.initiator.batch().read(&range, local.slice(..)).run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
        let line = error.to_string();
        assert!(
            line.contains("connection lost: after 2 attempts: the script says so; before that: "),
            "{line}"
        );
        assert!(line.contains("unreachable: the script says so (shm port "), "{line}");
        let path = error.path().unwrap();
        assert!(path.starts_with("shm port ") && path.contains(", then cxl port "), "{path}");
        let request = &error.report().unwrap().requests()[0];
        assert_eq!((request.attempts, request.earlier.len(), request.bytes), (2, 1, 0));
        assert_eq!(request.failure.as_ref().unwrap().kind(), FailureKind::ConnectionLost);
    });
}

/// FO-01, MR-06: where one slice of a request fails, the request is sent again and counted once.
#[test]
fn a_request_of_many_slices_moves_as_a_whole() {
    let pair = Pair::cutting(Fencing::LocalOnly, 10_007);
    pair.first.add(Site::Slice, When::Nth(3), Fault::Refuse(FailureKind::ConnectionLost));
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(7, LEN)).await;
        let report = pair.initiator.batch().write(local.slice(..), &range).submit().unwrap().wait().unwrap();
        assert_eq!((report.bytes(), report.requests()[0].attempts), (LEN as u64, 2));
        verify(7, 0, &content(&offered)).unwrap();
        assert_eq!(pair.first.count(Site::Slice), pair.second.count(Site::Slice));
    });
}

/// FO-07, FO-08: of a batch only what failed moves, and it is complete when all is.
#[test]
fn only_the_failed_requests_of_a_batch_move() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Every(3), Fault::Refuse(FailureKind::ConnectionLost));
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(8, LEN)).await;
        let mut batch = pair.initiator.batch();
        for at in (0..LEN as u64).step_by(1024) {
            batch = batch.write(local.slice(at..at + 1024), &range.slice(at, 1024).unwrap());
        }
        let batch = batch.submit().unwrap();
        let mut resolved = 0;
        while let BatchStatus::Running { resolved: now, total } = batch.status() {
            assert!(now >= resolved && now <= total);
            resolved = now;
        }
        assert_eq!(batch.status(), BatchStatus::Completed);
        let report = batch.wait().unwrap();
        assert_eq!(report.bytes(), LEN as u64);
        verify(8, 0, &content(&offered)).unwrap();
        for (at, request) in report.requests().iter().enumerate() {
            let moved = (at + 1).is_multiple_of(3);
            assert_eq!(request.attempts, if moved { 2 } else { 1 }, "request {at}");
        }
    });
}

/// N-01, FO-08: the notification of a batch comes once, after what had to be sent again.
#[test]
fn notification_waits_for_requests_that_move() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    pair.second.add(Site::Slice, When::Always, Fault::Delay(Duration::from_millis(50)));
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; LEN], pattern(9, LEN)).await;
        let peer = range.segment().clone();
        let batch = pair.initiator.batch().write(local.slice(..), &range).notify(&peer, "there").submit();
        assert_eq!(pair.target.wait_notification(soon()).unwrap().message, "there");
        verify(9, 0, &content(&offered)).unwrap();
        assert_eq!(batch.unwrap().await.unwrap().notify(), Some(&NotifyOutcome::Delivered));
        assert_eq!(pair.target.notifications(), []);
    });
}

/// FO-02, FO-12: two silent paths do not outlast the deadline, and nothing is held after it.
#[test]
fn the_deadline_ends_all_attempts() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        let pair = Pair::new(fencing);
        for script in [&pair.first, &pair.second] {
            script.add(Site::Slice, When::Always, Fault::Hang);
        }
        block_on(async {
            let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
            let read = pair.initiator.batch().read(&range, local.slice(..)).silence(QUIET);
            let error = read.deadline(Duration::from_millis(600)).submit().unwrap().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let request = &error.report().unwrap().requests()[0];
            assert_eq!(request.attempts as usize, request.earlier.len() + 1);
            local.unregister(soon()).await.unwrap();
        });
    }
}

/// FO-02: cancelled in the middle of it, a batch is terminal and its memory free.
#[test]
fn a_moving_batch_can_be_cancelled() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    pair.second.add(Site::Slice, When::Always, Fault::Hang);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let read = || pair.initiator.batch().read(&range, local.slice(..));
        let batch = read().submit().unwrap();
        while pair.second.count(Site::Slice) == 0 {
            std::thread::yield_now();
        }
        let error = batch.cancel().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let only = [TransportKind::SHM, TransportKind::CXL];
        drop(read().transports(only).submit().unwrap());
        local.unregister(soon()).await.unwrap();
    });
}

/// FO-02: a shutdown ends what is between and in the middle of attempts.
#[test]
fn a_shutdown_ends_moving_batches() {
    let pair = Pair::new(Fencing::Target);
    pair.first.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let batches: Vec<_> =
            (0..50).map(|_| pair.initiator.batch().read(&range, local.slice(..)).submit().unwrap()).collect();
        pair.initiator.shutdown(soon()).await;
        for batch in batches {
            match batch.await {
                Ok(report) => assert_eq!(report.bytes(), LEN as u64),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Shutdown, "{error}"),
            }
        }
    });
}

/// The engine's limit is what a batch begins with.
#[test]
fn silence_is_a_limit_of_the_engine() {
    assert_eq!(Limits::default().silence, Duration::from_secs(5));
}
