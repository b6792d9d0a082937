//! What a rank says in a round, and how two ballots become one.
//!
//! Merging is commutative and associative, and a merged ballot has a bounded size however many ranks it stands
//! for: distinct calls, failures and names of ranks are cut off at small counts, and the rest is only counted.

use crate::base::Rank;
use crate::catalog::{Candidate, merge_newest};
use crate::format::ContainerInfo;
use crate::redundancy::holding::Holding;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Distinct calls that a ballot describes.
const CALLS_MAX: usize = 4;
/// Failures that a ballot describes.
const FAILURES_MAX: usize = 6;
/// Ranks that a call group names.
const RANKS_MAX: usize = 8;
/// Bytes of text per call or failure.
const TEXT_MAX: usize = 400;

/// Ranks that made the same call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallGroup {
    /// Hash of everything that must be equal.
    pub hash: u64,
    /// The call in words.
    pub text: String,
    /// How many ranks made it.
    pub count: u32,
    /// The lowest of them.
    pub ranks: Vec<Rank>,
}

/// A rank that failed, differed or was missing, and how.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Culprit {
    /// The rank.
    pub rank: Rank,
    /// What it did, or what happened to it.
    pub text: String,
    /// Would trying something older help? (Damaged data: yes; a wrong argument: no.)
    pub retry: bool,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.text)
    }
}

/// The part of a ballot that is reduced for the caller.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// Bits that are set on all ranks, and bits that are set on any.
    Bits {
        /// Conjunction.
        all: u64,
        /// Disjunction.
        any: u64,
    },
    /// The newest candidates that any rank knows.
    Candidates(Vec<Candidate>),
    /// The container files of a checkpoint on the global tier.
    Containers(Vec<ContainerInfo>),
    /// What ranks hold of the candidates of a window.
    Holdings(Vec<Holding>),
    /// Names of hosts, by the number of their node.
    Hosts(Vec<(u32, String)>),
    /// The largest numbers that any rank gave, slot by slot.
    Max(Vec<u64>),
}

impl Payload {
    fn merge(self, other: Payload) -> Payload {
        match (self, other) {
            (Payload::None, payload) | (payload, Payload::None) => payload,
            (Payload::Bits { all: a, any: b }, Payload::Bits { all: c, any: d }) => {
                Payload::Bits { all: a & c, any: b | d }
            }
            (Payload::Candidates(a), Payload::Candidates(b)) => Payload::Candidates(merge_newest(&a, &b)),
            (Payload::Containers(mut a), Payload::Containers(b)) => {
                a.extend(b);
                Payload::Containers(a)
            }
            (Payload::Holdings(mut a), Payload::Holdings(b)) => {
                a.extend(b);
                a.sort_unstable();
                Payload::Holdings(a)
            }
            (Payload::Hosts(mut a), Payload::Hosts(b)) => {
                a.extend(b);
                a.sort_unstable();
                Payload::Hosts(a)
            }
            (Payload::Max(a), Payload::Max(b)) => {
                let (mut long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
                long.iter_mut().zip(short).for_each(|(x, y)| *x = y.max(*x));
                Payload::Max(long)
            }
            // Ranks in different calls: the call hashes differ too, and that is what gets reported.
            (payload, _) => payload,
        }
    }
}

/// One or many ranks' say in a round.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Ballot {
    /// Ranks that this ballot stands for.
    pub votes: u32,
    /// The distinct calls.
    pub calls: Vec<CallGroup>,
    /// Ranks whose calls are not listed above.
    pub calls_cut: u32,
    /// Ranks that failed, lowest first.
    pub failures: Vec<Culprit>,
    /// Failures not listed above.
    pub failures_cut: u32,
    /// The reduced part.
    pub payload: Payload,
}

impl Ballot {
    /// A single rank's ballot: the hash and words of its call, and what is to be reduced.
    pub fn of(rank: Rank, hash: u64, text: impl Into<String>, payload: Payload) -> Ballot {
        let call = CallGroup { hash, text: shorten(text.into()), count: 1, ranks: vec![rank] };
        Ballot { votes: 1, calls: vec![call], payload, ..Ballot::default() }
    }

    /// The same with a failure of this rank. A text that begins with the rank loses that: the culprit says it again.
    pub fn failed(mut self, rank: Rank, text: impl Into<String>, retry: bool) -> Ballot {
        let text: String = text.into();
        let text = text.strip_prefix(&format!("rank {rank}: ")).map_or_else(|| text.clone(), ToOwned::to_owned);
        self.failures.push(Culprit { rank, text: shorten(text), retry });
        self
    }

    /// Unites two ballots.
    pub fn merge(mut self, other: Ballot) -> Ballot {
        self.votes += other.votes;
        self.calls_cut += other.calls_cut;
        for group in other.calls {
            match self.calls.iter_mut().find(|mine| mine.hash == group.hash) {
                Some(mine) => {
                    mine.count += group.count;
                    mine.ranks.extend(group.ranks);
                    mine.ranks.sort_unstable();
                    mine.ranks.truncate(RANKS_MAX);
                }
                None => self.calls.push(group),
            }
        }
        self.calls.sort_by_key(|group| (std::cmp::Reverse(group.count), group.hash));
        for cut in self.calls.drain(CALLS_MAX.min(self.calls.len())..) {
            self.calls_cut += cut.count;
        }
        self.failures.extend(other.failures);
        self.failures.sort();
        self.failures_cut += other.failures_cut + self.failures.len().saturating_sub(FAILURES_MAX) as u32;
        self.failures.truncate(FAILURES_MAX);
        self.payload = self.payload.merge(other.payload);
        self
    }

    /// Who stands in the way of agreement: ranks whose call differs from that of most, and ranks that failed.
    pub fn culprits(&self) -> Vec<Culprit> {
        let mut culprits = self.failures.clone();
        if let Some((most, others)) = self.calls.split_first() {
            for group in others {
                let text = format!("called {}, while {} ranks called {}", group.text, most.count, most.text);
                culprits.extend(group.ranks.iter().map(|rank| Culprit {
                    rank: *rank,
                    text: text.clone(),
                    retry: false,
                }));
            }
        }
        culprits.sort();
        culprits
    }
}

/// Cuts a text to [`TEXT_MAX`] bytes at a character border.
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
        assert_eq!(culprits[0].rank, Rank(2));
        assert!(
            culprits[0].text.contains("called version 11, while 3 ranks called version 10"),
            "{}",
            culprits[0].text
        );
        assert!(culprits[0].to_string().starts_with("rank 2: called version 11"), "{}", culprits[0]);
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
        assert_eq!(merged.failures.len() as u32 + merged.failures_cut, 1000);
        assert_eq!(merged.calls.iter().map(|g| g.count).sum::<u32>() + merged.calls_cut, 1000);
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
}
