//! Alone in its process: no other test can map memory where this one looks for none.

use te_memory::{Memory, RegionTable, RegisterError};
use te_segment::{Access, Location};

/// Dropping allocated memory unmaps all of it, and what is unmapped cannot be registered.
#[test]
fn dropped_memory_is_unmapped() {
    let len = 64 << 20;
    let memory = Memory::allocate(len).unwrap();
    let address = usize::try_from(memory.address()).unwrap();
    let raw = |at: usize, len: usize| {
        let ptr = std::ptr::with_exposed_provenance_mut(address + at);
        // SAFETY: only registered while mapped, and never accessed.
        let memory = unsafe { Memory::from_raw_ptr(ptr, len, Box::new(())) };
        RegionTable::default().reserve(memory, Access::LOCAL, Location::Any).map(drop)
    };
    raw(0, len).unwrap();
    drop(memory);
    for at in [0, len / 2, len - 1] {
        let error = raw(at, 1).unwrap_err().error;
        assert!(matches!(error, RegisterError::Unmapped { .. }), "{at:#x}: {error}");
    }
}
