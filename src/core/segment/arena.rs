//! Which bytes of the node's extents this rank uses: the arithmetic of allocation, no memory is touched.
//!
//! An [`Arena`] knows the extents that its rank *owns* and which parts of them are free. Requests are rounded up to
//! 4 KiB and placed first fit, so many small shards share an extent. If no owned range fits, [`Arena::plan`] looks for
//! a run over owned free parts and extents that nobody owns; the caller claims the new extents (another rank may be
//! quicker), calls [`Arena::hold`], populates them, and calls [`Arena::settle`].
//!
//! Each rank has a *home*: its fair share of the extents, where its searches begin, so that ranks do not collide. Extents
//! at home stay owned when their slots are freed, and so stay warm. Extents outside the home return to the node as soon
//! as they are entirely free.
//!
//! The arena lives in process memory. A crash destroys it, but nobody needs it afterwards: the slot directory records what is where.
#![forbid(unsafe_code)]

use super::state::SlotId;
use crate::base::units::page_ceil;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The extents that one rank owns, and which of their bytes are free. Offsets and lengths are in bytes, offsets from
/// the start of the data area; all are multiples of 4096.
pub(super) struct Arena {
    extent_size: u64,
    extent_count: u64,
    home: Range<u64>,
    /// Indices of the extents that this rank owns.
    owned: BTreeSet<u64>,
    /// Start and length of each free range. Invariants: each lies inside owned extents, none is empty, and no two touch.
    free: BTreeMap<u64, u64>,
    /// Length and slot of each free range that still holds what the slot was sealed with, by its start. Invariant: the
    /// range is entirely free.
    remains: BTreeMap<u64, (u64, SlotId)>,
}

/// A range that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    pub(super) offset: u64,
    /// The request, in whole pages.
    pub(super) length: u64,
    /// The slot that had exactly this range, if no part of the range has been taken since.
    pub(super) remains: Option<SlotId>,
}

/// A range that would fit, and the extents to claim first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Where the range would start.
    pub(super) offset: u64,
    /// Its length: the request, in whole pages.
    pub(super) length: u64,
    /// Extents under the range that are not owned yet, ascending.
    pub(super) new_extents: Vec<u64>,
}

impl Arena {
    /// An arena that owns nothing yet, for one of `node_ranks` ranks.
    pub(super) fn new(extent_size: u64, extent_count: u64, node_rank: u32, node_ranks: u32) -> Arena {
        let border = |rank: u32| extent_count * u64::from(rank) / u64::from(node_ranks.max(1));
        let home = border(node_rank)..border(node_rank.saturating_add(1));
        let (owned, free, remains) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Arena { extent_size, extent_count, home, owned, free, remains }
    }

    /// The length that a request really takes.
    pub(super) fn rounded(bytes: u64) -> u64 {
        page_ceil(bytes.max(1))
    }

    /// Bytes that are owned and free.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Length of the longest owned free range.
    pub(super) fn free_longest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// Is the whole range owned, and none of it free?
    pub(super) fn is_taken(&self, offset: u64, length: u64) -> bool {
        let Some(end) = offset.checked_add(length).filter(|end| *end > offset) else { return false };
        let mut extents = offset / self.extent_size..=(end - 1) / self.extent_size;
        let is_free = self.free.range(..end).next_back().is_some_and(|(start, len)| start + len > offset);
        !is_free && end <= self.extent_count * self.extent_size && extents.all(|extent| self.owned.contains(&extent))
    }

