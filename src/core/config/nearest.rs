//! Finds the name that was probably meant.
#![forbid(unsafe_code)]

/// The maximum number of edits of a misspelt word. A word that needs more edits is a different word.
const EDITS_MAX: usize = 3;
/// The shortest beginning of a word that is taken for the word.
const CUT_MIN: usize = 3;

/// The candidate with the fewest edits from `name`, if their number is small for a word of its length. Of several equally near candidates,
/// it is the first.
pub(super) fn nearest<S: AsRef<str>>(name: &str, candidates: impl IntoIterator<Item = S>) -> Option<S> {
    let name: Vec<char> = name.chars().take(256).flat_map(char::to_lowercase).collect();
    let mut best = None;
    for candidate in candidates {
        let wanted: Vec<char> = candidate.as_ref().chars().flat_map(char::to_lowercase).collect();
        if wanted == name {
            return Some(candidate);
        }
        // The word was cut off rather than misspelt. Longer words are cut off more often, so `dir` is taken for
        // `directory` and not for `direct`.
        if name.len() >= CUT_MIN && wanted.starts_with(&name) {
            let is_longer = |(edits, known): &(usize, S)| *edits > 0 || known.as_ref().len() < candidate.as_ref().len();
            if best.as_ref().is_none_or(is_longer) {
                best = Some((0, candidate));
            }
            continue;
        }
        let limit = (wanted.len() / 3).clamp(1, EDITS_MAX);
        if wanted.len().abs_diff(name.len()) > limit {
            continue;
        }
        let edits = distance(&name, &wanted);
        if edits <= limit && best.as_ref().is_none_or(|(fewest, _)| edits < *fewest) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `from` into `to`.
///
/// The table of distances between all prefixes is filled row by row, and only the last two rows are kept.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i);
        for j in 1..=to.len() {
            let replaced = row[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut edits = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                edits = edits.min(before[j - 2] + 1);
            }
            next.push(edits);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(from: &str, to: &str) -> usize {
        distance(&from.chars().collect::<Vec<_>>(), &to.chars().collect::<Vec<_>>())
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("", ""), 0);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        assert_eq!(edits("keep_lsat", "keep_last"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("ab", "ba"), 1);
    }

    #[test]
    fn only_near_names_are_suggested() {
        let names = ["every", "every_seconds", "keep_last", "keep_every"];
        assert_eq!(nearest("evry", names), Some("every"));
        assert_eq!(nearest("KEEP_LAST", names), Some("keep_last"));
        assert_eq!(nearest("keepevery", names), Some("keep_every"));
        assert_eq!(nearest("dir", ["direct", "directory"]), Some("directory"));
        assert_eq!(nearest("direct_", ["direct", "directory"]), Some("direct"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"e".repeat(1 << 20), names), None);
    }
}
