//! A withdrawn buffer cannot be used any more.

fn main() {}

async fn example(buffer: te::Buffer) {
    let memory = buffer.unregister(te::Deadline::after_secs(5)).await;
    let _ = buffer.slice(..);
    drop(memory);
}
