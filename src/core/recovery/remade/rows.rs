//! Rows that go to ranks other than those that saved them.
//!
//! ```text
//!   counts     readers tell homes how many rows their shards have                      posts
//!   scan       homes find out where these rows are among all rows                      posts, by doubling; a reduction counts all rows
//!   places     homes tell each rank which rows it would get if all were spread evenly  posts
//!   asks       a rank that wants other rows asks the ranks that would then get them    posts
//! ```
//!
//! Then each rank knows which rows of which shards it gets, and who reads them. Each range of rows is a box in an array that has the rows
//! of one shard, and is sent as boxes are. Rows whose ranks the program itself names are sent in a different way
//! ([`scattering`](super::scattering)).

use super::super::access::ShardAccess;
use super::super::homes::{home, homed};
use super::super::load_error::LoadError;
use super::super::opener::Opener;
use super::super::outline::OutlinedDecomposition;
use super::carrier::Carrier;
use super::readers::Readers;
use super::scattering::{self, Column, Scattered};
use super::target::{self, Mapper, Target};
use super::together::{Together, plainly};
use super::{Plan, Remaking, offered};
use crate::base::Rank;
use crate::coordination::posts::Posts;
use crate::coordination::{Ballot, Outcome, Payload};
use crate::decomposition::matching::Piece;
use crate::decomposition::rows::{Scan, even, even_ranks};
use crate::decomposition::shelf::Side;
use crate::decomposition::{Boxes, ELEMENTS_MAX, Own};
use crate::format::numbers;
use crate::transfer::posting::{Handled, Next, all_at_once};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// Which rows a rank gets, in the order of the ranks that saved them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Its even share.
    Even,
    /// The rows of this range.
    Range(Range<u64>),
}

/// Says for the rows of a batch, by the values of a column, which ranks get them.
pub type Owners<'o> = dyn FnMut(&[u8], &mut [u32]) + 'o;

/// The rows of a set that a rank gets, in the order of the shards.
pub struct Dealing {
    count: u64,
    way: Way,
}

/// How rows come to this rank.
enum Way {
    /// As pieces of boxes.
    Pieces {
        /// Boxes in arrays, each of which has the rows of one shard.
        own: Box<Own>,
        /// The pieces that the rank gets.
        wanted: Vec<Piece>,
        /// Who reads and sends what, once that is known.
        plan: Option<Plan>,
    },
    /// One by one, to the ranks that the program has named.
    Scattered(Scattered),
}

/// The place of a shard's rows among all rows, and the rank that reads them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    shard: Rank,
    reader: Rank,
    is_shared: bool,
    first: u64,
    count: u64,
}

impl Placed {
    fn put(&self, bytes: &mut Vec<u8>) {
        for number in [u64::from(self.shard.0), u64::from(self.reader.0) << 1 | u64::from(self.is_shared)] {
            numbers::put(bytes, number);
        }
        numbers::put(bytes, self.first);
        numbers::put(bytes, self.count);
    }

    fn take(bytes: &mut &[u8]) -> Option<Placed> {
        let shard = Rank(u32::try_from(numbers::take(bytes)?).ok()?);
        let reader = numbers::take(bytes)?;
        let (first, count) = (numbers::take(bytes)?, numbers::take(bytes)?);
        first.checked_add(count)?;
        let (reader, is_shared) = (Rank(u32::try_from(reader >> 1).ok()?), reader & 1 == 1);
        Some(Placed { shard, reader, is_shared, first, count })
    }

    fn rows(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    /// Everything that is in a post.
    fn all_of(mut bytes: &[u8]) -> Option<Vec<Placed>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            all.push(Placed::take(&mut bytes)?);
        }
        Some(all)
    }
}

fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let first = one.start.max(other.start);
    first..one.end.min(other.end).max(first)
}

/// Finds out which rows a rank gets from where.
pub struct Finding<'r> {
    /// The step that all ranks take together; its region is a column of the set.
    pub together: Together<'r>,
    /// Opens shards.
    pub opener: &'r Opener,
    /// The number of ranks that saved the rows, and the number of ranks now.
    pub ranks: (u32, u32),
}

