//! Times of day as people write them, in UTC. The module never guesses a time zone.
#![forbid(unsafe_code)]

use std::time::{SystemTime, UNIX_EPOCH};

/// The last second of the year 9999.
pub const UTC_MAX: u64 = 253_402_300_799;

/// Seconds since 1970 by this host's clock, with a fraction.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A time as `YYYY-MM-DDTHH:MM:SSZ`, without its fraction of a second.
pub fn utc(unix: f64) -> String {
    // The conversion saturates, and turns NaN into zero.
    let seconds = (unix as u64).min(UTC_MAX);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a date that is given in days since 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from 1 March, so that a leap day is the last day of its year; eras are 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Seconds since 1970 of a UTC time written exactly as `YYYY-MM-DDTHH:MM:SSZ`; `None` for anything else.
pub fn parse_utc(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')];
    if bytes.len() != 20 || marks.iter().any(|(at, mark)| bytes[*at] != *mark) {
        return None;
    }
    let number = |at: usize, digits: usize| {
        bytes[at..at + digits]
            .iter()
            .try_fold(0u64, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')))
    };
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let days = days_since_1970(number(0, 4)?, number(5, 2)?, number(8, 2)?)?;
    (hour < 24 && minute < 60 && second < 60).then_some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days of the Gregorian calendar from 1 January 1970 to a date; `None` if the date does not exist or is earlier.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month.checked_sub(1)?).ok()?;
    if year < 1970 || day == 0 || day > *lengths.get(month)? {
        return None;
    }
    // The leap days of all years before this one, counted from year 1. There are 477 before 1970.
    let leap_days = |years: u64| years / 4 - years / 100 + years / 400;
    let before_year = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    Some(before_year + lengths[..month].iter().sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_utc_become_seconds() {
        // The seconds are those that `date -u -d … +%s` prints.
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2026-01-31T12:00:00Z", 1_769_860_800),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("9999-12-31T23:59:59Z", UTC_MAX),
        ] {
            assert_eq!(parse_utc(text), Some(seconds), "{text}");
        }
        for text in [
            "",
            "1969-12-31T23:59:59Z",
            "2026-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00+01:00",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:éZ",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }

    #[test]
    fn seconds_become_times_in_utc_and_back() {
        for seconds in
            (0..UTC_MAX).step_by(86_400 * 97 + 3671).chain([UTC_MAX, 951_868_799, 951_868_800, 4_107_542_400])
        {
            assert_eq!(parse_utc(&utc(seconds as f64)), Some(seconds), "{}", utc(seconds as f64));
        }
        assert_eq!(utc(1_769_860_800.9), "2026-01-31T12:00:00Z");
        assert_eq!([utc(-1.0), utc(f64::NAN)], ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"]);
        assert_eq!(utc(f64::INFINITY), "9999-12-31T23:59:59Z");
    }
}
