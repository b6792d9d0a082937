//! On which NUMA node each page of a region is, in runs. Pure.
//!
//! A map is recorded at one address and used at another: after a restart, the region may start elsewhere in its page.
//! Therefore, a map is read by byte ([`PageMap::ranges`]) and moved ([`PageMap::moved`]): a page of the target belongs where
//! the region's first byte in it was.
#![forbid(unsafe_code)]

use super::machine::NODES_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a page in a map. Larger pages are runs of such pages.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a huge page, and what it is aligned to.
pub const HUGE_BYTES: u64 = 2 << 20;
/// The least number of consecutive pages that are worth keeping together: shorter runs are pages that were spread over nodes in turn.
pub const SHORT_PAGES: u64 = 16;
/// The maximum number of runs in a map: enough for 4 GiB whose pages alternate between nodes one by one. Such a map takes 16 MiB of
/// memory. The rest is unknown.
pub const RUNS_MAX: usize = 1 << 20;

/// Consecutive pages on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// How many; not 0.
    pub pages: u64,
    /// The number of their node; `None`: they have no memory, or it is unknown.
    pub node: Option<u32>,
}

/// The pages of a region, from that of its first byte to that of its last.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PageMap {
    /// Where in its page the region begins, in bytes: less than [`PAGE_BYTES`].
    pub offset: u32,
    /// In order; neighbours differ.
    pub runs: Vec<Run>,
}

/// How the pages of one map compare with those wanted by another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Pages for which a node is wanted.
    pub wanted: u64,
    /// Of these, those that are there.
    pub right: u64,
    /// Of these, those that are elsewhere. The rest has no memory, or is unknown.
    pub wrong: u64,
}

impl Tally {
    /// Wanted pages whose location is unknown.
    pub fn unknown(&self) -> u64 {
        self.wanted.saturating_sub(self.right).saturating_sub(self.wrong)
    }

    /// Counts another map's pages, too.
    pub fn add(&mut self, other: Tally) {
        self.wanted += other.wanted;
        self.right += other.right;
        self.wrong += other.wrong;
    }
}

/// Pages that a region of `bytes` bytes touches, if it starts this many bytes into its first page.
fn pages_of(offset: u32, bytes: u64) -> Option<u64> {
    if bytes == 0 { Some(0) } else { Some(bytes.checked_add(offset.into())?.div_ceil(PAGE_BYTES)) }
}

/// Where in its page an address is.
fn offset_of(address: u64) -> u32 {
    (address % PAGE_BYTES) as u32 // Less than a page.
}

impl PageMap {
    /// The map of a region at `address`, whose pages are on these nodes, page by page.
    pub fn from_nodes(address: u64, nodes: impl IntoIterator<Item = Option<u32>>) -> PageMap {
        PageMap::from_runs(address, nodes.into_iter().map(|node| Run { pages: 1, node }))
    }

    /// The map of a region at `address` from runs in order. They may be empty, and neighbours may be equal. Beyond
    /// [`RUNS_MAX`] runs nothing is known.
    pub fn from_runs(address: u64, runs: impl IntoIterator<Item = Run>) -> PageMap {
        let mut map = PageMap { offset: offset_of(address), runs: Vec::new() };
        for run in runs.into_iter().filter(|run| run.pages > 0) {
            let room = RUNS_MAX - map.runs.len();
            match map.runs.last_mut() {
                Some(last) if last.node == run.node || room == 0 => last.pages = last.pages.saturating_add(run.pages),
                _ if room == 1 => map.runs.push(Run { pages: run.pages, node: None }),
                _ => map.runs.push(run),
            }
        }
        // The last one that fits may follow a run of unknown pages.
        if let [.., one, two] = map.runs.as_mut_slice()
            && one.node == two.node
        {
            one.pages = one.pages.saturating_add(two.pages);
            map.runs.pop();
        }
        map
    }

    /// How many pages it covers.
    pub fn pages(&self) -> u64 {
        self.runs.iter().fold(0, |sum, run| sum.saturating_add(run.pages))
    }

    /// Pages on each node.
    pub fn counts(&self) -> BTreeMap<Option<u32>, u64> {
        let mut counts = BTreeMap::new();
        for run in &self.runs {
            let count: &mut u64 = counts.entry(run.node).or_default();
            *count = count.saturating_add(run.pages);
        }
        counts
    }

