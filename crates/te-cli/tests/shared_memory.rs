//! Two processes of one host: bytes through shared memory, and what happens when one of them is killed or stopped.
#![cfg(all(feature = "shm", feature = "tcp", feature = "p2p"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use te::{Access, Buffer, Deadline, Engine, ErrorKind, Location, RemoteRange};
use te_engine::block_on;
use te_testkit::{pattern, verify};

use common::{Served, te};

const LEN: usize = 16 << 20;
const THEIRS: u8 = 7;
const OURS: u8 = 9;
/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn serve() -> Served {
    Served::start(&["--metadata", "P2PHANDSHAKE", "--size", "16MiB", "--pattern", &THEIRS.to_string()])
}

fn engine() -> Engine {
    block_on(te::builder("127.0.0.1").build()).unwrap()
}

fn open(engine: &Engine, served: &Served) -> RemoteRange {
    block_on(engine.open(&served.segment)).unwrap().buffer(0).unwrap()
}

fn local(engine: &Engine) -> Buffer {
    block_on(engine.register(pattern(OURS, LEN), Access::LOCAL)).unwrap()
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.read_at(0, &mut bytes).unwrap();
    bytes
}

/// FO-10
#[test]
fn bytes_go_there_and_back_between_processes() {
    let mut served = serve();
    let engine = engine();
    let (remote, local) = (open(&engine, &served), local(&engine));
    let report = engine.batch().write(local.slice(..), &remote).run().unwrap();
    assert!(report.path().starts_with("shm "), "{report}");
    assert_eq!(served.ask(&format!("check 0 16MiB {OURS}"))["ok"], true);
    assert_eq!(served.ask(&format!("fill {THEIRS}"))["ok"], true);
    let report = engine.batch().read(&remote, local.slice(..)).submit().unwrap().wait().unwrap();
    assert!(report.path().starts_with("shm "), "{report}");
    verify(THEIRS, 0, &bytes(&local)).unwrap();
}

/// A transport that is asked for alone, and a peer that does not have it.
#[test]
fn a_peer_without_shared_memory_is_reached_over_tcp() {
    let served = Served::start(&["--metadata", "P2PHANDSHAKE", "--size", "16MiB", "--set", "transports=tcp"]);
    let engine = engine();
    let (remote, local) = (open(&engine, &served), local(&engine));
    let report = engine.batch().write(local.slice(..), &remote).run().unwrap();
    assert!(report.path().starts_with("tcp "), "{report}");
}

/// Contract 7: the target's death ends a transfer, by its deadline and without a signal to this process.
#[test]
fn a_target_that_is_killed_ends_the_transfers() {
    for round in 0..4_u32 {
        let served = serve();
        let engine = engine();
        let (remote, local) = (open(&engine, &served), local(&engine));
        engine.batch().write(local.slice(..), &remote).run().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(u64::from(3 * round)));
            served.kill();
        });
        let began = Instant::now();
        let error = loop {
            assert!(began.elapsed() < PATIENCE, "transfers go on without a target");
            let write = engine.batch().write(local.slice(..), &remote).deadline(Duration::from_secs(5)).run();
            match write.and_then(|_| engine.batch().read(&remote, local.slice(..)).run()) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let lost = [
            ErrorKind::ConnectionLost,
            ErrorKind::DataPathUnreachable,
            ErrorKind::SegmentGone,
            ErrorKind::StaleIncarnation,
            ErrorKind::TimedOut,
        ];
        assert!(lost.contains(&error.kind()), "{error:#}");
        killer.join().unwrap();
        // Terminal means quiescent.
        block_on(local.unregister(Deadline::after(PATIENCE))).unwrap();
    }
}

/// A stopped target stops nothing: nobody there has to do anything. And the memory here is free when it is asked for.
#[test]
fn a_stopped_target_is_read_and_written() {
    let mut served = serve();
    let engine = engine();
    let (remote, local) = (open(&engine, &served), local(&engine));
    engine.batch().read(&remote, local.slice(..)).run().unwrap();
    served.signal("-STOP");
    verify(THEIRS, 0, &bytes(&local)).unwrap();
    local.write_at(0, &pattern(OURS, LEN)).unwrap();
    let report = engine.batch().write(local.slice(..), &remote).run().unwrap();
    assert!(report.path().starts_with("shm "), "{report}");
    block_on(local.unregister(Deadline::after(PATIENCE))).unwrap();
    served.signal("-CONT");
    assert_eq!(served.ask(&format!("check 0 16MiB {OURS}"))["ok"], true);
}

/// A process that writes to a buffer of ours without end.
struct Writer(Child);

impl Writer {
    fn start(owner: &Engine, offered: &Buffer) -> Self {
        let line = "bench initiator --op write --block 4MiB --batch 4 --duration 100s --rounds 1 --peer";
        let mut command = te();
        command.args(line.split(' ')).arg(owner.name().as_str()).args(["--metadata", "P2PHANDSHAKE"]);
        command.args(["--area", "16MiB", "--set", "transports=shm"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let before = pattern(THEIRS, LEN);
        offered.write_at(0, &before).unwrap();
        let began = Instant::now();
        while bytes(offered) == before {
            assert!(began.elapsed() < PATIENCE, "nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// MR-09, contract 8: a process that is stopped in the middle of a copy holds the memory up and is named; when it ends, the
/// memory is free, and nothing of it changes any more.
#[test]
fn a_writer_that_is_stopped_in_mid_copy_is_named_until_it_ends() {
    let owner = engine();
    // Nearly always it is stopped while it copies; where it is not, the memory is free at once.
    let named = (0..10).any(|round| {
        let offered = block_on(owner.allocate(LEN, Location::Any, Access::REMOTE)).unwrap();
        let writer = Writer::start(&owner, &offered);
        std::thread::sleep(Duration::from_millis(round));
        writer.signal(Signal::STOP);
        let mut failed = match block_on(offered.unregister(Deadline::after_secs(5))) {
            Ok(_) => return false,
            Err(failed) => failed,
        };
        let text = failed.error.to_string();
        let named = text.contains(&format!("still being copied by process {}", writer.0.id()));
        assert!(!named || failed.error.kind() == ErrorKind::StillHeld, "{text}");
        drop(writer);
        let began = Instant::now();
        loop {
            match block_on(failed.buffer.unregister(Deadline::after_secs(5))) {
                Ok(memory) => {
                    assert_eq!(memory.len(), LEN);
                    return named;
                }
                Err(again) => failed = again,
            }
            assert!(began.elapsed() < PATIENCE, "{}", failed.error);
        }
    });
    assert!(named, "in ten rounds the writer was never stopped while it copied");
}
