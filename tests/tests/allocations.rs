//! In the steady state a request costs no heap allocation, from submission to completion, at either end.
//!
//! A batch has a few of its own. What a request costs is what a batch of twice as many requests allocates more.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use te::{Access, Buffer, Deadline, Engine, Location, Op, RemoteRange};
use te_engine::block_on;
use te_memory::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

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
        let before = ALLOCATOR.allocations();
        run(engine, op, local, remote, requests);
        ALLOCATOR.allocations() - before
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
