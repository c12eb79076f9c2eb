//! Sizes, addresses and times on the command line and in tables.

use std::time::Duration;

use te::settings::{parse_bytes, parse_duration};

/// A number of bytes, at least one.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Some(0) => Err("at least one byte is needed".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("not a number of bytes such as 4096, 64KiB or 16MiB".to_owned()),
    }
}

/// A number of bytes, perhaps none.
pub(crate) fn offset(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "not a number of bytes such as 4096, 64KiB or 16MiB".to_owned())
}

/// A duration with its unit.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err("not a duration such as 500ms or 3s".to_owned()),
    }
}

/// An address, hexadecimal with `0x` or decimal.
pub(crate) fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| "not an address such as 0x7f3a10000000".to_owned())
}

/// Billions of bytes in a second.
pub(crate) fn gigabytes_per_second(bytes: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 }
}

/// `17 us`, `1.42 ms`, `2.5 s`.
pub(crate) fn micros(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} us"),
        1_000..1_000_000 => format!("{:.2} ms", count as f64 / 1e3),
        _ => format!("{:.2} s", count as f64 / 1e6),
    }
}

/// A size as an index; what does not fit is far more than there is.
pub(crate) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_addresses_are_strict() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert!(size("0").is_err() && size("-1").is_err() && size("1.5MiB").is_err());
        assert_eq!(offset("0"), Ok(0));
        assert_eq!(address("0x10"), Ok(16));
        assert!(address("0x+10").is_err() && address("10h").is_err());
        assert!(time("0s").is_err() && time("3").is_err());
    }

    #[test]
    fn times_have_a_fitting_unit() {
        assert_eq!([micros(17), micros(1_420), micros(2_500_000)], ["17 us", "1.42 ms", "2.50 s"]);
    }
}
