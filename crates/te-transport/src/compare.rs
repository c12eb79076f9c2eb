//! Looking at copies again after they were made, always or now and then.
//!
//! For backends whose initiator can read both ends itself.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// One in so many is looked at if they are sampled.
const SAMPLE: u32 = 64;

/// Which copies are compared with their source after they were made. Memory that changes meanwhile does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compare {
    /// None.
    #[default]
    Off,
    /// One in 64.
    Sampled,
    /// All.
    Always,
}

impl FromStr for Compare {
    /// What can stand there.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "sampled" => Ok(Self::Sampled),
            "always" => Ok(Self::Always),
            _ => Err("off, sampled or always"),
        }
    }
}

/// Counts copies, to tell which of them are compared.
#[derive(Debug, Default)]
pub struct Comparing {
    choice: Compare,
    made: AtomicU32,
}

impl Comparing {
    /// What [`FailureKind::Damaged`](crate::FailureKind::Damaged) means of a copy that was compared.
    pub const DAMAGED: &'static str =
        "the bytes at the destination are not those of the source, or those have changed meanwhile";

    /// None counted yet: the first is compared, unless none is.
    #[must_use]
    pub fn new(choice: Compare) -> Self {
        Self { choice, made: AtomicU32::new(0) }
    }

    /// Whether the copy that was just made is to be compared.
    #[must_use]
    pub fn is_due(&self) -> bool {
        match self.choice {
            Compare::Off => false,
            Compare::Sampled => self.made.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE),
            Compare::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_due_as_was_said() {
        for (text, due) in [("off", 0), ("sampled", 10), ("always", 640)] {
            let comparing = Comparing::new(text.parse().unwrap());
            assert_eq!((0..640).filter(|_| comparing.is_due()).count(), due, "{text}");
        }
        assert!(Comparing::new(Compare::Sampled).is_due());
        assert_eq!("on".parse::<Compare>(), Err("off, sampled or always"));
    }
}
