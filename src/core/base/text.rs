//! Keeps texts short enough to be read. A long text is cut, and says how much was left out.
//!
//! Names come from applications and from files, and lists from checkpoints with thousands of regions. An error text with all of that would
//! hide what happened. A text that was cut silently would hide that there was more.
#![forbid(unsafe_code)]

/// The maximum number of characters of a name.
const NAME_MAX: usize = 60;
/// The maximum number of characters of a message, which may hold a path or two and names.
const MESSAGE_MAX: usize = 2000;

/// The text of a file, made safe for a terminal and limited to one line.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A name, made safe and cut in its middle, because both ends may distinguish names.
pub fn short(name: &str) -> String {
    plain(&cut(name, NAME_MAX))
}

/// A message, cut in its middle: it begins with what was tried, and ends with the reason for the failure.
pub fn message(text: &str) -> String {
    cut(text, MESSAGE_MAX)
}

/// The text, reduced to at most `most` of its characters and the number of characters that were left out of the middle.
fn cut(text: &str, most: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let end = |chars: &[char]| chars.iter().collect::<String>();
    let (first, last) = (end(&chars[..half]), end(&chars[chars.len() - half..]));
    format!("{first}…({} more characters)…{last}", chars.len() - 2 * half)
}

/// The first `count` texts in one line, with the number of texts that were left out.
pub fn list(texts: impl ExactSizeIterator<Item = String>, count: usize, between: &str) -> String {
    most(texts, count, "and", "more").join(between)
}

/// The first `count` texts, and a last one that says how many were left out: `and 7 more regions`.
pub fn most(texts: impl ExactSizeIterator<Item = String>, count: usize, and: &str, more: &str) -> Vec<String> {
    let left = texts.len().saturating_sub(count);
    let mut some: Vec<String> = texts.take(count).collect();
    some.extend((left > 0).then(|| format!("{and} {left} {more}")));
    some
}

/// A text of several lines, made safe for a terminal. The lines after the first are indented by `indent` columns.
pub fn plain_lines(text: &str, indent: usize) -> String {
    let lines: Vec<String> = text.trim_end().lines().map(plain).collect();
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_cut_and_says_by_how_much() {
        assert_eq!(short(&"a".repeat(60)), "a".repeat(60));
        let long = short(&format!("{}{}z", "a".repeat(30), "b".repeat(5000)));
        assert_eq!(long, format!("{}…(4971 more characters)…{}z", "a".repeat(30), "b".repeat(29)));
        let long = message(&format!("cannot find {}: too long", "x".repeat(5000)));
        assert!(long.starts_with("cannot find xxx") && long.ends_with("xxx: too long"), "{long}");
        assert!(long.contains("(3022 more characters)") && long.chars().count() < 2050, "{long}");
        let texts = |count: usize| most((0..count).map(|at| at.to_string()), 3, "and", "more");
        assert_eq!(texts(3), ["0", "1", "2"]);
        assert_eq!(texts(100), ["0", "1", "2", "and 97 more"]);
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(plain_lines("two:\n - a\u{7}\n", 3), "two:\n    - a\u{fffd}");
    }
}
