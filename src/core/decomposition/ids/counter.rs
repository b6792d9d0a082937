//! The work of a cell's owner: ranks tell it about the numbers in its cells, and it finds out whether each number has one owner, and which
//! rank gets it from where.

use super::windows::{CELL, Stretch, Windows};
use crate::base::Rank;
use crate::decomposition::run::Run;
use crate::format::numbers;
use std::collections::BTreeMap;

/// The approximate length of a post in bytes. Longer content is split over several posts.
const POST_BYTES: usize = 64 << 10;
/// The maximum number of bytes of a stretch in a post.
const STRETCH_BYTES: usize = 30;

/// A rank's statement about some numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Said {
    /// They are in the list of this rank, or old rank, for which the sender speaks.
    Has(Rank),
    /// The sender wants them.
    Wants,
}

/// Posts with which a rank makes this statement about stretches, which are sorted.
pub fn posts(said: Said, stretches: &[Stretch]) -> impl Iterator<Item = Vec<u8>> + '_ {
    stretches.chunks(POST_BYTES / STRETCH_BYTES).map(move |some| {
        let mut bytes = Vec::new();
        let head = match said {
            Said::Wants => 0,
            Said::Has(rank) => u64::from(rank.0) + 1,
        };
        numbers::put(&mut bytes, head);
        let (mut end, mut place) = (0u64, 0u64);
        for stretch in some {
            numbers::put(&mut bytes, numbers::from_step(stretch.number.wrapping_sub(end) as i64));
            numbers::put(&mut bytes, u64::from(stretch.count));
            numbers::put(&mut bytes, numbers::from_step(stretch.at.wrapping_sub(place) as i64));
            (end, place) = (stretch.end(), stretch.at + u64::from(stretch.count));
        }
        bytes
    })
}

/// Posts with which a rank makes this statement about stretches to their owners.
pub fn told(by_owner: BTreeMap<Rank, Vec<Stretch>>, said: Said) -> Vec<(Rank, Vec<u8>)> {
    let mut all = Vec::new();
    for (owner, stretches) in by_owner {
        all.extend(posts(said, &stretches).map(|post| (owner, post)));
    }
    all
}

/// Numbers that are in some rank's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Offered {
    stretch: Stretch,
    /// The rank whose list it is.
    of: Rank,
    /// The rank that made the statement.
    reader: Rank,
}

// The number of windows is based on these sizes.
const _: () = assert!(size_of::<Offered>() <= 32 && size_of::<(Stretch, Rank)>() <= 32);

/// A mistake in the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wrong {
    /// Two ranks have a number: the first such number, and the ranks.
    Twice(u64, Rank, Rank),
    /// A rank wants a number, and no rank has it.
    Missing(u64, Rank),
    /// No rank has the numbers from the first up to the second.
    Gap(u64, u64),
}

impl Wrong {
    /// The mistake as bytes, ordered so that the greatest bytes are those to be reported: numbers that two ranks have before numbers that
    /// no rank has, and then the lowest number.
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, number, rest) = match self {
            Wrong::Twice(number, one, other) => (2u8, number, u64::from(one.0) << 32 | u64::from(other.0)),
            Wrong::Missing(number, rank) => (1, number, u64::from(rank.0)),
            Wrong::Gap(number, end) => (0, number, end),
        };
        let mut bytes = vec![kind];
        bytes.extend((!number).to_be_bytes());
        bytes.extend(rest.to_be_bytes());
        bytes
    }

    /// The mistake from such bytes; `None` if they are not from [`Wrong::to_bytes`].
    pub fn of_bytes(bytes: &[u8]) -> Option<Wrong> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let number = !u64::from_be_bytes(*number);
        let rest = u64::from_be_bytes(rest.try_into().ok()?);
        let low = Rank(rest as u32);
        match kind {
            2 => Some(Wrong::Twice(number, Rank((rest >> 32) as u32), low)),
            1 => Some(Wrong::Missing(number, low)),
            0 => Some(Wrong::Gap(number, rest)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wrong::Twice(number, one, other) => {
                write!(f, "number {number} is in the lists of both rank {one} and rank {other}")
            }
            Wrong::Missing(number, rank) => write!(f, "no rank saved number {number}, which rank {rank} loads"),
            Wrong::Gap(number, end) if end - number == 1 => write!(f, "number {number} is in no rank's list"),
            Wrong::Gap(number, end) => write!(f, "numbers {number} to {} are in no rank's list", end - 1),
        }
    }
}

