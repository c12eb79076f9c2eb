//! A metadata server as a program: `metad BIND [JOURNAL]`, with the token in `TE_METAD_TOKEN` if there is one.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use te_metadata_http::server::MetadataServer;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let bind = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let mut server = MetadataServer::builder().bind(bind.parse()?);
    if let Some(journal) = arguments.next() {
        server = server.persist(journal);
    }
    if let Ok(token) = std::env::var("TE_METAD_TOKEN") {
        server = server.token(token);
    }
    let server = server.start().await?;
    println!("{}", server.url());
    std::io::stdout().flush()?;
    tokio::signal::ctrl_c().await?;
    server.shutdown(Instant::now() + Duration::from_secs(5)).await?;
    Ok(())
}
