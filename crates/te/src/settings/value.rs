//! Values as text: what a setting accepts, and how it is shown.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use te_metadata::ClusterId;
use te_segment::Host;

use super::Secret;
use super::secret::HIDDEN;
use crate::metadata::{self, MetadataUrl};

/// A type that a setting can have.
pub(crate) trait Value: Clone {
    /// What narrows it.
    type Range;

    /// Reads a value; `None` when the text is none, in range or not.
    fn parse(text: &str) -> Option<Self>;

    /// Whether the value is allowed.
    fn is_within(&self, range: &Self::Range) -> bool;

    /// The value as [`parse`](Self::parse) reads it, without secrets.
    fn show(&self) -> String;

    /// What an error shows of a text that is refused. It may be anything; a message stays readable and without secrets.
    fn refused(text: &str) -> String {
        text.chars().take(80).collect()
    }

    /// What can stand there, with unit and range: `a duration from 1ms to 1h, such as 500ms or 30s`.
    fn expected(range: &Self::Range) -> String;
}

/// The bounds of a whole number, and what it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Count(u64, u64),
    Bytes(u64, u64),
    /// These and no others, in ascending order.
    OneOf(&'static [u64]),
}

impl Value for u64 {
    type Range = Span;

    fn parse(text: &str) -> Option<Self> {
        parse_bytes(text)
    }

    fn is_within(&self, range: &Span) -> bool {
        match range {
            Span::Count(min, max) | Span::Bytes(min, max) => (min..=max).contains(&self),
            Span::OneOf(numbers) => numbers.contains(self),
        }
    }

    fn show(&self) -> String {
        show_bytes(*self)
    }

    fn expected(range: &Span) -> String {
        match range {
            Span::Count(min, max) => format!("a whole number from {min} to {max}"),
            Span::Bytes(min, max) => {
                format!(
                    "a number of bytes from {} to {}, such as 4096, 64KiB or 16MiB",
                    show_bytes(*min),
                    show_bytes(*max)
                )
            }
            Span::OneOf(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(Self::to_string).collect();
                format!("one of {}", numbers.join(", "))
            }
        }
    }
}

/// A count: a whole number without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl Value for Count {
    type Range = Span;

    fn parse(text: &str) -> Option<Self> {
        digits(text).map(Self)
    }

    fn is_within(&self, range: &Span) -> bool {
        self.0.is_within(range)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }

    fn expected(range: &Span) -> String {
        u64::expected(range)
    }
}

impl Value for u16 {
    type Range = RangeInclusive<Self>;

    fn parse(text: &str) -> Option<Self> {
        digits(text)?.try_into().ok()
    }

    fn is_within(&self, range: &Self::Range) -> bool {
        range.contains(self)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn expected(range: &Self::Range) -> String {
        format!("a port from {} to {}", range.start(), range.end())
    }
}

impl Value for Duration {
    type Range = RangeInclusive<Self>;

    fn parse(text: &str) -> Option<Self> {
        parse_duration(text)
    }

    fn is_within(&self, range: &Self::Range) -> bool {
        range.contains(self)
    }

    fn show(&self) -> String {
        show_duration(*self)
    }

    fn expected(range: &Self::Range) -> String {
        let (min, max) = (show_duration(*range.start()), show_duration(*range.end()));
        format!("a duration from {min} to {max} with its unit, such as 500ms or 30s")
    }
}

impl Value for Option<Host> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "auto".to_owned(), Host::bare)
    }

    fn expected((): &()) -> String {
        "an address or host name without a port, or auto".to_owned()
    }
}

impl Value for Option<ClusterId> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { ClusterId::new(text).ok().map(Some) }
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(String::new, |id| id.as_str().to_owned())
    }

    fn expected((): &()) -> String {
        "a key component of 1 to 1024 bytes, or nothing".to_owned()
    }
}

impl Value for MetadataUrl {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn refused(text: &str) -> String {
        metadata::redacted(text).chars().take(80).collect()
    }

    fn expected((): &()) -> String {
        "P2PHANDSHAKE or a URL such as p2p://10.0.0.7".to_owned()
    }
}

impl Value for Option<String> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        Some((!text.is_empty()).then(|| text.to_owned()))
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.clone().unwrap_or_default()
    }

    fn expected((): &()) -> String {
        "a text, or nothing".to_owned()
    }
}

impl Value for Option<PathBuf> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        Some((!text.is_empty()).then(|| text.into()))
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(String::new, |path| path.display().to_string())
    }

    fn expected((): &()) -> String {
        "a path, or nothing".to_owned()
    }
}

