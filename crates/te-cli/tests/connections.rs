//! Data connections of this process to another one: as many as are of use, and none to a peer that is gone.
#![cfg(all(target_os = "linux", feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use te::{Access, Buffer, Deadline, Engine, Segment};
use te_engine::block_on;

use common::Served;

const LEN: u64 = 4096;

/// Connections to this port that a process still has, as the system lists them.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let ours = table.lines().filter(|line| {
        let cells: Vec<_> = line.split_whitespace().collect();
        // Local address, remote address, state; the owner's inode, 0 when no process has it any more.
        cells.get(2).is_some_and(|cell| cell.ends_with(&remote))
            && cells.get(9).is_some_and(|cell| *cell != "0")
    });
    ours.count()
}

fn data_port(segment: &Segment) -> u16 {
    segment.descriptor().tcp().unwrap().port.get()
}

fn read(engine: &Engine, segment: &Segment, into: &Buffer, times: usize) {
    let remote = segment.buffer(0).unwrap().slice(0, LEN).unwrap();
    for _ in 0..times {
        engine.batch().read(&remote, into.slice(..)).run().unwrap();
    }
}

/// TCP-03: traffic does not add connections, and those to a peer that was killed are closed although nobody uses them.
#[test]
fn connections_stay_few_and_follow_the_lives_of_the_peer() {
    let engine = block_on(te::builder("127.0.0.1").set("transports", "tcp").build()).unwrap();
    let local = block_on(engine.register(vec![0_u8; LEN as usize], Access::LOCAL)).unwrap();
    let mut peer = Served::start(&["--size", "1MiB"]);
    // Handles of earlier lives keep their paths, not their connections.
    let mut kept = Vec::new();
    for _ in 0..3 {
        let segment = block_on(engine.open(&peer.segment)).unwrap();
        let port = data_port(&segment);
        read(&engine, &segment, &local, 20);
        let few = connections_to(port);
        read(&engine, &segment, &local, 500);
        assert_eq!((few, connections_to(port)), (1, 1));

        let name = peer.segment.clone();
        peer.kill();
        let killed = Instant::now();
        while connections_to(port) > 0 {
            assert!(killed.elapsed() < Duration::from_secs(30), "connections to a peer that is gone");
            thread::sleep(Duration::from_millis(20));
        }
        peer = Served::start_as(&name, &["--size", "1MiB"]);
        kept.push(segment);
    }
    assert!(block_on(engine.shutdown(Deadline::after_secs(5))).is_clean());
}
