//! The target decides what it serves, whatever the requester believes.

use te_segment::{Access, AddressRange, Generation};
use te_transport::{FailureKind, Op, RemoteEffect};

use super::{Forbidden, PASSED, operations, refused, refused_as, skip, works};
use crate::area::{Area, AreaDraft};
use crate::ledger::Ledger;
use crate::report::{Verdict, Violation, ensure};
use crate::transport::bench::{Bench, Order, Way};

const ROOM: usize = 128 << 10;

/// Requests that begin before, end behind or lie outside of every region are refused and touch nothing (SEC-01, SEC-02).
pub(in crate::transport) fn ranges_outside_of_regions_are_refused(
    bench: &Bench,
) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let far = bench.far.area(ROOM, Access::REMOTE)?;
    far.paint(0x77)?;
    let before = far.snapshot()?;
    let way = bench.blind_way()?;
    let (start, end) = (far.range().start(), far.range().end());
    let ranges = [
        ("begins one byte before", start - 1, 10),
        ("ends at the start", start - 64, 64),
        ("ends one byte behind", end - 9, 10),
        ("begins at the end", end, 64),
        ("covers the region and more", start - 8, far.len() + 16),
        ("is larger than the region", start, far.len() + 1),
        ("lies at the start of the address space", 4096, 4096),
        ("ends at the end of the address space", u64::MAX - 100, 100),
    ];
    for op in operations(bench) {
        for (what, at, len) in ranges {
            let generation = far.region().generation();
            let forbidden = Forbidden { op, near: &near, remote: AddressRange::new(at, len)?, generation };
            refused(bench, &way, &forbidden)
                .map_err(|violation| violation.at(format_args!("range that {what}")))?;
            // Nothing outside of the region in any case.
            let intact = match bench.profile.whole_refusals {
                true => far.expect(&before),
                false => far.canaries_intact(),
            };
            intact.map_err(|violation| violation.at(format_args!("{op} of a range that {what}")))?;
        }
    }
    PASSED
}

/// A request must fit one region; adjacent regions are not merged (MR-06).
pub(in crate::transport) fn ranges_across_regions_are_refused(bench: &Bench) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let ranges = [(8192, Access::REMOTE), (4096, Access::REMOTE), (4096, Access::LOCAL)];
    let mut areas = Vec::new();
    for draft in AreaDraft::adjacent(&bench.far.regions, &ranges)? {
        let area = bench.far.register(draft)?;
        area.paint(0x2d)?;
        areas.push(area);
    }
    let before = areas.iter().map(Area::snapshot).collect::<Result<Vec<_>, _>>()?;
    let way = bench.blind_way()?;
    for op in operations(bench) {
        for (first, beyond) in areas.iter().zip(areas.iter().skip(1)) {
            for (back, len) in [(1, 2), (64, 65), (4096, 5000)] {
                let remote = AddressRange::new(beyond.range().start() - back, len)?;
                let generation = first.region().generation();
                refused(bench, &way, &Forbidden { op, near: &near, remote, generation })?;
            }
        }
        for (area, before) in areas.iter().zip(&before) {
            area.expect(before)
                .map_err(|violation| violation.at(format_args!("after {op} across regions")))?;
        }
    }
    PASSED
}

/// Local-only, read-only and write-only regions are what they say, to every peer (MR-07, SEC-01).
pub(in crate::transport) fn access_is_enforced(bench: &Bench) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let all = [Access::LOCAL, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE];
    let areas = all.map(|access| bench.far.area(ROOM, access));
    let way = bench.blind_way()?;
    for area in areas {
        let area = area?;
        area.paint(0x4b)?;
        let access = area.region().access();
        for op in operations(bench) {
            let before = area.snapshot()?;
            let allowed = match op {
                Op::Read => access.allows_read(),
                Op::Write => {
                    access.allows_write() && (access.allows_read() || bench.profile.writes_without_reading)
                }
            };
            let step = format!("{op} of a {access} region");
            for (offset, len) in [(0, 4096), (1, 1), (100, 70_000), (0, area.len())] {
                if allowed {
                    super::transfer(&way, op, (&near, 0), (&area, offset), len, &Order::patient())
                        .map_err(|violation| violation.at(&step))?;
                } else if op == Op::Read || !access.allows_write() {
                    let (remote, generation) = (area.part(offset, len)?, area.region().generation());
                    refused(bench, &way, &Forbidden { op, near: &near, remote, generation })
                        .map_err(|violation| violation.at(&step))?;
                    area.expect(&before).map_err(|violation| violation.at(&step))?;
                }
            }
        }
    }
    PASSED
}

/// A region that is reserved but not committed yet is not served.
pub(in crate::transport) fn reserved_regions_are_not_served(bench: &Bench) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let other = bench.far.area(4096, Access::REMOTE)?;
    let draft = AreaDraft::new(&bench.far.regions, ROOM, Access::REMOTE)?;
    let (range, generation) = (draft.region().range(), draft.region().generation());
    let way = bench.blind_way()?;
    for op in operations(bench) {
        let remote = range.slice(0, 4096)?;
        let forbidden = Forbidden { op, near: &near, remote, generation };
        // Where the requester knows that the addresses are another registration's, it may say so.
        refused_as(bench, &way, &forbidden, &[FailureKind::Rejected, FailureKind::BufferGone])?;
    }
    let area = bench.far.register(draft)?;
    area.expect(&vec![0; ROOM])?;
    works(bench, &bench.way()?, &near, &area)?;
    other.canaries_intact()?;
    PASSED
}

