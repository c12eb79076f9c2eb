use std::ptr::NonNull;

use te_memory::Memory;

fn main() {
    let bytes = vec![0_u8; 64];
    // Even unsafe code cannot name an owner that borrows.
    let memory = unsafe { Memory::from_raw(NonNull::dangling(), 64, Box::new(&bytes)) };
    drop(bytes);
    drop(memory);
}
