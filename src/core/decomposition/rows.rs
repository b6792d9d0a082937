//! Rows whose number changes freely, such as particles: the rows of a rank, and their place among the rows of all
//! ranks.
//!
//! A set of rows has columns, each a region `<set>/<column>` of the shard. The number of a rank's rows and their bounds in space are
//! recorded. A checkpoint does not record their place among the rows of other ranks. A load determines it: rows are in the order of the
//! ranks that saved them, and a rank's first row comes after all rows of the ranks before it ([`Scan`]).

use super::DIMS;
use super::packed::ELEMENTS_MAX;
use crate::base::Rank;
use crate::format::numbers;
use std::collections::BTreeMap;
use std::ops::Range;

/// The separator between the name of a set of rows and that of a column in the name of a region.
const SEPARATOR: char = '/';

/// A rank's rows of one set, without their content.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowSet {
    /// The number of rows.
    pub count: u64,
    /// For each dimension the bits of the least and the greatest coordinate; empty if there are no bounds.
    bounds: Vec<[u64; 2]>,
}

impl RowSet {
    /// `count` rows between these corners of space. `None` if there are too many rows, or if the corners do not both have the
    /// same number of coordinates, at most 8.
    pub fn new(count: u64, bounds: (&[f64], &[f64])) -> Option<RowSet> {
        let (low, high) = bounds;
        let fits = count <= ELEMENTS_MAX && low.len() == high.len() && low.len() <= DIMS;
        let bounds = low.iter().zip(high).map(|(low, high)| [low.to_bits(), high.to_bits()]);
        fits.then(|| RowSet { count, bounds: bounds.collect() })
    }

    /// The bounds in space: for each dimension the least and the greatest coordinate. Empty if the program gave none.
    pub fn bounds(&self) -> Vec<[f64; 2]> {
        self.bounds.iter().map(|corners| corners.map(f64::from_bits)).collect()
    }

    /// Appends it to `bytes`.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        numbers::put(bytes, self.count);
        bytes.push(self.bounds.len() as u8);
        self.bounds.iter().flatten().for_each(|corner| bytes.extend(corner.to_le_bytes()));
    }

    /// Takes one off the front of `bytes`; `None` unless it is possible.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<RowSet> {
        let count = numbers::take(bytes).filter(|count| *count <= ELEMENTS_MAX)?;
        let (dims, rest) = bytes.split_first().filter(|(dims, _)| usize::from(**dims) <= DIMS)?;
        *bytes = rest;
        let mut corner = || {
            let (corner, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u64::from_le_bytes(*corner))
        };
        let bounds = (0..*dims).map(|_| Some([corner()?, corner()?])).collect::<Option<_>>()?;
        Some(RowSet { count, bounds })
    }
}

/// The name of the region of a column.
pub fn region_name(set: &str, column: &str) -> String {
    format!("{set}{SEPARATOR}{column}")
}

/// The set and the column in the name of a region.
pub fn names_of(region: &str) -> Option<(&str, &str)> {
    region.rsplit_once(SEPARATOR).filter(|(set, column)| !set.is_empty() && !column.is_empty())
}

/// Can a column have this name?
pub fn is_column(name: &str) -> bool {
    !name.is_empty() && !name.contains(SEPARATOR)
}

/// The rows of a rank if all rows are distributed evenly.
pub fn even(total: u64, rank: Rank, ranks: u32) -> Range<u64> {
    let first = |rank: u32| (u128::from(total) * u128::from(rank) / u128::from(ranks.max(1))) as u64;
    first(rank.0)..first(rank.0 + 1)
}

/// The ranks that have some of these rows if all rows are distributed evenly.
pub fn even_ranks(rows: &Range<u64>, total: u64, ranks: u32) -> Range<u32> {
    if rows.is_empty() || rows.end > total {
        return 0..0;
    }
    // The last rank whose first row does not come after `row`.
    let owner = |row: u64| (((u128::from(row) + 1) * u128::from(ranks) - 1) / u128::from(total)) as u32;
    owner(rows.start)..owner(rows.end - 1) + 1
}

/// The sum over all ranks before this one, found by doubling: in each step, a rank sends its number to a rank twice as far away as in
/// the previous step. Pure.
pub struct Scan {
    rank: u32,
    ranks: u32,
    /// This rank's own number.
    own: u64,
    /// The part of the sum over the ranks before this one that is known so far.
    before: u64,
    /// The current step, and whether this rank has sent its number in it.
    step: u32,
    has_sent: bool,
    /// Numbers that have arrived before their step.
    early: BTreeMap<u32, u64>,
}

impl Scan {
    /// The scan of a rank with the number `own` in a group of `ranks` ranks.
    pub fn new(rank: Rank, ranks: u32, own: u64) -> Scan {
        Scan { rank: rank.0, ranks, own, before: 0, step: 0, has_sent: false, early: BTreeMap::new() }
    }

