//! What a rank says in a round, and how two ballots are merged.
//!
//! Merging is commutative and associative. The part of a merged ballot that describes calls and failures has a bounded size, however many
//! ranks the ballot stands for: only a few distinct ones are listed, with a few of their ranks, and the rest are only counted. What callers
//! gather ([`Payload::Gathered`]) grows with the number of ranks.

use crate::base::Rank;
use crate::format::{FormatError, codec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum number of distinct calls that a ballot describes.
const CALLS_MAX: usize = 4;
/// The maximum number of failures, and of notes, that a ballot describes.
const TEXTS_MAX: usize = 6;
/// The maximum number of ranks that a call group names.
const RANKS_MAX: usize = 8;
/// The maximum length of a text about a call or a failure, in bytes.
const TEXT_MAX: usize = 400;

/// Ranks that made the same call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallGroup {
    /// The hash of everything that must be equal.
    pub hash: u64,
    /// The call in words.
    pub text: String,
    /// The ranks that made it.
    pub ranks: Ranks,
}

/// The ranks that a statement is about: all of them are counted, and the lowest are named.
///
/// ```
/// use bivouac_core::coordination::Ranks;
/// use bivouac_core::base::Rank;
///
/// let text = |ranks: &[u32]| Ranks::of(ranks.iter().copied().map(Rank)).to_string();
/// assert_eq!(text(&[3]), "rank 3");
/// assert_eq!(text(&[5, 0, 1, 2]), "ranks 0-2, 5");
/// assert_eq!(text(&[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Ranks {
    /// The lowest ranks, ascending, at most 8.
    named: Vec<Rank>,
    /// The number of ranks, including those that are not named.
    count: u32,
    /// These are all ranks.
    are_all: bool,
}

impl Ranks {
    /// The given ranks, each counted once.
    pub fn of(ranks: impl IntoIterator<Item = Rank>) -> Ranks {
        let mut named: Vec<Rank> = ranks.into_iter().collect();
        named.sort_unstable();
        let count = named.len() as u32;
        named.truncate(RANKS_MAX);
        Ranks { named, count, are_all: false }
    }

    /// All ranks of a group.
    pub fn all(size: u32) -> Ranks {
        Ranks { named: (0..size).map(Rank).take(RANKS_MAX).collect(), count: size, are_all: size > 1 }
    }

    /// The lowest ranks, ascending, at most 8.
    pub fn named(&self) -> &[Rank] {
        &self.named
    }

    /// The number of ranks.
    pub fn count(&self) -> u32 {
        self.count
    }

    fn join(&mut self, others: Ranks) {
        self.count += others.count;
        self.named.extend(others.named);
        self.named.sort_unstable();
        self.named.truncate(RANKS_MAX);
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.are_all {
            return write!(f, "all {} ranks", self.count);
        }
        let more = self.count - self.named.len() as u32;
        if self.named.is_empty() {
            return write!(f, "{more} more rank{}", if more == 1 { "" } else { "s" });
        }
        let runs = self.named.chunk_by(|one, next| one.0 + 1 == next.0);
        let runs: Vec<String> = runs
            .flat_map(|run| match run {
                [first, _, .., last] => vec![format!("{first}-{last}")],
                few => few.iter().map(Rank::to_string).collect(),
            })
            .collect();
        write!(f, "rank{} {}", if self.count == 1 { "" } else { "s" }, runs.join(", "))?;
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

/// Ranks that failed, differed or were missing in the same way, and what that way was.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Culprit {
    /// Would an older checkpoint help? It would if data is damaged, but not if an argument is wrong.
    pub retry: bool,
    /// The ranks.
    pub ranks: Ranks,
    /// What they did, or what happened to them.
    pub text: String,
}

impl Culprit {
    /// One rank, with a fault that no other attempt would remedy.
    pub fn of(rank: Rank, text: impl Into<String>) -> Culprit {
        Culprit { ranks: Ranks::of([rank]), text: text.into(), retry: false }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ranks, self.text)
    }
}

/// Culprits as text, one after the other.
pub fn join(culprits: &[Culprit]) -> String {
    if culprits.is_empty() {
        return "no rank is known to be at fault".into();
    }
    culprits.iter().map(Culprit::to_string).collect::<Vec<_>>().join("; ")
}

