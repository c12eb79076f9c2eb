//! Bytes arrive: all of them, where they belong, before anybody says so.

use std::thread;

use te_transport::{Op, Outcome, SubmitMode};

use super::{Arrival, PASSED, checked, operations, transfer};
use crate::area::Area;
use crate::ledger::Ledger;
use crate::pattern;
use crate::report::{Verdict, Violation, ensure};
use crate::transport::bench::{Bench, Order, Piece, Way};

/// Sizes around every boundary that an implementation may have: words, cache lines, the 24-byte header of the reference
/// framing, pages, 64 KiB chunks, megabytes.
const SIZES: [u64; 27] = [
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    23,
    24,
    25,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    131_073,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (2 << 20) + 4096,
    3 * (1 << 20) + 5,
];

const ROOM: usize = 4 << 20;

/// Reads of every size at aligned and unaligned offsets fetch exactly the bytes asked for (FO-10).
pub(in crate::transport) fn reads_of_every_size_arrive(bench: &Bench) -> Result<Verdict, Violation> {
    every_size(bench, Op::Read)
}

/// Writes of every size at aligned and unaligned offsets change exactly the bytes asked for (FO-10).
pub(in crate::transport) fn writes_of_every_size_arrive(bench: &Bench) -> Result<Verdict, Violation> {
    every_size(bench, Op::Write)
}

fn every_size(bench: &Bench, op: Op) -> Result<Verdict, Violation> {
    if !operations(bench).contains(&op) {
        return super::skip("the transport does not offer the direction");
    }
    let (near, far) = bench.areas(ROOM)?;
    let way = bench.way()?;
    let (source, target) = if op == Op::Read { (&far, &near) } else { (&near, &far) };
    let unchanged = source.snapshot()?;
    let mut expected = target.snapshot()?;
    for len in SIZES {
        let last = near.len() - len;
        for (near_at, far_at) in [(0, 0), (1, 3), (4093, 0), (0, 4091), (last, last), (last, 0)] {
            let case = || format!("{op} of {len} bytes, near offset {near_at}, far offset {far_at}");
            transfer(&way, op, (&near, near_at), (&far, far_at), len, &Order::patient())
                .map_err(|violation| violation.at(case()))?;
            let (from, to) = if op == Op::Read { (far_at, near_at) } else { (near_at, far_at) };
            copy(&unchanged, from, &mut expected, to, len)?;
        }
        target
            .expect(&expected)
            .map_err(|violation| violation.at(format_args!("after {op} of {len} bytes")))?;
    }
    source.expect(&unchanged).map_err(|violation| violation.at("the source"))?;
    PASSED
}

fn copy(from: &[u8], from_at: u64, to: &mut [u8], to_at: u64, len: u64) -> Result<(), Violation> {
    let (from_at, to_at, len) = (usize::try_from(from_at)?, usize::try_from(to_at)?, usize::try_from(len)?);
    match (from.get(from_at..from_at + len), to.get_mut(to_at..to_at + len)) {
        (Some(from), Some(to)) => to.copy_from_slice(from),
        _ => return Err(Violation::new("the case copies outside of its areas")),
    }
    Ok(())
}

/// A batch of reads and writes of many sizes between two areas, and what both look like after it.
pub(super) struct Mixed {
    pub(super) pieces: Vec<Piece>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) near_after: Vec<u8>,
    pub(super) far_after: Vec<u8>,
}

/// `count` slices, at least one byte apart from each other.
pub(super) fn mixed(
    way: &Way,
    ops: &[Op],
    (near, far): (&Area, &Area),
    sizes: &[u64],
    count: usize,
) -> Result<Mixed, Violation> {
    let (near_before, far_before) = (near.snapshot()?, far.snapshot()?);
    let (mut near_after, mut far_after) = (near_before.clone(), far_before.clone());
    let (mut pieces, mut arrivals) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut at = 1;
    for (index, len) in sizes.iter().copied().cycle().take(count).enumerate() {
        // An odd multiplier walks through the operations without a pattern that sizes could follow.
        let op =
            ops.get((index * 7 / 3) % ops.len()).copied().ok_or_else(|| Violation::new("no operation"))?;
        let (near_at, far_at) = (at, near.len() - at - len);
        ensure!(at + len < near.len(), "the case needs larger areas");
        pieces.push(way.piece(op, (near, near_at), (far, far_at), len)?);
        let (to, to_at, bytes) = match op {
            Op::Read => {
                copy(&far_before, far_at, &mut near_after, near_at, len)?;
                (near, near_at, &near_after)
            }
            Op::Write => {
                copy(&near_before, near_at, &mut far_after, far_at, len)?;
                (far, far_at, &far_after)
            }
        };
        let start = usize::try_from(to_at)?;
        let bytes = bytes.get(start..start + usize::try_from(len)?).unwrap_or_default().to_vec();
        arrivals.push(Arrival { region: to.region().clone(), offset: to_at, bytes });
        at += len + 1 + len % 5;
    }
    Ok(Mixed { pieces, arrivals, near_after, far_after })
}

/// Runs a mixed batch of `count` slices and compares both areas as a whole afterwards.
pub(super) fn run_mixed(
    bench: &Bench,
    way: &Way,
    areas: (&Area, &Area),
    (sizes, count): (&[u64], usize),
    order: &Order,
) -> Result<(), Violation> {
    let Mixed { pieces, arrivals, near_after, far_after } =
        mixed(way, &operations(bench), areas, sizes, count)?;
    let ledger = checked(arrivals);
    way.submit(pieces, &ledger, order);
    ledger.wait(order.deadline)?;
    ledger.all_done()?;
    areas.0.expect(&near_after).map_err(|violation| violation.at("near side"))?;
    areas.1.expect(&far_after).map_err(|violation| violation.at("far side"))
}

