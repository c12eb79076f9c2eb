use te_memory::Memory;

fn main() {
    let bytes: &'static mut [u8] = Box::leak(Box::new([0; 64]));
    let memory = Memory::from_static(bytes);
    bytes[0] = 1;
    drop(memory);
}
