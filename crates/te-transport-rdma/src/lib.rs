//! RDMA transport (draft docs).
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod error;
pub mod negotiate;
pub mod registration;
pub mod route;
pub mod slices;
pub mod store;
pub mod wire;

use std::time::{Duration, Instant};

/// A time of which nobody sees the end, where a sum would overflow the clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// `now + wait`; for an absurd wait a time far away.
fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
