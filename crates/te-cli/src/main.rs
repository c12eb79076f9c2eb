//! The `te` program.

fn main() {}
