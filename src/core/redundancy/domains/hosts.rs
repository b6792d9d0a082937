//! Lists of hosts as SLURM writes them: `node[01-16,20],login1,rack[1-2]node[1-8]`.
//!
//! A list is kept in its written form and is spelled out name by name when it is used, so that a few characters never
//! cause a large allocation. The number of names in a list is known and bounded before the first name is spelled out.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::ops::ControlFlow;

/// The maximum length of a host name in bytes: that of the domain name system, rounded up.
const NAME_BYTES_MAX: usize = 255;
/// The maximum number of digits of a number in brackets.
const DIGITS_MAX: usize = 9;

/// Why a text is not a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostListError {
    /// A bracket is opened but not closed, or closed but not opened.
    #[error("brackets do not match in {0:?}")]
    Brackets(String),
    /// The text in brackets is not a list of numbers and ranges.
    #[error("{0:?} is not a range of numbers like 01-16")]
    Range(String),
    /// A name that no host can have.
    #[error("{0:?} is not a host name: letters, digits, '.', '_' and '-' are allowed, up to 255 bytes")]
    Name(String),
    /// There is nothing between two commas, or nothing at all.
    #[error("a host is missing in {0:?}")]
    Empty(String),
    /// The list stands for too many hosts.
    #[error("the list names more than {limit} hosts")]
    TooMany {
        /// The maximum number of hosts allowed.
        limit: u64,
    },
}

/// A list of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostList {
    patterns: Vec<Vec<Part>>,
    count: u64,
}

/// A piece of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Numbers(Vec<Numbers>),
}

/// A range of numbers, printed with at least `width` digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    first: u32,
    last: u32,
    width: usize,
}

impl HostList {
    /// Reads a list that stands for at most `limit` hosts, counted with repetitions.
    ///
    /// # Errors
    /// What cannot be read; [`HostListError::TooMany`], before any name is spelled out.
    pub fn parse(text: &str, limit: u64) -> Result<HostList, HostListError> {
        let mut list = HostList { patterns: Vec::new(), count: 0 };
        for part in split(text, limit)? {
            let pattern = pattern(part, limit)?;
            let names = pattern.iter().fold(1, |product: u64, part| product.saturating_mul(part.count()));
            list.count = list.count.saturating_add(names);
            if list.count > limit {
                return Err(HostListError::TooMany { limit });
            }
            list.patterns.push(pattern);
        }
        Ok(list)
    }

    /// The number of names in the list, counted with repetitions.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Passes the names to `visit`, in the order of the list, until it breaks.
    pub fn visit(&self, visit: &mut impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        self.patterns.iter().try_for_each(|pattern| spell(pattern, &mut String::new(), visit))
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let _: ControlFlow<()> = self.visit(&mut |name| {
            names.push(name.to_owned());
            ControlFlow::Continue(())
        });
        names
    }
}

impl Part {
    fn count(&self) -> u64 {
        match self {
            Part::Text(_) => 1,
            Part::Numbers(ranges) => ranges.iter().map(|range| u64::from(range.last - range.first) + 1).sum(),
        }
    }
}

/// Appends to `name` everything for which the parts stand, one variant after the other. The recursion is as deep as the
/// number of parts, which the length of a name bounds.
fn spell(parts: &[Part], name: &mut String, visit: &mut impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
    let Some((part, rest)) = parts.split_first() else { return visit(name) };
    let length = name.len();
    match part {
        Part::Text(text) => {
            name.push_str(text);
            spell(rest, name, visit)?;
            name.truncate(length);
        }
        Part::Numbers(ranges) => {
            for range in ranges {
                for number in range.first..=range.last {
                    // Writing to a string cannot fail.
                    let _ = write!(name, "{number:0width$}", width = range.width);
                    spell(rest, name, visit)?;
                    name.truncate(length);
                }
            }
        }
    }
    ControlFlow::Continue(())
}

/// Splits at the commas outside brackets, into at most `limit` parts.
fn split(text: &str, limit: u64) -> Result<Vec<&str>, HostListError> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b']' if is_inside == (byte == b'[') => return Err(HostListError::Brackets(shown(text))),
            b'[' | b']' => is_inside = !is_inside,
            b',' if !is_inside && parts.len() as u64 >= limit => return Err(HostListError::TooMany { limit }),
            b',' if !is_inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(HostListError::Brackets(shown(text)));
    }
    parts.push(&text[start..]);
    let parts: Vec<&str> = parts.into_iter().map(str::trim).collect();
    if parts.iter().any(|part| part.is_empty()) { Err(HostListError::Empty(shown(text))) } else { Ok(parts) }
}

