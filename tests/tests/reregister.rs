//! A buffer that is withdrawn and registered again at the same address, with other contents, inside one life: a handle of
//! the earlier buffer touches nothing of the newer one.
//!
//! `TE_RESTART_CYCLES` sets how often; 20 if it is not set. `cargo xtask soak restart` runs 200.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use te::{Access, Buffer, Deadline, Engine, Error, ErrorKind, Memory, RemoteRange, Sharing};
use te_engine::block_on;
use te_testkit::{pattern, verify};

const LEN: usize = 4 << 20;
const STRAY: u8 = 0xff;

struct Reader {
    engine: Engine,
    local: Buffer,
    stray: Buffer,
}

impl Reader {
    fn read(&self, remote: &RemoteRange) -> Result<Vec<u8>, Error> {
        self.engine.batch().deadline(Duration::from_secs(5)).read(remote, self.local.slice(..)).run()?;
        let mut found = vec![0; LEN];
        self.local.read_at(0, &mut found).unwrap();
        Ok(found)
    }

    fn write_stray(&self, remote: &RemoteRange) -> Result<te::Report, Error> {
        self.engine.batch().deadline(Duration::from_secs(5)).write(self.stray.slice(..), remote).run()
    }
}

fn offer(owner: &Engine, memory: Memory, seed: u8) -> Buffer {
    let offered = block_on(owner.register(memory, Access::REMOTE)).unwrap();
    offered.write_at(0, &pattern(seed, LEN)).unwrap();
    offered
}

/// MR-07, MR-09, MR-10, SEG-01, SEG-06
#[test]
fn a_handle_of_a_withdrawn_buffer_touches_nothing_of_the_next_one_over_tcp() {
    cycle("tcp", Memory::allocate(LEN).unwrap());
}

/// MR-07, MR-09, MR-10, SEG-01
#[test]
fn a_handle_of_a_withdrawn_buffer_touches_nothing_of_the_next_one_in_shared_memory() {
    cycle("shm", Memory::allocate_shareable(LEN, Sharing::ReadWrite).unwrap());
}

/// MR-07, MR-09, MR-10, SEG-01
#[test]
fn a_handle_of_a_withdrawn_buffer_touches_nothing_of_the_next_one_in_private_memory() {
    cycle("shm", Memory::allocate(LEN).unwrap());
}

/// MR-07, MR-09, MR-10, SEG-01
#[test]
fn a_handle_of_a_withdrawn_buffer_touches_nothing_of_the_next_one_in_the_same_process() {
    cycle("local", Memory::allocate(LEN).unwrap());
}

fn cycle(transport: &str, memory: Memory) {
    let cycles = std::env::var("TE_RESTART_CYCLES").map_or(20, |text| text.parse().unwrap());
    let group = te::LocalGroup::new();
    let build = || {
        let builder = te::builder("127.0.0.1").local_group(&group);
        block_on(builder.set("transports", transport).build()).unwrap()
    };
    let (owner, engine) = (build(), build());
    let local = block_on(engine.register(vec![0_u8; LEN], Access::LOCAL)).unwrap();
    let stray = block_on(engine.register(pattern(STRAY, LEN), Access::LOCAL)).unwrap();
    let reader = Reader { engine, local, stray };
    let mut offered = offer(&owner, memory, 0);
    let address = offered.address();
    for round in 0..cycles {
        let segment = block_on(reader.engine.open(owner.name().as_str())).unwrap();
        block_on(segment.sync()).unwrap();
        let old = segment.range(address, LEN as u64).unwrap();
        let started = AtomicBool::new(false);
        let memory = std::thread::scope(|scope| {
            let transfers = scope.spawn(|| {
                loop {
                    match reader.read(&old) {
                        Ok(found) => verify(round, 0, &found).unwrap(),
                        Err(error) => return error,
                    }
                    started.store(true, Ordering::Release);
                }
            });
            while !started.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(u64::from(round) * 97));
            let memory = block_on(offered.unregister(Deadline::after_secs(10))).unwrap();
            let error = transfers.join().unwrap();
            assert_ne!(error.kind(), ErrorKind::TimedOut, "{error:#}");
            memory
        });

        offered = offer(&owner, memory, round + 1);
        assert_eq!(offered.address(), address, "the buffers differ in their contents only");
        let began = Instant::now();
        loop {
            let write = reader.write_stray(&old).unwrap_err();
            let read = reader.read(&old).unwrap_err();
            if [&write, &read].iter().all(|error| error.kind() == ErrorKind::BufferGone) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "never gone: {write:#}\n{read:#}");
        }
        let mut found = vec![0; LEN];
        offered.read_at(0, &mut found).unwrap();
        verify(round + 1, 0, &found).unwrap();

        block_on(segment.sync()).unwrap();
        let fresh = segment.range(address, LEN as u64).unwrap();
        verify(round + 1, 0, &reader.read(&fresh).unwrap()).unwrap();
    }
    for engine in [&reader.engine, &owner] {
        block_on(engine.shutdown(Deadline::after_secs(5)));
    }
}
