//! Registered memory belongs to the engine until it comes back.

fn main() {}

async fn example(engine: &te::Engine) {
    let bytes = vec![0_u8; 4096];
    let buffer = engine.register(bytes, te::Access::REMOTE).await;
    println!("{}", bytes.len());
    drop(buffer);
}
