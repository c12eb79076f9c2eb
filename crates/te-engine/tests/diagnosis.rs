//! What an error says of where it went wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::Duration;

use common::pair::Pair;
use te_engine::{AttemptReport, ErrorKind, PeerLife, block_on};
use te_segment::TransportKind;
use te_testkit::{Fault, Site, When};
use te_transport::{FailureKind, Fencing, RemoteEffect};

const PIECE: u64 = 1024;
const LEN: usize = 4 * PIECE as usize;
const QUIET: Duration = Duration::from_millis(60);
const LATE: Duration = Duration::from_secs(2);

fn bytes(tried: &AttemptReport) -> (u64, Option<u64>, Option<u64>) {
    (tried.acknowledged, tried.posted, tried.queued())
}

/// FO-17: a request that timed out says which bytes arrived, which were sent and which were not even begun, and whether
/// the peer is there.
#[test]
fn a_timeout_says_how_far_it_came() {
    let pair = Pair::cutting(Fencing::LocalOnly, PIECE);
    let lost = Fault::FailAfter(FailureKind::TimedOut, RemoteEffect::MayStillApply);
    pair.first.add(Site::Slice, When::Nth(2), lost);
    pair.first.add(Site::Slice, When::From(3), Fault::Hang);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let write = pair.initiator.batch().write(local.slice(..), &range).deadline(LATE);
        let error = write.run().unwrap_err();
        assert_eq!((error.kind(), error.remote_effect()), (ErrorKind::TimedOut, RemoteEffect::MayStillApply));
        let request = &error.report().unwrap().requests()[0];
        assert_eq!(request.tried.len(), 1);
        assert_eq!(request.tried[0].path, request.path);
        assert_eq!(request.tried[0].given, LEN as u64);
        assert_eq!(bytes(&request.tried[0]), (PIECE, Some(PIECE), Some(2 * PIECE)));
        let peer = request.peer.as_ref().unwrap();
        assert_eq!((peer.name.as_str(), peer.incarnation), ("target", Some(pair.target.incarnation())));
        for part in [
            "; shm port ",
            ": 1 KiB of 4 KiB acknowledged, 1 KiB posted, 2 KiB queued, no progress seen for ",
            &format!("; the peer is {} since ", peer.life),
        ] {
            assert!(error.cause().contains(part), "{part:?} is not in {}", error.cause());
        }
    });
}

/// FO-17: of every path that was tried.
#[test]
fn a_timeout_over_several_paths_says_how_far_it_came_on_each() {
    let pair = Pair::cutting(Fencing::LocalOnly, PIECE);
    for script in [&pair.first, &pair.second] {
        script.add(Site::Slice, When::From(2), Fault::Hang);
    }
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let read = pair.initiator.batch().read(&range, local.slice(..)).silence(QUIET).deadline(LATE);
        let error = read.submit().unwrap().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let request = &error.report().unwrap().requests()[0];
        let paths: Vec<_> = request.tried.iter().map(|tried| tried.path.transport()).collect();
        assert_eq!(paths, [&TransportKind::SHM, &TransportKind::CXL]);
        for tried in &request.tried {
            assert_eq!(bytes(tried), (PIECE, None, None), "{tried}");
        }
        assert!(request.tried[0].quiet >= QUIET, "{}", request.tried[0]);
        for part in ["; shm port ", "; cxl port ", ": 1 KiB of 4 KiB acknowledged, no progress"] {
            assert!(error.cause().contains(part), "{part:?} is not in {}", error.cause());
        }
    });
}

/// FO-18: a failure is found again in the caller's own terms: which request, which memory here and there, which path.
#[test]
fn a_failure_names_its_request_and_its_buffers() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Nth(3), Fault::Refuse(FailureKind::Rejected));
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let mut batch = pair.initiator.batch();
        for at in (0..LEN as u64).step_by(PIECE as usize) {
            batch = batch.write(local.slice(at..at + PIECE), &range.slice(at, PIECE).unwrap());
        }
        let error = batch.retry_changed(false).run().unwrap_err();
        let (here, there) = (local.address() + 2 * PIECE, range.range().start() + 2 * PIECE);
        assert_eq!(
            error.operation(),
            format!(
                "1 of 4 requests failed, the first at index 2: write 1 KiB to target at {there:#x} from local \
                 {here:#x}"
            )
        );
        for (index, request) in error.report().unwrap().requests().iter().enumerate() {
            let at = index as u64 * PIECE;
            assert_eq!((request.local.start(), request.local.len()), (local.address() + at, PIECE));
            assert_eq!((request.remote.start(), request.remote.len()), (range.range().start() + at, PIECE));
            let failure = request.failure.as_ref().map(|failure| failure.path().cloned());
            assert_eq!(failure, (index == 2).then(|| Some(request.path.clone())));
            let life = request.peer.as_ref().map(|peer| peer.life);
            assert_eq!(life, (index == 2).then_some(PeerLife::Alive));
        }
    });
}