/// The part of a ballot that is reduced for the caller.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// Bits that are combined over all ranks.
    Bits {
        /// The bits that are set on all ranks.
        all: u64,
        /// The bits that are set on any rank.
        any: u64,
    },
    /// Encoded values of the callers, for the root alone.
    Gathered(Vec<Vec<u8>>),
    /// The greatest items of all ranks, each once, the greatest first. An item consists of bytes that compare in the same way as the value
    /// for which they stand.
    Greatest {
        /// The maximum number of items.
        keep: u32,
        /// The items.
        items: Vec<Vec<u8>>,
    },
    /// The largest numbers that any rank gave, element by element.
    Max(Vec<u64>),
    /// The numbers that any rank gave, as at most 1024 ranges, each of one kind. The callers define the kinds. If there are more ranges,
    /// the nearest ranges of one kind are united, together with the numbers between them. So no number is lost, and no kind changes.
    Spans(Vec<Span>),
}

/// The maximum number of ranges in a ballot.
const SPANS_MAX: usize = 1024;

/// A range of numbers of one kind, including both ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The kind.
    pub kind: u16,
    /// The first number.
    pub first: u32,
    /// The last number.
    pub last: u32,
}

/// Unites ranges of one kind that overlap or adjoin, and then the nearest ones until at most `most` ranges are left, or one for each kind.
fn united(mut spans: Vec<Span>, most: usize) -> Vec<Span> {
    spans.sort_unstable();
    let mut all: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match all.last_mut() {
            Some(last) if last.kind == span.kind && span.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(span.last);
            }
            _ => all.push(span),
        }
    }
    while all.len() > most {
        let gap = |pair: &[Span]| (pair[0].kind == pair[1].kind).then(|| pair[1].first - pair[0].last);
        let gaps = all.windows(2).enumerate().filter_map(|(at, pair)| Some((gap(pair)?, at)));
        let Some((_, at)) = gaps.min() else { break };
        all[at].last = all[at + 1].last;
        all.remove(at + 1);
    }
    all
}

impl Payload {
    /// A payload with this rank's values, for the root.
    ///
    /// # Errors
    /// [`FormatError`] if a value exceeds the limit for metadata.
    pub fn gathered<T: Serialize>(values: impl IntoIterator<Item = T>) -> Result<Payload, FormatError> {
        let encoded = values.into_iter().map(|value| codec::encode("value", &value));
        Ok(Payload::Gathered(encoded.collect::<Result<_, _>>()?))
    }

    /// The values that all ranks have gathered, in no particular order; empty if no rank had any.
    ///
    /// # Errors
    /// [`FormatError`] if the payload is of another kind, or a value cannot be decoded.
    pub fn values<T: DeserializeOwned>(&self) -> Result<Vec<T>, FormatError> {
        match self {
            Payload::None => Ok(Vec::new()),
            Payload::Gathered(values) => values.iter().map(|bytes| codec::decode("value", bytes)).collect(),
            _ => Err(FormatError::invalid("ballot", "it has gathered nothing")),
        }
    }

    /// A payload of numbers, each with its kind, as ranges.
    pub fn spans(numbers: impl IntoIterator<Item = (u16, u32)>) -> Payload {
        let single = |(kind, number)| Span { kind, first: number, last: number };
        Payload::Spans(united(numbers.into_iter().map(single).collect(), SPANS_MAX))
    }

    /// A payload of the greatest of these items, at most `keep` of them.
    pub fn greatest(keep: u32, items: impl IntoIterator<Item = Vec<u8>>) -> Payload {
        let mut items: Vec<Vec<u8>> = items.into_iter().collect();
        items.sort_unstable_by(|one, other| other.cmp(one));
        items.dedup();
        items.truncate(keep as usize);
        Payload::Greatest { keep, items }
    }

    /// The greatest item of all ranks; empty if no rank had any.
    pub fn first_of_greatest(&self) -> &[u8] {
        match self {
            Payload::Greatest { items, .. } => items.first().map_or(&[], |first| first),
            _ => &[],
        }
    }

    fn merge(self, other: Payload) -> Payload {
        match (self, other) {
            (Payload::None, payload) | (payload, Payload::None) => payload,
            (Payload::Bits { all: a, any: b }, Payload::Bits { all: c, any: d }) => {
                Payload::Bits { all: a & c, any: b | d }
            }
            (Payload::Gathered(mut a), Payload::Gathered(b)) => {
                a.extend(b);
                a.sort_unstable();
                Payload::Gathered(a)
            }
            (Payload::Greatest { keep: a, items }, Payload::Greatest { keep: b, items: others }) => {
                Payload::greatest(a.max(b), items.into_iter().chain(others))
            }
            (Payload::Max(a), Payload::Max(b)) => {
                let (mut long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
                long.iter_mut().zip(short).for_each(|(x, y)| *x = y.max(*x));
                Payload::Max(long)
            }
            (Payload::Spans(a), Payload::Spans(b)) => {
                Payload::Spans(united(a.into_iter().chain(b).collect(), SPANS_MAX))
            }
            // The ranks are in different calls, so their call hashes also differ, and that difference is reported.
            (payload, _) => payload,
        }
    }
}

/// Texts of ranks, each listed once with all ranks that gave it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Alike {
    /// Texts about faults that nothing older would remedy come first; otherwise the order is by rank.
    listed: Vec<Culprit>,
    /// Ranks whose texts are not listed.
    cut: u32,
}

