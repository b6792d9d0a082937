//! The cells in which numbers are examined: neighbouring numbers, which are distributed over the ranks and over
//! windows.
//!
//! All ranks work on one window at a time, so that none needs more memory than it has. Cells are distributed by a hash of their places.
//! So each rank gets about the same number of numbers in each window, whether these lie in one corner of the array or at regular steps.
//! Only one sum over all ranks must be known beforehand.

use crate::base::Rank;
use std::collections::BTreeMap;
use std::ops::Range;

/// The number of numbers in a cell.
pub const CELL: u64 = 4 << 10;
/// The average number of stretches that a rank examines in one window: those that ranks have and those that ranks want. A stretch takes at
/// most 32 bytes in a post, and the two kinds together yield at most as many runs of 24 bytes as they have stretches: less than 64 MiB in
/// all. A stretch that several ranks want counts once for each of them.
pub const STRETCHES: u64 = 1 << 19;

/// Consecutive numbers that are also consecutive in a memory or region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stretch {
    /// The first number.
    pub number: u64,
    /// Its place.
    pub at: u64,
    /// How many numbers there are, at most [`CELL`].
    pub count: u32,
}

impl Stretch {
    /// The first number after the stretch.
    pub fn end(&self) -> u64 {
        self.number + u64::from(self.count)
    }

    /// The part of it in a range of numbers.
    pub fn within(&self, range: &Range<u64>) -> Option<Stretch> {
        let (number, end) = (self.number.max(range.start), self.end().min(range.end));
        (number < end).then(|| Stretch { number, at: self.at + (number - self.number), count: (end - number) as u32 })
    }
}

/// How cells are distributed. The same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    ranks: u32,
    count: u64,
}

impl Windows {
    /// The windows for lists that have this many stretches on all ranks together.
    pub fn new(stretches: u64, ranks: u32) -> Windows {
        let ranks = ranks.max(1);
        Windows { ranks, count: stretches.div_ceil(STRETCHES * u64::from(ranks)).max(1) }
    }

    /// The number of windows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The window in which a number is examined, and the rank that examines it.
    pub fn place(&self, number: u64) -> (u64, Rank) {
        let hash = mixed(number / CELL);
        (hash % self.count, Rank((hash / self.count % u64::from(self.ranks)) as u32))
    }
}

/// Do two consecutive entries of a list belong to one stretch?
fn is_next(one: u64, next: u64) -> bool {
    one.checked_add(1) == Some(next) && !next.is_multiple_of(CELL)
}

/// The number of stretches of a list.
pub fn stretches(list: &[u64]) -> u64 {
    let ends = list.windows(2).filter(|pair| !is_next(pair[0], pair[1])).count();
    (ends + usize::from(!list.is_empty())) as u64
}

/// The numbers of a list in the cells of one window, by the owners of the cells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    windows: Windows,
    window: u64,
    /// The most recent cell, and its owner if it belongs to the window.
    last: Option<(u64, Option<Rank>)>,
    /// The stretches; none crosses the border of a cell.
    by_owner: BTreeMap<Rank, Vec<Stretch>>,
    /// The number of stretches, and the maximum number that are kept.
    count: u64,
    most: u64,
}

impl Told {
    /// An empty collection for the stretches of one window.
    pub fn new(windows: Windows, window: u64) -> Told {
        Told { windows, window, last: None, by_owner: BTreeMap::new(), count: 0, most: u64::MAX }
    }

    /// An empty collection for the stretches of a single window. If there are more than `most`, only their number is kept.
    pub fn of_all(ranks: u32, most: u64) -> Told {
        Told { most, ..Told::new(Windows::new(0, ranks), 0) }
    }

    /// Adds some numbers of the list, of which the first is at place `first`.
    pub fn add(&mut self, first: u64, numbers: &[u64]) {
        let mut at = first;
        // Consecutive numbers in one cell.
        for run in numbers.chunk_by(|one, next| is_next(*one, *next)) {
            let (number, count) = (run[0], run.len() as u32);
            let cell = number / CELL;
            let owner = match self.last {
                Some((last, owner)) if last == cell => owner,
                _ => {
                    let (window, owner) = self.windows.place(number);
                    (window == self.window).then_some(owner)
                }
            };
            self.last = Some((cell, owner));
            if let Some(owner) = owner {
                self.put(owner, Stretch { number, at, count });
            }
            at += run.len() as u64;
        }
    }

    fn put(&mut self, owner: Rank, stretch: Stretch) {
        if !self.is_whole() {
            self.count += 1;
            return;
        }
        let stretches = self.by_owner.entry(owner).or_default();
        match stretches.last_mut() {
            // The stretch was cut where one call's numbers end.
            Some(last)
                if last.end() == stretch.number
                    && !stretch.number.is_multiple_of(CELL)
                    && last.at + u64::from(last.count) == stretch.at =>
            {
                last.count += stretch.count;
            }
            _ => {
                self.count += 1;
                match self.count <= self.most {
                    true => stretches.push(stretch),
                    false => self.by_owner.clear(),
                }
            }
        }
    }