impl Value for Option<Secret> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        Some((!text.is_empty()).then(|| Secret::new(text)))
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(String::new, |_| HIDDEN.to_owned())
    }

    fn refused(_text: &str) -> String {
        HIDDEN.to_owned()
    }

    fn expected((): &()) -> String {
        "a text that is never shown, or nothing".to_owned()
    }
}

/// Which framing the TCP initiator uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// Native with te peers, version 2 with others that advertise it, else version 1.
    #[default]
    Auto,
    /// Native always; other peers cannot be reached.
    Native,
    /// Version 2 always; peers that do not advertise it cannot be reached.
    V2,
    /// Version 1 always.
    V1,
}

impl Value for Framing {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "native" => Some(Self::Native),
            "v2" => Some(Self::V2),
            "v1" => Some(Self::V1),
            _ => None,
        }
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::V2 => "v2",
            Self::V1 => "v1",
        }
        .to_owned()
    }

    fn expected((): &()) -> String {
        "auto, native, v2 or v1".to_owned()
    }
}

/// Which requests are checked to have arrived: those of the native TCP framing by a digest of their payload, copies by
/// comparing them with their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Digest {
    /// None.
    #[default]
    Off,
    /// One in 64.
    Sampled,
    /// All.
    Always,
}

impl Value for Digest {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "sampled" => Some(Self::Sampled),
            "always" => Some(Self::Always),
            _ => None,
        }
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        match self {
            Self::Off => "off",
            Self::Sampled => "sampled",
            Self::Always => "always",
        }
        .to_owned()
    }

    fn expected((): &()) -> String {
        "off, sampled or always".to_owned()
    }
}

impl Value for String {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        self.clone()
    }

    fn expected((): &()) -> String {
        "a filter such as warn or te=debug".to_owned()
    }
}

/// Nothing but decimal digits: no sign, no space, no overflow.
pub(super) fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

const BYTE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes: `4096`, `64KiB`, `16MiB`, `1GiB`. No fractions, no units of a thousand.
///
/// ```
/// use te::settings::parse_bytes;
/// assert_eq!(parse_bytes("64KiB"), Some(65_536));
/// assert_eq!(parse_bytes("64KB"), None);
/// assert_eq!(parse_bytes("-1"), None);
/// ```
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let unit = BYTE_UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = unit.unwrap_or((text, 1));
    digits(number)?.checked_mul(scale)
}

/// The shortest text that [`parse_bytes`] reads as this number.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let unit = BYTE_UNITS.iter().find(|(_, scale)| *scale > 1 && bytes > 0 && bytes.is_multiple_of(*scale));
    unit.map_or_else(|| bytes.to_string(), |(unit, scale)| format!("{}{unit}", bytes / scale))
}

const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)];

/// A duration with its unit: `500ms`, `30s`, `5min`, `1h`. A bare number is refused: nobody knows what it counts.
///
/// ```
/// use std::time::Duration;
/// use te::settings::parse_duration;
/// assert_eq!(parse_duration("5s"), Some(Duration::from_secs(5)));
/// assert_eq!(parse_duration("5"), None);
/// ```
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    // `ms` before `s`, which it ends with.
    let (number, scale) =
        TIME_UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))?;
    digits(number)?.checked_mul(scale).map(Duration::from_millis)
}

/// The shortest text that [`parse_duration`] reads as this duration; what is below a millisecond is cut.
#[must_use]
pub fn show_duration(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let unit = TIME_UNITS.iter().rev().find(|(_, scale)| millis > 0 && millis.is_multiple_of(*scale));
    unit.map_or_else(|| "0s".to_owned(), |(unit, scale)| format!("{}{unit}", millis / scale))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// CFG-01: what `atoi` makes 0, 18 EB or nonsense of.
    #[test]
    fn what_is_no_number_is_none() {
        for text in
            ["abc", "-1", "+1", "", " 1", "1 ", "1.5KiB", "0x10", "18446744073709551616", "17179869184GiB"]
        {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        for text in ["abc", "-1s", "", "s", "5", "1.5s", "5sec", "18446744073709551615h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn an_empty_number_is_none() {
        assert_eq!((parse_bytes("KiB"), parse_duration("ms")), (None, None));
    }

    #[test]
    fn units_are_exact() {
        assert_eq!(parse_bytes("1TiB"), Some(1 << 40));
        assert_eq!(parse_bytes("17B"), Some(17));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("2min"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(bytes: u64, millis: u32) {
            prop_assert_eq!(parse_bytes(&show_bytes(bytes)), Some(bytes));
            let time = Duration::from_millis(millis.into());
            prop_assert_eq!(parse_duration(&show_duration(time)), Some(time));
        }

        #[test]
        fn any_text_is_handled(text in ".{0,24}") {
            let _ = (parse_bytes(&text), parse_duration(&text));
        }
    }
}
