//! Machines that are not there: what is found on them, and how it is shown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod gids;
mod hostile;
mod machine;
mod machines;
mod matrices;
