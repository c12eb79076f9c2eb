//! Memory that cannot be registered: what overlaps, and what is not there.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::sync::Arc;

use common::{World, soon};
use te_engine::{Buffer, Engine, ErrorKind, RegisterFailed, Retry, block_on};
use te_memory::Memory;
use te_segment::Access;

const PAGE: usize = 4096;

/// Pages that several values of raw memory speak of. Only their addresses matter here.
struct Pages(Arc<[u8]>);

impl Pages {
    fn new(count: usize) -> Self {
        Self(vec![0_u8; count * PAGE].into())
    }

    /// So many pages from that one on.
    fn memory(&self, first: usize, count: usize) -> Memory {
        let start = self.0.as_ptr().wrapping_add(first * PAGE).cast_mut();
        // SAFETY: the owner keeps the bytes mapped, and nothing in these tests accesses them.
        unsafe { Memory::from_raw_ptr(start, count * PAGE, Box::new(self.0.clone())) }
    }
}

fn register(engine: &Engine, memory: Memory) -> Result<Buffer, RegisterFailed> {
    block_on(engine.register(memory, Access::REMOTE))
}

/// MR-13: of ranges that share a byte the second is refused, however they lie, and names the first; adjacent ones are two
/// buffers; afterwards the range is free.
#[test]
fn whatever_shares_a_byte_is_refused() {
    let world = World::new();
    let engine = world.engine("one");
    let pages = Pages::new(8);
    let first = register(&engine, pages.memory(2, 4)).unwrap();
    let overlapping = [
        ("identical", 2, 4),
        ("nested", 3, 2),
        ("nested at the start", 2, 1),
        ("nested at the end", 5, 1),
        ("containing", 1, 6),
        ("crossing the start", 1, 2),
        ("crossing the end", 5, 2),
    ];
    for (how, at, count) in overlapping {
        let refused = register(&engine, pages.memory(at, count)).unwrap_err();
        assert_eq!((refused.error.kind(), refused.error.retry()), (ErrorKind::Overlaps, Retry::No), "{how}");
        let existing = format!("overlaps the registered range {}", first.range());
        assert!(refused.error.cause().contains(&existing), "{how}: {}", refused.error);
        assert_eq!(refused.memory[0].len(), count * PAGE, "{how}");
    }
    let (before, behind) = (register(&engine, pages.memory(0, 2)), register(&engine, pages.memory(6, 2)));
    let (before, behind) = (before.unwrap(), behind.unwrap());
    assert_eq!(engine.descriptor().unwrap().buffers().len(), 3);
    block_on(async {
        engine.published(soon()).await.unwrap();
        // A request fits one buffer or none.
        let peer = engine.open("one").await.unwrap();
        let both = peer.range(before.address() + PAGE as u64, 2 * PAGE as u64).unwrap_err();
        assert_eq!(both.kind(), ErrorKind::OutsideSegment);
        for buffer in [first, before, behind] {
            buffer.unregister(soon()).await.unwrap();
        }
    });
    for (_, at, count) in overlapping {
        block_on(register(&engine, pages.memory(at, count)).unwrap().unregister(soon())).unwrap();
    }
}

/// MR-13: a batch that overlaps itself is refused as a whole.
#[test]
fn a_batch_that_overlaps_itself_is_refused() {
    let world = World::new();
    let engine = world.engine("one");
    let pages = Pages::new(4);
    let member = |at, count| (pages.memory(at, count), te_segment::Location::Any, Access::REMOTE);
    let failed = block_on(engine.register_batch(vec![member(2, 2), member(0, 1), member(1, 2)])).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Overlaps);
    assert_eq!(failed.memory.iter().map(Memory::len).collect::<Vec<_>>(), [2 * PAGE, PAGE, 2 * PAGE]);
    assert!(engine.descriptor().unwrap().buffers().is_empty());
    register(&engine, pages.memory(0, 4)).unwrap();
}

/// Contract 1: null, empty, wrapping and unmapped memory is refused as what it is, and comes back.
#[test]
fn what_is_not_memory_is_refused() {
    let world = World::new();
    let engine = world.engine("one");
    let raw = |address: usize, len| {
        let start = std::ptr::without_provenance_mut(address);
        // SAFETY: registration only asks the kernel about the pages, and nothing accesses them.
        unsafe { Memory::from_raw_ptr(start, len, Box::new(())) }
    };
    // An address that no process has.
    let nowhere = usize::MAX / 4 * 3;
    for (memory, says) in [
        (raw(0, PAGE), "begins at the null address"),
        (Memory::from_vec(Vec::new()), "empty"),
        (raw(usize::MAX - 10, PAGE), "address space"),
        (raw(nowhere, PAGE), "mapped"),
    ] {
        let len = memory.len();
        let refused = register(&engine, memory).unwrap_err();
        assert_eq!((refused.error.kind(), refused.memory[0].len()), (ErrorKind::BadMemory, len), "{says}");
        assert!(refused.error.cause().contains(says), "{says:?} is not in {}", refused.error);
    }
    assert!(engine.descriptor().unwrap().buffers().is_empty());
}
