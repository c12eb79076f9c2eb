//! Peers that are silent, links that break, batches that are given up: everything ends in time and rests then.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use te_transport::{CancelReason, FailureKind, Op, Outcome, RemoteEffect, SubmitMode};

use super::{NO_LINK, PASSED, operations, skip, transfer, works};
use crate::area::Area;
use crate::ledger::{Ledger, Observer};
use crate::link::Link;
use crate::report::{Verdict, Violation, ensure};
use crate::transport::bench::{Bench, Order, Way};

const SLICE: u64 = 256 << 10;
const SLICES: u64 = 32;

/// What local memory is overwritten with as soon as a slice is resolved.
const POISON: u8 = 0xee;

/// How long bytes that are still on their way get to arrive.
const AFTERMATH: Duration = Duration::from_millis(250);

/// One batch in one direction over a controlled link, watched to the end and beyond.
struct Watched {
    op: Op,
    near: Area,
    far: Area,
    near_before: Vec<u8>,
    far_before: Vec<u8>,
    ledger: Arc<Ledger>,
    order: Order,
}

impl Watched {
    /// Prepares areas and the ledger; at each resolution the slice's local memory is poisoned in the resolving thread.
    fn new(bench: &Bench, op: Op, limit: Duration) -> Result<Self, Violation> {
        let (near, far) = bench.areas(usize::try_from(SLICE * SLICES)?)?;
        let (near_before, far_before) = (near.snapshot()?, far.snapshot()?);
        let local = near.region().clone();
        let poison = vec![POISON; usize::try_from(SLICE)?];
        let observer: Observer =
            Box::new(move |index, _| Ok(local.write_at(u64::from(index) * SLICE, &poison)?));
        let ledger = Ledger::observed(usize::try_from(SLICES)?, observer);
        Ok(Self { op, near, far, near_before, far_before, ledger, order: Order::within(limit) })
    }

    fn submit(&self, way: &Way) -> Result<(), Violation> {
        let piece =
            |index| way.piece(self.op, (&self.near, index * SLICE), (&self.far, index * SLICE), SLICE);
        way.submit((0..SLICES).map(piece).collect::<Result<_, _>>()?, &self.ledger, &self.order);
        Ok(())
    }

    /// Every slice failed in one of these ways, or completed before the interruption.
    fn failed_as(&self, kinds: &[FailureKind], all: bool) -> Result<(), Violation> {
        let failures = self.ledger.failures();
        for (index, failure) in &failures {
            ensure!(
                kinds.contains(&failure.kind()),
                "slice {index} of a {} failed otherwise: {failure}",
                self.op
            );
            ensure!(failure.path().is_some(), "the failure of slice {index} names no path: {failure}");
            ensure!(
                self.op == Op::Write || failure.effect() == RemoteEffect::None,
                "a read cannot have changed remote bytes: {failure}"
            );
        }
        let count = failures.len();
        ensure!(!all || u64::try_from(count)? == SLICES, "only {count} of {SLICES} slices failed");
        Ok(())
    }

    /// Lets go of the link and checks that nothing of the resolved slices happens any more.
    fn rests(&self, link: &Link) -> Result<(), Violation> {
        let far_then = self.far.snapshot()?;
        link.control.resume();
        thread::sleep(AFTERMATH);
        let poisoned = vec![POISON; self.near_before.len()];
        self.near.expect(&poisoned).map_err(|violation| {
            violation.at(format_args!("local memory of a {} after its slices were resolved", self.op))
        })?;
        self.far.canaries_intact()?;
        let far_now = self.far.snapshot()?;
        let outcomes = self.ledger.outcomes();
        for (index, outcome) in outcomes.iter().enumerate() {
            let at = index * usize::try_from(SLICE)?;
            let span = at..at + usize::try_from(SLICE)?;
            let part = |bytes: &[u8]| bytes.get(span.clone()).unwrap_or_default().to_vec();
            let (now, then) = (part(&far_now), part(&far_then));
            let (original, source) = (part(&self.far_before), part(&self.near_before));
            let effect = match outcome {
                Outcome::Failed(failure) => failure.effect(),
                _ => RemoteEffect::MayHaveApplied,
            };
            let step = format!("{} slice {index}", self.op);
            if self.op == Op::Read || effect == RemoteEffect::None {
                ensure!(now == original, "{step} has no remote effect by its own account, but bytes changed");
            } else if effect == RemoteEffect::MayHaveApplied {
                ensure!(now == then, "{step} changed remote bytes after it was resolved");
            }
            let own = |(now, (old, new)): (&u8, (&u8, &u8))| now == old || now == new;
            let ours =
                now == original || now == source || now.iter().zip(original.iter().zip(&source)).all(own);
            ensure!(ours, "{step} wrote bytes that were never its source");
        }
        Ok(())
    }
}

