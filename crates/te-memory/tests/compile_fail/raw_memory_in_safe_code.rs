use std::ptr::NonNull;

use te_memory::Memory;

fn main() {
    let mut bytes = [0_u8; 64];
    let memory = Memory::from_raw(NonNull::from(&mut bytes).cast(), 64, Box::new(()));
    drop(memory);
}
