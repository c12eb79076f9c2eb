//! The atomics of the hold protocol: those of `std`, or the model checker's in its test.

#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