    /// The next message, if its content is known: the receiver, the step, and the number. The message then counts as
    /// sent.
    pub fn send(&mut self) -> Option<(Rank, u32, u64)> {
        let to = self.receiver().filter(|_| !self.has_sent)?;
        // The number that arrives in this step is not included.
        let message = (to, self.step, self.before.saturating_add(self.own));
        self.has_sent = true;
        self.advance();
        Some(message)
    }

    /// Takes a number that was sent to this rank in a step; false if such a message is impossible.
    pub fn take(&mut self, from: Rank, step: u32, number: u64) -> bool {
        let is_due = 1u32.checked_shl(step).is_some_and(|distance| from.0.checked_add(distance) == Some(self.rank));
        if !is_due || step < self.step || self.early.contains_key(&step) {
            return false;
        }
        self.early.insert(step, number);
        self.advance();
        true
    }

    /// Continues to the next step in which this rank sends or receives.
    fn advance(&mut self) {
        while !self.is_done() && (self.has_sent || self.receiver().is_none()) {
            if self.is_told() {
                let Some(number) = self.early.remove(&self.step) else { return };
                self.before = self.before.saturating_add(number);
            }
            (self.step, self.has_sent) = (self.step + 1, false);
        }
    }

    /// The rank to which this rank sends its number in this step.
    fn receiver(&self) -> Option<Rank> {
        let to = self.rank.checked_add(1u32.checked_shl(self.step)?)?;
        (to < self.ranks).then_some(Rank(to))
    }

    /// Does another rank send this rank a number in this step?
    fn is_told(&self) -> bool {
        1u32.checked_shl(self.step).is_some_and(|distance| distance <= self.rank)
    }

    /// Has this rank sent and received everything? Distances grow, so a rank with nothing to do in one step has nothing to do in
    /// later ones either.
    pub fn is_done(&self) -> bool {
        self.receiver().is_none() && !self.is_told()
    }

    /// The sum over the ranks before this one, once all is done.
    pub fn before(&self) -> Option<u64> {
        self.is_done().then_some(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_set_comes_back_and_what_cannot_be_one_is_refused() {
        for (low, high) in [(&[][..], &[][..]), (&[0.0, -1.5, f64::NAN], &[1.0, f64::INFINITY, 2.0])] {
            let set = RowSet::new(1 << 40, (low, high)).expect("it can be");
            let mut bytes = Vec::new();
            set.put(&mut bytes);
            assert_eq!(RowSet::take(&mut &bytes[..]), Some(set.clone()));
            assert!((0..bytes.len()).all(|end| RowSet::take(&mut &bytes[..end]).is_none()));
            assert_eq!(set.bounds().len(), low.len());
        }
        assert!(RowSet::new(1, (&[1.0], &[])).is_none() && RowSet::new(1, (&[0.0; 9], &[1.0; 9])).is_none());
        assert!(RowSet::new(u64::MAX, (&[], &[])).is_none());
        assert!(RowSet::take(&mut &[1, 9, 0][..]).is_none());
    }

    #[test]
    fn names_come_apart_as_they_were_put_together() {
        assert_eq!(names_of(&region_name("a/b", "x")), Some(("a/b", "x")));
        assert!(names_of("x").is_none() && names_of("/x").is_none() && names_of("x/").is_none());
        assert!(is_column("x") && !is_column("") && !is_column("a/b"));
    }

    proptest! {
        #[test]
        fn whoever_has_some_of_the_rows_is_among_their_ranks(total in 1u64..60, ranks in 1u32..20, from in 0u64..60, to in 0u64..60) {
            let rows = from.min(to).min(total)..to.max(from).min(total);
            let owners = even_ranks(&rows, total, ranks);
            for rank in 0..ranks {
                let own = even(total, Rank(rank), ranks);
                let has = own.start.max(rows.start) < own.end.min(rows.end);
                prop_assert!(!has || owners.contains(&rank));
            }
            let first = |rank: u32| even(total, Rank(rank), ranks);
            prop_assert!(rows.is_empty() || first(owners.start).contains(&rows.start) && first(owners.end - 1).contains(&(rows.end - 1)));
        }

        #[test]
        fn a_scan_says_what_those_before_have_in_whichever_order_messages_come(
            all in proptest::collection::vec(0u64..1000, 1..40),
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let ranks = all.len() as u32;
            let mut scans: Vec<Scan> = (0..ranks).zip(&all).map(|(rank, own)| Scan::new(Rank(rank), ranks, *own)).collect();
            let mut under_way = Vec::new();
            let mut picks = picks.into_iter();
            loop {
                for from in 0..ranks {
                    while let Some((to, step, number)) = scans[from as usize].send() {
                        under_way.push((Rank(from), to, step, number));
                    }
                }
                if under_way.is_empty() {
                    break;
                }
                let (from, to, step, number) = under_way.swap_remove(picks.next().expect("enough").index(under_way.len()));
                prop_assert!(scans[to.0 as usize].take(from, step, number));
                prop_assert!(!scans[to.0 as usize].take(from, step, number));
            }
            for (rank, scan) in scans.iter().enumerate() {
                prop_assert_eq!(scan.before(), Some(all[..rank].iter().sum()));
            }
        }
    }
}