/// An owner's result for its cells of one window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Joined {
    /// The runs of each list that each reader sends.
    pub runs: BTreeMap<(Rank, Rank), Vec<Run>>,
    /// How many numbers are wanted in these cells; a number counts as often as it is wanted.
    pub wanted: u64,
    /// How many numbers the runs have.
    pub matched: u64,
}

/// One rank's cells of one window.
#[derive(Clone, Debug)]
pub struct Counter {
    windows: Windows,
    /// The window, and this rank.
    place: (u64, Rank),
    /// The number of elements of the array.
    total: u64,
    has: Vec<Offered>,
    wants: Vec<(Stretch, Rank)>,
}

impl Counter {
    /// The cells before any post has arrived.
    pub fn new(windows: Windows, window: u64, rank: Rank, total: u64) -> Counter {
        Counter { windows, place: (window, rank), total, has: Vec::new(), wants: Vec::new() }
    }

    /// Takes a post from a rank; `None` if it is truncated, or concerns a cell of another rank or window, or numbers that no element has.
    pub fn take(&mut self, from: Rank, mut bytes: &[u8]) -> Option<()> {
        let said = match numbers::take(&mut bytes)? {
            0 => Said::Wants,
            rank => Said::Has(Rank(u32::try_from(rank - 1).ok()?)),
        };
        let (mut end, mut place) = (0u64, 0u64);
        while !bytes.is_empty() {
            let number = end.wrapping_add(numbers::to_step(numbers::take(&mut bytes)?) as u64);
            let count = numbers::take(&mut bytes).filter(|count| (1..=CELL).contains(count))?;
            let at = place.wrapping_add(numbers::to_step(numbers::take(&mut bytes)?) as u64);
            end = number.checked_add(count).filter(|end| *end <= self.total)?;
            place = at.checked_add(count)?;
            if number / CELL != (end - 1) / CELL || self.windows.place(number) != self.place {
                return None;
            }
            let stretch = Stretch { number, at, count: count as u32 };
            match said {
                Said::Has(of) => self.has.push(Offered { stretch, of, reader: from }),
                Said::Wants => self.wants.push((stretch, from)),
            }
        }
        Some(())
    }

    /// Finds the first number that two ranks have, if there is one. All posts must have arrived.
    pub fn twice(&mut self) -> Option<Wrong> {
        self.has.sort_unstable();
        // The offer that reaches farthest so far.
        let mut before: Option<Offered> = None;
        for offered in &self.has {
            match before {
                Some(before) if before.stretch.end() > offered.stretch.number => {
                    let (one, other) = (before.of.min(offered.of), before.of.max(offered.of));
                    return Some(Wrong::Twice(offered.stretch.number, one, other));
                }
                _ => before = Some(*offered),
            }
        }
        None
    }

    /// The first numbers below `end` that no rank has, in this rank's cells of the window, if [`Counter::twice`] has found nothing. If
    /// the lists have `end` numbers in total, but not all numbers of the array, the first missing number is not above `end`.
    pub fn first_gap(&self, end: u64) -> Option<Wrong> {
        let end = end.saturating_add(1).min(self.total);
        let cells = (0..end.div_ceil(CELL)).filter(|cell| self.windows.place(cell * CELL) == self.place);
        for cell in cells {
            let (mut next, last) = (cell * CELL, ((cell + 1) * CELL).min(self.total));
            let from = self.has.partition_point(|offered| offered.stretch.number < next);
            let mut in_cell = self.has[from..].iter().map(|offered| offered.stretch);
            loop {
                match in_cell.next().filter(|stretch| stretch.number < last) {
                    Some(stretch) if stretch.number > next => return Some(Wrong::Gap(next, stretch.number)),
                    Some(stretch) => next = stretch.end(),
                    None if next < last => return Some(Wrong::Gap(next, last)),
                    None => break,
                }
            }
        }
        None
    }

