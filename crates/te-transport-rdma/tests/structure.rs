//! What a request costs, in things that can be counted: doorbells, completions and allocations.
//!
//! The NICs are in this process and allocate nothing for a request themselves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod devices;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use devices::{Bench, config};
use te_memory::{CountingAllocator, Region};
use te_transport::{
    AttemptId, CancelScope, CompletionSink, CompletionToken, Op, Outcome, Path, Slice, Submission, SubmitMode,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const BLOCK: u64 = 4096;

/// Counts what is done.
#[derive(Default)]
struct Count(AtomicU32);

impl CompletionSink for Count {
    fn complete(&self, _index: u32, outcome: Outcome) {
        assert!(outcome.is_done(), "{outcome:?}");
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn submit(path: &dyn Path, op: Op, local: &Region, remote: &Region, slices: u32) {
    let count = Arc::new(Count::default());
    let slice = |at: u32| Slice {
        op,
        local: local.hold(u64::from(at) * BLOCK, BLOCK).unwrap(),
        remote: remote.range().slice(u64::from(at) * BLOCK, BLOCK).unwrap(),
        generation: Some(remote.generation()),
        attempt: AttemptId { request: 1, attempt: 1 },
        token: CompletionToken::new(count.clone(), at),
    };
    let slices_of: Vec<_> = (0..slices).map(slice).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let submission = Submission { slices: slices_of, deadline, scope: CancelScope::new() };
    path.submit(submission, SubmitMode::Background);
    while count.0.load(Ordering::SeqCst) < slices {
        std::thread::yield_now();
    }
}

/// RDMA-11: what is submitted together is posted together: one doorbell for each queue pair, few completions, and nothing is
/// allocated for a request. Both are one test, since allocations are counted for the whole process.
#[test]
fn what_is_submitted_together_is_posted_together_and_allocates_nothing() {
    let (bench, a, b) = Bench::pair();
    let (local, remote) = (a.local(512 * 4096), b.offered(512 * 4096));
    let path = a.path_to(&b);
    submit(&*path, Op::Write, &local, &remote, 128);
    let lanes = 2 * 2;
    for op in [Op::Write, Op::Read] {
        let (counted, posted) = (a.transport.counters(), bench.fabric.posted());
        submit(&*path, op, &local, &remote, 128);
        let now = a.transport.counters();
        assert_eq!(now.requests - counted.requests, 128);
        assert_eq!(now.doorbells - counted.doorbells, lanes, "{op}");
        assert_eq!(bench.fabric.posted(), (posted.0 + lanes, posted.1 + 128), "{op}");
        let signalled = now.signalled - counted.signalled;
        assert!(signalled * 4 <= 128, "{op}: {signalled} of 128 are signalled");
    }
    for op in [Op::Write, Op::Read] {
        let of = |slices: u32| {
            let once = || {
                let before = ALLOCATOR.allocations();
                submit(&*path, op, &local, &remote, slices);
                ALLOCATOR.allocations() - before
            };
            (0..300).map(|_| once()).min().unwrap()
        };
        let (one, some, many) = (of(4), of(128), of(512));
        assert!(
            some <= one && many <= one,
            "{op}: {one} allocations for 4 slices, {some} for 128, {many} for 512"
        );
    }
}

/// RDMA-11: one large request uses every queue pair, with a doorbell for each.
#[test]
fn a_large_request_uses_every_queue_pair_once() {
    let bench = Bench::new(&["a0", "a1", "b0", "b1"]);
    let settings = config(&[("queue_pairs", "4")]);
    let a = bench.peer(1, &["a0", "a1"], settings.clone());
    let b = bench.peer(2, &["b0", "b1"], settings);
    let (local, remote) = (a.local(8 << 20), b.offered(8 << 20));
    let path = a.path_to(&b);
    let whole = te_testkit::node::Move::new(Op::Write, &local, &remote);
    whole.done(&*path);
    let (counted, before) = (a.transport.counters(), ["a0", "a1"].map(|nic| bench.bytes_of(nic)));
    whole.done(&*path);
    let now = a.transport.counters();
    assert_eq!(now.doorbells - counted.doorbells, 8);
    let after = ["a0", "a1"].map(|nic| bench.bytes_of(nic));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [4 << 20; 2]);
}
