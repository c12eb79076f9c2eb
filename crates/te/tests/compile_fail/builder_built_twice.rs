//! One builder makes one engine.

fn main() {}

async fn example() {
    let builder = te::builder("127.0.0.1");
    let first = builder.build().await;
    let second = builder.build().await;
    drop((first, second));
}
