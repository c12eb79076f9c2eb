//! In the steady state a request costs no heap allocation, from submission to completion, at either end.
//!
//! A batch has a few of its own. What a request costs is what a batch of twice as many requests allocates more.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use te::{Access, Buffer, Deadline, Engine, Location, Op, RemoteRange};
use te_engine::block_on;

struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is handed to the system's allocator as it comes; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds what the system's allocator asks for, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCK: u64 = 4096;

fn run(engine: &Engine, op: Op, local: &Buffer, remote: &RemoteRange, requests: u64) {
    let mut batch = engine.batch().reserve(requests as usize);
    for index in 0..requests {
        let (at, here) = (index * BLOCK, local.slice(index * BLOCK..(index + 1) * BLOCK));
        let there = remote.slice(at, BLOCK).unwrap();
        batch = if op == Op::Write { batch.write(here, &there) } else { batch.read(&there, here) };
    }
    batch.run().unwrap();
}

/// Allocations of a batch, of both ends together: the fewest of several, as the control plane allocates now and then.
fn allocations(engine: &Engine, op: Op, local: &Buffer, remote: &RemoteRange, requests: u64) -> u64 {
    let once = || {
        let before = ALLOCATED.load(Ordering::Relaxed);
        run(engine, op, local, remote, requests);
        ALLOCATED.load(Ordering::Relaxed) - before
    };
    (0..200).map(|_| once()).min().unwrap()
}

#[test]
fn requests_in_the_steady_state_allocate_nothing() {
    for (transport, framing) in [("tcp", "native"), ("tcp", "v2"), ("shm", "auto"), ("local", "auto")] {
        let group = te::LocalGroup::new();
        let build = || {
            let builder = te::builder("127.0.0.1").set("transports", transport).set("tcp.framing", framing);
            block_on(builder.local_group(&group).build()).unwrap()
        };
        let (owner, engine) = (build(), build());
        let len = (256 * BLOCK) as usize;
        let _offered = block_on(owner.allocate(len, Location::Any, Access::REMOTE)).unwrap();
        let local = block_on(engine.allocate(len, Location::Any, Access::LOCAL)).unwrap();
        let remote = block_on(engine.open(owner.name().as_str())).unwrap().buffer(0).unwrap();
        for op in [Op::Write, Op::Read] {
            let of = |requests| allocations(&engine, op, &local, &remote, requests);
            let (one, many) = (of(1), of(256));
            assert!(
                many <= one,
                "{transport} {framing} {op}: {one} allocations for one request, {many} for 256"
            );
        }
        for engine in [engine, owner] {
            assert!(block_on(engine.shutdown(Deadline::after_secs(10))).is_clean());
        }
    }
}
