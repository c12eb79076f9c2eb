//! Pauses between connections that fail.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    time::Duration,
};

/// Doubles with every failure; chance takes off up to a half, so that peers of one that died do not return together.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    failures: u32,
}

impl Pause {
    pub(crate) fn next(&mut self, first: Duration, last: Duration) -> Duration {
        let full = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(last);
        self.failures = self.failures.saturating_add(1);
        // A number from 0 to 255.
        let chance = RandomState::new().build_hasher().finish() as u8;
        full - full / 2 / 255 * u32::from(chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_last_and_keep_at_least_half() {
        let (first, last) = (Duration::from_millis(50), Duration::from_secs(2));
        let mut pause = Pause::default();
        for full in [50, 100, 200, 400, 800, 1600, 2000, 2000].map(Duration::from_millis) {
            let got = pause.next(first, last);
            assert!(full / 2 <= got && got <= full, "{got:?} of {full:?}");
        }
    }

    #[test]
    fn pauses_differ() {
        let span = Duration::from_secs(1 << 30);
        let pauses: std::collections::HashSet<_> =
            (0..64).map(|_| Pause::default().next(span, span)).collect();
        assert!(pauses.len() > 8);
    }

    #[test]
    fn pauses_never_overflow() {
        let mut pause = Pause { failures: u32::MAX };
        assert!(pause.next(Duration::MAX, Duration::MAX) >= Duration::MAX / 2);
    }
}
