//! Tests of the crate's public behaviour. One module for each subject, one fact for each test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test does not expect ends it")]

mod building;
mod codec;
mod hostile;
mod names;
mod parts;
mod places;
mod ranges;
mod reference;
mod support;
mod te_records;
mod wire;
