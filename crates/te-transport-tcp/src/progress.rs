//! The rule that a payload must advance.

use std::time::{Duration, Instant};

/// Bytes that count as an advance. Fewer do not, so that a peer cannot hold memory by one byte now and then; the
/// reference engine counts in the same unit.
const CHUNK: usize = 64 << 10;

/// Time within which the next chunk must be complete. It takes the time from its user, who looks at the clock once
/// before each call.
pub(crate) struct Progress {
    timeout: Duration,
    /// `None` after an advance: the time starts at the next look.
    since: Option<Instant>,
    bytes: usize,
}

impl Progress {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, since: None, bytes: 0 }
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
        self.since = None;
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Time left at `now`; `None` when it is over.
    pub(crate) fn left(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        (since + self.timeout).checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn time_starts_at_the_first_look() {
        let now = Instant::now();
        let mut progress = Progress::new(TIMEOUT);
        assert_eq!(progress.left(now), Some(TIMEOUT));
        assert_eq!(progress.left(now + Duration::from_secs(29)), Some(Duration::from_secs(1)));
        assert_eq!(progress.left(now + TIMEOUT), None);
    }

    #[test]
    fn single_bytes_are_no_progress() {
        let now = Instant::now();
        let mut progress = Progress::new(TIMEOUT);
        progress.left(now);
        progress.moved(1);
        assert_eq!(progress.left(now + TIMEOUT), None);
    }

    #[test]
    fn a_chunk_restarts_the_time() {
        let now = Instant::now();
        let mut progress = Progress::new(TIMEOUT);
        progress.left(now);
        progress.moved(CHUNK - 1);
        progress.moved(1);
        assert_eq!(progress.left(now + TIMEOUT), Some(TIMEOUT));
    }
}
