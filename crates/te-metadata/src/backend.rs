//! For crates that implement a store, not for their users: hidden texts, logins in URLs, pauses between attempts.

use std::{fmt, time::Duration};

use rand::RngExt;

/// A password, token or key. Neither `Debug` nor any error shows it.
///
/// ```
/// let token = te_metadata::backend::Secret::new("hunter2");
/// assert_eq!(format!("{token:?}"), "***");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends or compares it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Resolves the `%41` of a user or password in a URL; a `%` that begins no escape stands for itself, and so does `+`.
/// `None` if the result is no UTF-8.
pub fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = || {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
        };
        match (*first == b'%').then(escape).flatten() {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Pauses that double from 50 ms to two seconds, each cut by a random part of up to one half, so that many engines do
/// not come back at the same moment.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);

    /// Pauses from the shortest on.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.next = (self.next * 2).min(Self::LONGEST);
        pause
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= Backoff::FIRST && pauses[0] >= Backoff::FIRST / 2);
        assert!(pauses.iter().all(|pause| *pause <= Backoff::LONGEST));
        assert!(pauses[19] >= Backoff::LONGEST / 2);
    }

    #[test]
    fn escapes_are_resolved_and_what_is_none_stays() {
        assert_eq!(unescape("p%3a+%26&%").as_deref(), Some("p:+&&%"));
        assert_eq!(unescape("%+1%zz%4").as_deref(), Some("%+1%zz%4"));
        assert_eq!(unescape("%ff"), None);
    }
}