    /// Is it well formed, and no larger than a map may be? This is asked of maps that come from elsewhere.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_form(&self) -> Result<(), String> {
        let is_known = |run: &Run| run.node.is_none_or(|node| (node as usize) < NODES_MAX);
        let sum = self.runs.iter().try_fold(0u64, |sum, run| sum.checked_add(run.pages));
        if u64::from(self.offset) >= PAGE_BYTES || self.runs.len() > RUNS_MAX {
            Err(format!(
                "a map of {} runs, starting at byte {} of a page, is out of bounds",
                self.runs.len(),
                self.offset
            ))
        } else if self.runs.iter().any(|run| run.pages == 0) || !self.runs.iter().all(is_known) {
            Err("a run without pages or with a node that is out of bounds".to_owned())
        } else if self.runs.windows(2).any(|pair| pair[0].node == pair[1].node) {
            Err("adjacent runs on the same node".to_owned())
        } else if sum.and_then(|pages| pages.checked_mul(PAGE_BYTES)).is_none() {
            Err("more pages than there are addresses".to_owned())
        } else {
            Ok(())
        }
    }

    /// Is it well formed, and the map of a region of this many bytes?
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, bytes: u64) -> Result<(), String> {
        self.check_form()?;
        match pages_of(self.offset, bytes) {
            Some(pages) if pages == self.pages() => Ok(()),
            _ => Err(format!("{} pages starting at byte {} do not fit {bytes} bytes", self.pages(), self.offset)),
        }
    }

    /// The bytes of a region of `bytes` bytes, in order, and the node that they are on. There are no gaps if the map
    /// passes [`PageMap::check`].
    pub fn ranges(&self, bytes: u64) -> impl Iterator<Item = (Range<u64>, Option<u32>)> + '_ {
        let mut page = 0u64;
        let byte = move |page: u64| page.saturating_mul(PAGE_BYTES).saturating_sub(self.offset.into()).min(bytes);
        self.runs.iter().map(move |run| {
            let start = byte(page);
            page = page.saturating_add(run.pages);
            (start..byte(page), run.node)
        })
    }

    /// The map of the same region of `bytes` bytes at `address`, had its bytes stayed on their nodes: a page belongs where
    /// the region's first byte in it was. For a map that fails [`PageMap::check`], the rest is unknown.
    pub fn moved(&self, bytes: u64, address: u64) -> PageMap {
        let offset = offset_of(address);
        let mut left = pages_of(offset, bytes).unwrap_or(0);
        // If the target begins later in its page, each of its pages begins with the last bytes of the source's previous
        // page; only the first pages of the two begin with the same byte.
        let ahead = self.runs.first().filter(|_| offset > self.offset).map(|run| Run { pages: 1, node: run.node });
        let mut runs: Vec<Run> = Vec::with_capacity(self.runs.len() + 2);
        for run in ahead.iter().chain(&self.runs) {
            let pages = run.pages.min(left);
            left -= pages;
            runs.push(Run { pages, node: run.node });
        }
        runs.push(Run { pages: left, node: None });
        PageMap::from_runs(address, runs)
    }

    /// Are its runs shorter than [`SHORT_PAGES`] on average?
    pub fn is_short(&self) -> bool {
        (self.runs.len() as u64).saturating_mul(SHORT_PAGES) > self.pages()
    }

    /// The map for a region at `address`, with short runs merged. A block of [`HUGE_BYTES`] whose runs are shorter than
    /// [`SHORT_PAGES`] on average goes to one node, so that in the long run each node has as much as before. Pages that are spread over the
    /// nodes for their bandwidth stay spread, without a system call for each. Other blocks stay unchanged.
    pub fn coarsened(&self, address: u64) -> PageMap {
        let per_block = HUGE_BYTES / PAGE_BYTES;
        let mut page = address / PAGE_BYTES;
        let (mut runs, mut block) = (Vec::new(), Vec::new());
        // Pages that a node should have had so far, less those that it got.
        let mut owed: BTreeMap<u32, i64> = BTreeMap::new();
        for run in &self.runs {
            let mut left = run.pages;
            while left > 0 {
                let room = per_block - page % per_block;
                let pages = if block.is_empty() && room == per_block {
                    // Whole blocks on one node.
                    left / per_block * per_block
                } else {
                    0
                };
                let pages = if pages == 0 { left.min(room) } else { pages };
                block.push(Run { pages, node: run.node });
                page = page.saturating_add(pages);
                left -= pages;
                if page.is_multiple_of(per_block) {
                    settle(&mut block, &mut owed, &mut runs);
                }
            }
        }
        settle(&mut block, &mut owed, &mut runs);
        PageMap::from_runs(address, runs)
    }

    /// How the pages of `found` compare with this map of wanted nodes. Both are maps of the same region at the same address.
    pub fn compare(&self, found: &PageMap) -> Tally {
        let mut tally = Tally::default();
        let mut found = found.runs.iter().copied();
        let mut current = found.next();
        for run in &self.runs {
            let mut left = run.pages;
            tally.wanted = tally.wanted.saturating_add(if run.node.is_some() { left } else { 0 });
            while let Some(have) = current.filter(|_| left > 0) {
                let pages = have.pages.min(left);
                left -= pages;
                match (run.node, have.node) {
                    (Some(wanted), Some(node)) if wanted == node => tally.right += pages,
                    (Some(_), Some(_)) => tally.wrong += pages,
                    _ => {}
                }
                let rest = have.pages - pages;
                current = if rest > 0 { Some(Run { pages: rest, ..have }) } else { found.next() };
            }
        }
        tally
    }

    /// The addresses of the blocks of [`HUGE_BYTES`] that hold pages wanted on different nodes, in ascending order: no huge page
    /// may be there. This is the map of wanted nodes of a region at `address`. Pages without a wanted node fit any.
    pub fn mixed_blocks(&self, address: u64) -> Vec<u64> {
        let first = address - u64::from(offset_of(address));
        let block = |page: u64| first.saturating_add(page.saturating_mul(PAGE_BYTES)) / HUGE_BYTES * HUGE_BYTES;
        let (mut blocks, mut page) = (Vec::new(), 0u64);
        // The last page before this run that is wanted on a node.
        let mut before: Option<(u32, u64)> = None;
        for run in &self.runs {
            let end = page.saturating_add(run.pages);
            if let Some(node) = run.node {
                let here = block(page);
                if before.is_some_and(|(other, last)| other != node && block(last) == here)
                    && blocks.last() != Some(&here)
                {
                    blocks.push(here);
                }
                before = Some((node, end - 1));
            }
            page = end;
        }
        blocks
    }
}