    /// Matches the wanted numbers with the numbers that ranks have, if [`Counter::twice`] has found nothing.
    ///
    /// # Errors
    /// The first number that is wanted but that no rank has.
    pub fn join(&mut self) -> Result<Joined, Wrong> {
        self.wants.sort_unstable();
        let mut joined = Joined::default();
        for (want, to) in &self.wants {
            joined.wanted += u64::from(want.count);
            let mut next = want.number;
            let from = self.has.partition_point(|offered| offered.stretch.end() <= next);
            for Offered { stretch, of, reader } in &self.has[from..] {
                if stretch.number > next {
                    break;
                }
                let Some(common) = stretch.within(&(next..want.end())) else { break };
                let target = want.at + (next - want.number);
                let run = Run { at: common.at, count: common.count, to: *to, target };
                joined.runs.entry((*reader, *of)).or_default().push(run);
                joined.matched += u64::from(common.count);
                next = common.end();
            }
            if next < want.end() {
                return Err(Wrong::Missing(next, *to));
            }
        }
        joined.runs.values_mut().for_each(|runs| runs.sort_unstable_by_key(|run| (run.at, run.to)));
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::super::windows::Told;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The counters of all ranks and windows after they have received the statements about these lists, without messages. Old rank s is
    /// read by rank s modulo the number of ranks.
    fn all(total: u64, has: &[Vec<u64>], wants: &[Vec<u64>], numbers: u64) -> Vec<Counter> {
        let ranks = wants.len().max(1) as u32;
        let windows = Windows::new(numbers, ranks);
        let mut counters: Vec<Counter> = (0..windows.count())
            .flat_map(|window| (0..ranks).map(move |rank| Counter::new(windows, window, Rank(rank), total)))
            .collect();
        let mut say = |said: Said, from: u32, list: &[u64]| {
            for window in 0..windows.count() {
                let mut told = Told::new(windows, window);
                told.add(0, list);
                for (owner, some) in told.sorted() {
                    let counter = &mut counters[window as usize * ranks as usize + owner.0 as usize];
                    posts(said, &some).for_each(|post| counter.take(Rank(from), &post).expect("a post"));
                }
            }
        };
        (0..).zip(has).for_each(|(of, list)| say(Said::Has(Rank(of)), of % ranks, list));
        (0..).zip(wants).for_each(|(rank, list)| say(Said::Wants, rank, list));
        counters
    }

    fn proved(total: u64, has: &[Vec<u64>], is_sparse: bool, numbers: u64) -> Option<Wrong> {
        let none = vec![Vec::new(); has.len()];
        let mut counters = all(total, has, &none, numbers);
        let twice = counters.iter_mut().filter_map(Counter::twice).map(Wrong::to_bytes).max();
        let count: u64 = has.iter().map(|list| list.len() as u64).sum();
        let gap = || counters.iter().filter_map(|counter| counter.first_gap(count)).map(Wrong::to_bytes).max();
        let found = twice.or_else(|| (!is_sparse && count != total).then(gap).flatten());
        found.map(|bytes| Wrong::of_bytes(&bytes).expect("a finding"))
    }

    /// The numbers of an array, in an order that the keys determine, cut into lists.
    fn dealt(total: u64, keys: &[u64], ranks: usize) -> Vec<Vec<u64>> {
        let key = |number: u64| keys[number as usize % keys.len()].wrapping_mul(number | 1) % 1_000_003;
        let mut order: Vec<u64> = (0..total).collect();
        order.sort_by_key(|number| (key(*number / 5), *number));
        let mut lists = vec![Vec::new(); ranks];
        for (at, number) in (0u64..).zip(order) {
            // Some ranks get no numbers.
            lists[(keys[(at / 50) as usize % keys.len()] % ranks as u64) as usize].push(number);
        }
        lists
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn the_proof_says_what_counting_says(
            total in 1u64..12_000,
            keys in proptest::collection::vec(any::<u64>(), 1..20),
            ranks in 1usize..7,
            again in proptest::collection::vec((0u64..12_000, 0usize..7), 0..3),
            left_out in proptest::collection::vec(0u64..12_000, 0..3),
            is_sparse in any::<bool>(),
            numbers in prop_oneof![Just(0u64), Just(1 << 22)],
        ) {
            let mut lists = dealt(total, &keys, ranks);
            lists.iter_mut().for_each(|list| list.retain(|number| !left_out.contains(number)));
            for (number, rank) in again {
                let (number, list) = (number % total, &mut lists[rank % ranks]);
                if !list.contains(&number) {
                    list.push(number);
                }
            }
            let mut owners: HashMap<u64, Vec<u32>> = HashMap::new();
            for (rank, list) in (0..).zip(&lists) {
                list.iter().for_each(|number| owners.entry(*number).or_default().push(rank));
            }
            let twice = (0..total).find(|number| owners.get(number).is_some_and(|of| of.len() > 1));
            let gap = (0..total).find(|number| !owners.contains_key(number));
            let found = proved(total, &lists, is_sparse, numbers);
            match (twice, gap) {
                (Some(number), _) => {
                    // If three ranks have the number, any two of them may be reported.
                    let of = &owners[&number];
                    let is_right = matches!(found, Some(Wrong::Twice(first, one, other))
                        if first == number && one < other && of.contains(&one.0) && of.contains(&other.0));
                    prop_assert!(is_right, "{:?} and not {} of {:?}", found, number, of);
                }
                (None, Some(number)) if !is_sparse => {
                    let end = (number..total).find(|number| owners.contains_key(number)).unwrap_or(total);
                    let end = end.min((number / CELL + 1) * CELL);
                    prop_assert_eq!(found, Some(Wrong::Gap(number, end)));
                }
                _ => prop_assert_eq!(found, None),
            }
        }

        #[test]
        fn joined_runs_bring_each_number_to_everybody_who_wants_it(
            total in 1u64..9_000,
            keys in proptest::collection::vec(any::<u64>(), 1..20),
            new_keys in proptest::collection::vec(any::<u64>(), 1..20),
            old in 1usize..7,
            new in 1usize..7,
            twice in 0usize..3,
            left_out in proptest::option::of(0u64..9_000),
            numbers in prop_oneof![Just(0u64), Just(1 << 22)],
        ) {
            let mut has = dealt(total, &keys, old);
            let mut wants = dealt(total, &new_keys, new);
            // Loads may want any numbers, and several ranks may want the same ones.
            let some: Vec<u64> = wants[0].iter().copied().step_by(3).collect();
            wants.iter_mut().skip(1).take(twice).for_each(|list| list.extend(&some));
            has.iter_mut().for_each(|list| list.retain(|number| Some(*number) != left_out));
            let mut memories: Vec<Vec<u64>> = wants.iter().map(|list| vec![u64::MAX; list.len()]).collect();
            let mut sums = (0, 0);
            let mut missing = Vec::new();
            for mut counter in all(total, &has, &wants, numbers) {
                prop_assert_eq!(counter.twice(), None);
                match counter.join() {
                    Ok(joined) => {
                        sums = (sums.0 + joined.wanted, sums.1 + joined.matched);
                        for ((reader, shard), runs) in joined.runs {
                            prop_assert_eq!(reader.0, shard.0 % new as u32);
                            prop_assert!(runs.is_sorted_by_key(|run| run.at));
                            for run in runs {
                                for step in 0..u64::from(run.count) {
                                    let slot = &mut memories[run.to.0 as usize][(run.target + step) as usize];
                                    prop_assert_eq!(*slot, u64::MAX, "once");
                                    *slot = has[shard.0 as usize][(run.at + step) as usize];
                                }
                            }
                        }
                    }
                    Err(wrong) => missing.push(wrong),
                }
            }
            match left_out.filter(|number| *number < total) {
                Some(number) => {
                    prop_assert_eq!(missing.len(), 1);
                    let is_right = matches!(missing[0], Wrong::Missing(first, rank)
                        if first == number && wants[rank.0 as usize].contains(&number));
                    prop_assert!(is_right, "{}", missing[0]);
                }
                None => {
                    prop_assert_eq!(missing, vec![]);
                    prop_assert_eq!(memories, wants.clone());
                    let wanted: u64 = wants.iter().map(|list| list.len() as u64).sum();
                    prop_assert_eq!(sums, (wanted, wanted));
                }
            }
        }

        #[test]
        fn whatever_comes_nothing_beyond_the_array_is_counted(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut counter = Counter::new(Windows::new(0, 1), 0, Rank(0), 9_000);
            if counter.take(Rank(0), &bytes).is_some() {
                prop_assert!(counter.has.len() + counter.wants.len() <= bytes.len());
                prop_assert!(counter.has.iter().all(|offered| offered.stretch.end() <= 9_000));
            }
            let _ = Wrong::of_bytes(&bytes);
        }
    }

    #[test]
    fn gaps_at_the_ends_of_cells_and_whole_cells_are_found() {
        let total = 3 * CELL + 5;
        let ends = [0, 1, CELL - 1, CELL, CELL + 1, 2 * CELL, 3 * CELL - 1, 3 * CELL, total - 1, total];
        for (at, start) in ends.into_iter().enumerate() {
            for end in &ends[at + 1..] {
                let mut lists = vec![Vec::new(); 2];
                let there = (0..total).filter(|number| !(start..*end).contains(number));
                there.for_each(|number| lists[number as usize % 2].push(number));
                let first = Wrong::Gap(start, (*end).min((start / CELL + 1) * CELL));
                assert_eq!(proved(total, &lists, false, 1 << 22), Some(first), "{start}..{end}");
                assert_eq!(proved(total, &lists, true, 1 << 22), None);
            }
        }
    }

    #[test]
    fn posts_of_other_cells_or_that_are_cut_are_refused() {
        let list: Vec<u64> = (0..5000).map(|at| at * 2).collect();
        let windows = Windows::new(0, 2);
        let mut told = Told::new(windows, 0);
        told.add(0, &list);
        let told = told.sorted();
        let (owner, some) = told.first_key_value().expect("some");
        let stretches: Vec<Stretch> = told.values().flatten().copied().collect();
        let post = posts(Said::Has(Rank(1)), some).next().expect("one");
        let take = |rank, total, post: &[u8]| Counter::new(windows, 0, rank, total).take(Rank(1), post);
        assert_eq!(take(*owner, 10_000, &post), Some(()));
        assert_eq!(take(Rank(1 - owner.0), 10_000, &post), None, "another rank's cell");
        assert_eq!(take(*owner, 100, &post), None, "beyond the array");
        assert_eq!(take(*owner, 10_000, &post[..post.len() - 1]), None, "cut");
        assert_eq!(take(*owner, 10_000, &[]), None);
        assert!(posts(Said::Wants, &stretches).all(|post| post.len() <= POST_BYTES));
    }

    #[test]
    fn what_is_wrong_is_told_in_words() {
        let words = [
            (Wrong::Twice(7, Rank(1), Rank(4)), "number 7 is in the lists of both rank 1 and rank 4"),
            (Wrong::Missing(7, Rank(2)), "no rank saved number 7, which rank 2 loads"),
            (Wrong::Gap(3, 9), "numbers 3 to 8 are in no rank's list"),
            (Wrong::Gap(3, 4), "number 3 is in no rank's list"),
        ];
        for (wrong, text) in words {
            assert_eq!(wrong.to_string(), text);
            assert_eq!(Wrong::of_bytes(&wrong.to_bytes()), Some(wrong));
        }
        assert!(Wrong::Gap(3, 4).to_bytes() > Wrong::Gap(5, 6).to_bytes());
        assert!(Wrong::Twice(9, Rank(0), Rank(1)).to_bytes() > Wrong::Gap(5, 6).to_bytes());
    }
}