    /// The number of stretches. If they are not kept, a stretch that was split between two calls of [`Told::add`] counts as two.
    pub fn stretches(&self) -> u64 {
        self.count
    }

    /// Are the stretches kept?
    pub fn is_whole(&self) -> bool {
        self.count <= self.most
    }

    /// The stretches by owner, each part sorted by its numbers.
    pub fn sorted(self) -> BTreeMap<Rank, Vec<Stretch>> {
        let mut by_owner = self.by_owner;
        by_owner.values_mut().for_each(|stretches| stretches.sort_unstable());
        by_owner
    }
}

/// The place of a cell, mixed so that neighbouring cells are scattered.
fn mixed(cell: u64) -> u64 {
    let once = (cell ^ (cell >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_have_each_number_of_a_list_at_its_place(
            list in proptest::collection::vec(0u64..20_000, 0..300),
            first in 0u64..100,
            from in 0u64..20_000,
            length in 0u64..9_000,
            portion in 1usize..500,
        ) {
            // Each number is followed by some neighbours.
            let list: Vec<u64> = list.iter().flat_map(|number| *number..number + number % 7 + 1).collect();
            let windows = Windows { ranks: 3, count: 4 };
            let of = |stretch: &Stretch| (0..u64::from(stretch.count)).map(|step| (stretch.number + step, stretch.at + step)).collect::<Vec<_>>();
            let (mut all, mut stretches) = (Vec::new(), Vec::new());
            for window in 0..4 {
                let mut told = Told::new(windows, window);
                let mut at = first;
                for some in list.chunks(portion) {
                    told.add(at, some);
                    at += some.len() as u64;
                }
                for (owner, some) in told.sorted() {
                    // Every number is in exactly one window, and belongs to one owner.
                    prop_assert!(some.iter().all(|one| windows.place(one.number) == (window, owner)));
                    prop_assert!(some.is_sorted());
                    all.extend(some.iter().flat_map(of));
                    stretches.extend(some);
                }
            }
            let mut expected: Vec<(u64, u64)> = list.iter().copied().zip(first..).collect();
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(&all, &expected);
            prop_assert!(stretches.iter().all(|one| one.number / CELL == (one.end() - 1) / CELL));
            let range = from..from + length;
            let mut within: Vec<(u64, u64)> = stretches.iter().filter_map(|one| one.within(&range)).flat_map(|one| of(&one)).collect();
            within.sort_unstable();
            expected.retain(|(number, _)| range.contains(number));
            prop_assert_eq!(within, expected);
        }
    }

    #[test]
    fn numbers_one_behind_the_other_are_told_as_one() {
        let list: Vec<u64> = (5..2 * CELL).collect();
        let mut told = Told::new(Windows::new(0, 1), 0);
        let mut at = 0;
        for some in list.chunks(100) {
            told.add(at, some);
            at += some.len() as u64;
        }
        let whole = |number, at, count: u64| Stretch { number, at, count: count as u32 };
        assert_eq!((told.stretches(), stretches(&list)), (2, 2));
        assert_eq!(told.sorted()[&Rank(0)], [whole(5, 0, CELL - 5), whole(CELL, CELL - 5, CELL)]);
    }

    #[test]
    fn of_too_many_stretches_none_is_kept() {
        let list: Vec<u64> = (0..1000).map(|at| at * 3).collect();
        for (most, is_whole) in [(1000, true), (999, false), (0, false)] {
            let mut told = Told::of_all(3, most);
            list.chunks(7).enumerate().for_each(|(at, some)| told.add(at as u64 * 7, some));
            assert_eq!((told.is_whole(), told.stretches(), stretches(&list)), (is_whole, 1000, 1000));
            let kept: usize = told.sorted().values().map(Vec::len).sum();
            assert_eq!(kept, if is_whole { 1000 } else { 0 });
        }
    }

    #[test]
    fn numbers_are_dealt_evenly_wherever_they_lie() {
        let ranks = 16u32;
        for step in [1u64, 16, 48, 1 << 20, (1 << 30) + 1] {
            let cells = 64_000u64;
            let windows = Windows::new(cells * CELL, ranks);
            assert_eq!(windows.count(), cells * CELL / (STRETCHES * u64::from(ranks)) + 1);
            let mut got = vec![0u64; windows.count() as usize * ranks as usize];
            for cell in 0..cells {
                let (window, owner) = windows.place(cell * step * CELL);
                got[window as usize * ranks as usize + owner.0 as usize] += CELL;
            }
            let busiest = got.iter().max().copied().unwrap_or(0);
            assert!(busiest < STRETCHES * 3 / 2, "step {step}: {busiest} numbers");
        }
        assert_eq!(Windows::new(0, 4).count(), 1);
        assert_eq!(Windows::new(STRETCHES * 4, 4).count(), 1);
        assert_eq!(Windows::new(STRETCHES * 4 + 1, 4).count(), 2);
    }
}
