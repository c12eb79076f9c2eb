//! Latencies with percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::failure::{Failure, Result};

/// Nanoseconds. Anything longer counts as an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Latencies up to 1 h, to three digits.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        Histogram::new_with_bounds(1, LONGEST, 3).map(Self).map_err(|error| Failure::Other(error.to_string()))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST));
    }

    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).map_err(|error| Failure::Other(error.to_string()))
    }

    /// In whole microseconds.
    pub(crate) fn quantile(&self, quantile: f64) -> u64 {
        (self.0.value_at_quantile(quantile) + 500) / 1_000
    }

    /// In microseconds.
    pub(crate) fn fine(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_latencies_are_told_apart() {
        let mut latencies = Latencies::new().unwrap();
        for time in [Duration::from_micros(17), Duration::from_millis(3), Duration::from_secs(2)] {
            latencies.record(time);
        }
        assert_eq!(latencies.quantile(0.0), 17);
        assert!((2_990..=3_010).contains(&latencies.quantile(0.5)));
        assert!(latencies.quantile(1.0) >= 2_000_000);
        latencies.record(Duration::MAX);
        assert!(latencies.quantile(1.0) >= LONGEST / 1_000);
        assert!((16.9..17.1).contains(&latencies.fine(0.0)));
    }
}
