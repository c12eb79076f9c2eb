//! Withdrawal, shutdown and death, with work in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use te_memory::{Memory, Region, RegionTable};
use te_segment::{Access, CompatProtocol, EncodeOptions, Location, SegmentDescriptor, SegmentName};
use te_transport::{CancelReason, FailureKind, Op};

use super::{Forbidden, NO_LINK, PASSED, operations, refused_as, skip, works};
use crate::area::Area;
use crate::ledger::Ledger;
use crate::pattern;
use crate::report::{Verdict, Violation, ensure};
use crate::transport::bench::{Bench, Order, Way};

const SLICE: u64 = 128 << 10;
const SLICES: u64 = 32;
const ROOM: usize = (SLICE * SLICES) as usize;

/// A batch of equal slices over all of both areas.
fn flood(way: &Way, op: Op, near: &Area, far: &Area, order: &Order) -> Result<Arc<Ledger>, Violation> {
    let ledger = Ledger::new(usize::try_from(SLICES)?);
    let piece = |index| way.piece(op, (near, index * SLICE), (far, index * SLICE), SLICE);
    way.submit((0..SLICES).map(piece).collect::<Result<_, _>>()?, &ledger, order);
    Ok(ledger)
}

/// When the far side goes away in mid-transfer every slice is resolved once, by the deadline, and nothing is done by a
/// peer that is gone (FO-05, LIFE-04).
pub(in crate::transport) fn dead_peers_fail_everything_in_flight(
    bench: &Bench,
) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let way = bench.way()?;
    let order = Order::within(Duration::from_secs(5));
    let mut ledgers = Vec::new();
    for op in operations(bench) {
        for _ in 0..8 {
            ledgers.push(flood(&way, op, &near, &far, &order)?);
        }
    }
    let first = ledgers.first().ok_or_else(|| Violation::new("the transport offers no direction"))?;
    first.wait_for(1, order.deadline)?;
    bench.far.transport.shutdown(Instant::now() + Duration::from_secs(5))?;
    for ledger in &ledgers {
        ledger.wait(order.deadline + bench.profile.grace)?;
    }
    let gone = Order::within(Duration::from_secs(1));
    for op in operations(bench) {
        let before = (near.snapshot()?, far.snapshot()?);
        let ledger = flood(&way, op, &near, &far, &gone)?;
        ledger.wait(gone.deadline + bench.profile.grace)?;
        let failures = ledger.failures();
        ensure!(u64::try_from(failures.len())? == SLICES, "a {op} was done by a peer that is gone");
        let expected = [FailureKind::Unreachable, FailureKind::ConnectionLost, FailureKind::TimedOut];
        for (_, failure) in failures {
            ensure!(expected.contains(&failure.kind()), "{op} of a peer that is gone: {failure}");
        }
        near.expect(&before.0)?;
        far.expect(&before.1)?;
    }
    PASSED
}

/// A withdrawn region drains while requests come in, is refused from then on and never touched again (MR-09).
pub(in crate::transport) fn withdrawal_ends_serving(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let other = bench.far.area(ROOM, Access::REMOTE)?;
    let way = bench.blind_way()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<(), Violation> {
            while !stop.load(Ordering::Relaxed) {
                let order = Order::patient();
                for op in operations(bench) {
                    let range = |index: u64| far.part(index * SLICE, SLICE);
                    let generation = far.region().generation();
                    let piece = |index| way.piece_to(op, (&near, index * SLICE), range(index)?, generation);
                    let ledger = Ledger::new(usize::try_from(SLICES)?);
                    way.submit((0..SLICES).map(piece).collect::<Result<_, _>>()?, &ledger, &order);
                    ledger.wait(order.deadline)?;
                }
            }
            Ok(())
        });
        let checked = withdraw(bench, &far);
        stop.store(true, Ordering::Relaxed);
        let traffic = traffic.join().map_err(|_| Violation::new("the submitting thread panicked"))?;
        checked?;
        traffic.map_err(|violation| violation.at("requests during the withdrawal"))
    })?;
    for op in operations(bench) {
        let (remote, generation) = (far.part(0, 4096)?, far.region().generation());
        let forbidden = Forbidden { op, near: &near, remote, generation };
        // Whoever checks generations can say that there was such a buffer.
        refused_as(bench, &way, &forbidden, &[FailureKind::Rejected, FailureKind::BufferGone])
            .map_err(|violation| violation.at("after the withdrawal"))?;
    }
    works(bench, &way, &near, &other).map_err(|violation| violation.at("another region"))?;
    far.canaries_intact()?;
    PASSED
}

/// Memory that was given back, in a table of its own that no transport knows.
struct Released(Region);

