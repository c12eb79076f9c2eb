//! Byte counts for people.

/// `64 MiB`, `1.5 KiB`, `17 B`: exact when it can be, else with one decimal.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = if count == 0 { 0 } else { (count.ilog2() / 10) as usize };
    let scale = 1_u64 << (10 * unit);
    if count.is_multiple_of(scale) {
        return format!("{} {}", count / scale, UNITS[unit]);
    }
    let tenths = u128::from(count) * 10 / u128::from(scale);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn counts_are_exact_or_have_one_decimal() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(u64::MAX), "15.9 EiB");
    }
}
