//! Byte sizes and durations as people write them.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// The alignment of everything in shards and containers: one page, which is enough for O_DIRECT on any block device.
pub const PAGE: u64 = 4096;

/// Rounds a number of bytes up to whole pages. It saturates instead of overflowing.
pub fn page_ceil(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE).unwrap_or(!(PAGE - 1))
}

/// A byte count that prints with a binary unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= GIB => (GIB, "GiB"),
            n if n >= MIB => (MIB, "MiB"),
            n if n >= KIB => (KIB, "KiB"),
            n => return write!(f, "{n} B"),
        };
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
        }
    }
}

/// Reads `4096`, `64K`, `64 KiB`, `1.5GiB`, `10 GB`. Single letters and units with `iB` are binary,
/// all other units decimal.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => KIB as f64,
        "m" | "mib" => MIB as f64,
        "g" | "gib" => GIB as f64,
        "t" | "tib" => (GIB << 10) as f64,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    if let (Ok(whole), true) = (number.parse::<u64>(), scale.fract() == 0.0) {
        return whole.checked_mul(scale as u64);
    }
    let value = number.parse::<f64>().ok()? * scale;
    (value.is_finite() && (0.0..1.8e19).contains(&value)).then_some(value as u64)
}

/// Reads `90`, `90s`, `1.5 min`, `2h`, `250ms`. A number without a unit is in seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "s" | "sec" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

/// CPU numbers of this value and above are refused, because no system has them.
pub const CPUS_MAX: usize = 1 << 16;

/// Reads a list of CPU numbers as the kernel and its tools write it: `0-3,8,10-11`. An empty text gives the empty set.
pub fn parse_cpus(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CPUS_MAX || first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// A list of CPUs as text, with consecutive numbers combined.
pub fn show_cpus(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus.iter().copied() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range =
        |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64K", 65536),
            ("64 KiB", 65536),
            ("1.5GiB", 3 * GIB / 2),
            ("10 GB", 10_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "x", "12 parsecs", "-1", "1e9", "99999999999999999999G"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse_duration("1.5 min"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("30"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("soon"), None);
        assert_eq!(parse_duration("1e400d"), None);
    }

    #[test]
    fn page_ceil_saturates() {
        assert_eq!((page_ceil(0), page_ceil(1), page_ceil(4096)), (0, 4096, 4096));
        assert_eq!(page_ceil(u64::MAX) % PAGE, 0);
    }

    #[test]
    fn lists_of_cpus_are_read_and_garbage_is_not() {
        for (text, cpus, shown) in
            [("0-2,5,7-7\n", vec![0, 1, 2, 5, 7], "0-2,5,7"), ("\n", vec![], ""), ("8,0,1", vec![0, 1, 8], "0-1,8")]
        {
            let read = parse_cpus(text).unwrap();
            assert_eq!(read, cpus.into_iter().collect());
            assert_eq!(show_cpus(&read), shown);
        }
        for bad in ["x", "1-", "-1", "1-x", "0-99999999", "3-1"] {
            assert_eq!(parse_cpus(bad), None, "{bad}");
        }
    }
}
