//! The root's side of an election: what is elected from what the ranks have said. Pure.

use super::super::remade::ELSEWHERE;
use super::error::{Tried, Want};
use crate::base::log;
use crate::catalog::{Candidate, restorable};
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Span};
use crate::format::Manifest;
use crate::tier::TierId;
use serde::{Deserialize, Serialize};

/// The root's word after a reduction.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Try this candidate.
    Try(Box<Choice>),
    /// Look at the next window.
    NextWindow,
    /// Tell the homes of shards who holds them.
    Gather,
    /// Tell the homes of these shards what is left of their redundancy sets. The kinds of the spans are places in the window.
    Seek(Vec<Span>),
    /// The attempt counts.
    Done,
    /// There is nothing, and there never was.
    Nothing,
    /// The restart ends with an error.
    NothingRestorable(Vec<Tried>, Vec<Culprit>, u64),
    NoSuchVersion(Vec<u64>),
}

/// What the root has elected.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Choice {
    pub candidate: Candidate,
    /// Its manifests on the tiers that all nodes share, nearest first.
    pub manifests: Vec<(TierId, Manifest)>,
    pub left_behind: bool,
}

/// The key of the sum that counts the ballots that end an attempt.
pub(super) const AT_THE_END: u64 = 1 << 32;
/// The sum that counts the ranks whose program rejects the version.
pub(super) const REJECTED: u64 = AT_THE_END + 1;

/// In the spans that ranks seek, a kind with this bit set marks shards of which there are copies, but none that anybody trusts.
pub(super) const DISTRUSTED: u16 = 1 << 8;

/// One bit for each candidate in a window; the first candidate has the lowest bit.
pub(super) fn to_bits(of: impl Iterator<Item = bool>) -> u64 {
    of.enumerate().map(|(bit, is_so)| u64::from(is_so) << bit).sum()
}

pub(super) fn from_bits(bits: u64, window: &mut [bool]) {
    for (bit, is_so) in window.iter_mut().enumerate() {
        *is_so = bits >> bit & 1 == 1;
    }
}

pub(super) struct RootView {
    pub want: Want,
    pub known: Vec<Candidate>,
    pub complete: Vec<bool>,
    pub committed: Vec<bool>,
    pub manifests: Vec<(Candidate, Vec<(TierId, Manifest)>)>,
    pub evidence: bool,
    pub damage: Vec<Culprit>,
    pub tried: Vec<Tried>,
    pub current: Option<Candidate>,
    pub exhausted: bool,
    /// The candidate for which other ways to all shards have been sought.
    pub distrusted: Option<Candidate>,
    /// The shards of this window that nobody holds. The kinds of the spans are places in the window.
    pub lost: Vec<Span>,
}

