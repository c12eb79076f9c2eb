//! What several test modules need.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use te_segment::{Access, Location};

use crate::{Memory, Region, RegionTable};

/// Bytes of which any part can be made raw memory, overlapping others at will.
#[derive(Clone)]
pub(crate) struct Arena(Arc<[AtomicU8]>);

impl Arena {
    pub(crate) fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    pub(crate) fn base(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    pub(crate) fn part(&self, offset: usize, len: usize) -> Memory {
        assert!(offset + len <= self.0.len());
        let ptr = self.0.as_ptr().wrapping_add(offset).cast_mut().cast();
        // SAFETY: the bytes are atomics, and the owner that we pass keeps them.
        unsafe { Memory::from_raw(NonNull::new(ptr).unwrap(), len, Box::new(self.clone())) }
    }

    pub(crate) fn load(&self, offset: usize) -> u8 {
        self.0[offset].load(Ordering::Relaxed)
    }
}

/// Tells when it is dropped: the owner of memory whose end a test watches.
pub(crate) struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Raw memory of `len` bytes and a flag that turns true when it is freed.
pub(crate) fn watched(len: usize) -> (Memory, Arc<AtomicBool>) {
    let arena = Arena::new(len);
    let freed = Arc::new(AtomicBool::new(false));
    let ptr = arena.0.as_ptr().cast_mut().cast();
    let owner = Box::new((arena, DropFlag(Arc::clone(&freed))));
    // SAFETY: the bytes are atomics, and the owner that we pass keeps them.
    (unsafe { Memory::from_raw(NonNull::new(ptr).unwrap(), len, owner) }, freed)
}

/// Registers memory that peers may read and write.
pub(crate) fn served(table: &RegionTable, memory: Memory) -> Region {
    table.reserve(memory, Access::REMOTE, Location::Any).unwrap().commit()
}