const SMALL: [u64; 9] = [1, 7, 24, 100, 4096, 5000, 8, 333, 4095];
const LARGE: [u64; 5] = [1, 65_537, 4096, 200_000, 65_536];

/// Batches of 1, 16 and 1,000 slices with mixed sizes and directions complete each slice once and change nothing else.
pub(in crate::transport) fn mixed_batches_arrive(bench: &Bench) -> Result<Verdict, Violation> {
    for (count, sizes) in [(1, &LARGE[..]), (16, &LARGE[..]), (1000, &SMALL[..])] {
        let (near, far) = bench.areas(ROOM)?;
        let way = bench.way()?;
        run_mixed(bench, &way, (&near, &far), (sizes, count), &Order::patient())
            .map_err(|violation| violation.at(format_args!("batch of {count}")))?;
    }
    PASSED
}

/// Both submit modes deliver the same, and a caller that runs the work itself finds it resolved soon.
pub(in crate::transport) fn batches_arrive_in_both_submit_modes(bench: &Bench) -> Result<Verdict, Violation> {
    for mode in [SubmitMode::Background, SubmitMode::CallerRuns] {
        for count in [1, 16, 200] {
            let (near, far) = bench.areas(ROOM)?;
            let way = bench.way()?;
            run_mixed(bench, &way, (&near, &far), (&SMALL, count), &Order::patient().in_mode(mode))
                .map_err(|violation| violation.at(format_args!("{mode:?}, batch of {count}")))?;
        }
    }
    PASSED
}

/// Several threads submit to one path at the same time; nobody's bytes end up elsewhere (FO-01).
pub(in crate::transport) fn many_threads_share_one_path(bench: &Bench) -> Result<Verdict, Violation> {
    const THREADS: usize = 8;
    let areas = (0..THREADS).map(|_| bench.areas(256 << 10)).collect::<Result<Vec<_>, _>>()?;
    let way = bench.way()?;
    thread::scope(|scope| {
        let threads: Vec<_> = areas
            .iter()
            .enumerate()
            .map(|(thread, (near, far))| {
                let way = way.clone();
                scope.spawn(move || {
                    for round in 0..12_u8 {
                        // Every round other bytes, so that old ones do not pass for new ones.
                        near.paint(round.wrapping_mul(17))?;
                        far.paint(round.wrapping_mul(29) ^ 0x80)?;
                        let mode = if (thread + usize::from(round)) % 3 == 0 {
                            SubmitMode::CallerRuns
                        } else {
                            SubmitMode::Background
                        };
                        run_mixed(bench, &way, (near, far), (&SMALL, 24), &Order::patient().in_mode(mode))?;
                    }
                    Ok(())
                })
            })
            .collect();
        for (number, thread) in threads.into_iter().enumerate() {
            let result = thread.join().map_err(|_| Violation::new("a submitting thread panicked"))?;
            result.map_err(|violation: Violation| violation.at(format_args!("thread {number}")))?;
        }
        PASSED
    })
}

/// When `done` is reported the bytes are at the destination: compared in the thread that reports it (TCP-01, FO-01).
pub(in crate::transport) fn done_means_applied(bench: &Bench) -> Result<Verdict, Violation> {
    const LEN: u64 = 2 << 20;
    let (near, far) = bench.areas(usize::try_from(LEN)?)?;
    let way = bench.way()?;
    for round in 0..8_u8 {
        for op in operations(bench) {
            let source = if op == Op::Read { &far } else { &near };
            source.paint(round.wrapping_mul(31) ^ 0x3c)?;
            transfer(&way, op, (&near, 0), (&far, 0), LEN, &Order::patient())
                .map_err(|violation| violation.at(format_args!("{op}, round {round}")))?;
        }
    }
    PASSED
}

/// After completion the source of a WRITE may be used for something else: what is written to it then never arrives.
pub(in crate::transport) fn source_may_change_after_completion(bench: &Bench) -> Result<Verdict, Violation> {
    const SLICE: u64 = 96 << 10;
    const SLICES: u64 = 16;
    if !operations(bench).contains(&Op::Write) {
        return super::skip("the transport does not write");
    }
    let (near, far) = bench.areas(usize::try_from(SLICE * SLICES)?)?;
    let way = bench.way()?;
    let expected = near.snapshot()?;
    let source = near.region().clone();
    let observer = move |index: u32, outcome: &Outcome| {
        ensure!(outcome.is_done(), "the write failed: {outcome:?}");
        Ok(source.write_at(u64::from(index) * SLICE, &vec![0xff; usize::try_from(SLICE)?])?)
    };
    let ledger = Ledger::observed(usize::try_from(SLICES)?, Box::new(observer));
    let piece = |index| way.piece(Op::Write, (&near, index * SLICE), (&far, index * SLICE), SLICE);
    let order = Order::patient();
    way.submit((0..SLICES).map(piece).collect::<Result<_, _>>()?, &ledger, &order);
    ledger.wait(order.deadline)?;
    thread::sleep(std::time::Duration::from_millis(100));
    far.expect(&expected)?;
    PASSED
}

/// An engine can be its own peer.
pub(in crate::transport) fn engine_reaches_itself(bench: &Bench) -> Result<Verdict, Violation> {
    let served = bench.near.area(200_000, te_segment::Access::REMOTE)?;
    let local = bench.near.area(200_000, te_segment::Access::LOCAL)?;
    served.paint(1)?;
    local.paint(2)?;
    let way = bench.open(bench.near.descriptor()?)?;
    super::works(bench, &way, &local, &served)?;
    ensure!(pattern::verify(1, 0, &served.snapshot()?).is_ok(), "a read and a write back changed the bytes");
    PASSED
}