impl Finding<'_> {
    /// Finds rows in the order of the ranks that saved them.
    ///
    /// # Collective
    /// All ranks, each for an even share, or each for a range.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks.
    pub fn in_order(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        wanted: &Wanted,
    ) -> Result<Dealing, LoadError> {
        let (rank, (_, ranks)) = (self.together.rank(), self.ranks);
        readers.find(&self.together, self.opener, homes, None)?;
        let (counts, failure) = self.counts(readers.read_here(homes), wanted)?;
        let (first, total) = self.scan(&counts, failure)?;
        let placed = self.places(&counts, first, total)?;
        let (rows, placed) = match wanted {
            Wanted::Even => (even(total, rank, ranks), placed),
            Wanted::Range(rows) => (rows.clone(), self.asked(rows, total, &placed)?),
        };
        self.dealing(&rows, &placed)
    }

    /// What readers say about the shards whose home this rank is, in order, and what is wrong with their statements.
    fn counts(
        &self,
        shards: Vec<&mut ShardAccess>,
        wanted: &Wanted,
    ) -> Result<(Vec<Placed>, Option<LoadError>), LoadError> {
        let (together, (of, ranks)) = (&self.together, self.ranks);
        let rank = together.rank();
        let (mut first, mut failure) = (Vec::new(), None);
        for access in shards {
            let shard = access.shard();
            match offered(access, together.region) {
                Ok((dealt, side)) => {
                    let count = dealt.parts().1.elements();
                    let mut body = Vec::new();
                    Placed { shard, reader: rank, is_shared: side == Side::Shared, first: 0, count }.put(&mut body);
                    first.push((home(shard, of, ranks), body));
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let own = homed(rank, of, ranks);
        let mut counts = BTreeMap::new();
        let mut on_post = |from: Rank, mut bytes: &[u8]| {
            let placed = Placed::take(&mut bytes).filter(|placed| bytes.is_empty() && placed.reader == from);
            let placed =
                placed.filter(|placed| own.contains(&placed.shard.0)).ok_or("it is truncated, or not for this rank")?;
            match counts.insert(placed.shard, placed) {
                None => Ok(Handled::default()),
                Some(_) => Err(format!("the shard of rank {} has two readers", placed.shard)),
            }
        };
        let step = if *wanted == Wanted::Even { "an even share of rows" } else { "a range of rows" };
        let ballot = together.failed(together.ballot(step, Payload::None), failure.as_ref());
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        let is_all = counts.len() == own.len();
        let why = || format!("only {} of the {} shards that it is the home of were counted", counts.len(), own.len());
        let failure = (!is_all).then(|| together.of_this_rank(why()));
        Ok((counts.into_values().collect(), failure))
    }

    /// The number of rows before those of this rank's shards, and the number of all rows.
    fn scan(&self, counts: &[Placed], failure: Option<LoadError>) -> Result<(u64, u64), LoadError> {
        let (together, (_, ranks)) = (&self.together, self.ranks);
        let own = counts.iter().map(|placed| placed.count).fold(0, u64::saturating_add);
        let scan = RefCell::new(Scan::new(together.rank(), ranks, own));
        let mut next = |_: &Posts| {
            let mut scan = scan.borrow_mut();
            match scan.send() {
                Some((to, step, number)) => {
                    let mut body = Vec::new();
                    numbers::put(&mut body, u64::from(step));
                    numbers::put(&mut body, number);
                    Next::Post(to, body)
                }
                None if scan.is_done() => Next::Done,
                None => Next::Later,
            }
        };
        let mut on_post = |from: Rank, mut bytes: &[u8]| {
            let step = numbers::take(&mut bytes).and_then(|step| u32::try_from(step).ok());
            let number = numbers::take(&mut bytes).filter(|_| bytes.is_empty());
            let taken = step.zip(number).is_some_and(|(step, number)| scan.borrow_mut().take(from, step, number));
            taken.then(Handled::default).ok_or_else(|| "it is truncated, or belongs to no step".to_owned())
        };
        let ballot = together.failed(together.ballot("scan", Payload::None), failure.as_ref());
        let ballot = ballot.with_sums(vec![(0, own)]);
        let decide = |ballot: &Ballot| Outcome::agreed("rows", &ballot.sums);
        let verdict = together.exchange(&mut next, &mut on_post, |_| ballot, decide)?;
        let sums: Vec<(u64, u64)> = together.decode(&verdict)?;
        let total = sums.iter().find(|(key, _)| *key == 0).map_or(0, |(_, sum)| *sum);
        // The total is the same on all ranks.
        if total > ELEMENTS_MAX {
            return Err(together.of_this_rank(format!("all shards have {total} rows together, more than possible")));
        }
        let before = scan.borrow().before();
        let before = before.ok_or_else(|| together.of_this_rank("it does not know where its rows begin".into()))?;
        Ok((before, total))
    }

    /// Tells ranks about the rows that they would get if all rows were spread evenly, and learns about those of this rank.
    fn places(&self, counts: &[Placed], first: u64, total: u64) -> Result<Vec<Placed>, LoadError> {
        let (together, (_, ranks)) = (&self.together, self.ranks);
        let (mut posts, mut first) = (BTreeMap::<Rank, Vec<u8>>::new(), first);
        for placed in counts {
            let placed = Placed { first, ..*placed };
            first += placed.count;
            for to in even_ranks(&placed.rows(), total, ranks) {
                placed.put(posts.entry(Rank(to)).or_default());
            }
        }
        let mut placed = Vec::new();
        let mut on_post = |_: Rank, bytes: &[u8]| {
            placed.extend(Placed::all_of(bytes).ok_or("it is truncated")?);
            Ok(Handled::default())
        };
        let ballot = together.ballot("places", Payload::None);
        together.exchange(&mut all_at_once(posts.into_iter().collect()), &mut on_post, |_| ballot, plainly)?;
        Ok(placed)
    }

    /// Asks for the places of some rows: the ranks that are asked would get these rows if all were spread evenly.
    fn asked(&self, rows: &Range<u64>, total: u64, known: &[Placed]) -> Result<Vec<Placed>, LoadError> {
        let (together, (_, ranks)) = (&self.together, self.ranks);
        let is_one = rows.is_empty() || rows.end <= total;
        let mistake = || format!("it asks for rows {} to {}, but there are only {total}", rows.start, rows.end);
        let failure = (!is_one).then(|| together.of_this_rank(mistake()));
        let mut body = Vec::new();
        numbers::put(&mut body, rows.start);
        numbers::put(&mut body, rows.end);
        let first = even_ranks(rows, total, ranks).map(|to| (Rank(to), body.clone()));
        let mut on_post = |_: Rank, mut bytes: &[u8]| {
            let numbers = numbers::take(&mut bytes).zip(numbers::take(&mut bytes));
            let (start, end) = numbers.filter(|_| bytes.is_empty()).ok_or("it is truncated")?;
            let mut answer = Vec::new();
            let some = known.iter().filter(|placed| !common(&placed.rows(), &(start..end)).is_empty());
            some.for_each(|placed| placed.put(&mut answer));
            Ok(Handled { answer, onward: Vec::new() })
        };
        let mut placed = Vec::new();
        let vote = |answers: Vec<Vec<u8>>| {
            let ballot = together.failed(together.ballot("asks", Payload::None), failure.as_ref());
            for answer in answers {
                match Placed::all_of(&answer) {
                    Some(some) => placed.extend(some),
                    None => return ballot.failed(together.rank(), "got an invalid answer about rows", false),
                }
            }
            ballot
        };
        together.exchange(&mut all_at_once(first.collect()), &mut on_post, vote, plainly)?;
        Ok(placed)
    }

    /// These rows, as boxes of the shards that have them.
    fn dealing(&self, rows: &Range<u64>, placed: &[Placed]) -> Result<Dealing, LoadError> {
        let by_shard: BTreeMap<Rank, Placed> = placed.iter().map(|placed| (placed.shard, *placed)).collect();
        let (mut boxes, mut next) = (Vec::new(), rows.start);
        for placed in by_shard.into_values() {
            let some = common(&placed.rows(), rows);
            if some.is_empty() {
                continue;
            }
            if some.start != next {
                break;
            }
            next = some.end;
            boxes.push((placed, some.start - placed.first, some.end - some.start));
        }
        if next < rows.end {
            // All ranks hear of this, because this rank ends its attempt.
            return Err(self.together.of_this_rank(format!("no rank saved row {next}")));
        }
        let own = self.own(boxes.iter().map(|(_, first, count)| (*first, *count)))?;
        let count = own.parts().elements();
        let rank = self.together.rank();
        let pieces = (0..).zip(&boxes).zip(own.parts().own()).map(|((number, (placed, ..)), cuboid)| {
            let Placed { shard, reader, is_shared, .. } = *placed;
            Piece { reader, is_shared, shard, part: 0, to: rank, number, cuboid: *cuboid }
        });
        let wanted = pieces.collect();
        Ok(Dealing { count, way: Way::Pieces { own: own.into(), wanted, plan: None } })
    }

    /// Rows as boxes of one dimension. Each box is given by its first row in its shard, and by its number of rows.
    fn own(&self, boxes: impl Iterator<Item = (u64, u64)> + Clone) -> Result<Own, LoadError> {
        let most = boxes.clone().map(|(first, count)| first + count).max().unwrap_or(0);
        let boxes = boxes.fold(Boxes::of([most]), |all, (first, count)| all.own([first], [count]));
        boxes.check().map_err(|mistake| self.together.of_this_rank(mistake.to_string()))
    }

    /// Finds the rows that `owners` gives to this rank, by the values of the column, which has `row` bytes in each row. The rows are in the
    /// order of the ranks that saved them and, for each of these ranks, in the order in which it saved them.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks, also if `owners` names a rank that does not exist.
    pub fn by_owner(
        &self,
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        row: u64,
        owners: &mut Owners<'_>,
    ) -> Result<Dealing, LoadError> {
        let (together, (_, ranks)) = (&self.together, self.ranks);
        readers.find(together, self.opener, homes, None)?;
        let (mut scattered, mut failure) = (Scattered::default(), None);
        for access in readers.read_here(homes) {
            if let Err(error) = scattered.ask(together, access, (row, ranks), owners) {
                failure = Some(error);
                break;
            }
        }
        let mut counts: BTreeMap<Rank, (Rank, u64)> = BTreeMap::new();
        let mut on_post = |from: Rank, bytes: &[u8]| {
            for (shard, count) in scattering::said(bytes).ok_or("it is truncated")? {
                if counts.insert(shard, (from, count)).is_some() {
                    return Err(format!("the shard of rank {shard} has two readers"));
                }
            }
            Ok(Handled::default())
        };
        let ballot = together.failed(together.ballot("rows by owner", Payload::None), failure.as_ref());
        let first = scattered.counts();
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        let count = self.places_by_owner(&counts, &mut scattered)?;
        scattered.expect(counts.into_values().map(|(from, _)| from).collect());
        Ok(Dealing { count, way: Way::Scattered(scattered) })
    }

    /// Tells readers where the rows of each shard begin in this rank's memory. Returns how many rows these are in all.
    fn places_by_owner(
        &self,
        counts: &BTreeMap<Rank, (Rank, u64)>,
        scattered: &mut Scattered,
    ) -> Result<u64, LoadError> {
        let together = &self.together;
        let mut total = 0u64;
        let starts = counts.iter().map(|(shard, (from, count))| {
            let start = total;
            total = total.saturating_add(*count);
            (*from, *shard, start)
        });
        let first = scattering::posts(starts);
        let failure =
            (total > ELEMENTS_MAX).then(|| together.of_this_rank(format!("{total} rows are more than possible")));
        let mut on_post = |from: Rank, bytes: &[u8]| {
            for (shard, start) in scattering::said(bytes).ok_or("it is truncated")? {
                if !scattered.begin(shard, from, start) {
                    return Err(format!("the sender gets no rows of the shard of rank {shard} from here"));
                }
            }
            Ok(Handled::default())
        };
        let ballot = together.failed(together.ballot("places of rows", Payload::None), failure.as_ref());
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        match scattered.silent() {
            // All ranks hear of this, because this rank ends its attempt.
            Some(rank) => Err(together.of_this_rank(format!("rank {rank} has not said where its rows begin"))),
            None => Ok(total),
        }
    }
}

impl Dealing {
    /// The number of rows that this rank gets.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Loads a column, which has `row` bytes in each row, into memory for as many rows as this rank gets. If `memory` is an error, it says
    /// what keeps this rank from that.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError`], the same on all ranks.
    pub fn load(
        &mut self,
        (together, opener): (Together<'_>, &Opener),
        (homes, readers): (&mut [ShardAccess], &mut Readers),
        row: u64,
        memory: Result<&mut [u8], LoadError>,
    ) -> Result<(), LoadError> {
        match &mut self.way {
            Way::Pieces { own, wanted, plan } => {
                let own: &Own = own;
                // Rows lie on no decomposition.
                let from = OutlinedDecomposition::default();
                let target = memory.map(|memory| Target::new(own, apart(own, memory, row), row));
                // Ranks may want the same rows, or leave some out.
                let remaking = Remaking { together, opener, size: row, from: &from, own, is_proved: false };
                let plan = match plan {
                    Some(plan) => plan,
                    None => {
                        plan.insert(remaking.ask(std::mem::take(wanted), (homes, readers), &Mapper::new(own, row))?)
                    }
                };
                remaking.carry((homes, readers), plan, target)
            }
            Way::Scattered(scattered) => {
                let line = Own::line(self.count);
                let (mut target, failure) = match memory {
                    Ok(memory) => (Some(Target::new(&line, vec![memory], row)), None),
                    Err(error) => (None, Some(error)),
                };
                let column = Column { of: scattered, row };
                let (senders, receivers) = (scattered.senders(), scattered.receivers());
                let carrier = Carrier { together: &together, senders, receivers };
                carrier.send(readers.read_here(homes), &column, target.as_mut(), failure)?;
                target::close(&together, self.count * row, target, None)
            }
        }
    }
}

/// Cuts the memory into the memory of each box. The boxes lie one after the other.
fn apart<'m>(own: &Own, memory: &'m mut [u8], row: u64) -> Vec<&'m mut [u8]> {
    let mut rest = memory;
    let boxes = own.parts().own().iter().map(|of| {
        let (memory, behind) = std::mem::take(&mut rest).split_at_mut((of.volume() * row) as usize);
        rest = behind;
        memory
    });
    boxes.collect()
}
