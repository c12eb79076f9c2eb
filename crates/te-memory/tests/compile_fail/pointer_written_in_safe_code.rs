use te_memory::{Hold, copy};

fn write(hold: &Hold, bytes: &[u8]) {
    *hold.as_ptr() = bytes[0];
    copy::copy(hold.as_ptr(), bytes.as_ptr(), bytes.len());
}

fn main() {
    let _ = write;
}
