//! Withdrawing local memory that this engine's own batches still use.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::Duration;

use common::pair::Pair;
use common::{World, soon};
use te_engine::{BatchBuilder, BatchStatus, Deadline, Engine, ErrorKind, LocalSlice, RemoteRange, block_on};
use te_segment::{Access, TransportKind};
use te_testkit::{Fault, FaultTransport, Script, Site, When};
use te_transport::{FailureKind, Fencing, Op};

const LEN: usize = 4096;
const DRAIN: Duration = Duration::from_millis(50);
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

fn request(from: &Engine, op: Op, local: LocalSlice, remote: &RemoteRange) -> BatchBuilder {
    let batch = from.batch().deadline(LONG).silence(LONG);
    match op {
        Op::Read => batch.read(remote, local),
        Op::Write => batch.write(local, remote),
    }
}

/// Withdraws a local buffer whose request hangs on the path number `hangs`, while one over another buffer hangs as well.
fn cuts_its_own(fencing: Fencing, op: Op, hangs: usize) {
    let pair = Pair::draining(fencing, DRAIN);
    let scripts = [&pair.first, &pair.second];
    for failed in &scripts[..hangs] {
        failed.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    }
    scripts[hangs].add(Site::Slice, When::Always, Fault::Hang);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let other = pair.initiator.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let (gone, withdrawn) = (local.range(), local.slice(..));
        let cut = request(&pair.initiator, op, withdrawn.clone(), &range).submit().unwrap();
        let kept = request(&pair.initiator, op, other.slice(..), &range).submit().unwrap();
        while scripts[hangs].count(Site::Slice) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(local.unregister(soon()).await.unwrap().len(), LEN);

        let error = cut.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BufferGone, "{error}");
        assert!(error.cause().contains(&format!("local buffer {gone} is being withdrawn")), "{error}");
        let report = error.report().unwrap();
        assert_eq!(report.requests()[0].failure.as_ref().unwrap().kind(), FailureKind::LocalMemory);
        let refused = request(&pair.initiator, op, withdrawn, &range).submit().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BufferGone);

        assert!(matches!(kept.status(), BatchStatus::Running { .. }));
        let cancelled = kept.cancel().await.unwrap_err();
        assert_eq!(cancelled.kind(), ErrorKind::Cancelled, "{cancelled}");
        other.unregister(soon()).await.unwrap();
    });
}

/// Contract 3, 7: a request that hangs is cut off, on whichever path it is, and says why; no other one is.
#[test]
fn a_withdrawal_cuts_its_own_requests_off() {
    for fencing in [Fencing::LocalOnly, Fencing::Target] {
        for op in [Op::Read, Op::Write] {
            for hangs in [0, 1] {
                cuts_its_own(fencing, op, hangs);
            }
        }
    }
}

/// Contract 3: requests that can end in the drain time are not cut.
#[test]
fn a_request_that_ends_in_the_drain_time_is_done() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Delay(Duration::from_millis(100)));
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let batch = request(&pair.initiator, Op::Write, local.slice(..), &range).submit().unwrap();
        local.unregister(Deadline::after_secs(60)).await.unwrap();
        assert_eq!(batch.wait().unwrap().bytes(), LEN as u64);
    });
}

/// Contract 3, 7: a dropped buffer cuts its requests off too, after the engine's drain time.
#[test]
fn a_dropped_buffer_cuts_its_requests_off() {
    let world = World::new();
    let script = Script::new(1).with(Site::Slice, When::Always, Fault::Hang);
    let mut config = World::config("initiator");
    config.limits.drain = DRAIN;
    let faulty = FaultTransport::new(world.transport(TransportKind::SHM), &script);
    let initiator = world.engine_with(config, vec![Box::new(faulty)]);
    let target = world.engine("target");
    block_on(async {
        let offered = target.register(vec![0_u8; LEN], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let range = initiator.open("target").await.unwrap().range(offered.address(), LEN as u64).unwrap();
        let local = initiator.register(vec![0_u8; LEN], Access::LOCAL).await.unwrap();
        let batch = request(&initiator, Op::Read, local.slice(..), &range).submit().unwrap();
        drop(local);
        let error = batch.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BufferGone, "{error}");
    });
}
