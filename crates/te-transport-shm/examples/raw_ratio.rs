//! Throughput of copies over this transport beside the copy routine alone, on the same memory and in turns.
//!
//! `cargo run --release -p te-transport-shm --example raw_ratio`
//!
//! Both ends are nodes of one process; the memory of the other is mapped twice, as it is between processes. The yardstick
//! copies the same blocks to and from the owner's own mapping. Each figure is the median over the turns.
#![allow(clippy::unwrap_used, reason = "an example that cannot be set up has failed")]

#[path = "../tests/common/node.rs"]
mod node;

use std::sync::Arc;
use std::time::{Duration, Instant};

use node::{Log, Node};
use te_memory::{Memory, Region, copy_between};
use te_segment::Access;
use te_transport::{AttemptId, CancelScope, CompletionToken, Op, Path, Slice, Submission, SubmitMode};

const TURNS: usize = 15;
const TURN: Duration = Duration::from_millis(120);

/// Blocks of one batch, and how much memory they rotate over.
struct Work {
    block: u64,
    batch: u64,
    area: u64,
}

impl Work {
    /// GB/s of batches at offsets that `batch` gets.
    fn measure(&self, mut batch: impl FnMut(u64)) -> f64 {
        let step = self.block * self.batch;
        let (began, mut moved, mut at) = (Instant::now(), 0_u64, 0);
        while began.elapsed() < TURN {
            batch(at);
            at = (at + step) % (self.area / step * step);
            moved += step;
        }
        moved as f64 / began.elapsed().as_secs_f64() / 1e9
    }

    fn transport(
        &self,
        path: &dyn Path,
        op: Op,
        (local, remote): (&Region, &Region),
        mode: SubmitMode,
    ) -> f64 {
        self.measure(|at| {
            let log = Arc::<Log>::default();
            let slice = |index| {
                let offset = at + index * self.block;
                Slice {
                    op,
                    local: local.hold(offset, self.block).unwrap(),
                    remote: remote.range().slice(offset, self.block).unwrap(),
                    generation: Some(remote.generation()),
                    attempt: AttemptId { request: 1, attempt: 1 },
                    token: CompletionToken::new(log.clone(), u32::try_from(index).unwrap()),
                }
            };
            let slices = (0..self.batch).map(slice).collect();
            let deadline = Instant::now() + node::PATIENCE;
            path.submit(Submission { slices, deadline, scope: CancelScope::new() }, mode);
            let count = usize::try_from(self.batch).unwrap();
            assert!(log.wait(count).iter().all(te_transport::Outcome::is_done));
        })
    }

    fn yardstick(&self, op: Op, (local, remote): (&Region, &Region)) -> f64 {
        self.measure(|at| {
            for index in 0..self.batch {
                let offset = at + index * self.block;
                let ends = [local, remote].map(|region| region.hold(offset, self.block).unwrap());
                let (to, from) = if op == Op::Read { (&ends[0], &ends[1]) } else { (&ends[1], &ends[0]) };
                copy_between(to, from).unwrap();
            }
        })
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    const AREA: usize = 256 << 20;
    let (near, far) = (Node::new(), Node::new());
    let (local, remote) = (near.local(AREA), far.shared(AREA));
    let private = far.register(Memory::allocate(AREA).unwrap(), Access::REMOTE);
    let path = near.path_to(&far);
    println!("{:6}{:24}{:>10}{:>10}{:>8}", "op", "blocks", "shm GB/s", "copy GB/s", "ratio");
    for (name, remote, mode) in [
        ("mapped, caller", &remote, SubmitMode::CallerRuns),
        ("mapped, background", &remote, SubmitMode::Background),
        ("process_vm, caller", &private, SubmitMode::CallerRuns),
    ] {
        println!("{name}");
        for (block, batch, area) in [
            (64 << 10, 1, 1 << 20),
            (64 << 10, 16, 2 << 20),
            (1 << 20, 1, 2 << 20),
            (1 << 20, 1, AREA as u64),
            (64 << 10, 16, AREA as u64),
            (16 << 20, 1, AREA as u64),
        ] {
            let work = Work { block, batch, area };
            for op in [Op::Read, Op::Write] {
                let turns: Vec<_> = (0..TURNS)
                    .map(|_| {
                        let ends = (&local, remote);
                        (work.transport(&*path, op, ends, mode), work.yardstick(op, ends))
                    })
                    .collect();
                let ratio = median(turns.iter().map(|(shm, copy)| shm / copy).collect());
                let [shm, copy] = [0, 1].map(|side| {
                    median(turns.iter().map(|turn| if side == 0 { turn.0 } else { turn.1 }).collect())
                });
                let blocks = format!("{} KiB x {batch} in {} MiB", block >> 10, area >> 20);
                println!("{:6}{blocks:24}{shm:>10.2}{copy:>10.2}{ratio:>8.2}", op.as_str());
            }
        }
    }
}