/// Reads one name with its brackets, which must match and hold at most `limit` ranges.
fn pattern(text: &str, limit: u64) -> Result<Vec<Part>, HostListError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let (mut parts, mut rest, mut longest) = (Vec::new(), text, 0);
    loop {
        let (plain, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
        longest += plain.len();
        if !plain.chars().all(is_plain) {
            return Err(HostListError::Name(shown(text)));
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain.to_owned()));
        }
        let Some((inside, after)) = after.strip_prefix('[').and_then(|after| after.split_once(']')) else { break };
        if inside.split(',').count() as u64 > limit {
            return Err(HostListError::TooMany { limit });
        }
        let ranges: Vec<Numbers> = inside.split(',').map(numbers).collect::<Result<_, _>>()?;
        longest += ranges.iter().map(Numbers::digits).max().unwrap_or(0);
        parts.push(Part::Numbers(ranges));
        rest = after;
    }
    let is_name = longest <= NAME_BYTES_MAX && !text.starts_with('-');
    if is_name { Ok(parts) } else { Err(HostListError::Name(shown(text))) }
}

impl Numbers {
    /// The maximum number of digits that a number of the range has.
    fn digits(&self) -> usize {
        self.width.max(self.last.checked_ilog10().map_or(1, |digits| digits as usize + 1))
    }
}

/// Reads `7` or `01-16`. The leading zeros of the first number set the width for all names.
fn numbers(text: &str) -> Result<Numbers, HostListError> {
    let wrong = || HostListError::Range(shown(text));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| -> Option<u32> {
        let is_number = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse().ok() } else { None }
    };
    let (width, first, last) =
        (first.trim().len(), number(first.trim()).ok_or_else(wrong)?, number(last.trim()).ok_or_else(wrong)?);
    if first <= last { Ok(Numbers { first, last, width }) } else { Err(wrong()) }
}

/// The maximum number of characters of a text that a message shows.
const SHOWN_CHARS_MAX: usize = 80;

/// Shortens text for a message.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> String {
        HostList::parse(text, 1000).unwrap_or_else(|error| panic!("{text}: {error}")).names().join(" ")
    }

    #[test]
    fn lists_are_spelled_out_in_their_order() {
        for (text, expected) in [
            ("node1", "node1"),
            ("b,a , b", "b a b"),
            ("node[1-4,7]", "node1 node2 node3 node4 node7"),
            ("node[08-11]", "node08 node09 node10 node11"),
            ("node[8-11]", "node8 node9 node10 node11"),
            ("n[001,3-4]x", "n001x n3x n4x"),
            ("r[1-2]n[1-2].example.org,x", "r1n1.example.org r1n2.example.org r2n1.example.org r2n2.example.org x"),
            ("[1-2]", "1 2"),
            ("a[0]b", "a0b"),
            ("a_b-c[5-5]", "a_b-c5"),
            ("n[ 1 - 2 , 4 ]", "n1 n2 n4"),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        use HostListError::*;
        let parse = |text: &str| HostList::parse(text, 1000).expect_err(text);
        for text in ["", ",", "a,", " ", "a,,b"] {
            assert_eq!(parse(text), Empty(text.to_owned()), "{text}");
        }
        for text in ["a[1", "a1]", "a[[1]]", "a[1]]", "][", "a[1,b[2]"] {
            assert_eq!(parse(text), Brackets(text.to_owned()), "{text}");
        }
        for text in ["", "x", "1-", "-1", "2-1", "1-2-3", "+1", "1.5", "9999999999", "1-9999999999"] {
            assert_eq!(parse(&format!("a[{text}]")), Range(text.to_owned()), "{text}");
        }
        for text in ["a b", "-a", "a/b", "$(x)", "é", "a\u{0}", &"a".repeat(256), &format!("{}[1-2]", "a".repeat(255))]
        {
            assert!(matches!(parse(text), Name(_)), "{text}");
        }
        for text in ["a[0-1000]", "a[0-999999999]", "a[1-100][1-100]", &"[0-999999999]".repeat(20), "a[1-500],b[1-501]"]
        {
            assert_eq!(parse(text), TooMany { limit: 1000 }, "{text}");
        }
        assert_eq!(names("a[1-500],b[1-500]").split(' ').count(), 1000);
        let long = parse(&"a[".repeat(100_000));
        assert!(long.to_string().len() < 500);
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_refused_or_spelled_out(
            text in any::<String>(),
            nearly in "[ab0-3,\\[\\] -]{0,30}",
        ) {
            for text in [text, nearly] {
                if let Ok(list) = HostList::parse(&text, 100) {
                    let names = list.names();
                    prop_assert_eq!(names.len() as u64, list.count());
                    prop_assert!((1..=100).contains(&names.len()));
                    prop_assert!(names.iter().all(|name| (1..=NAME_BYTES_MAX).contains(&name.len())));
                    // Names without brackets remain as they are.
                    prop_assert_eq!(HostList::parse(&names.join(","), 100).unwrap().names(), names);
                }
            }
        }
    }
}
