//! Large batches do not keep small ones waiting.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{ATTEMPT, Node};
use parking_lot::{Condvar, Mutex};
use te_memory::Region;
use te_segment::Access;
use te_testkit::tcp_link;
use te_transport::{
    CancelScope, CompletionSink, CompletionToken, Op, Outcome, Path, Slice, Submission, SubmitMode, Transport,
};
use te_transport_tcp::TcpConfig;

const LARGE: u64 = 16 << 20;
const COUNT: u32 = 8;
const SMALL: u32 = 99;

/// The requests that are done, in order.
#[derive(Default)]
struct Order {
    done: Mutex<Vec<u32>>,
    more: Condvar,
}

impl CompletionSink for Order {
    fn complete(&self, index: u32, outcome: Outcome) {
        assert!(outcome.is_done(), "{outcome:?}");
        self.done.lock().push(index);
        self.more.notify_all();
    }
}

fn submit(path: &dyn Path, op: Op, memory: [&Region; 2], len: u64, indices: &[u32], order: &Arc<Order>) {
    let [local, remote] = memory;
    let slices = indices.iter().map(|index| Slice {
        op,
        local: local.hold(0, len).unwrap(),
        remote: remote.range().slice(0, len).unwrap(),
        generation: Some(remote.generation()),
        attempt: ATTEMPT,
        token: CompletionToken::new(order.clone(), *index),
    });
    let deadline = Instant::now() + Duration::from_secs(120);
    let submission = Submission { slices: slices.collect(), deadline, scope: CancelScope::new() };
    path.submit(submission, SubmitMode::Background);
}

/// Everything is submitted while nothing gets through, and there is one connection: what is done in which order is decided
/// by the queue and by nothing else.
#[test]
fn a_small_request_overtakes_large_ones_that_were_there_before() {
    for op in [Op::Write, Op::Read] {
        let mut config = TcpConfig::default();
        config.set("connections_per_peer", "1").unwrap();
        let (initiator, target) = (Node::with(config), Node::new());
        let remote = target.region(LARGE as usize, Access::REMOTE);
        let local = initiator.region(LARGE as usize, Access::LOCAL);
        let link = tcp_link(&target.published()).unwrap();
        let path = initiator.transport.path(&link.descriptor).unwrap();
        let order = Arc::<Order>::default();
        link.control.stall();
        let large: Vec<u32> = (0..COUNT).collect();
        submit(&*path, op, [&local, &remote], LARGE, &large, &order);
        submit(&*path, op, [&local, &remote], 4096, &[SMALL], &order);
        link.control.resume();
        let mut done = order.done.lock();
        while done.len() <= large.len() {
            let late = order.more.wait_for(&mut done, Duration::from_secs(120)).timed_out();
            assert!(!late, "only these are done: {done:?}");
        }
        let place = done.iter().position(|index| *index == SMALL).unwrap();
        assert!(place <= 1, "{op}: {done:?}");
    }
}
