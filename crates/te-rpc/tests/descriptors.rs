//! A process without file descriptors left. In a binary of its own, because the limit concerns the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::*;
use rustix::{
    process::{Resource, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};
use te_rpc::RpcLimits;
use tokio::{net::TcpStream, time::sleep};

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Errors of accept do not spin, and pass when their cause does.
#[tokio::test]
async fn a_listener_without_descriptors_rests_and_comes_back() {
    let server = serve(RpcLimits { silent: PATIENCE, ..RpcLimits::default() }).await;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(100);
    setrlimit(Resource::Nofile, limit).unwrap();

    // Both sides of each connection are in this process. What is held besides leaves one descriptor, so that the last
    // connection stays in the queue of the listener.
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    held.pop();
    let _queued = TcpStream::connect(server.endpoint()).await.unwrap();

    let cpu = cpu_time();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.connections(), 0);
    let busy = cpu_time() - cpu;
    assert!(busy < Duration::from_millis(100), "{busy:?} of a second");

    held.clear();
    assert_serves(server.endpoint()).await;
}
