//! Where numbers are looked at: in cells of neighbouring numbers, which are dealt over the ranks and over windows.
//!
//! All ranks work at one window at a time, so that none has more at once than it has room for. Cells are dealt by a hash of their places: however
//! the numbers lie in the array, in one corner or in regular steps, each rank gets about as many of them in each window, and nothing but a sum over all ranks
//! has to be known before.

use crate::base::Rank;
use std::ops::Range;

/// Numbers of a cell.
pub const CELL: u64 = 4 << 10;
/// Numbers that a rank looks at in one window, on average. Of each it hears twice, that it is there and that it is wanted, in 32 bytes at most, and makes
/// a run of 24 bytes: less than 64 MiB in all, also where no two numbers lie one behind the other. What several ranks want counts for each of them.
const NUMBERS: u64 = 1 << 19;

/// Numbers one behind the other that lie one behind the other in a memory or region too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stretch {
    /// The first of them.
    pub number: u64,
    /// Its place.
    pub at: u64,
    /// How many, at most [`CELL`].
    pub count: u32,
}

impl Stretch {
    /// Behind the last number.
    pub fn end(&self) -> u64 {
        self.number + u64::from(self.count)
    }

    /// As much of it as is in a range of numbers.
    pub fn within(&self, range: &Range<u64>) -> Option<Stretch> {
        let (number, end) = (self.number.max(range.start), self.end().min(range.end));
        (number < end).then(|| Stretch { number, at: self.at + (number - self.number), count: (end - number) as u32 })
    }
}

/// How cells are dealt. The same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    ranks: u32,
    count: u64,
}

impl Windows {
    /// For lists that have so many numbers, all ranks' together.
    pub fn new(numbers: u64, ranks: u32) -> Windows {
        let ranks = ranks.max(1);
        Windows { ranks, count: numbers.div_ceil(NUMBERS * u64::from(ranks)).max(1) }
    }

    /// How many windows there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The window that a number is looked at in, and the rank that does.
    pub fn place(&self, number: u64) -> (u64, Rank) {
        let hash = mixed(number / CELL);
        (hash % self.count, Rank((hash / self.count % u64::from(self.ranks)) as u32))
    }
}

/// A list as it is told: its stretches, by window and owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dealt {
    /// Sorted by their numbers; none lies over the border of a cell.
    stretches: Vec<Stretch>,
    /// Window, owner, and which stretches those of each cell are; sorted.
    cells: Vec<(u64, Rank, Range<usize>)>,
}

impl Dealt {
    /// A list, given by its [`stretches`].
    pub fn new(windows: Windows, stretches: Vec<Stretch>) -> Dealt {
        let by_cell = stretches.chunk_by(|one, next| one.number / CELL == next.number / CELL);
        let mut end = 0;
        let cells = by_cell.map(|cell| {
            let (window, owner) = windows.place(cell[0].number);
            let start = end;
            end += cell.len();
            (window, owner, start..end)
        });
        let mut cells: Vec<_> = cells.collect();
        cells.sort_unstable_by_key(|(window, owner, at)| (*window, *owner, at.start));
        Dealt { stretches, cells }
    }

    /// What of it is looked at in one window, by the owners of its cells.
    pub fn of(&self, window: u64) -> impl Iterator<Item = (Rank, Vec<Stretch>)> + '_ {
        let from = self.cells.partition_point(|(of, ..)| *of < window);
        let to = self.cells.partition_point(|(of, ..)| *of <= window);
        self.cells[from..to].chunk_by(|one, next| one.1 == next.1).map(|cells| {
            let stretches = cells.iter().flat_map(|(.., at)| &self.stretches[at.clone()]);
            (cells[0].1, stretches.copied().collect())
        })
    }
}

/// Stretches of a list, whose first number is at place `first`, sorted by their numbers.
pub fn stretches(list: &[u64], first: u64) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (at, number) in (first..).zip(list) {
        match stretches.last_mut() {
            Some(last) if last.end() == *number && number % CELL != 0 => last.count += 1,
            _ => stretches.push(Stretch { number: *number, at, count: 1 }),
        }
    }
    stretches.sort_unstable();
    stretches
}

/// The place of a cell, mixed so that near ones come to lie anywhere.
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
        ) {
            // With neighbours.
            let list: Vec<u64> = list.iter().flat_map(|number| *number..number + number % 7 + 1).collect();
            let stretches = stretches(&list, first);
            let of = |stretch: &Stretch| (0..u64::from(stretch.count)).map(|step| (stretch.number + step, stretch.at + step)).collect::<Vec<_>>();
            let mut all: Vec<(u64, u64)> = stretches.iter().flat_map(of).collect();
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
            // Every number is in one window, and with one owner.
            let windows = Windows { ranks: 3, count: 4 };
            let told = Dealt::new(windows, stretches);
            let mut dealt = Vec::new();
            for (window, (owner, some)) in (0..4).flat_map(|window| told.of(window).map(move |some| (window, some))) {
                prop_assert!(some.iter().all(|one| windows.place(one.number) == (window, owner)));
                prop_assert!(some.is_sorted());
                dealt.extend(some.iter().flat_map(of));
            }
            dealt.sort_unstable();
            prop_assert_eq!(dealt, all);
        }
    }

    #[test]
    fn numbers_are_dealt_evenly_wherever_they_lie() {
        let ranks = 16u32;
        for step in [1u64, 16, 48, 1 << 20, (1 << 30) + 1] {
            let cells = 64_000u64;
            let windows = Windows::new(cells * CELL, ranks);
            assert_eq!(windows.count(), cells * CELL / (NUMBERS * u64::from(ranks)) + 1);
            let mut got = vec![0u64; windows.count() as usize * ranks as usize];
            for cell in 0..cells {
                let (window, owner) = windows.place(cell * step * CELL);
                got[window as usize * ranks as usize + owner.0 as usize] += CELL;
            }
            let busiest = got.iter().max().copied().unwrap_or(0);
            assert!(busiest < NUMBERS * 3 / 2, "step {step}: {busiest} numbers");
        }
        assert_eq!(Windows::new(0, 4).count(), 1);
        assert_eq!(Windows::new(NUMBERS * 4, 4).count(), 1);
        assert_eq!(Windows::new(NUMBERS * 4 + 1, 4).count(), 2);
    }
}
