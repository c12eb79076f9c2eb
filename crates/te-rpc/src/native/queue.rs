//! The bytes that wait to be sent on one connection.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::net::TcpStream;

use crate::client::after;

/// What was sent stays in memory up to this many bytes.
const SLACK: usize = 64 << 10;

/// Counts its bytes from the start of the connection, so that it can tell whether the peer may have seen some of them.
#[derive(Debug)]
pub(crate) struct SendQueue {
    bytes: Vec<u8>,
    sent: usize,
    /// Position in the connection of the first of `bytes`.
    base: u64,
    /// When bytes were taken last, or first queued.
    progress: Instant,
}

impl SendQueue {
    pub(crate) fn new(first: &[u8], now: Instant) -> Self {
        Self { bytes: first.to_vec(), sent: 0, base: 0, progress: now }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn allocated(&self) -> usize {
        self.bytes.capacity()
    }

    /// Position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Whether a byte behind this position was handed to the network.
    pub(crate) fn is_sent(&self, position: u64) -> bool {
        self.base + self.sent as u64 > position
    }

    pub(crate) fn push(&mut self, bytes: &[u8], now: Instant) {
        if self.len() == 0 {
            self.progress = now;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// When the peer has taken nothing for too long; [`None`] if nothing waits.
    pub(crate) fn stalled_at(&self, stall: Duration) -> Option<Instant> {
        (self.len() > 0).then(|| after(self.progress, stall))
    }

    /// Sends what the network takes now.
    pub(crate) fn write(&mut self, stream: &TcpStream, now: Instant) -> io::Result<()> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match stream.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.sent += written;
                    self.progress = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(())
    }

    fn compact(&mut self) {
        let rest = self.len();
        if rest == 0 || self.sent > SLACK.max(rest) {
            self.bytes.drain(..self.sent);
            self.base += self.sent as u64;
            self.sent = 0;
            if self.bytes.capacity() > SLACK && rest < SLACK / 2 {
                self.bytes.shrink_to(SLACK / 2);
            }
        }
    }
}
