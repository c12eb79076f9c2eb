//! A peer that is killed in mid-transfer and comes back under the same name, with memory at the same addresses and other
//! contents: nothing of one life is ever taken for the other.
//!
//! `TE_RESTART_CYCLES` sets the number of lives; 20 if it is not set. `cargo xtask soak restart` runs 200.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use te::{Access, Buffer, Deadline, Engine, ErrorKind, RemoteRange};
use te_engine::block_on;
use te_testkit::{pattern, verify};

use common::Served;

const LEN: u64 = 4 << 20;
const BLOCK: u64 = 64 << 10;
/// What a handle of an earlier life tries to write. Never a life's own contents.
const STRAY: u8 = 0xff;

fn cycles() -> u8 {
    std::env::var("TE_RESTART_CYCLES").map_or(20, |text| text.parse().unwrap())
}

fn serve(name: &str, seed: u8) -> Served {
    let (size, seed) = (LEN.to_string(), seed.to_string());
    Served::start_at_fixed_addresses(
        name,
        &["--metadata", "P2PHANDSHAKE", "--size", &size, "--pattern", &seed],
    )
}

/// This process: an engine with as much memory as the peer offers.
struct Initiator {
    engine: Engine,
    local: Buffer,
    stray: Buffer,
}

impl Initiator {
    fn new(transport: &str) -> Self {
        let engine = block_on(te::builder("127.0.0.1").set("transports", transport).build()).unwrap();
        let local = block_on(engine.register(vec![0_u8; LEN as usize], Access::LOCAL)).unwrap();
        let stray = block_on(engine.register(pattern(STRAY, LEN as usize), Access::LOCAL)).unwrap();
        Self { engine, local, stray }
    }

    fn open(&self, peer: &Served) -> RemoteRange {
        let address = u64::from_str_radix(peer.address.trim_start_matches("0x"), 16).unwrap();
        block_on(self.engine.open(&peer.segment)).unwrap().range(address, LEN).unwrap()
    }

    /// Reads the whole buffer in blocks, as one batch.
    fn read(&self, remote: &RemoteRange, wait: Duration) -> Result<Vec<u8>, te::Error> {
        let mut batch = self.engine.batch().deadline(wait);
        for at in (0..LEN).step_by(BLOCK as usize) {
            batch = batch.read(&remote.slice(at, BLOCK).unwrap(), self.local.slice(at..at + BLOCK));
        }
        batch.run()?;
        let mut found = vec![0; LEN as usize];
        self.local.read_at(0, &mut found).unwrap();
        Ok(found)
    }

    fn write_stray(&self, remote: &RemoteRange) -> Result<te::Report, te::Error> {
        self.engine.batch().deadline(Duration::from_secs(5)).write(self.stray.slice(..), remote).run()
    }
}

/// Reads until the peer is gone; every read that succeeds has the contents of its life, whole.
fn read_until_killed(initiator: &Initiator, remote: &RemoteRange, seed: u8, started: &AtomicBool) -> u64 {
    let mut whole = 0;
    loop {
        match initiator.read(remote, Duration::from_secs(5)) {
            Ok(found) => {
                verify(seed, 0, &found).unwrap();
                whole += 1;
                started.store(true, Ordering::Release);
            }
            Err(_) => return whole,
        }
    }
}

/// A handle of an earlier life, while a later one serves: nothing succeeds, and soon every error says why.
fn becomes_stale(initiator: &Initiator, old: &RemoteRange) {
    let began = Instant::now();
    loop {
        let write = initiator.write_stray(old).unwrap_err();
        let read = initiator.read(old, Duration::from_secs(5)).unwrap_err();
        if [&write, &read].iter().all(|error| error.kind() == ErrorKind::StaleIncarnation) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "never stale: {write:#}\n{read:#}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// META-01, META-02, SEG-05, FO-01
#[test]
fn no_byte_of_one_life_is_taken_for_another() {
    lives_are_told_apart("tcp");
}

/// SEG-01
#[cfg(feature = "shm")]
#[test]
fn no_shared_byte_of_one_life_is_taken_for_another() {
    lives_are_told_apart("shm");
}

fn lives_are_told_apart(transport: &str) {
    let initiator = Initiator::new(transport);
    let mut peer = serve("127.0.0.1", 0);
    let (name, address) = (peer.segment.clone(), peer.address.clone());
    let (whole, mut slowest) = (AtomicU64::new(0), Duration::ZERO);
    for life in 0..cycles() {
        let remote = initiator.open(&peer);
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                whole.fetch_add(read_until_killed(&initiator, &remote, life, &started), Ordering::Relaxed);
            });
            while !started.load(Ordering::Acquire) {
                thread::yield_now();
            }
            // At another point of the transfers in every cycle.
            thread::sleep(Duration::from_micros(u64::from(life) * 211));
            peer.kill();
        });

        peer = serve(&name, life + 1);
        let published = Instant::now();
        assert_eq!(
            (&peer.segment, &peer.address),
            (&name, &address),
            "the lives differ in their contents only"
        );
        let fresh = initiator.open(&peer);
        let found = initiator.read(&fresh, Duration::from_secs(5)).unwrap();
        slowest = slowest.max(published.elapsed());
        verify(life + 1, 0, &found).unwrap();

        becomes_stale(&initiator, &remote);
        let contents = peer.ask(&format!("check 0 {LEN} {}", life + 1));
        assert_eq!(contents["ok"], true, "{contents}");
    }
    assert!(whole.load(Ordering::Relaxed) >= u64::from(cycles()));
    println!("{} lives, slowest return {} ms", cycles(), slowest.as_millis());
    block_on(initiator.engine.shutdown(Deadline::after_secs(5)));
}
