//! Paths that fail and recover, peers that die, descriptors that change, and everything at once.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::time::{Duration, Instant};

use common::pair::{Pair, content, kinds};
use common::{World, soon};
use te_engine::{ErrorKind, PathCircuitState, block_on};
use te_segment::{Access, Location, TransportKind};
use te_testkit::{Fault, FaultTransport, Script, Site, When, pattern, verify};
use te_transport::{FailureKind, Fencing, Install, Op, RemoteEffect};

const LEN: usize = 64 << 10;

/// FO-04: what hangs on one path to one peer delays nobody else.
#[test]
fn one_dead_peer_slows_nobody_else() {
    let world = World::new();
    let (first, second) = (Script::new(1), Script::new(2));
    let transport = |kind, script: &Script| -> Box<dyn Install> {
        Box::new(FaultTransport::new(world.transport(kind), script))
    };
    let both = |first: &Script, second: &Script| {
        vec![transport(TransportKind::SHM, first), transport(TransportKind::CXL, second)]
    };
    let (none, other) = (Script::new(3), Script::new(4));
    let dead = world.engine_with(World::config("dead"), both(&none, &none));
    let healthy = world.engine_with(World::config("healthy"), both(&other, &other));
    let initiator = world.engine_with(World::config("initiator"), both(&first, &second));
    block_on(async {
        let local = initiator.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let offered = dead.register(vec![1; LEN], Access::REMOTE).await.unwrap();
        let good = healthy.register(pattern(2, LEN), Access::REMOTE).await.unwrap();
        dead.published(soon()).await.unwrap();
        healthy.published(soon()).await.unwrap();
        let lost = initiator.open("dead").await.unwrap().range(offered.address(), LEN as u64).unwrap();
        let found = initiator.open("healthy").await.unwrap().range(good.address(), LEN as u64).unwrap();
        // The first slice on either path is the dead peer's.
        for script in [&first, &second] {
            script.add(Site::Slice, When::Nth(1), Fault::Refuse(FailureKind::Unreachable));
        }
        // Both in one batch, run by the caller: the healthy one is done, the other fails over both paths.
        let half = local.slice(..LEN as u64);
        let error = initiator.batch().read(&lost, half.clone()).read(&found, half).run().unwrap_err();
        let report = error.report().unwrap();
        assert_eq!(report.requests()[1].bytes, LEN as u64);
        assert_eq!((report.requests()[0].attempts, report.requests()[0].bytes), (2, 0));
        verify(2, 0, &content(&local)).unwrap();
    });
}

/// FO-06: a path that failed is used last for a while, says so, and is taken up again when it works.
#[test]
fn a_circuit_opens_and_closes_again() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Unreachable));
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        let peer = range.segment().clone();
        let read = || pair.initiator.batch().read(&range, local.slice(..)).run().unwrap();
        assert_eq!(read().requests()[0].attempts, 2);
        let circuits = peer.circuits();
        assert_eq!(circuits.len(), 2);
        assert_eq!(circuits[0].state, PathCircuitState::Closed);
        assert_ne!(circuits[1].state, PathCircuitState::Closed, "{circuits:?}");
        assert_eq!(circuits[1].last_failure, Some(FailureKind::Unreachable));

        // A trial may be due at any time; it fails, and then the path is left alone for longer.
        let explain =
            || peer.explain(Op::Read, &range, &Location::Any, &te_select::Policy::default()).unwrap();
        let spared = (0..100).any(|_| {
            let (plan, report) = (explain(), read());
            let says_why = plan.candidates()[1].reason.contains("its circuit is open for ");
            let put_last = plan.chosen() == &TransportKind::CXL && says_why;
            put_last && report.requests()[0].attempts == 1 && kinds(&report) == [&TransportKind::CXL]
        });
        assert!(spared, "{:?}", explain());

        pair.first.clear();
        let began = Instant::now();
        while kinds(&read()) != [&TransportKind::SHM] {
            assert!(began.elapsed() < Duration::from_secs(30), "the path is never used again");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(peer.circuits()[1].state, PathCircuitState::Closed);
        assert_eq!(explain().chosen(), &TransportKind::SHM);
    });
}