impl Alike {
    fn join(&mut self, other: Alike) {
        for theirs in other.listed {
            let is_same = |mine: &&mut Culprit| (mine.retry, &mine.text) == (theirs.retry, &theirs.text);
            match self.listed.iter_mut().find(is_same) {
                Some(mine) => mine.ranks.join(theirs.ranks),
                None => self.listed.push(theirs),
            }
        }
        self.listed.sort();
        self.cut += other.cut;
        for cut in self.listed.drain(TEXTS_MAX.min(self.listed.len())..) {
            self.cut += cut.ranks.count;
        }
    }
}

/// Marks the culprits that are all of the `votes` ranks, and adds how many others there are.
fn rounded(mut culprits: Vec<Culprit>, votes: u32, cut: u32) -> Vec<Culprit> {
    for culprit in &mut culprits {
        culprit.ranks.are_all = votes > 1 && culprit.ranks.count == votes;
    }
    culprits.sort();
    if let (Some(last), true) = (culprits.last(), cut > 0) {
        // If a culprit with a fault that nothing older would remedy was cut, the last listed one is also of that kind, because these come
        // first.
        let (retry, ranks) = (last.retry, Ranks { count: cut, ..Ranks::default() });
        culprits.push(Culprit { ranks, text: "other reasons, not listed here".into(), retry });
    }
    culprits
}

/// What one or more ranks say in a round.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Ballot {
    /// The number of ranks for which this ballot stands.
    pub votes: u32,
    /// The distinct calls.
    pub calls: Vec<CallGroup>,
    /// The number of ranks whose calls are not listed above.
    pub calls_cut: u32,
    /// The ranks that failed, and how.
    pub failures: Alike,
    /// Texts of ranks that do not change the outcome.
    pub notes: Alike,
    /// The reduced part.
    pub payload: Payload,
    /// Numbers that are added up over all ranks, each under a key of the callers, in ascending order of the keys.
    pub sums: Vec<(u64, u64)>,
}

impl Ballot {
    /// A single rank's ballot: the hash and the text of its call, and what is to be reduced.
    pub fn of(rank: Rank, hash: u64, text: impl Into<String>, payload: Payload) -> Ballot {
        let call = CallGroup { hash, text: shorten(text.into()), ranks: Ranks::of([rank]) };
        Ballot { votes: 1, calls: vec![call], payload, ..Ballot::default() }
    }

    /// This ballot with a failure of this rank. If the text begins with the rank, that prefix is cut off, because the culprit names the
    /// rank itself.
    pub fn failed(mut self, rank: Rank, text: impl Into<String>, retry: bool) -> Ballot {
        let text: String = text.into();
        let text = text.strip_prefix(&format!("rank {rank}: ")).map_or_else(|| text.clone(), ToOwned::to_owned);
        self.failures.join(Alike { listed: vec![Culprit { retry, ..Culprit::of(rank, shorten(text)) }], cut: 0 });
        self
    }

    /// This ballot with a text to be logged, once for all ranks that give it.
    pub fn noted(mut self, rank: Rank, text: impl Into<String>) -> Ballot {
        let note = Culprit::of(rank, shorten(text.into()));
        if !self.notes.listed.iter().any(|known| known.text == note.text) {
            self.notes.join(Alike { listed: vec![note], cut: 0 });
        }
        self
    }

    /// This ballot with numbers that are added up over all ranks. Each key must occur only once.
    pub fn with_sums(mut self, mut sums: Vec<(u64, u64)>) -> Ballot {
        sums.sort_unstable();
        self.sums = sums;
        self
    }

    /// The notes of the ranks.
    pub fn notes(&self) -> Vec<Culprit> {
        rounded(self.notes.listed.clone(), self.votes, self.notes.cut)
    }