impl RootView {
    pub fn decide_vote(mut self, ballot: &Ballot, start: usize, global: u64) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let Payload::Bits { all, any } = ballot.payload else { return (Outcome::Abandoned(Vec::new()), Vec::new()) };
        let complete = all | global;
        from_bits(complete, &mut self.complete[start..]);
        self.evidence |= any != 0;
        let mut word = self.elect();
        if self.may_be_elsewhere(start, all, &word) {
            word = Word::Gather;
        }
        Outcome::agreed("decision", &(word, complete))
    }

    /// Is a candidate incomplete that would be preferred to the elected one? Or would some rank have to read the
    /// elected one from the global tier, although another node may have it?
    pub fn may_be_elsewhere(&self, start: usize, all: u64, word: &Word) -> bool {
        let chosen = match word {
            Word::Try(choice) => Some(choice.candidate),
            _ => None,
        };
        let place = chosen.and_then(|chosen| self.known[start..].iter().position(|known| *known == chosen));
        if place.is_some_and(|bit| all >> bit & 1 == 0) {
            return true;
        }
        let wanted = |candidate: &Candidate| match self.want {
            Want::Newest => chosen.is_none_or(|chosen| *candidate > chosen),
            Want::Version(version) => chosen.is_none() && candidate.key.version == version,
        };
        let incomplete = self.known[start..].iter().zip(&self.complete[start..]).filter(|(_, complete)| !**complete);
        incomplete.map(|(candidate, _)| candidate).any(wanted)
    }

    /// Decides after the homes have said to which shards they have no way: elects again, or, if that `is_open`, has them look for what is
    /// left of redundancy sets.
    pub fn decide_gather(mut self, ballot: &Ballot, start: usize, is_open: bool) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let spans = match &ballot.payload {
            Payload::Spans(spans) => &spans[..],
            _ => &[],
        };
        let before = to_bits(self.complete[start..].iter().copied());
        for (place, slot) in self.complete[start..].iter_mut().enumerate() {
            *slot |= !spans.iter().any(|span| usize::from(span.kind) == place);
        }
        let word = self.elect();
        let sought = if is_open { self.sought(start, &word, spans) } else { Vec::new() };
        if !sought.is_empty() {
            return Outcome::agreed("decision", &(Word::Seek(sought), before));
        }
        self.lost = spans.iter().filter(|span| span.kind & DISTRUSTED == 0).copied().collect();
        let complete = to_bits(self.complete[start..].iter().copied());
        // After a damaged copy, the same candidate is elected once more, now that all ranks can look elsewhere.
        if let Some(text) = self.passed_over(start, &word) {
            log::warn!("event=passed-over {text}");
        }
        Outcome::agreed("decision", &(word, complete))
    }

    /// The shards to which homes have no way, of the elected candidate and of those that would be preferred to it.
    fn sought(&self, start: usize, word: &Word, spans: &[Span]) -> Vec<Span> {
        let chosen = match word {
            Word::Try(choice) => Some(choice.candidate),
            _ => None,
        };
        let is_wanted = |span: &&Span| {
            let place = usize::from(span.kind & !DISTRUSTED);
            let candidate = self.known[start..].get(place);
            candidate.is_some_and(|candidate| match self.want {
                Want::Newest => chosen.is_none_or(|chosen| *candidate >= chosen),
                Want::Version(version) => candidate.key.version == version || chosen == Some(*candidate),
            })
        };
        let plain = |span: &Span| Span { kind: span.kind & !DISTRUSTED, ..*span };
        spans.iter().filter(is_wanted).map(plain).collect()
    }

    /// The newest committed checkpoint in the window that would have been preferred to the elected one, how many others
    /// there are, and what the newest lacks.
    pub fn passed_over(&self, start: usize, word: &Word) -> Option<String> {
        let chosen = match word {
            Word::Try(choice) => Some(choice.candidate),
            _ => None,
        };
        let mut passed = self.known[start..].iter().enumerate().filter(|(bit, candidate)| {
            let is_preferred = chosen.is_none_or(|chosen| **candidate > chosen);
            is_preferred && !self.complete[start + bit] && self.committed[start + bit]
        });
        let (bit, newest) = passed.next()?;
        let lost = self.lost.iter().filter(|span| usize::from(span.kind) == bit);
        let lost = lost.map(|span| match span.last - span.first {
            0 => span.first.to_string(),
            _ => format!("{}-{}", span.first, span.last),
        });
        Some(format!(
            "{} older={} reason=\"no node holds the shards of ranks {}, and what is left of their redundancy sets cannot rebuild \
             them\"",
            newest.key,
            passed.count(),
            lost.collect::<Vec<_>>().join(", ")
        ))
    }

    /// The word that makes all ranks try a candidate.
    pub fn choose(&self, candidate: Candidate, left_behind: bool) -> Word {
        let manifests = self.manifests.iter().find(|(known, _)| *known == candidate);
        let manifests = manifests.map_or_else(Vec::new, |(_, manifests)| manifests.clone());
        Word::Try(Box::new(Choice { candidate, manifests, left_behind }))
    }

    /// Decides whether the attempt counts, or what is tried next.
    pub fn decide_end(mut self, ballot: &Ballot) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        let sum = |of: u64| ballot.sums.iter().find(|(key, _)| *key == of).map_or(0, |(_, sum)| *sum);
        if sum(AT_THE_END) != u64::from(ballot.votes) {
            return (Outcome::Abandoned(culprits), ELSEWHERE.to_vec());
        }
        if culprits.iter().any(|culprit| !culprit.retry) {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let answer = match self.current {
            // Copies are damaged, and other ways to all shards have not been sought yet.
            Some(current) if !culprits.is_empty() && sum(REJECTED) == 0 && self.distrusted != Some(current) => {
                (Word::Gather, None)
            }
            Some(current) if !culprits.is_empty() => {
                let tried = Tried { key: current.key, culprits };
                self.tried.push(tried.clone());
                (self.elect(), Some(tried))
            }
            _ => (Word::Done, None),
        };
        Outcome::agreed("decision", &answer)
    }

    /// The next candidate, or why there is none.
    pub fn elect(&self) -> Word {
        // The lineage is that of all candidates that can be restored, tried or not, because falling back must not cross over to another
        // lineage.
        let tried = |candidate: &Candidate| self.tried.iter().any(|tried| tried.key == candidate.key);
        let whole: Vec<bool> =
            self.known.iter().zip(&self.complete).map(|(c, complete)| *complete || tried(c)).collect();
        let (usable, left) = restorable(&self.known, &whole);
        let open = |candidate: &&Candidate| !tried(candidate);
        let next = match self.want {
            Want::Newest => usable.iter().find(open).map(|candidate| (candidate, false)),
            Want::Version(version) => {
                let of_version = |c: &&Candidate| c.key.version == version && !tried(c);
                let usable = usable.iter().find(of_version).map(|c| (c, false));
                usable.or_else(|| left.iter().find(of_version).map(|c| (c, true)))
            }
        };
        if let Some((candidate, left_behind)) = next {
            return self.choose(*candidate, left_behind);
        }
        if !self.exhausted {
            return Word::NextWindow;
        }
        if let Want::Version(_) = self.want
            && self.tried.is_empty()
        {
            let mut present: Vec<u64> = usable.iter().chain(&left).map(|c| c.key.version).collect();
            present.sort_unstable();
            return Word::NoSuchVersion(present);
        }
        match self.tried.is_empty() && !self.evidence && self.damage.is_empty() {
            true => Word::Nothing,
            false => Word::NothingRestorable(self.tried.clone(), self.damage.clone(), left.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;
    use crate::base::{CheckpointKey, Generation, Level, Origin};
    use crate::catalog::WINDOW;
    use crate::format::codec;

    const SIZE: u32 = 4;

    fn at(generation: u64, version: u64, origin: Option<Origin>) -> Candidate {
        let key = CheckpointKey {
            generation: Generation(generation),
            version,
            operation: version,
            ..CheckpointKey::default()
        };
        Candidate { key, agreement: 1, group_size: SIZE, origin }
    }

    fn from(generation: u64, version: u64) -> Option<Origin> {
        Some(Origin { generation: Generation(generation), version, operation: version, restart: 0 })
    }

    fn culprit(retry: bool) -> Culprit {
        Culprit { retry, ..Culprit::of(Rank(2), "a flipped bit") }
    }

    /// The view of a root that has looked at all candidates, and of which of them all ranks can restore.
    fn view(known: &[Candidate], complete: &[bool]) -> RootView {
        RootView {
            want: Want::Newest,
            known: known.to_vec(),
            complete: complete.to_vec(),
            committed: vec![false; known.len()],
            manifests: Vec::new(),
            evidence: false,
            damage: Vec::new(),
            tried: Vec::new(),
            current: None,
            exhausted: true,
            distrusted: None,
            lost: Vec::new(),
        }
    }

    /// The view of versions 3, 2 and 1 of one run; `complete` says which of them all ranks have.
    fn three(complete: [bool; 3]) -> RootView {
        view(&[at(1, 3, None), at(1, 2, None), at(1, 1, None)], &complete)
    }

    /// The version that is tried, and whether a later run had left it behind.
    fn tried(word: &Word) -> Option<(u64, bool)> {
        match word {
            Word::Try(choice) => Some((choice.candidate.key.version, choice.left_behind)),
            _ => None,
        }
    }

    fn agreed<T: serde::de::DeserializeOwned>((outcome, decision): (Outcome, Vec<u8>)) -> T {
        assert_eq!(outcome, Outcome::Agreed);
        codec::decode("decision", &decision).expect("decodes")
    }

    fn bits(all: u64, any: u64) -> Ballot {
        Ballot::of(Rank::ROOT, 5, "vote", Payload::Bits { all, any })
    }

    #[test]
    fn a_window_is_sent_as_bits_and_comes_back() {
        for of in [vec![], vec![true], vec![false, true, true, false, true], vec![true; WINDOW]] {
            let mut back = vec![false; of.len()];
            from_bits(to_bits(of.iter().copied()), &mut back);
            assert_eq!(back, of);
        }
        assert_eq!(to_bits([false, true, true].into_iter()), 0b110);
    }

    #[test]
    fn the_newest_that_all_ranks_have_and_that_was_not_tried_is_elected() {
        assert_eq!(tried(&three([true; 3]).elect()), Some((3, false)));
        assert_eq!(tried(&three([false, true, true]).elect()), Some((2, false)));
        let mut second = three([false, true, true]);
        second.tried.push(Tried { key: second.known[0].key, culprits: vec![culprit(true)] });
        assert_eq!(tried(&second.elect()), Some((2, false)));
        second.tried.push(Tried { key: second.known[1].key, culprits: vec![] });
        assert_eq!(tried(&second.elect()), Some((1, false)));
    }

    #[test]
    fn falling_back_from_a_damaged_version_stays_on_its_lineage() {
        // A run continued from 50 and so left 60 behind; its own version 55 is damaged.
        let mut view = view(&[at(2, 55, from(1, 50)), at(1, 60, None), at(1, 50, None)], &[false, true, true]);
        view.tried.push(Tried { key: view.known[0].key, culprits: vec![culprit(true)] });
        assert_eq!(tried(&view.elect()), Some((50, false)));
        // If it is requested by its number, version 60 can be restored.
        view.want = Want::Version(60);
        assert_eq!(tried(&view.elect()), Some((60, true)));
    }

    #[test]
    fn the_next_window_is_looked_at_only_when_nothing_of_this_one_is_left() {
        for (complete, want, next) in
            [(false, Want::Newest, true), (true, Want::Newest, false), (true, Want::Version(9), true)]
        {
            let mut view = three([complete; 3]);
            (view.exhausted, view.want) = (false, want);
            assert_eq!(view.elect() == Word::NextWindow, next, "{want:?}");
        }
    }

    #[test]
    fn a_version_that_is_not_there_is_answered_with_those_that_are() {
        let mut view = view(
            &[at(2, 55, from(1, 50)), at(1, 60, None), at(1, 50, None), at(1, 40, None)],
            &[true, true, true, false],
        );
        view.want = Want::Version(40);
        assert_eq!(view.elect(), Word::NoSuchVersion(vec![50, 55, 60]));
        // The version was there and is damaged, and the answer must say so.
        view.tried.push(Tried { key: view.known[3].key, culprits: vec![culprit(true)] });
        assert_eq!(view.elect(), Word::NothingRestorable(view.tried.clone(), vec![], 1));
    }

    #[test]
    fn nothing_is_told_from_nothing_that_can_be_restored() {
        let none = view(&[], &[]);
        assert_eq!(none.elect(), Word::Nothing);
        let lost = |damage: &[Culprit]| Word::NothingRestorable(vec![], damage.to_vec(), 0);
        assert_eq!(RootView { evidence: true, ..view(&[], &[]) }.elect(), lost(&[]));
        let damage = vec![culprit(true)];
        assert_eq!(RootView { damage: damage.clone(), ..view(&[], &[]) }.elect(), lost(&damage));
        // Versions that were never whole, and that nobody knows to have been committed, are not missed.
        assert_eq!(three([false; 3]).elect(), Word::Nothing);
        let mut tried = three([false; 3]);
        tried.tried = tried.known.iter().map(|c| Tried { key: c.key, culprits: vec![] }).collect();
        assert_eq!(tried.elect(), Word::NothingRestorable(tried.tried.clone(), vec![], 0));
    }

    #[test]
    fn a_checkpoint_of_another_number_of_ranks_is_no_worse_than_any_other() {
        let other = Candidate { group_size: 9, ..at(1, 3, None) };
        assert_eq!(tried(&view(&[other], &[true]).elect()), Some((3, false)));
        // An older checkpoint with as many ranks as this run is not preferred to a newer one.
        assert_eq!(tried(&view(&[other, at(1, 2, None)], &[true, true]).elect()), Some((3, false)));
        assert_eq!(tried(&view(&[other, at(1, 2, None)], &[false, true]).elect()), Some((2, false)));
    }

    #[test]
    fn what_all_ranks_have_or_the_global_tier_has_is_complete() {
        let vote = |view: RootView, all, global| agreed::<(Word, u64)>(view.decide_vote(&bits(all, 0), 0, global));
        let (word, complete) = vote(three([false; 3]), 0b101, 0);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b101));
        let (word, complete) = vote(three([false; 3]), 0b101, 0b010);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b111));
        assert_eq!(vote(three([false; 3]), 0b101, 0b001).1, 0b101, "what both have");
        // A newer version may be on other nodes, and so may a version that some rank would have to read from the global tier.
        for (all, global, complete) in [(0b110, 0, 0b110), (0b110, 0b001, 0b111)] {
            assert_eq!(vote(three([false; 3]), all, global), (Word::Gather, complete));
        }
        // An older version that is incomplete is not wanted.
        assert_eq!(tried(&vote(three([false; 3]), 0b011, 0).0), Some((3, false)));
    }

    #[test]
    fn a_vote_is_on_the_last_window() {
        let mut view = three([true, false, false]);
        view.want = Want::Version(1);
        let (word, complete) = agreed::<(Word, u64)>(view.decide_vote(&bits(0b10, 0), 1, 0));
        assert_eq!((tried(&word), complete), (Some((1, false)), 0b10));
    }

    #[test]
    fn a_version_that_was_asked_for_is_looked_for_elsewhere_and_no_other_is() {
        let asked = |version, all| {
            let view = RootView { want: Want::Version(version), ..three([false; 3]) };
            agreed::<(Word, u64)>(view.decide_vote(&bits(all, 0), 0, 0)).0
        };
        assert_eq!(asked(2, 0b101), Word::Gather);
        assert_eq!(tried(&asked(2, 0b010)), Some((2, false)));
        assert_eq!(asked(7, 0b010), Word::NoSuchVersion(vec![2]));
    }

    #[test]
    fn a_vote_that_some_rank_knows_of_a_commit_is_evidence() {
        let vote = |any| agreed::<(Word, u64)>(view(&[], &[]).decide_vote(&bits(0, any), 0, 0)).0;
        assert_eq!((vote(0), vote(0b10)), (Word::Nothing, Word::NothingRestorable(vec![], vec![], 0)));
    }

    #[test]
    fn ranks_with_another_call_end_the_vote() {
        let other = Ballot::of(Rank(1), 6, "another call", Payload::Bits { all: 7, any: 0 });
        let (outcome, _) = three([true; 3]).decide_vote(&bits(7, 0).merge(other.clone()), 0, 0);
        assert!(matches!(outcome, Outcome::Abandoned(culprits) if culprits[0].ranks.named() == [Rank(1)]));
        let (outcome, _) = three([true; 3]).decide_gather(&bits(7, 0).merge(other), 0, true);
        assert!(matches!(outcome, Outcome::Abandoned(culprits) if culprits[0].ranks.named() == [Rank(1)]));
    }

    /// The decision when homes have no way to these shards of candidates, which are named by their places in the window.
    fn gathered(view: RootView, start: usize, lacking: &[(u16, u32)], is_open: bool) -> (Word, u64) {
        let ballot = Ballot::of(Rank::ROOT, 5, "gather", Payload::spans(lacking.iter().copied()));
        agreed(view.decide_gather(&ballot, start, is_open))
    }

    fn span(kind: u16, first: u32, last: u32) -> Span {
        Span { kind, first, last }
    }

    #[test]
    fn what_other_nodes_hold_makes_a_candidate_complete() {
        let view = || three([false, false, true]);
        // All homes have ways to version 3. No rank is asked about redundancy sets of version 2, which would not be preferred.
        let (word, complete) = gathered(view(), 0, &[(1, 2)], true);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b101));
    }

    #[test]
    fn what_a_set_may_give_back_is_sought_before_anything_is_elected() {
        let lacking = [(0, 5), (0, 6), (0, 9), (1, 2)];
        let (word, complete) = gathered(three([false, false, true]), 0, &lacking, true);
        assert_eq!((word, complete), (Word::Seek(vec![span(0, 5, 6), span(0, 9, 9), span(1, 2, 2)]), 0b100));
        // Some of the shards can be rebuilt, and some cannot.
        let (word, complete) = gathered(three([false, false, true]), 0, &[(0, 9)], false);
        assert_eq!((tried(&word), complete), (Some((2, false)), 0b110));
        let (word, complete) = gathered(three([false, false, true]), 0, &[(1, 2)], false);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b101));
    }

    #[test]
    fn one_shard_that_nobody_holds_leaves_a_candidate_incomplete() {
        let (word, complete) = gathered(three([false, true, true]), 0, &[(0, 0)], false);
        assert_eq!((tried(&word), complete), (Some((2, false)), 0b110));
        // The global tier has the whole version, so what is lacking in memory changes nothing.
        let (word, complete) = gathered(three([true; 3]), 0, &[(0, 0)], false);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b111));
    }

    #[test]
    fn what_other_nodes_hold_is_of_the_last_window() {
        let view = three([false; 3]);
        let (word, complete) = gathered(view, 1, &[(1, 0)], false);
        assert_eq!((tried(&word), complete), (Some((2, false)), 0b01));
    }

    #[test]
    fn shards_whose_copies_nobody_trusts_are_sought_and_leave_their_candidate_what_it_is() {
        let view = || RootView { current: Some(three([true; 3]).known[0]), ..three([true; 3]) };
        let (word, _) = gathered(view(), 0, &[(DISTRUSTED, 0), (DISTRUSTED, 1)], true);
        assert_eq!(word, Word::Seek(vec![span(0, 0, 1)]));
        let (word, complete) = gathered(view(), 0, &[], false);
        assert_eq!((tried(&word), complete), (Some((3, false)), 0b111));
    }

    #[test]
    fn a_version_that_was_left_behind_is_so_also_when_a_damaged_copy_makes_all_ranks_look_elsewhere() {
        let mut view = view(&[at(2, 55, from(1, 50)), at(1, 60, None), at(1, 50, None)], &[true; 3]);
        (view.want, view.current) = (Want::Version(60), Some(view.known[1]));
        assert_eq!(tried(&view.elect()), Some((60, true)));
        assert_eq!(tried(&gathered(view, 0, &[], true).0), Some((60, true)));
    }

    #[test]
    fn what_was_committed_and_is_passed_over_is_told_with_what_it_lacks() {
        // Of versions 5 to 1, the last four are in the window. All are committed, and only version 2 is whole.
        let known: Vec<_> = (1..=5).rev().map(|version| at(1, version, None)).collect();
        let mut view = view(&known, &[false, false, false, true, false]);
        (view.committed, view.lost) = (vec![true; 5], vec![span(0, 1, 2), span(0, 7, 7), span(1, 0, 3)]);
        let chosen = |view: &RootView, place: usize| view.choose(known[place], false);
        let told = view.passed_over(1, &chosen(&view, 3)).expect("versions 4 and 3");
        assert!(told.contains("version 4 ") && told.contains("older=1 "), "{told}");
        assert!(told.contains("shards of ranks 1-2, 7, and"), "{told}");
        // The elected version is not passed over, even if its copies are sought only now; nor are older versions.
        assert!(view.passed_over(1, &chosen(&view, 1)).is_none());
        // If nothing was elected, every version that is not whole is passed over.
        let told = view.passed_over(1, &Word::NextWindow).expect("versions 4, 3 and 1");
        assert!(told.contains("version 4 ") && told.contains("older=2 "), "{told}");
        // Nobody misses versions that were not committed, or versions that are whole.
        (view.committed[1], view.complete[2]) = (false, true);
        assert!(view.passed_over(1, &chosen(&view, 3)).is_none());
        let told = view.passed_over(1, &Word::NextWindow).expect("version 1");
        assert!(told.contains("version 1 ") && told.contains("older=0 "), "{told}");
    }

    #[test]
    fn a_candidate_is_tried_with_the_manifests_that_the_root_has_of_it() {
        let manifest = Manifest {
            job: "job".into(),
            group: "world".into(),
            name: "heat".into(),
            key: at(1, 2, None).key,
            agreement: 1,
            group_size: SIZE,
            origin: None,
            level: Level::System,
            sources: Vec::new(),
            containers: Vec::new(),
        };
        let mut view = three([false, true, true]);
        view.manifests = vec![(view.known[1], vec![(TierId::GLOBAL, manifest.clone())])];
        let Word::Try(choice) = gathered(view, 1, &[], true).0 else { panic!("one is complete") };
        assert_eq!((choice.candidate.key.version, choice.manifests), (2, vec![(TierId::GLOBAL, manifest)]));
    }

    #[test]
    fn an_attempt_counts_if_all_ranks_have_loaded_it() {
        let end = |failure: Option<bool>, has_looked: bool| {
            let mut view = three([true; 3]);
            view.current = Some(view.known[0]);
            view.distrusted = view.current.filter(|_| has_looked);
            let mut ballot = Ballot::of(Rank::ROOT, 5, "end", Payload::None).with_sums(vec![(AT_THE_END, 1)]);
            if let Some(retry) = failure {
                ballot = ballot.failed(Rank(2), "a flipped bit", retry);
            }
            view.decide_end(&ballot)
        };
        assert_eq!(agreed::<(Word, Option<Tried>)>(end(None, false)), (Word::Done, None));
        assert_eq!(agreed::<(Word, Option<Tried>)>(end(Some(true), false)), (Word::Gather, None));
        let (word, failed) = agreed::<(Word, Option<Tried>)>(end(Some(true), true));
        assert_eq!(tried(&word), Some((2, false)), "the next older one");
        let failed = failed.expect("it was tried");
        assert_eq!((failed.key.version, failed.culprits), (3, vec![culprit(true)]));
        let (outcome, elsewhere) = end(Some(false), true);
        assert_eq!((outcome, elsewhere), (Outcome::Abandoned(vec![culprit(false)]), vec![]));
        // One rank ends the attempt, while another rank loads something together with all others.
        let ended = Ballot::default().failed(Rank(2), "a flipped bit", true).with_sums(vec![(AT_THE_END, 1)]);
        let ended = Ballot { votes: 1, ..ended };
        let other = Ballot::of(Rank::ROOT, 7, "load", Payload::None);
        let (outcome, elsewhere) = three([true; 3]).decide_end(&ended.merge(other));
        assert_eq!((outcome, elsewhere), (Outcome::Abandoned(vec![culprit(true)]), ELSEWHERE.to_vec()));
    }
}