/// Slices of a cancelled batch are resolved soon, as cancelled, and nothing touches their memory afterwards (FO-02).
pub(in crate::transport) fn cancelled_slices_resolve_and_rest(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let batch = Watched::new(bench, op, Duration::from_secs(20))?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        batch.submit(&way)?;
        thread::sleep(Duration::from_millis(50));
        ensure!(batch.ledger.resolved() == 0, "slices are resolved although the link passes nothing");
        batch.order.scope.cancel(CancelReason::Cancelled);
        batch.ledger.wait(bench.soon()).map_err(|violation| violation.at(format_args!("cancelled {op}")))?;
        batch.failed_as(&[FailureKind::Cancelled], true)?;
        batch.rests(&link)?;
    }
    PASSED
}

/// A batch that is cancelled while bytes flow stops where it is (FO-02).
pub(in crate::transport) fn cancelled_transfers_stop_midway(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let batch = Watched::new(bench, op, Duration::from_secs(20))?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        batch.submit(&way)?;
        batch.ledger.wait_for(1, batch.order.deadline)?;
        thread::sleep(Duration::from_millis(2));
        link.control.stall();
        batch.order.scope.cancel(CancelReason::Cancelled);
        batch.ledger.wait(bench.soon()).map_err(|violation| violation.at(format_args!("cancelled {op}")))?;
        batch.failed_as(&[FailureKind::Cancelled], false)?;
        batch.rests(&link)?;
    }
    PASSED
}

/// Cancelling a batch behind another one resolves the one and leaves the other alone.
pub(in crate::transport) fn queued_slices_are_cancelled_alone(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let first = Watched::new(bench, op, Duration::from_secs(20))?;
        let second = Watched::new(bench, op, Duration::from_secs(20))?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        first.submit(&way)?;
        second.submit(&way)?;
        thread::sleep(Duration::from_millis(50));
        second.order.scope.cancel(CancelReason::Cancelled);
        second.ledger.wait(bench.soon()).map_err(|violation| violation.at("the cancelled batch"))?;
        second.failed_as(&[FailureKind::Cancelled], true)?;
        second.rests(&link)?;
        first.ledger.wait(first.order.deadline).map_err(|violation| violation.at("the other batch"))?;
        // A connection that both shared may have had to be broken; nobody cancelled the first batch, though.
        first.failed_as(broken(bench), false)?;
    }
    PASSED
}

/// A batch that is cancelled before it is submitted changes nothing anywhere.
pub(in crate::transport) fn cancelled_batches_are_not_begun(bench: &Bench) -> Result<Verdict, Violation> {
    let way = bench.way()?;
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        for op in operations(bench) {
            let mut batch = Watched::new(bench, op, Duration::from_secs(20))?;
            batch.order.mode = mode;
            batch.order.scope.cancel(CancelReason::Cancelled);
            not_begun(bench, &batch, &way, FailureKind::Cancelled)?;
        }
    }
    PASSED
}

/// A batch whose deadline is over when it is submitted changes nothing anywhere.
pub(in crate::transport) fn late_batches_are_not_begun(bench: &Bench) -> Result<Verdict, Violation> {
    let way = bench.way()?;
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        for op in operations(bench) {
            let mut batch = Watched::new(bench, op, Duration::ZERO)?;
            batch.order.mode = mode;
            not_begun(bench, &batch, &way, FailureKind::TimedOut)?;
        }
    }
    PASSED
}

fn not_begun(bench: &Bench, batch: &Watched, way: &Way, kind: FailureKind) -> Result<(), Violation> {
    batch.submit(way)?;
    batch.ledger.wait(bench.soon())?;
    batch.failed_as(&[kind], true)?;
    thread::sleep(Duration::from_millis(50));
    batch.far.expect(&batch.far_before).map_err(|violation| violation.at("the far side"))?;
    batch
        .near
        .expect(&vec![POISON; batch.near_before.len()])
        .map_err(|violation| violation.at("the near side"))
}

/// A peer that accepts and stays silent costs the deadline, not more, and nothing happens after it (FO-02, TCP-05).
pub(in crate::transport) fn silent_peers_time_out(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let batch = Watched::new(bench, op, Duration::from_millis(400))?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        batch.submit(&way)?;
        batch.ledger.wait(batch.order.deadline + bench.profile.grace)?;
        batch.failed_as(&[FailureKind::TimedOut], true)?;
        batch.rests(&link)?;
    }
    PASSED
}