/// Appends the runs of a block to `runs`: unchanged, or as one run on the node that is owed most.
fn settle(block: &mut Vec<Run>, owed: &mut BTreeMap<u32, i64>, runs: &mut Vec<Run>) {
    let pages: u64 = block.iter().map(|run| run.pages).sum();
    if block.len() as u64 * SHORT_PAGES <= pages {
        return runs.append(block);
    }
    for run in block.drain(..) {
        if let Some(node) = run.node {
            *owed.entry(node).or_default() += run.pages as i64; // Less than a block has.
        }
    }
    let most = owed.iter().max_by_key(|(node, pages)| (**pages, std::cmp::Reverse(**node))).map(|(node, _)| *node);
    if let Some(node) = most {
        *owed.entry(node).or_default() -= pages as i64;
    }
    runs.push(Run { pages, node: most });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn runs(list: &[(u64, Option<u32>)]) -> Vec<Run> {
        list.iter().map(|(pages, node)| Run { pages: *pages, node: *node }).collect()
    }

    /// Where every page is.
    fn nodes(map: &PageMap) -> Vec<Option<u32>> {
        map.runs.iter().flat_map(|run| (0..run.pages).map(|_| run.node)).collect()
    }

    #[test]
    fn answers_become_runs() {
        let map = PageMap::from_nodes(3 * PAGE_BYTES + 5, [Some(1), Some(1), None, Some(0)]);
        assert_eq!((map.offset, map.pages()), (5, 4));
        assert_eq!(map.runs, runs(&[(2, Some(1)), (1, None), (1, Some(0))]));
        assert_eq!(map.counts(), BTreeMap::from([(None, 1), (Some(0), 1), (Some(1), 2)]));
        let ranges: Vec<_> = map.ranges(2 * PAGE_BYTES).collect();
        assert_eq!(ranges[0], (0..2 * PAGE_BYTES - 5, Some(1)));
        assert_eq!(ranges[1], (2 * PAGE_BYTES - 5..2 * PAGE_BYTES, None));
        assert!(ranges[2].0.is_empty(), "a map that is too long says nothing about bytes that are not there");
    }

    #[test]
    fn a_region_that_begins_elsewhere_in_its_page_keeps_its_bytes_in_place() {
        let map = PageMap::from_nodes(100, [Some(0), Some(1), Some(2)]);
        let bytes = 3 * PAGE_BYTES - 200;
        map.check(bytes).expect("it fits");
        // Later in its page: the second page begins with bytes of the first.
        assert_eq!(nodes(&map.moved(bytes, 200)), [Some(0), Some(0), Some(1)]);
        assert_eq!(nodes(&map.moved(bytes, 201)), [Some(0), Some(0), Some(1), Some(2)], "one byte more, one page more");
        // Earlier: it begins with bytes of the second.
        assert_eq!(nodes(&map.moved(bytes, 0)), [Some(0), Some(1), Some(2)]);
        assert_eq!(map.moved(bytes, 100 + 77 * PAGE_BYTES), map);
    }

    #[test]
    fn maps_from_elsewhere_are_checked() {
        let good = PageMap { offset: 4095, runs: runs(&[(1, Some(3)), (1, None)]) };
        assert_eq!((good.check(2), good.check(4097)), (Ok(()), Ok(())));
        assert!(good.check(1).is_err() && good.check(4098).is_err() && good.check(0).is_err());
        assert!(good.check(u64::MAX).is_err());
        assert_eq!(PageMap::default().check(0), Ok(()));
        for (offset, list) in [
            (4096, vec![(1, None)]),
            (0, vec![(0, None)]),
            (0, vec![(1, Some(1)), (1, Some(1))]),
            (0, vec![(1, Some(1 << 20))]),
            (0, vec![(u64::MAX, None), (1, Some(1))]),
            (0, vec![(u64::MAX / 4096 + 1, None)]),
        ] {
            let map = PageMap { offset, runs: runs(&list) };
            assert!(map.check_form().is_err(), "{map:?}");
            // Using it without checking it does no harm, either.
            let _ =
                (map.moved(1 << 40, 77), map.counts(), map.compare(&good), map.mixed_blocks(0), map.ranges(9).count());
        }
    }

    #[test]
    fn a_map_has_a_largest_size() {
        let map = PageMap::from_nodes(0, (0..RUNS_MAX as u32 + 1000).map(|page| Some(page % 2)));
        assert_eq!((map.runs.len(), map.pages()), (RUNS_MAX, RUNS_MAX as u64 + 1000));
        assert_eq!(map.runs.last(), Some(&Run { pages: 1001, node: None }));
        map.check_form().expect("a map");
        let map = PageMap::from_nodes(0, (0..RUNS_MAX as u32 + 1000).map(|page| (page % 2 == 1).then_some(3)));
        map.check_form().expect("a map whose last known run is followed by unknown pages");
        let even = PageMap::from_nodes(0, (0..RUNS_MAX as u32 + 1000).map(|page| (page % 2 == 0).then_some(3)));
        even.check_form().expect("the other way round");
        assert_eq!((map.pages(), even.pages()), (RUNS_MAX as u64 + 1000, RUNS_MAX as u64 + 1000));
    }

    #[test]
    fn comparing_tells_right_from_wrong_and_from_unknown() {
        let wanted = PageMap { offset: 0, runs: runs(&[(4, Some(0)), (2, None), (4, Some(1))]) };
        let found = PageMap { offset: 0, runs: runs(&[(3, Some(0)), (5, Some(1)), (1, None)]) };
        let tally = wanted.compare(&found);
        assert_eq!(tally, Tally { wanted: 8, right: 5, wrong: 1 });
        assert_eq!(tally.unknown(), 2, "one without memory, one that the other map does not reach");
        assert_eq!(wanted.compare(&wanted), Tally { wanted: 8, right: 8, wrong: 0 });
    }

    #[test]
    fn blocks_with_pages_for_several_nodes_are_found() {
        let mixed =
            |list: &[(u64, Option<u32>)], address| PageMap::from_runs(address, runs(list)).mixed_blocks(address);
        let per_block = HUGE_BYTES / PAGE_BYTES;
        assert_eq!(mixed(&[(per_block, Some(0)), (per_block, Some(1))], 0), [] as [u64; 0]);
        assert_eq!(mixed(&[(per_block, Some(0)), (per_block, Some(1))], PAGE_BYTES), [HUGE_BYTES]);
        assert_eq!(mixed(&[(1, Some(0)), (9, None), (1, Some(1)), (1, Some(0))], 5 * HUGE_BYTES + 9), [5 * HUGE_BYTES]);
        assert_eq!(mixed(&[(1, Some(0)), (per_block - 1, None), (1, Some(1))], 0), [] as [u64; 0]);
    }

    fn map() -> impl Strategy<Value = (PageMap, u64)> {
        let node = prop_oneof![4 => (0u32..4).prop_map(Some), 1 => Just(None)];
        let run = (1u64..700, node).prop_map(|(pages, node)| Run { pages, node });
        (proptest::collection::vec(run, 1..20), 0..PAGE_BYTES, 1..PAGE_BYTES).prop_map(|(runs, offset, last)| {
            let map = PageMap::from_runs(offset, runs);
            // The region ends somewhere in the last page.
            let bytes = ((map.pages() - 1) * PAGE_BYTES + last).saturating_sub(offset).max(1);
            (map.moved(bytes, offset), bytes)
        })
    }

    proptest! {
        #[test]
        fn every_byte_and_every_page_is_counted_once((map, bytes) in map()) {
            map.check(bytes).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&PageMap::from_nodes(map.offset.into(), nodes(&map)), &map);
            prop_assert_eq!(map.counts().values().sum::<u64>(), map.pages());
            let mut at = 0;
            for (range, node) in map.ranges(bytes) {
                prop_assert!(range.start == at && range.end > at);
                let page = (range.start + u64::from(map.offset)) / PAGE_BYTES;
                prop_assert_eq!(node, nodes(&map)[page as usize]);
                at = range.end;
            }
            prop_assert_eq!(at, bytes);
        }

        #[test]
        fn moved_maps_are_those_of_a_naive_model((map, bytes) in map(), address in 0..(8 * PAGE_BYTES)) {
            let moved = map.moved(bytes, address);
            moved.check(bytes).map_err(TestCaseError::fail)?;
            let (old, offset) = (nodes(&map), address % PAGE_BYTES);
            for (page, node) in nodes(&moved).into_iter().enumerate() {
                let first_byte = (page as u64 * PAGE_BYTES).saturating_sub(offset);
                let was = (first_byte + u64::from(map.offset)) / PAGE_BYTES;
                prop_assert_eq!(node, old[was as usize], "page {}", page);
            }
            prop_assert_eq!(&map.moved(bytes, u64::from(map.offset)), &map);
        }

        #[test]
        fn short_runs_are_put_together_and_nodes_keep_their_parts(
            pieces in proptest::collection::vec((1u64..40, 0u32..4, 1usize..80), 1..30), first in 0..600u64
        ) {
            let address = first * PAGE_BYTES + 9;
            let runs = pieces.iter().flat_map(|(pages, node, times)| {
                (0..*times).map(|turn| Run { pages: *pages, node: Some((*node + turn as u32) % 4) })
            });
            let map = PageMap::from_runs(address, runs);
            let coarse = map.coarsened(address);
            coarse.check(map.pages() * PAGE_BYTES - 9).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&coarse.coarsened(address), &coarse);
            for (node, pages) in map.counts() {
                let now = coarse.counts().get(&node).copied().unwrap_or(0);
                prop_assert!(pages.abs_diff(now) <= 4 * 512, "node {:?}: {} and {}", node, pages, now);
            }
            let (fine, blocks) = (nodes(&map), nodes(&coarse));
            let head = (512 - first as usize % 512).min(fine.len());
            let borders = [0].into_iter().chain((head..fine.len()).step_by(512)).chain([fine.len()]);
            let borders: Vec<usize> = borders.collect();
            for range in borders.windows(2).map(|pair| pair[0]..pair[1]) {
                let changes = fine[range.clone()].windows(2).filter(|pair| pair[0] != pair[1]).count();
                if (changes + 1) * 16 <= range.len() {
                    prop_assert_eq!(&fine[range.clone()], &blocks[range]);
                } else {
                    prop_assert!(blocks[range.clone()].iter().all(|node| *node == blocks[range.start]));
                }
            }
        }

        #[test]
        fn comparing_is_what_counting_page_by_page_is((wanted, _) in map(), (found, _) in map()) {
            let (a, b) = (nodes(&wanted), nodes(&found));
            let count = |test: &dyn Fn(u32, u32) -> bool| {
                a.iter().zip(&b).filter(|(a, b)| matches!((a, b), (Some(a), Some(b)) if test(*a, *b))).count() as u64
            };
            let tally = Tally {
                wanted: a.iter().flatten().count() as u64,
                right: count(&|a, b| a == b),
                wrong: count(&|a, b| a != b),
            };
            prop_assert_eq!(wanted.compare(&found), tally);
        }

        #[test]
        fn mixed_blocks_are_those_of_a_naive_model((map, bytes) in map(), address in 0..(2 * HUGE_BYTES)) {
            let map = map.moved(bytes, address);
            let mut blocks: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
            for (page, node) in nodes(&map).into_iter().enumerate() {
                let block = (address / PAGE_BYTES + page as u64) * PAGE_BYTES / HUGE_BYTES * HUGE_BYTES;
                blocks.entry(block).or_default().extend(node);
            }
            let mixed: Vec<u64> = blocks.into_iter().filter(|(_, nodes)| nodes.len() > 1).map(|(block, _)| block).collect();
            prop_assert_eq!(map.mixed_blocks(address), mixed);
        }
    }
}
