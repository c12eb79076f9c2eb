use te_memory::{Memory, RegionTable};
use te_segment::{Access, Location};

fn main() {
    let bytes = vec![0; 64];
    let reserved = RegionTable::default().reserve(Memory::from_vec(bytes), Access::REMOTE, Location::Any);
    drop(bytes);
    drop(reserved);
}
