//! Engines that end, together with their peers or with work under way; and batches whose end nobody misses.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::pair::Pair;
use common::{World, soon};
use te_engine::{Batch, Engine, ErrorKind, block_on};
use te_segment::{Access, TransportKind};
use te_testkit::{Fault, FaultTransport, Script, Site, When, within};
use te_transport::Fencing;

const LEN: usize = 4096;

/// How an engine ends.
#[derive(Clone, Copy)]
enum End {
    Shutdown,
    Drop,
}

/// Ends an engine while a batch of it hangs.
fn end(engine: Engine, batch: Batch, how: End) {
    match how {
        End::Shutdown => drop(block_on(engine.shutdown(soon()))),
        End::Drop => drop(engine),
    }
    assert_eq!(batch.wait().unwrap_err().kind(), ErrorKind::Shutdown);
}

/// LIFE-04: two peers with requests to each other that hang end at the same moment, and both come to an end, with their
/// requests.
#[test]
fn peers_that_end_at_the_same_moment_both_end() {
    for round in 0..1_000_usize {
        let how = |side: usize| if (round >> side) & 1 == 0 { End::Shutdown } else { End::Drop };
        let (one, two) = (how(0), how(1));
        let ended = within(Duration::from_secs(60), "two engines that end", move || both_end(one, two));
        ended.unwrap();
    }
}

fn both_end(one: End, two: End) {
    let world = World::new();
    let engine = |name| {
        let script = Script::new(1).with(Site::Slice, When::Always, Fault::Hang);
        let faulty = FaultTransport::new(world.transport(TransportKind::SHM), &script);
        let mut config = World::config(name);
        config.limits.drain = Duration::from_millis(10);
        world.engine_with(config, vec![Box::new(faulty)])
    };
    let engines = [engine("one"), engine("two")];
    let offered = engines.each_ref().map(|engine| {
        let offered = block_on(engine.register(vec![0_u8; LEN], Access::REMOTE)).unwrap();
        block_on(engine.published(soon())).unwrap();
        offered
    });
    let request = |from: usize, to: usize| {
        let peer = block_on(engines[from].open(engines[to].name().as_str())).unwrap();
        let range = peer.range(offered[to].address(), LEN as u64).unwrap();
        let batch = engines[from].batch().deadline(Duration::from_secs(600));
        batch.write(offered[from].slice(..), &range).submit().unwrap()
    };
    let (first, second) = (request(0, 1), request(1, 0));
    let barrier = Barrier::new(2);
    let [mine, theirs] = engines;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            end(theirs, second, two);
        });
        barrier.wait();
        end(mine, first, one);
    });
    drop(offered);
}

/// Signals that this process catches, and those that it ignores.
#[cfg(target_os = "linux")]
fn handled_signals() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let lines = status.lines().filter(|line| line.starts_with("SigCgt:") || line.starts_with("SigIgn:"));
    let found: Vec<_> = lines.map(ToOwned::to_owned).collect();
    assert_eq!(found.len(), 2);
    found
}

/// LIFE-02: signals are the program's business: an engine in its whole life changes nothing about them.
#[test]
#[cfg(target_os = "linux")]
fn an_engine_installs_no_signal_handlers() {
    let before = handled_signals();
    let pair = Pair::new(Fencing::LocalOnly);
    block_on(async {
        let (_offered, local, range) = pair.memory(vec![0; LEN], vec![0; LEN]).await;
        pair.initiator.batch().write(local.slice(..), &range).submit().unwrap().await.unwrap();
        assert_eq!(handled_signals(), before);
        assert!(pair.initiator.shutdown(soon()).await.is_clean());
    });
    assert_eq!(handled_signals(), before);
}

/// FO-11: batches whose last slice ends while they are being awaited, polled and asked: each end is noticed.
#[test]
fn no_end_of_a_batch_is_missed() {
    let pair = Pair::new(Fencing::LocalOnly);
    pair.first.add(Site::Slice, When::Every(3), Fault::Delay(Duration::from_micros(50)));
    let initiator = pair.initiator.clone();
    let (_offered, local, range) = block_on(pair.memory(vec![0; LEN], vec![0; LEN]));
    let awaited = within(Duration::from_secs(120), "batches that are awaited", move || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (initiator, local, range) = (&initiator, &local, &range);
                scope.spawn(move || {
                    for round in 0..300_usize {
                        let batch = (0..1 + round % 4).fold(initiator.batch(), |batch, at| {
                            let at = at as u64 * 64;
                            batch.write(local.slice(at..at + 64), &range.slice(at, 64).unwrap())
                        });
                        let batch = batch.submit().unwrap();
                        match (thread + round) % 3 {
                            0 => block_on(batch).unwrap(),
                            1 => batch.wait().unwrap(),
                            _ => batch.wait_until(soon()).unwrap().unwrap(),
                        };
                    }
                });
            }
        });
    });
    awaited.unwrap();
}
