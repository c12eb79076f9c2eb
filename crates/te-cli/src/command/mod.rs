//! One command a file.

pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod explain;
pub(crate) mod features;
pub(crate) mod notify;
pub(crate) mod probe;
pub(crate) mod serve;
pub(crate) mod show;

use clap::Args;

/// A segment and nothing else.
#[derive(Args, Debug)]
pub(crate) struct SegmentArgs {
    /// The segment's name; without a store, HOST:PORT of its engine
    pub(crate) segment: String,
}
