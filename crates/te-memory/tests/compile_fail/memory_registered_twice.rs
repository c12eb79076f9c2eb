use te_memory::{Memory, RegionTable};
use te_segment::{Access, Location};

fn main() {
    let memory = Memory::from_vec(vec![0; 64]);
    let one = RegionTable::default().reserve(memory, Access::REMOTE, Location::Any);
    let two = RegionTable::default().reserve(memory, Access::REMOTE, Location::Any);
    drop((one, two));
}