/// A caller that executes its batch itself gets back by the deadline, whatever the peer does.
pub(in crate::transport) fn caller_runs_ends_by_the_deadline(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let mut batch = Watched::new(bench, op, Duration::from_millis(400))?;
        batch.order.mode = SubmitMode::CallerRuns;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        batch.submit(&way)?;
        let late = Instant::now().saturating_duration_since(batch.order.deadline);
        ensure!(late < bench.profile.grace, "submit returned {late:?} after the deadline");
        batch.ledger.wait(batch.order.deadline + bench.profile.grace)?;
        batch.failed_as(&[FailureKind::TimedOut], true)?;
        batch.rests(&link)?;
    }
    PASSED
}

/// Submitting in the background returns at once, however much is submitted and however silent the peer is.
pub(in crate::transport) fn submit_does_not_wait_for_a_silent_peer(
    bench: &Bench,
) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let batches = (0..8).map(|_| Watched::new(bench, op, Duration::from_secs(3)));
        let batches = batches.collect::<Result<Vec<_>, _>>()?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        link.control.stall();
        let began = Instant::now();
        for batch in &batches {
            batch.submit(&way)?;
        }
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(1), "submitting eight batches took {took:?}");
        for batch in &batches {
            batch.order.scope.cancel(CancelReason::Cancelled);
        }
        for batch in &batches {
            batch.ledger.wait(bench.soon())?;
        }
        link.control.resume();
    }
    PASSED
}

/// One silent peer slows nobody else down (FO-04).
pub(in crate::transport) fn silent_peers_delay_nobody_else(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let (near, far) = bench.areas(256 << 10)?;
        let Some((silent, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        let healthy = bench.way()?;
        link.control.stall();
        let stuck = Order::within(Duration::from_secs(60));
        let ledgers = (0..24)
            .map(|_| {
                let ledger = Ledger::new(16);
                let piece =
                    |index: u64| silent.piece(op, (&near, index * 4096), (&far, index * 4096), 64 << 10);
                silent.submit((0..16).map(piece).collect::<Result<_, _>>()?, &ledger, &stuck);
                Ok(ledger)
            })
            .collect::<Result<Vec<_>, Violation>>()?;
        for round in 0..8 {
            let order = Order::within(bench.profile.grace);
            transfer(&healthy, op, (&near, 0), (&far, 0), near.len(), &order)
                .map_err(|violation| violation.at(format_args!("{op} {round} of a healthy peer")))?;
        }
        ensure!(ledgers.iter().all(|ledger| ledger.resolved() == 0), "the silent peer was not silent");
        stuck.scope.cancel(CancelReason::Cancelled);
        for ledger in &ledgers {
            ledger.wait(bench.soon())?;
        }
        link.control.resume();
    }
    PASSED
}

/// A link that breaks fails what cannot be sent again, once, and the path works again afterwards (FO-06).
pub(in crate::transport) fn cut_links_fail_and_recover(bench: &Bench) -> Result<Verdict, Violation> {
    for op in operations(bench) {
        let batch = Watched::new(bench, op, Duration::from_secs(20))?;
        let (near, far) = bench.areas(4096)?;
        let Some((way, link)) = bench.linked_way()? else { return skip(NO_LINK) };
        works(bench, &way, &near, &far)?;
        link.control.stall();
        batch.submit(&way)?;
        thread::sleep(Duration::from_millis(50));
        link.control.cut();
        // What has not been sent, or can be sent again, may go over a new connection.
        link.control.resume();
        batch.ledger.wait(batch.order.deadline)?;
        batch.failed_as(broken(bench), false)?;
        batch.rests(&link)?;
        recovers(bench, &way, (&near, &far))?;
    }
    PASSED
}

/// How slices fail whose connection breaks.
fn broken(bench: &Bench) -> &'static [FailureKind] {
    if bench.profile.writes_without_reading {
        &[FailureKind::ConnectionLost]
    } else {
        // What was sent and could not be read back.
        &[FailureKind::ConnectionLost, FailureKind::Unconfirmed]
    }
}

/// The path works again, at the latest after a pause.
fn recovers(bench: &Bench, way: &Way, (near, far): (&Area, &Area)) -> Result<(), Violation> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match works(bench, way, near, far) {
            Ok(()) => return Ok(()),
            Err(violation) if Instant::now() >= until => return Err(violation.at("5 s after the cut")),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
