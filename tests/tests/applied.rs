//! Completed means applied, and terminal means quiescent, over many requests (contracts 6 and 7).
//!
//! `TE_COMPLETIONS` sets how many requests are completed (10⁵ if unset), `TE_CANCELLATIONS` how many are cut off (10⁴).
//! `cargo xtask soak applied` runs ten times as many.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in tests a failure is a panic")]

use std::time::Duration;

use te::{Access, Buffer, Deadline, Engine, ErrorKind, LocalGroup, Location, RemoteRange};
use te_engine::block_on;

/// Sizes of requests, none a multiple of a page but one.
const SIZES: [u64; 4] = [24, 1_000, 4_096, 70_001];
const SLOTS: u64 = 8;
const SLOT: u64 = 80_000;

fn count(variable: &str, unset: u64) -> u64 {
    std::env::var(variable).map_or(unset, |text| text.parse().unwrap())
}

struct Pair {
    owner: Engine,
    offered: Buffer,
    engine: Engine,
    remote: RemoteRange,
}

impl Pair {
    /// Two engines that speak only so: `native`, `v2` or `v1` over TCP, `shm`, or `local` in one group.
    fn new(path: &str) -> Self {
        Self::with(path, (SLOT * SLOTS) as usize)
    }

    fn with(path: &str, len: usize) -> Self {
        let group = LocalGroup::new();
        let build = || {
            let builder = te::builder("127.0.0.1").local_group(&group);
            let builder = match path {
                "shm" | "local" => builder.set("transports", path),
                framing => builder.set("transports", "tcp").set("tcp.framing", framing),
            };
            block_on(builder.build()).unwrap()
        };
        let (owner, engine) = (build(), build());
        let offered = block_on(owner.allocate(len, Location::Any, Access::REMOTE)).unwrap();
        let remote = block_on(engine.open(owner.name().as_str())).unwrap().buffer(0).unwrap();
        Self { owner, offered, engine, remote }
    }

    fn end(self) {
        for engine in [&self.engine, &self.owner] {
            assert!(block_on(engine.shutdown(Deadline::after_secs(10))).is_clean());
        }
    }
}

/// Contents that no other round has: the number of the round, and which byte it is.
fn stamp(round: u64, bytes: &mut [u8]) {
    for (at, word) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let value = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// Writes and reads in turn; at the moment of completion the destination is compared, byte for byte.
fn every_completion_is_applied(path: &str, completions: u64) {
    let pair = Pair::new(path);
    let local =
        block_on(pair.engine.allocate((SLOT * SLOTS) as usize, Location::Any, Access::LOCAL)).unwrap();
    let mut round = 0;
    let (mut expected, mut found) = (vec![0; SLOT as usize], vec![0; SLOT as usize]);
    while round < completions {
        let write = (round / SLOTS).is_multiple_of(2);
        let (from, to) = if write { (&local, &pair.offered) } else { (&pair.offered, &local) };
        let mut batch = pair.engine.batch();
        let len = |slot: u64| SIZES[((round + slot) % 4) as usize];
        for slot in 0..SLOTS {
            let len = len(slot);
            stamp(round + slot, &mut expected[..len as usize]);
            from.write_at(slot * SLOT, &expected[..len as usize]).unwrap();
            let remote = pair.remote.slice(slot * SLOT, len).unwrap();
            let here = local.slice(slot * SLOT..slot * SLOT + len);
            batch = if write { batch.write(here, &remote) } else { batch.read(&remote, here) };
        }
        batch.run().unwrap();
        for slot in 0..SLOTS {
            let len = len(slot) as usize;
            stamp(round + slot, &mut expected[..len]);
            to.read_at(slot * SLOT, &mut found[..len]).unwrap();
            assert!(expected[..len] == found[..len], "request {} of {len} bytes is torn", round + slot);
        }
        round += SLOTS;
    }
    drop(local);
    pair.end();
}

#[test]
fn completed_requests_are_applied_over_the_native_framing() {
    every_completion_is_applied("native", count("TE_COMPLETIONS", 100_000));
}

#[test]
fn completed_requests_are_applied_over_version_2() {
    every_completion_is_applied("v2", count("TE_COMPLETIONS", 100_000));
}

#[test]
fn completed_requests_are_applied_over_shared_memory() {
    every_completion_is_applied("shm", count("TE_COMPLETIONS", 100_000));
}

#[test]
fn completed_requests_are_applied_within_a_local_group() {
    every_completion_is_applied("local", count("TE_COMPLETIONS", 100_000));
}

#[test]
fn completed_requests_are_applied_over_version_1() {
    every_completion_is_applied("v1", count("TE_COMPLETIONS", 100_000) / 10);
}

/// Requests that are cancelled or run out of time at any point of their way; the moment they are terminal their memory is
/// taken back, painted, looked at again, and unmapped.
#[test]
fn requests_that_are_cut_off_never_touch_their_memory_again() {
    cut_off("native", 256 << 10, count("TE_CANCELLATIONS", 10_000));
}

#[test]
fn copies_that_are_cut_off_never_touch_their_memory_again() {
    // More than a piece, so that there is something to cut.
    cut_off("shm", 4 << 20, count("TE_CANCELLATIONS", 10_000) / 10);
}

#[test]
fn copies_that_are_cut_off_within_a_local_group_never_touch_their_memory_again() {
    cut_off("local", 4 << 20, count("TE_CANCELLATIONS", 10_000) / 10);
}

fn cut_off(path: &str, len: usize, rounds: u64) {
    let pair = Pair::with(path, len);
    let mut ends = [0_u64; 3];
    for round in 0..rounds {
        let write = round.is_multiple_of(2);
        let memory = te::Memory::allocate(len).unwrap();
        let local = block_on(pair.engine.register(memory, Access::LOCAL)).unwrap();
        let remote = pair.remote.slice(0, len as u64).unwrap();
        let batch = pair.engine.batch();
        let batch =
            if write { batch.write(local.slice(..), &remote) } else { batch.read(&remote, local.slice(..)) };
        // From at once to about as long as the request takes.
        let pause = Duration::from_micros(round * 37 % 400);
        let ended = if round % 3 == 0 {
            batch.deadline(pause).submit().and_then(te::Batch::wait)
        } else {
            let running = batch.submit().unwrap();
            let began = std::time::Instant::now();
            while began.elapsed() < pause {
                std::hint::spin_loop();
            }
            running.cancel_wait(Deadline::after_secs(10)).expect("cancelled batches end")
        };
        ends[match ended.as_ref().map_err(te::Error::kind) {
            Ok(_) => 0,
            Err(ErrorKind::Cancelled) => 1,
            Err(ErrorKind::TimedOut) => 2,
            Err(other) => panic!("round {round}: {other}: {:?}", ended.err()),
        }] += 1;
        // Nothing of this process or of a peer holds the memory any more.
        let mut memory = block_on(local.unregister(Deadline::after_secs(5))).unwrap();
        if !write {
            memory.bytes_mut().unwrap().fill(0xEE);
            std::thread::yield_now();
            assert!(
                memory.bytes_mut().unwrap().iter().all(|byte| *byte == 0xEE),
                "round {round}: a late write"
            );
        }
    }
    println!("completed {}, cancelled {}, timed out {}", ends[0], ends[1], ends[2]);
    assert!(ends[1] > 0 && ends[2] > 0);
    pair.end();
}