/// FO-13, contract 4: a refusal that a changed descriptor explains is retried once, within one life only.
#[test]
fn a_refused_request_is_planned_anew_when_the_descriptor_has_changed() {
    let world = World::new();
    let script = Script::new(1);
    let target = world.engine("target");
    let faulty = FaultTransport::new(world.transport(TransportKind::SHM), &script);
    let initiator = world.engine_with(World::config("initiator"), vec![Box::new(faulty)]);
    block_on(async {
        let offered = target.register(pattern(1, LEN), Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        let local = initiator.register(vec![0; LEN], Access::LOCAL).await.unwrap();
        let peer = initiator.open("target").await.unwrap();
        let range = peer.range(offered.address(), LEN as u64).unwrap();
        let read = || initiator.batch().read(&range, local.slice(..));
        let attempts = |error: te_engine::Error| error.report().unwrap().requests()[0].attempts;
        script.add(Site::Slice, When::Always, Fault::Refuse(FailureKind::Rejected));
        assert_eq!(attempts(read().run().unwrap_err()), 1, "nothing has changed");

        let _more = target.register(vec![0; 4096], Access::REMOTE).await.unwrap();
        target.published(soon()).await.unwrap();
        assert_eq!(attempts(read().retry_changed(false).run().unwrap_err()), 1);
        let again = read().run().unwrap_err();
        assert_eq!((again.kind(), attempts(again)), (ErrorKind::Rejected, 2));
        script.clear();
        script.add(
            Site::Slice,
            When::Nth(script.count(Site::Slice) + 1),
            Fault::Refuse(FailureKind::Rejected),
        );
        let report = read().run().unwrap();
        assert_eq!((report.requests()[0].attempts, report.bytes()), (2, LEN as u64));
        verify(1, 0, &content(&local)).unwrap();

        // The buffer is gone: whatever is registered there since is not touched.
        offered.unregister(soon()).await.unwrap();
        assert_eq!(read().run().unwrap_err().kind(), ErrorKind::BufferGone);
    });
}

/// FO-01, FO-07, FO-08: whatever fails where, a request that is done is applied once and as a whole, and one that is not
/// says so.
#[test]
fn over_flaky_paths_what_is_done_is_applied() {
    for (seed, fencing) in [(1, Fencing::LocalOnly), (101, Fencing::Target)] {
        flaky(seed, fencing);
    }
}

fn flaky(seed: u8, fencing: Fencing) {
    const PIECE: u64 = 4096;
    const PIECES: u64 = 32;
    let pair = Pair::cutting(fencing, 1500);
    for script in [&pair.first, &pair.second] {
        let lost = |effect| Fault::FailAfter(FailureKind::ConnectionLost, effect);
        script.add(Site::Slice, When::Chance(0.03), Fault::Refuse(FailureKind::Unreachable));
        script.add(Site::Slice, When::Chance(0.03), lost(RemoteEffect::MayHaveApplied));
        script.add(Site::Slice, When::Chance(0.01), lost(RemoteEffect::MayStillApply));
        script.add(Site::Slice, When::Chance(0.01), Fault::Drop);
        script.add(Site::Slice, When::Chance(0.01), Fault::DropAfter);
        script.add(Site::Slice, When::Chance(0.002), Fault::Hang);
        script.add(Site::Slice, When::Chance(0.02), Fault::Delay(Duration::from_millis(3)));
    }
    let len = (PIECE * PIECES) as usize;
    let (mut done, mut failed, mut moved) = (0, 0, 0);
    block_on(async {
        let (offered, local, range) = pair.memory(vec![0; len], vec![0; len]).await;
        for round in 0..30_u64 {
            let bytes = pattern(seed + round as u8, len);
            let writes = round % 2 == 0;
            let (source, sink) = if writes { (&local, &offered) } else { (&offered, &local) };
            source.write_at(0, &bytes).unwrap();
            sink.write_at(0, &vec![0; len]).unwrap();
            let mut batch = pair
                .initiator
                .batch()
                .silence(Duration::from_millis(40))
                .deadline(Duration::from_millis(400));
            for piece in 0..PIECES {
                let (at, end) = (piece * PIECE, (piece + 1) * PIECE);
                let remote = range.slice(at, PIECE).unwrap();
                batch = match writes {
                    true => batch.write(local.slice(at..end), &remote),
                    false => batch.read(&remote, local.slice(at..end)),
                };
            }
            let outcome = if round % 4 < 2 { batch.run() } else { batch.submit().unwrap().await };
            let found = content(sink);
            let error = outcome.as_ref().err();
            let report = outcome.as_ref().ok().or_else(|| error?.report()).unwrap();
            assert_eq!(error.is_some(), report.requests().iter().any(|request| request.failure.is_some()));
            for (piece, request) in report.requests().iter().enumerate() {
                let at = piece * PIECE as usize..(piece + 1) * PIECE as usize;
                moved += u64::from(request.attempts > 1);
                if request.failure.is_none() {
                    done += 1;
                    assert_eq!(request.bytes, PIECE);
                    assert!(found[at.clone()] == bytes[at], "round {round} piece {piece} is not applied");
                } else {
                    failed += 1;
                    assert!(request.bytes <= PIECE);
                }
            }
        }
        local.unregister(soon()).await.unwrap();
    });
    assert!(done > 200 && moved > 20, "{done} done, {failed} failed, {moved} moved");
}