/// Memory of the process that was never registered is not served (SEC-01).
pub(in crate::transport) fn unregistered_memory_is_not_served(bench: &Bench) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let far = bench.far.area(4096, Access::REMOTE)?;
    // Known to a table, but not to the far side's.
    let own = AreaDraft::new(&te_memory::RegionTable::new(1), ROOM, Access::REMOTE)?.commit();
    own.paint(9)?;
    let before = own.snapshot()?;
    let way = bench.blind_way()?;
    for op in operations(bench) {
        let (remote, generation) = (own.part(8, 4096)?, far.region().generation());
        refused(bench, &way, &Forbidden { op, near: &near, remote, generation })?;
        own.expect(&before)?;
    }
    PASSED
}

/// A refused request costs the path nothing: the next one works (TCP-01).
pub(in crate::transport) fn path_works_after_a_refusal(bench: &Bench) -> Result<Verdict, Violation> {
    let near = local(bench)?;
    let far = bench.far.area(ROOM, Access::REMOTE)?;
    let closed = bench.far.area(ROOM, Access::LOCAL)?;
    let way = bench.blind_way()?;
    works(bench, &way, &near, &far)?;
    for round in 0..4 {
        for op in operations(bench) {
            let (remote, generation) = (closed.part(0, closed.len())?, closed.region().generation());
            refused(bench, &way, &Forbidden { op, near: &near, remote, generation })?;
            works(bench, &way, &near, &far)
                .map_err(|violation| violation.at(format_args!("round {round}")))?;
        }
    }
    PASSED
}

/// An operation or size that the transport does not offer is `Unsupported`, not an accident (SEL-08).
pub(in crate::transport) fn missing_operations_are_unsupported(bench: &Bench) -> Result<Verdict, Violation> {
    let (near, far) = bench.areas(ROOM)?;
    let before = (near.snapshot()?, far.snapshot()?);
    let capabilities = bench.near.transport.capabilities().clone();
    let offered = operations(bench);
    let mut cases: Vec<(Op, u64)> =
        [Op::Read, Op::Write].into_iter().filter(|op| !offered.contains(op)).map(|op| (op, 64)).collect();
    if capabilities.max_slice < near.len() {
        cases.extend(offered.iter().map(|op| (*op, capabilities.max_slice + 1)));
    }
    if cases.is_empty() {
        return skip("the transport offers both directions and large slices");
    }
    let way = bench.way()?;
    for (op, len) in cases {
        let ledger = Ledger::new(1);
        let order = Order::patient();
        way.submit(vec![way.piece(op, (&near, 0), (&far, 0), len)?], &ledger, &order);
        ledger.wait(order.deadline)?;
        let failures = ledger.failures();
        let Some((_, failure)) = failures.first() else {
            return Err(Violation::new(format!("{op} of {len} bytes is not offered and was done")));
        };
        ensure!(failure.kind() == FailureKind::Unsupported, "{op} of {len} bytes is not offered: {failure}");
        ensure!(
            failure.effect() == RemoteEffect::None,
            "{op} was not begun and may have an effect: {failure}"
        );
    }
    near.expect(&before.0)?;
    far.expect(&before.1)?;
    PASSED
}

/// A request planned with an earlier registration of the range does not touch the newer one (SEG-01, META-02).
pub(in crate::transport) fn earlier_generations_are_refused(bench: &Bench) -> Result<Verdict, Violation> {
    if !bench.near.transport.capabilities().checks_identity {
        return skip("the transport does not check identity");
    }
    let near = local(bench)?;
    let far = bench.far.area(ROOM, Access::REMOTE)?;
    far.paint(0x61)?;
    let before = far.snapshot()?;
    let way = bench.way()?;
    works(bench, &way, &near, &far)?;
    far.put(0, &before)?;
    let now = far.region().generation();
    for other in [Generation::new(now.value().wrapping_sub(1)), Generation::new(now.value() + 1)] {
        for op in operations(bench) {
            let remote = far.part(0, 4096)?;
            let forbidden = Forbidden { op, near: &near, remote, generation: other };
            refused_as(bench, &way, &forbidden, &[FailureKind::BufferGone])?;
            far.expect(&before)?;
        }
    }
    PASSED
}

/// A request for an earlier life of the peer does not touch the newer one's bytes (META-01, META-02).
pub(in crate::transport) fn earlier_lives_are_refused(bench: &Bench) -> Result<Verdict, Violation> {
    if !bench.near.transport.capabilities().checks_identity {
        return skip("the transport does not check identity");
    }
    let near = local(bench)?;
    let far = bench.far.area(ROOM, Access::REMOTE)?;
    far.paint(0x62)?;
    let before = far.snapshot()?;
    let identity = bench.far.other_life();
    let way: Way = match bench.changed_way(|builder| builder.identity(identity))? {
        // A transport that needs the control endpoint may refuse the path at once.
        Err(_) => return PASSED,
        Ok(way) => way,
    };
    for op in operations(bench) {
        let (remote, generation) = (far.part(0, 4096)?, far.region().generation());
        let forbidden = Forbidden { op, near: &near, remote, generation };
        refused_as(bench, &way, &forbidden, &[FailureKind::StaleIncarnation])?;
        far.expect(&before)?;
    }
    PASSED
}

/// Local memory large enough for every request of these cases.
fn local(bench: &Bench) -> Result<Area, Violation> {
    let near = bench.near.area(2 * ROOM, Access::LOCAL)?;
    near.paint(0x19)?;
    Ok(near)
}
