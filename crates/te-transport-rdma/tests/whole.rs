//! All parts together: two engines that open, write, read, break and come back, over a fabric in this process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod common;

use common::{BASE, World};
use te_segment::AddressRange;
use te_transport::Op;
use te_transport_rdma::slices::Status;

const PATIENCE: usize = 100_000;

fn range(offset: u64, len: u64) -> AddressRange {
    AddressRange::new(BASE + offset, len).unwrap()
}

fn all_done(world: &World) -> bool {
    world.ended.iter().all(|ended| *ended == [Status::Done])
}

#[test]
fn both_sides_open_and_every_queue_pair_carries_an_equal_share() {
    for seed in 1..40 {
        let mut world = World::new(seed, [4, 4]);
        for (at, byte) in world.nodes[0].memory.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        for node in [0, 1] {
            let plan = world.plan(node);
            world.want(node, &plan);
        }
        world.settle();
        let whole = range(0, 1 << 20);
        let plan = world.plan(0);
        world.transfer(0, Op::Write, whole, &plan, PATIENCE);
        assert!(all_done(&world), "{seed}: {:?}", world.ended);
        assert_eq!(world.nodes[0].memory, world.nodes[1].memory);
        assert_eq!(world.carried.len(), 8, "{seed}");
        let equal = (1 << 20) / 8;
        assert!(
            world.carried.values().all(|bytes| bytes.abs_diff(equal) <= equal / 10),
            "{:?}",
            world.carried
        );
        assert_eq!((world.nodes[0].endpoints(), world.nodes[1].endpoints()), (4, 4));
    }
}

#[test]
fn a_read_brings_the_peers_bytes() {
    let mut world = World::new(7, [2, 3]);
    world.nodes[1].memory.fill(9);
    let plan = world.plan(0);
    world.want(0, &plan);
    world.settle();
    world.transfer(0, Op::Read, range(4_096, 500_000), &plan, PATIENCE);
    assert!(all_done(&world));
    assert!(world.nodes[0].memory[4_096..504_096].iter().all(|byte| *byte == 9));
    assert!(world.nodes[0].memory[..4_096].iter().all(|byte| *byte == 0));
}

/// EP-02, EP-05: the peer starts again in the middle. Every piece ends once, nothing is left behind, and the next request
/// goes through.
#[test]
fn a_restart_in_the_middle_ends_every_piece_once_and_the_next_request_works() {
    for seed in 1..60 {
        let mut world = World::new(seed, [3, 3]);
        world.nodes[0].memory.fill(5);
        let plan = world.plan(0);
        world.want(0, &plan);
        world.settle();
        let whole = range(0, 1 << 20);
        world.transfer(0, Op::Write, whole, &plan, usize::try_from(seed).unwrap());
        world.restart(1);
        world.settle();
        assert!(world.ended.iter().all(|ended| ended.len() == 1), "{seed}: {:?}", world.ended);

        let plan = world.plan(0);
        // The first attempt may find out that endpoints are dead; the second goes through.
        for _ in 0..2 {
            world.want(0, &plan);
            world.settle();
            world.transfer(0, Op::Write, whole, &plan, PATIENCE);
            world.settle();
            assert!(world.ended.iter().all(|ended| ended.len() == 1), "{seed}: {:?}", world.ended);
        }
        assert!(all_done(&world), "{seed}: {:?}", world.ended);
        assert!(world.nodes[1].memory.iter().all(|byte| *byte == 5));
        assert_eq!((world.nodes[0].endpoints(), world.nodes[1].endpoints()), (3, 3), "{seed}");
    }
}
