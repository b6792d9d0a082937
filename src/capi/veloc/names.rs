//! Translates names and numbers of the VELOC interface into Bivouac's. Pure.
#![forbid(unsafe_code)]

use bivouac_core::base::ids::text_hash;
use std::ffi::c_int;

/// The maximum length of a checkpoint's name, in bytes.
const NAME_MAX: usize = 127;
/// The prefix of the names of regions that hold a file.
const FILE: &str = "file:";
/// The number of characters of a long file name that a region's name keeps.
const SHOWN_MAX: usize = 48;

/// The series to which checkpoints of this name belong.
///
/// # Errors
/// VELOC does not allow the name.
pub(super) fn series(name: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(format!("the name {name:?} cannot be used: give 1 to {NAME_MAX} characters from A-Z a-z 0-9 _ ."));
    }
    // Two kinds of names cannot be names of Bivouac's folders. No other name has a dash.
    let is_taken = name.starts_with('.') || name == "claims";
    Ok(if is_taken { format!("v-{name}") } else { name.to_owned() })
}

/// The version as Bivouac counts it.
///
/// # Errors
/// The version is negative.
pub(super) fn version(version: c_int) -> Result<u64, String> {
    u64::try_from(version).map_err(|_| format!("version {version} is negative"))
}

/// Returns the name of a checkpoint, its series and its version.
///
/// # Errors
/// See [`series`] and [`version`].
pub(super) fn checkpoint(name: &str, number: c_int) -> Result<(&str, String, u64), String> {
    let number = version(number)?;
    Ok((name, series(name)?, number))
}

/// The name of the region with a protected number, in its group if it has one.
pub(super) fn region(group: Option<&str>, id: c_int) -> String {
    format!("{}#{id}", group.unwrap_or_default())
}

/// The group and the number of the region with that name.
pub(super) fn parse_region(name: &str) -> Option<(Option<&str>, c_int)> {
    if parse_file(name).is_some() {
        return None;
    }
    let (group, id) = name.split_once('#')?;
    Some(((!group.is_empty()).then_some(group), id.parse().ok()?))
}

/// The name of a file that the application routes, in a form that can be part of a region's name. The bytes may be arbitrary.
pub(super) fn original(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
    if text.len() + FILE.len() <= 256 {
        return text;
    }
    let shown: String = text.chars().rev().take(SHOWN_MAX).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{:016x}-{shown}", text_hash(&text))
}

/// The name of the region that holds a file.
pub(super) fn file_region(original: &str) -> String {
    format!("{FILE}{original}")
}

/// The name of the file that a region holds.
pub(super) fn parse_file(name: &str) -> Option<&str> {
    name.strip_prefix(FILE)
}

/// The name of the file that VELOC itself would have written.
pub(super) fn old_file(name: &str, rank: u32, version: u64) -> String {
    format!("{name}-{rank}-{version}.dat")
}

/// The version of a file that VELOC wrote for this name and rank.
pub(super) fn parse_old_file(file: &str, name: &str, rank: u32) -> Option<u64> {
    let version = file.strip_prefix(name)?.strip_prefix(&format!("-{rank}-"))?.strip_suffix(".dat")?;
    // The number must have the form in which it is written: no sign and no leading zero.
    version.parse::<u64>().ok().filter(|number| number.to_string() == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_veloc_and_never_meet() {
        assert_eq!(series("heat_2.d").unwrap(), "heat_2.d");
        let longest = "x".repeat(NAME_MAX);
        assert_eq!(series(&longest).unwrap(), longest);
        for wrong in ["", "a b", "a/b", "a-b", "é", &"x".repeat(NAME_MAX + 1), "a\n"] {
            assert!(series(wrong).is_err(), "{wrong:?}");
        }
        for taken in [".", "..", ".x", "claims"] {
            let series = series(taken).unwrap();
            assert!(bivouac_core::tier::names::is_component(&series) && series.contains('-'), "{series}");
        }
        assert!(version(-1).is_err() && version(c_int::MAX).is_ok());
    }

    #[test]
    fn regions_and_files_are_told_apart_by_their_names() {
        for (group, id) in [(None, 0), (None, -7), (Some("heat"), c_int::MAX), (Some("a.b"), c_int::MIN)] {
            assert_eq!(parse_region(&region(group, id)), Some((group, id)));
        }
        assert_eq!((parse_region("file:x"), parse_region("file:out#1")), (None, None));
        assert_eq!(parse_file(&file_region("out/a.dat")), Some("out/a.dat"));
        assert_eq!(parse_file("#1"), None);
    }

    #[test]
    fn whatever_a_file_is_called_it_has_a_region() {
        let long = [b'x'; 1000];
        for bytes in [&b"a/b.dat"[..], b"", b"\xff\xfe\x01", &long, "é".repeat(500).as_bytes()] {
            let original = original(bytes);
            assert!(bivouac_core::region::check_name(&file_region(&original)).is_ok(), "{original:?}");
        }
        assert_ne!(original(&[b'x'; 999]), original(&long));
    }

    #[test]
    fn files_of_veloc_are_known_by_name_rank_and_version() {
        assert_eq!(parse_old_file(&old_file("heat", 3, 40), "heat", 3), Some(40));
        for other in
            ["heat-3-40.tmp", "heat-13-40.dat", "heat-3-.dat", "heat-3--4.dat", "heat-3-04.dat", "heat-3-+4.dat"]
        {
            assert_eq!(parse_old_file(other, "heat", 3), None, "{other}");
        }
    }
}