    /// Unites two ballots.
    pub fn merge(mut self, other: Ballot) -> Ballot {
        self.votes += other.votes;
        self.calls_cut += other.calls_cut;
        for group in other.calls {
            match self.calls.iter_mut().find(|mine| mine.hash == group.hash) {
                Some(mine) => mine.ranks.join(group.ranks),
                None => self.calls.push(group),
            }
        }
        self.calls.sort_by_key(|group| (std::cmp::Reverse(group.ranks.count), group.hash));
        for cut in self.calls.drain(CALLS_MAX.min(self.calls.len())..) {
            self.calls_cut += cut.ranks.count;
        }
        self.failures.join(other.failures);
        self.notes.join(other.notes);
        self.payload = self.payload.merge(other.payload);
        for (key, number) in other.sums {
            match self.sums.binary_search_by_key(&key, |(key, _)| *key) {
                Ok(at) => self.sums[at].1 = self.sums[at].1.saturating_add(number),
                Err(at) => self.sums.insert(at, (key, number)),
            }
        }
        self
    }

    /// The obstacles to agreement: ranks whose call differs from the most frequent one, ranks that failed and, last, how many culprits are
    /// not described.
    pub fn culprits(&self) -> Vec<Culprit> {
        let mut culprits = self.failures.listed.clone();
        if let Some((most, others)) = self.calls.split_first() {
            culprits.extend(others.iter().map(|group| Culprit {
                ranks: group.ranks.clone(),
                text: format!("called {}, while {} called {}", group.text, most.ranks, most.text),
                retry: false,
            }));
        }
        rounded(culprits, self.votes, self.failures.cut + self.calls_cut)
    }
}

