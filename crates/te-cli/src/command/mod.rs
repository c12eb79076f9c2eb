//! One command a file.

pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod features;
pub(crate) mod ls;
pub(crate) mod metad;
pub(crate) mod notify;
pub(crate) mod probe;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod standing;
pub(crate) mod topology;

use clap::Args;
use te_segment::{BufferDescriptor, TransportKind};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

/// A segment and nothing else.
#[derive(Args, Debug)]
pub(crate) struct SegmentArgs {
    /// The segment's name; without a store, HOST:PORT of its engine
    pub(crate) segment: String,
}

/// The transports that reach a buffer.
pub(crate) fn transports(buffer: &BufferDescriptor) -> Vec<&str> {
    buffer.via().keys().map(TransportKind::as_str).collect()
}

/// SIGTERM and SIGINT. Caught before anything is offered, so that one in between is not lost.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(crate) fn caught() -> Result<Self> {
        let caught = |kind| signal(kind).map_err(|error| Failure::io("cannot catch signals", &error));
        Ok(Self { terminate: caught(SignalKind::terminate())?, interrupt: caught(SignalKind::interrupt())? })
    }

    /// Waits for either.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