    /// Takes a range from the owned free ones.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Room> {
        let length = Arena::rounded(bytes);
        let offset = self.first_fit(length, self.free.iter().map(|(start, len)| (*start, *len)))?;
        let remains = self.remains.get(&offset).filter(|(had, _)| *had == length).map(|(_, slot)| *slot);
        self.cut(offset, length);
        Some(Room { offset, length, remains })
    }

    /// Notes that a range, which is about to be given back, still holds what `slot` was sealed with.
    pub(super) fn leave(&mut self, offset: u64, length: u64, slot: SlotId) {
        self.remains.insert(offset, (length, slot));
    }

    /// Finds a range over owned free parts and extents for which `is_unowned` says yes.
    pub(super) fn plan(&self, bytes: u64, is_unowned: impl Fn(u64) -> bool) -> Option<Plan> {
        let length = Arena::rounded(bytes);
        let runs = self.runs(is_unowned);
        let offset = self.first_fit(length, runs.into_iter())?;
        let first = offset / self.extent_size;
        let last = (offset + length - 1) / self.extent_size;
        let new_extents = (first..=last).filter(|extent| !self.owned.contains(extent)).collect();
        Some(Plan { offset, length, new_extents })
    }

    /// Sets the planned range aside while its new extents, just claimed, are populated. Until [`Arena::settle`], no part
    /// of the new extents can be taken, so nobody touches a page that does not exist yet.
    pub(super) fn hold(&mut self, plan: &Plan) {
        for (extent, start, end) in self.parts(plan) {
            if plan.new_extents.binary_search(&extent).is_ok() {
                assert!(self.owned.insert(extent), "an extent is owned once");
            } else {
                self.cut(start, end - start);
            }
        }
    }

    /// Notes that the new extents are populated. The parts of them that the plan does not need become free; the range itself is taken.
    pub(super) fn settle(&mut self, plan: &Plan) {
        for (extent, start, end) in self.parts(plan) {
            if plan.new_extents.binary_search(&extent).is_ok() {
                let (first, last) = (extent * self.extent_size, (extent + 1) * self.extent_size);
                if first < start {
                    self.insert_free(first, start - first);
                }
                if end < last {
                    self.insert_free(end, last - end);
                }
            }
        }
    }

    /// Undoes [`Arena::hold`]. Returns the extents that are no longer owned: the caller frees their owner words.
    pub(super) fn release(&mut self, plan: &Plan) -> Vec<u64> {
        let mut gone = Vec::new();
        for (extent, start, end) in self.parts(plan) {
            if plan.new_extents.binary_search(&extent).is_ok() {
                self.owned.remove(&extent);
                gone.push(extent);
            } else {
                gone.extend(self.give(start, end - start));
            }
        }
        gone
    }

    /// Makes a taken range free without giving any extent back to the node.
    pub(super) fn keep(&mut self, offset: u64, length: u64) {
        self.insert_free(offset, length);
    }

    /// The plan's range, cut at the extent boundaries: extent, start and end of each part.
    fn parts(&self, plan: &Plan) -> Vec<(u64, u64, u64)> {
        let (first, end) = (plan.offset / self.extent_size, plan.offset + plan.length);
        (first..=(end - 1) / self.extent_size)
            .map(|extent| {
                let border = extent * self.extent_size;
                (extent, border.max(plan.offset), (border + self.extent_size).min(end))
            })
            .collect()
    }

    /// Gives a taken range back. Returns the extents that are no longer owned: the caller frees their owner words.
    pub(super) fn give(&mut self, offset: u64, length: u64) -> Vec<u64> {
        self.insert_free(offset, length);
        let first = offset / self.extent_size;
        let last = (offset + length - 1) / self.extent_size;
        let away: Vec<u64> = (first..=last).filter(|extent| !self.home.contains(extent)).collect();
        away.into_iter().filter(|extent| self.disown(*extent)).collect()
    }

    /// Drops an extent if it is entirely free.
    fn disown(&mut self, extent: u64) -> bool {
        let (start, len) = (extent * self.extent_size, self.extent_size);
        let covered = self.free.range(..=start).next_back().is_some_and(|(at, have)| at + have >= start + len);
        if covered {
            self.cut(start, len);
            self.owned.remove(&extent);
        }
        covered
    }

    /// The free ranges and the unowned extents in ascending order. Those that touch are joined.
    fn runs(&self, is_unowned: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let unowned = (0..self.extent_count)
            .filter(|extent| !self.owned.contains(extent) && is_unowned(*extent))
            .map(|extent| (extent * self.extent_size, self.extent_size));
        let mut parts: Vec<(u64, u64)> = self.free.iter().map(|(start, len)| (*start, *len)).chain(unowned).collect();
        parts.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::with_capacity(parts.len());
        for (start, len) in parts {
            match runs.last_mut() {
                Some((at, have)) if *at + *have == start => *have += len,
                _ => runs.push((start, len)),
            }
        }
        runs
    }

    /// The start of the first run that has `length` bytes, searched from home onward and then from the beginning.
    fn first_fit(&self, length: u64, runs: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
        let home = self.home.start * self.extent_size;
        let mut anywhere = None;
        for (start, len) in runs {
            let from = start.max(home);
            if from.checked_add(length).is_some_and(|end| end <= start + len) {
                return Some(from);
            }
            if anywhere.is_none() && len >= length {
                anywhere = Some(start);
            }
        }
        anywhere
    }

    /// Removes `[offset, offset + length)` from the free range that holds it.
    fn cut(&mut self, offset: u64, length: u64) {
        let (start, len) =
            self.free.range(..=offset).next_back().map(|(start, len)| (*start, *len)).unwrap_or_default();
        assert!(offset + length <= start + len, "a range that is cut out is free");
        let end = offset + length;
        let before = self.remains.range(..offset).next_back().filter(|(at, (had, _))| *at + had > offset);
        let gone: Vec<u64> = before.into_iter().chain(self.remains.range(offset..end)).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| _ = self.remains.remove(at));
        self.free.remove(&start);
        if offset > start {
            self.free.insert(start, offset - start);
        }
        if offset + length < start + len {
            self.free.insert(offset + length, start + len - offset - length);
        }
    }

    /// Adds a free range, joined with its neighbours.
    fn insert_free(&mut self, offset: u64, length: u64) {
        let (mut start, mut end) = (offset, offset + length);
        if let Some((before, len)) = self.free.range(..offset).next_back().map(|(at, len)| (*at, *len)) {
            assert!(before + len <= offset, "a range is freed once");
            if before + len == offset {
                self.free.remove(&before);
                start = before;
            }
        }
        if let Some((after, len)) = self.free.range(offset..).next().map(|(at, len)| (*at, *len)) {
            assert!(after >= end, "a range is freed once");
            if after == end {
                self.free.remove(&after);
                end = after + len;
            }
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXTENT: u64 = 2 << 20;

    /// Claims whatever the plan needs, as if no other rank existed.
    fn alloc(arena: &mut Arena, bytes: u64) -> Option<(u64, u64)> {
        if let Some(Room { offset, length, .. }) = arena.take(bytes) {
            return Some((offset, length));
        }
        let plan = arena.plan(bytes, |_| true)?;
        arena.hold(&plan);
        arena.settle(&plan);
        Some((plan.offset, plan.length))
    }

    #[test]
    fn small_requests_share_an_extent() {
        let mut arena = Arena::new(EXTENT, 8, 0, 2);
        for _ in 0..512 {
            assert!(alloc(&mut arena, 100).is_some());
        }
        assert_eq!(arena.owned.len(), 1);
        assert_eq!(arena.free_bytes(), 0);
    }

    #[test]
    fn a_rank_starts_at_home_and_wraps() {
        let mut arena = Arena::new(EXTENT, 8, 1, 2);
        assert_eq!(alloc(&mut arena, 4 * EXTENT).map(|r| r.0), Some(4 * EXTENT));
        assert_eq!(alloc(&mut arena, EXTENT).map(|r| r.0), Some(0));
        assert_eq!(alloc(&mut arena, 4 * EXTENT), None);
    }

    #[test]
    fn home_stays_warm_and_the_rest_goes_back() {
        let mut arena = Arena::new(EXTENT, 8, 0, 4);
        let (offset, length) = alloc(&mut arena, 3 * EXTENT).expect("room");
        assert_eq!(arena.give(offset, length), vec![2]);
        assert_eq!(arena.free_bytes(), 2 * EXTENT);
        assert_eq!(arena.take(2 * EXTENT), Some(Room { offset: 0, length: 2 * EXTENT, remains: None }));
    }

    #[test]
    fn what_a_slot_has_left_is_there_until_somebody_has_a_part_of_it() {
        let slot = |uses| SlotId { index: 0, uses };
        let mut arena = Arena::new(EXTENT, 4, 0, 1);
        let (one, two) = (alloc(&mut arena, 3 * 4096).expect("room"), alloc(&mut arena, EXTENT).expect("room"));
        let give = |arena: &mut Arena, (offset, length), uses| {
            arena.leave(offset, length, slot(uses));
            arena.give(offset, length);
        };
        give(&mut arena, one, 1);
        assert_eq!(arena.take(3 * 4096 - 5).expect("room").remains, Some(slot(1)));
        // A later user may have written there.
        arena.give(one.0, one.1);
        assert_eq!(arena.take(3 * 4096).expect("room").remains, None);
        give(&mut arena, one, 2);
        give(&mut arena, two, 3);
        // A request of another length forgets all that its range touches.
        let room = arena.take(4 * 4096).expect("room");
        assert_eq!((room.offset, room.remains), (one.0, None));
        arena.give(room.offset, room.length);
        assert_eq!(arena.take(3 * 4096).expect("room").remains, None);
        assert_eq!(arena.take(EXTENT).expect("room").remains, None);
    }

    #[test]
    fn nothing_remains_in_extents_that_were_given_back() {
        let mut arena = Arena::new(EXTENT, 4, 0, 4);
        let (offset, length) = alloc(&mut arena, 2 * EXTENT).expect("room");
        arena.leave(offset, length, SlotId { index: 0, uses: 1 });
        assert_eq!(arena.give(offset, length), [1]);
        assert_eq!(alloc(&mut arena, 2 * EXTENT), Some((offset, length)));
        arena.give(offset, length);
        assert!(arena.remains.is_empty());
    }

    #[test]
    fn a_tail_is_joined_with_a_new_neighbour() {
        let mut arena = Arena::new(EXTENT, 4, 0, 1);
        alloc(&mut arena, EXTENT + EXTENT / 2).expect("room");
        let plan = arena.plan(EXTENT, |_| true).expect("room");
        assert_eq!((plan.offset, plan.new_extents), (EXTENT + EXTENT / 2, vec![2]));
    }

    #[test]
    fn empty_and_absurd_requests_do_no_harm() {
        let mut arena = Arena::new(EXTENT, 0, 0, 1);
        assert_eq!(alloc(&mut arena, 0), None);
        let mut arena = Arena::new(EXTENT, 2, 0, 1);
        assert_eq!(alloc(&mut arena, u64::MAX), None);
        assert_eq!(alloc(&mut arena, 0), Some((0, 4096)));
    }

    /// A step of two ranks that share one owner table, compared with a model that marks every page. The flag makes population fail.
    #[derive(Clone, Debug)]
    enum Step {
        Take(usize, u64, bool),
        Give(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![1u64..5000, 1u64..EXTENT, 1u64..4 * EXTENT];
        let step = prop_oneof![
            (0usize..2, size, proptest::bool::weighted(0.2))
                .prop_map(|(rank, bytes, fails)| Step::Take(rank, bytes, fails)),
            (0usize..2, 0usize..64).prop_map(|(rank, index)| Step::Give(rank, index)),
        ];
        proptest::collection::vec(step, 1..80)
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_nothing_leaks(steps in steps(), extents in 1u64..12) {
            let mut arenas = [Arena::new(EXTENT, extents, 0, 2), Arena::new(EXTENT, extents, 1, 2)];
            let mut owners: Vec<Option<usize>> = vec![None; extents as usize];
            let mut pages: Vec<Option<usize>> = vec![None; (extents * EXTENT / 4096) as usize];
            let mut taken: [Vec<(u64, u64)>; 2] = Default::default();
            for step in steps {
                match step {
                    Step::Take(rank, bytes, fails) => {
                        let mut range = arenas[rank].take(bytes).map(|room| (room.offset, room.length));
                        if range.is_none() && let Some(plan) = arenas[rank].plan(bytes, |e| owners[e as usize].is_none()) {
                            for extent in &plan.new_extents {
                                prop_assert_eq!(owners[*extent as usize], None);
                                owners[*extent as usize] = Some(rank);
                            }
                            arenas[rank].hold(&plan);
                            if fails {
                                for extent in arenas[rank].release(&plan) {
                                    owners[extent as usize] = None;
                                }
                            } else {
                                arenas[rank].settle(&plan);
                                range = Some((plan.offset, plan.length));
                            }
                        }
                        let Some((offset, length)) = range else { continue };
                        prop_assert!(length >= bytes && length < bytes + 4096);
                        for page in offset / 4096..(offset + length) / 4096 {
                            prop_assert_eq!(pages[page as usize], None, "page {} lent twice", page);
                            prop_assert_eq!(owners[(page * 4096 / EXTENT) as usize], Some(rank));
                            pages[page as usize] = Some(rank);
                        }
                        taken[rank].push((offset, length));
                    }
                    Step::Give(rank, index) => {
                        if taken[rank].is_empty() { continue; }
                        let at = index % taken[rank].len();
                        let (offset, length) = taken[rank].swap_remove(at);
                        pages[(offset / 4096) as usize..((offset + length) / 4096) as usize].fill(None);
                        for extent in arenas[rank].give(offset, length) {
                            prop_assert_eq!(owners[extent as usize], Some(rank));
                            owners[extent as usize] = None;
                        }
                    }
                }
                for (rank, arena) in arenas.iter().enumerate() {
                    for (offset, length) in &taken[rank] {
                        prop_assert!(arena.is_taken(*offset, *length));
                        let beyond = pages.get(((offset + length) / 4096) as usize).copied().flatten();
                        prop_assert_eq!(arena.is_taken(*offset, length + 1), beyond == Some(rank));
                    }
                    let used = pages.iter().filter(|page| **page == Some(rank)).count() as u64 * 4096;
                    let owned = owners.iter().filter(|owner| **owner == Some(rank)).count() as u64;
                    prop_assert_eq!(arena.owned.len() as u64, owned);
                    prop_assert_eq!(arena.free_bytes() + used, owned * EXTENT);
                }
            }
            for rank in 0..2 {
                for (offset, length) in std::mem::take(&mut taken[rank]) {
                    for extent in arenas[rank].give(offset, length) {
                        owners[extent as usize] = None;
                    }
                }
                prop_assert!(arenas[rank].owned.iter().all(|extent| arenas[rank].home.contains(extent)));
            }
        }
    }
}
