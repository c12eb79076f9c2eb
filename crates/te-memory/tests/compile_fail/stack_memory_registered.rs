use te_memory::Memory;

fn main() {
    let mut bytes = [0; 64];
    let memory = Memory::from_static(&mut bytes);
    drop(memory);
}
