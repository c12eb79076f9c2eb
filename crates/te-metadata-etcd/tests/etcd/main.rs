//! The etcd store against real etcd servers, which the tests start and stop themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod conformance;
mod limits;
mod load;
mod outage;
mod records;
mod security;
mod server;
mod watch;

use std::time::{Duration, Instant};

use te_metadata::{Key, MetadataStore, PutRequest};

/// A deadline for calls that are to succeed.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn key(text: &str) -> Key {
    Key::new(text)
}

fn put(at: &str, value: &str) -> PutRequest {
    PutRequest::new(key(at), value.to_owned())
}

async fn read(store: &impl MetadataStore, at: &str) -> Option<String> {
    store.get(&key(at), soon()).await.unwrap().map(|entry| entry.value)
}
