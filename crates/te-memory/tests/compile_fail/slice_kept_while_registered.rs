use te_memory::{Memory, RegionTable};
use te_segment::{Access, Location};

fn main() {
    let mut memory = Memory::from_vec(vec![0; 64]);
    let Some(bytes) = memory.bytes_mut() else { return };
    let reserved = RegionTable::default().reserve(memory, Access::REMOTE, Location::Any);
    bytes[0] = 1;
    drop(reserved);
}