/// Cuts a text to [`TEXT_MAX`] bytes at a character boundary.
fn shorten(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let mut end = TEXT_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_minority_is_named() {
        let call = |rank, version: u64| Ballot::of(Rank(rank), version, format!("version {version}"), Payload::None);
        let merged = call(0, 10).merge(call(2, 11)).merge(call(1, 10)).merge(call(3, 10));
        let culprits = merged.culprits();
        assert_eq!(culprits.len(), 1);
        assert_eq!(culprits[0].to_string(), "rank 2: called version 11, while ranks 0, 1, 3 called version 10");
    }

    #[test]
    fn ranks_that_fail_alike_are_one_culprit() {
        let of = |rank, text: &str| Ballot::of(Rank(rank), 1, "call", Payload::None).failed(Rank(rank), text, false);
        let alike = (0..12).map(|rank| of(rank, "a typo")).reduce(Ballot::merge).unwrap();
        let texts = |ballot: &Ballot| ballot.culprits().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&alike), ["all 12 ranks: a typo"]);
        assert_eq!(texts(&of(0, "a typo")), ["rank 0: a typo"]);
        let one_more = alike.merge(of(12, "the disk"));
        let named = "ranks 0-7 and 4 more: a typo";
        assert_eq!(texts(&one_more), [named, "rank 12: the disk"]);
        let unlike = (13..23).map(|rank| of(rank, &format!("disk {rank}"))).fold(one_more, Ballot::merge);
        assert_eq!(unlike.failures.listed.len(), TEXTS_MAX);
        assert_eq!(texts(&unlike).last().unwrap(), "6 more ranks: other reasons, not listed here");
    }

    #[test]
    fn what_ranks_note_is_said_once_for_all_of_them_and_stands_in_nobodys_way() {
        let of = |rank| {
            Ballot::of(Rank(rank), 1, "call", Payload::None).noted(Rank(rank), "no room").noted(Rank(rank), "no room")
        };
        let merged = (0..12).map(of).reduce(Ballot::merge).unwrap();
        let texts: Vec<String> = merged.notes().iter().map(ToString::to_string).collect();
        assert_eq!((texts, merged.culprits()), (vec!["all 12 ranks: no room".to_owned()], vec![]));
    }

    #[test]
    fn what_is_beyond_help_is_never_cut_for_what_is_not() {
        let of = |rank, retry| {
            Ballot::of(Rank(rank), 1, "call", Payload::None).failed(Rank(rank), format!("disk {rank}"), retry)
        };
        let damage = (0..20).map(|rank| of(rank, true)).reduce(Ballot::merge).unwrap();
        assert!(damage.culprits().iter().all(|culprit| culprit.retry), "{:?}", damage.culprits());
        let merged = damage.merge(of(20, false));
        assert_eq!(merged.culprits()[0], Culprit::of(Rank(20), "disk 20"));
    }

    #[test]
    fn the_window_keeps_the_newest_of_both() {
        use crate::catalog::{Candidate, WINDOW};
        let candidate = |version| {
            let key = crate::base::CheckpointKey { version, ..Default::default() };
            Candidate { key, agreement: 0, group_size: 4, origin: None }
        };
        let many: Vec<_> = (0..40).rev().map(|version| candidate(version).to_bytes()).collect();
        let window = |of: &[Vec<u8>]| Payload::greatest(WINDOW as u32, of.to_vec());
        let Payload::Greatest { items, .. } = window(&many[..20]).merge(window(&many[10..])) else {
            panic!("a window")
        };
        let merged: Vec<Candidate> = items.iter().map(|bytes| Candidate::of_bytes(bytes).expect("one")).collect();
        assert_eq!(merged.len(), WINDOW);
        assert_eq!(merged[0].key.version, 39);
        assert!(merged.windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn of_payloads_of_two_lengths_the_longer_one_loses_nothing() {
        let max = |values: &[u64]| Payload::Max(values.to_vec());
        for (one, other) in [(max(&[1, 5]), max(&[3, 2, 7])), (max(&[3, 2, 7]), max(&[1, 5]))] {
            assert_eq!(one.merge(other), max(&[3, 5, 7]));
        }
    }

    #[test]
    fn a_text_is_cut_at_the_border_of_a_character() {
        let fits = format!("x{}", "é".repeat(199));
        assert_eq!((fits.len(), shorten(fits.clone())), (TEXT_MAX - 1, fits.clone()));
        assert_eq!(shorten(format!("x{fits}")), format!("x{fits}"));
        assert_eq!(shorten(format!("{fits}é")), format!("{fits}…"));
    }

    #[test]
    fn a_ballot_of_many_failures_stays_small() {
        let of = |rank| {
            let text = "x".repeat(9000);
            Ballot::of(Rank(rank), u64::from(rank), text, Payload::None).failed(Rank(rank), "é".repeat(900), true)
        };
        let subtree = |ranks: std::ops::Range<u32>| ranks.map(of).reduce(Ballot::merge).unwrap();
        let merged = subtree(0..400).merge(subtree(400..1000));
        assert_eq!(merged.votes, 1000);
        assert_eq!(merged.failures.listed.iter().map(|f| f.ranks.count).sum::<u32>() + merged.failures.cut, 1000);
        assert_eq!(merged.calls.iter().map(|g| g.ranks.count).sum::<u32>() + merged.calls_cut, 1000);
        assert!(crate::format::codec::encode("ballot", &merged).unwrap().len() < 8192);
    }

    proptest! {
        #[test]
        fn merging_order_does_not_matter_for_counts_and_bits(bits in proptest::collection::vec(any::<u64>(), 1..20), swap in any::<u64>()) {
            let ballots: Vec<Ballot> = bits.iter().enumerate()
                .map(|(r, b)| Ballot::of(Rank(r as u32), b % 3, "call", Payload::Bits { all: *b, any: *b })).collect();
            let forward = ballots.iter().cloned().reduce(Ballot::merge).unwrap();
            let (all, any) = bits.iter().fold((u64::MAX, 0), |(all, any), b| (all & b, any | b));
            prop_assert_eq!(&forward.payload, &Payload::Bits { all, any });
            let mut shuffled = ballots;
            let pivot = (swap as usize) % shuffled.len();
            shuffled.rotate_left(pivot);
            prop_assert_eq!(forward, shuffled.into_iter().reduce(Ballot::merge).unwrap());
        }
    }

    proptest! {
        #[test]
        fn ranges_of_numbers_lose_none_and_stay_with_their_kind(
            numbers in proptest::collection::vec((0u16..4, 0u32..200), 0..200),
            most in 4usize..40,
        ) {
            let single = |(kind, number): &(u16, u32)| Span { kind: *kind, first: *number, last: *number };
            let spans = united(numbers.iter().map(single).collect(), most);
            prop_assert!(spans.len() <= most);
            let is_in = |(kind, number): &(u16, u32)| {
                spans.iter().any(|span| span.kind == *kind && (span.first..=span.last).contains(number))
            };
            prop_assert!(numbers.iter().all(is_in));
            // No span has a kind that nobody gave, or begins before or ends after the numbers that were given.
            for span in &spans {
                prop_assert!(numbers.contains(&(span.kind, span.first)) && numbers.contains(&(span.kind, span.last)));
            }
            if numbers.len() <= most {
                let count: u32 = spans.iter().map(|span| span.last - span.first + 1).sum();
                let mut distinct = numbers.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(count as usize, distinct.len());
            }
        }
    }
}