impl Released {
    fn new(memory: Memory) -> Result<Self, Violation> {
        let reserved = RegionTable::new(1).reserve(memory, Access::LOCAL, Location::Any);
        Ok(Self(reserved.map_err(|rejected| Violation::new(rejected.error.to_string()))?.commit()))
    }

    fn bytes(&self) -> Result<Vec<u8>, Violation> {
        let mut bytes = vec![0; usize::try_from(self.0.range().len())?];
        self.0.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Takes the region away while others use it.
fn withdraw(bench: &Bench, far: &Area) -> Result<(), Violation> {
    thread::sleep(Duration::from_millis(100));
    far.drain(Instant::now() + Duration::from_secs(5)).map_err(|violation| violation.at("draining"))?;
    bench.far.transport.unregister(far.region())?;
    bench.far.forget(far.region());
    let memory = Released::new(far.region().release()?)?;
    let then = memory.bytes()?;
    thread::sleep(Duration::from_millis(150));
    pattern::compare(&memory.bytes()?, &then)
        .map_err(|mismatch| Violation::from(mismatch).at("memory changed after it was given back"))
}

/// Local memory that is in flight drains soon after its batch is withdrawn (FO-02).
pub(in crate::transport) fn local_memory_can_be_withdrawn(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let (near, far) = bench.areas(ROOM)?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        let order = Order::patient();
        let ledger = flood(&way, op, &near, &far, &order)?;
        near.region().block();
        order.scope.cancel(CancelReason::Withdrawn);
        ledger.wait(bench.soon()).map_err(|violation| violation.at(format_args!("withdrawn {op}")))?;
        near.drain(bench.soon()).map_err(|violation| violation.at("holds on local memory"))?;
        bench.near.transport.unregister(near.region())?;
        near.region().release()?;
        link.control.resume();
    }
    let (near, far) = bench.areas(ROOM)?;
    works(bench, &bench.way()?, &near, &far)?;
    // The bytes are there; what is left to see is that completed slices hold nothing any more.
    near.drain(bench.soon()).map_err(|violation| violation.at("holds on local memory after completion"))?;
    far.drain(bench.soon()).map_err(|violation| violation.at("holds on remote memory after completion"))?;
    PASSED
}

/// Shutdown resolves what is in flight before it returns, can be repeated, and later submissions end at once (OBS-05).
pub(in crate::transport) fn shutdown_resolves_everything(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    // Others for what is submitted later: what was sent before the shutdown may still arrive.
    let (near_later, far_later) = bench.areas(ROOM)?;
    let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
    link.control.stall();
    let order = Order::patient();
    let ledgers = operations(bench)
        .into_iter()
        .map(|op| flood(&way, op, &near, &far, &order))
        .collect::<Result<Vec<_>, _>>()?;
    thread::sleep(Duration::from_millis(50));
    let shutdown = || bench.near.transport.shutdown(Instant::now() + Duration::from_secs(5));
    shutdown()?;
    for ledger in &ledgers {
        ledger.wait(Instant::now()).map_err(|violation| violation.at("when shutdown has returned"))?;
        for (_, failure) in ledger.failures() {
            let better = [FailureKind::Shutdown, FailureKind::Cancelled, FailureKind::ConnectionLost];
            ensure!(better.contains(&failure.kind()), "in flight at shutdown: {failure}");
        }
    }
    shutdown().map_err(|error| Violation::from(error).at("second shutdown"))?;
    link.control.resume();
    let before = (near_later.snapshot()?, far_later.snapshot()?);
    for op in operations(bench) {
        let ledger = flood(&way, op, &near_later, &far_later, &Order::patient())?;
        ledger.wait(bench.soon()).map_err(|violation| violation.at("submitted after shutdown"))?;
        let failures = ledger.failures();
        ensure!(u64::try_from(failures.len())? == SLICES, "a {op} was done after shutdown");
        let other = failures.iter().find(|(_, failure)| failure.kind() != FailureKind::Shutdown);
        ensure!(other.is_none(), "submitted after shutdown: {other:?}");
    }
    near_later.expect(&before.0)?;
    far_later.expect(&before.1)?;
    near.drain(bench.soon())?;
    PASSED
}

/// After the target has shut down none of its memory is held or touched by requests that it had accepted.
pub(in crate::transport) fn shutdown_ends_serving(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let way = bench.way()?;
    let order = Order::within(Duration::from_secs(5));
    let ledgers = operations(bench)
        .into_iter()
        .map(|op| flood(&way, op, &near, &far, &order))
        .collect::<Result<Vec<_>, _>>()?;
    for ledger in &ledgers {
        ledger.wait_for(1, order.deadline)?;
    }
    bench.far.transport.shutdown(Instant::now() + Duration::from_secs(5))?;
    let then = far.snapshot()?;
    far.region().block();
    far.drain(Instant::now() + Duration::from_millis(100))
        .map_err(|violation| violation.at("after shutdown"))?;
    for ledger in &ledgers {
        ledger.wait(order.deadline + bench.profile.grace)?;
    }
    let now = Released::new(far.region().release()?)?.bytes()?;
    pattern::compare(&now, &then)
        .map_err(|mismatch| Violation::from(mismatch).at("memory changed after shutdown"))?;
    bench.far.transport.shutdown(Instant::now() + Duration::from_secs(1))?;
    PASSED
}

/// A path that is dropped with work in flight leaves no slice unresolved.
pub(in crate::transport) fn dropped_paths_resolve_everything(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
    link.control.stall();
    let order = Order::within(Duration::from_millis(500));
    let ledgers = operations(bench)
        .into_iter()
        .map(|op| flood(&way, op, &near, &far, &order))
        .collect::<Result<Vec<_>, _>>()?;
    drop(way);
    for ledger in &ledgers {
        ledger.wait(order.deadline + bench.profile.grace)?;
        let dropped =
            ledger.failures().into_iter().find(|(_, failure)| failure.kind() == FailureKind::Dropped);
        ensure!(dropped.is_none(), "tokens were dropped: {dropped:?}");
    }
    link.control.resume();
    near.drain(bench.soon())?;
    PASSED
}

/// A withdrawal that is repeated succeeds again, so that a failed sequence can be repeated as a whole (MR-12).
pub(in crate::transport) fn unregister_can_be_repeated(bench: &Bench) -> Result<Verdict, Violation> {
    let far = bench.far.area(4096, Access::REMOTE)?;
    far.drain(bench.soon())?;
    for attempt in ["first", "second", "third"] {
        let done = bench.far.transport.unregister(far.region());
        done.map_err(|error| Violation::from(error).at(format_args!("{attempt} call")))?;
    }
    PASSED
}

/// Assessment and path give the same answer, and a peer without this transport is not usable (SEL-05).
pub(in crate::transport) fn assessment_and_path_agree(bench: &Bench) -> Result<Verdict, Violation> {
    let _far = bench.far.area(4096, Access::REMOTE)?;
    let transport = &bench.near.transport;
    ensure!(bench.far.transport.kind() == transport.kind(), "the two sides are of different kinds");
    let able = Arc::new(bench.far.descriptor()?);
    let stranger =
        SegmentDescriptor::builder(SegmentName::new("stranger")?).identity(able.identity().clone());
    let stranger = Arc::new(stranger.build()?);
    for (peer, usable) in [(able, true), (stranger, false)] {
        let assessment = transport.assess(&peer);
        ensure!(assessment.is_usable() == usable, "{} is assessed wrongly: {assessment:?}", peer.name());
        ensure!(!assessment.reason().is_empty(), "the assessment of {} gives no reason", peer.name());
        match transport.path(&peer) {
            Ok(_) => ensure!(usable, "a path to {} was opened", peer.name()),
            Err(reason) => ensure!(!usable, "no path to {}: {reason}", peer.name()),
        }
    }
    PASSED
}

/// What is advertised survives publication: a path opens from the descriptor as peers read it, and it works.
pub(in crate::transport) fn published_descriptor_opens_a_path(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(10_000)?;
    let options = EncodeOptions {
        compat: CompatProtocol::Tcp,
        extension: true,
        timestamp: "2026-01-01 00:00:00.000".to_owned(),
    };
    let text = bench.far.descriptor()?.encode(&options)?;
    let decoded = SegmentDescriptor::decode(text.as_bytes())?;
    ensure!(decoded.rejected.is_empty(), "buffers do not survive publication: {:?}", decoded.rejected);
    works(bench, &bench.open(decoded.descriptor)?, &near, &far)?;
    PASSED
}

/// When everything is resolved the path says that nothing is in flight.
pub(in crate::transport) fn idle_paths_have_nothing_in_flight(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let way = bench.way()?;
    for op in operations(bench) {
        let order = Order::patient();
        let ledger = flood(&way, op, &near, &far, &order)?;
        ledger.wait(order.deadline)?;
        ledger.all_done()?;
    }
    let until = bench.soon();
    while way.path.health().in_flight > 0 {
        ensure!(Instant::now() < until, "an idle path has {} slices in flight", way.path.health().in_flight);
        thread::sleep(Duration::from_millis(1));
    }
    let health = way.path.health();
    ensure!(health.last_failure.is_none(), "a path that never failed names a failure: {health:?}");
    PASSED
}
