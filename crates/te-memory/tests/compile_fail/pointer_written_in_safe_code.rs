use te_memory::{Hold, copy};

fn write(hold: &Hold, bytes: &[u8]) {
    let Some(pointer) = hold.as_ptr() else { return };
    *pointer = bytes[0];
    copy::copy(pointer, bytes.as_ptr(), bytes.len());
}

fn main() {
    let _ = write;
}
