//! The cases, and what several of them need.

pub(super) mod data;
pub(super) mod interrupt;
pub(super) mod lifecycle;
pub(super) mod refusal;

use std::sync::Arc;

use te_memory::Region;
use te_segment::{AddressRange, Generation};
use te_transport::{Failure, FailureKind, Op, Outcome};

use super::bench::{Bench, Order, Piece, Way};
use crate::area::{self, Area};
use crate::ledger::{Ledger, Observer};
use crate::report::{Verdict, Violation, ensure};

/// Where the bytes of a slice end up, and which they are.
pub(super) struct Arrival {
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl Arrival {
    pub(super) fn check(&self) -> Result<(), Violation> {
        area::expect(&self.region, self.offset, &self.bytes)
    }
}

/// A ledger that compares each destination at the moment at which `done` is reported.
pub(super) fn checked(arrivals: Vec<Arrival>) -> Arc<Ledger> {
    let count = arrivals.len();
    let observer: Observer = Box::new(move |index, outcome| {
        let Outcome::Done(bytes) = outcome else { return Ok(()) };
        let arrival = usize::try_from(index).ok().and_then(|index| arrivals.get(index));
        let arrival = arrival.ok_or_else(|| Violation::new("there is no such slice"))?;
        let len = u64::try_from(arrival.bytes.len())?;
        ensure!(*bytes == len, "done with {bytes} bytes instead of {len}");
        arrival.check().map_err(|violation| violation.at("not applied when done was reported"))
    });
    Ledger::observed(count, observer)
}

/// Moves `len` bytes and checks that they arrive.
pub(super) fn transfer(
    way: &Way,
    op: Op,
    near: (&Area, u64),
    far: (&Area, u64),
    len: u64,
    order: &Order,
) -> Result<(), Violation> {
    let ((from, from_at), (to, to_at)) = match op {
        Op::Read => (far, near),
        Op::Write => (near, far),
    };
    let bytes = from.copy_out(from_at, usize::try_from(len)?)?;
    // Bytes that are right already would hide that nothing moved.
    to.put(to_at, &bytes.iter().map(|byte| !byte).collect::<Vec<_>>())?;
    let ledger = checked(vec![Arrival { region: to.region().clone(), offset: to_at, bytes }]);
    way.submit(vec![way.piece(op, near, far, len)?], &ledger, order);
    ledger.wait(order.deadline)?;
    ledger.all_done()
}

/// Whether transfers work, in both directions, on small areas of their own.
pub(super) fn works(bench: &Bench, way: &Way, near: &Area, far: &Area) -> Result<(), Violation> {
    let capabilities = bench.near.transport.capabilities();
    for (op, able) in [(Op::Read, capabilities.read), (Op::Write, capabilities.write)] {
        if able {
            transfer(way, op, (near, 0), (far, 0), near.len().min(far.len()), &Order::patient())
                .map_err(|violation| violation.at(format_args!("{op} that should work")))?;
        }
    }
    Ok(())
}

/// The operations that the transport offers.
pub(super) fn operations(bench: &Bench) -> Vec<Op> {
    let capabilities = bench.near.transport.capabilities();
    let offered = [(Op::Read, capabilities.read), (Op::Write, capabilities.write)];
    offered.into_iter().filter(|(_, able)| *able).map(|(op, _)| op).collect()
}

/// A request that the target must refuse.
pub(super) struct Forbidden<'a> {
    pub(super) op: Op,
    pub(super) near: &'a Area,
    pub(super) remote: AddressRange,
    pub(super) generation: Generation,
}

/// Submits a request that must be refused, and checks that no local byte changes.
pub(super) fn refused(bench: &Bench, way: &Way, forbidden: &Forbidden<'_>) -> Result<Failure, Violation> {
    refused_as(bench, way, forbidden, &[FailureKind::Rejected])
}

/// Like [`refused`], as one of these kinds if the protocol answers refusals.
pub(super) fn refused_as(
    bench: &Bench,
    way: &Way,
    forbidden: &Forbidden<'_>,
    kinds: &[FailureKind],
) -> Result<Failure, Violation> {
    let Forbidden { op, near, remote, generation } = forbidden;
    let what = format!("{op} of {remote}");
    let before = near.snapshot()?;
    let ledger = Ledger::new(1);
    let piece: Piece = way.piece_to(*op, (near, 0), *remote, *generation)?;
    let order = Order::patient();
    way.submit(vec![piece], &ledger, &order);
    ledger.wait(order.deadline).map_err(|violation| violation.at(&what))?;
    // What was read before the refusal is where it was to go.
    if bench.profile.whole_refusals || *op == Op::Write {
        near.expect(&before)
            .map_err(|violation| violation.at(format_args!("local memory after the refused {what}")))?;
    }
    let failures = ledger.failures();
    let Some((_, failure)) = failures.first() else {
        return Err(Violation::new(format!("{what} was done and should be refused")));
    };
    ensure!(
        failure.path().is_some_and(|path| path == way.path.label()),
        "the failure of {what} does not name the path: {failure}"
    );
    let kinds: &[FailureKind] = if bench.profile.explicit_refusals {
        kinds
    } else {
        &[FailureKind::Rejected, FailureKind::ConnectionLost, FailureKind::Unconfirmed]
    };
    ensure!(kinds.contains(&failure.kind()), "{what} should be refused and ended otherwise: {failure}");
    Ok(failure.clone())
}

/// The verdict of a case that got to its end.
pub(super) const PASSED: Result<Verdict, Violation> = Ok(Verdict::Passed);

/// The verdict of a case that does not apply.
pub(super) const fn skip(why: &'static str) -> Result<Verdict, Violation> {
    Ok(Verdict::NotApplicable(why))
}

pub(super) const NO_LINK: &str = "the rig has no controlled link";
