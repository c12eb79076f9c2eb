//! What is mapped is unmapped. Alone in its process: it counts mappings.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

#[path = "common/node.rs"]
mod node;

use node::{Move, until};
use te_transport::Op;

const LEN: usize = 300_000;

/// How many files in memory this process maps. Only those that peers have made are mapped twice.
fn maps() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:te")).map(str::to_owned).collect()
}

/// SEG-02, LIFE-04: what was mapped is not mapped any more after the end.
#[test]
fn a_shutdown_unmaps_everything() {
    assert_eq!(maps(), Vec::<String>::new());
    let (near, far) = (node::new(), node::new());
    let (local, remotes) = (near.local(LEN), [far.shared(LEN), far.shared(LEN)]);
    let path = near.path_to(&far);
    let own = maps().len();
    for remote in &remotes {
        Move::new(Op::Write, &local, remote).done(&*path);
    }
    // Two buffers, and the control page on both sides.
    assert_eq!(maps().len(), own + 4);
    near.shutdown();
    far.shutdown();
    drop(path);
    until("the mappings are gone", || maps().len() == own);
    remotes.into_iter().for_each(|remote| drop(far.withdraw(&remote)));
    assert_eq!(maps(), Vec::<String>::new());
}
