//! The rule that a payload must advance.

use std::time::{Duration, Instant};

/// Bytes that count as an advance. Fewer do not, so that a peer cannot hold memory by one byte now and then; the
/// reference engine counts in the same unit.
const CHUNK: usize = 64 << 10;

/// Time within which the next chunk must be complete.
pub(crate) struct Progress {
    timeout: Duration,
    since: Instant,
    bytes: usize,
}

impl Progress {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, since: Instant::now(), bytes: 0 }
    }

    /// Notes moved bytes.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= CHUNK {
            self.restart();
        }
    }

    /// Notes that a unit of work is complete, whatever its size.
    pub(crate) fn restart(&mut self) {
        self.bytes = 0;
        self.since = Instant::now();
    }

    /// When the time is over.
    pub(crate) fn limit(&self) -> Instant {
        self.since + self.timeout
    }

    /// Time left.
    pub(crate) fn left(&self) -> Duration {
        self.limit().saturating_duration_since(Instant::now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_bytes_are_no_progress() {
        let mut progress = Progress::new(Duration::from_secs(30));
        let limit = progress.limit();
        progress.moved(1);
        assert_eq!(progress.limit(), limit);
    }

    #[test]
    fn a_chunk_restarts_the_time() {
        let mut progress = Progress::new(Duration::from_secs(30));
        let limit = progress.limit();
        std::thread::sleep(Duration::from_millis(2));
        progress.moved(CHUNK - 1);
        progress.moved(1);
        assert!(progress.limit() > limit);
    }
}
