use te_memory::Hold;

fn bytes(hold: &Hold) -> &[u8] {
    &**hold
}

fn main() {
    let _ = bytes;
}
