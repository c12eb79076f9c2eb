//! The time stamp that descriptors carry for people to read.

use std::time::{SystemTime, UNIX_EPOCH};

/// `YYYY-MM-DD HH:MM:SS.ffffff` in UTC, the form of a descriptor's `timestamp` (reference engine, wire spec; there
/// in local time without a zone). Informational: nobody compares it. Times before 1970 read as 1970.
pub fn format_timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
///
/// Counts in eras of 400 years that begin on 1 March, so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, micros: u32) -> String {
        format_timestamp(UNIX_EPOCH + Duration::new(seconds, micros * 1000))
    }

    #[test]
    fn known_instants_have_their_civil_form() {
        assert_eq!(at(0, 0), "1970-01-01 00:00:00.000000");
        assert_eq!(at(951_782_399, 999_999), "2000-02-28 23:59:59.999999");
        assert_eq!(at(951_782_400, 1), "2000-02-29 00:00:00.000001");
        assert_eq!(at(1_768_469_411, 4211), "2026-01-15 09:30:11.004211");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01 00:00:00.000000");
    }

    #[test]
    fn times_before_1970_do_not_fail() {
        assert_eq!(format_timestamp(UNIX_EPOCH - Duration::from_secs(5)), at(0, 0));
    }
}
