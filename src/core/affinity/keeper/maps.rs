//! Where the pages of regions are: maps that are kept from checkpoint to checkpoint, and made whole in the background.
#![forbid(unsafe_code)]

use super::super::numa;
use super::super::pages::{PAGE_BYTES, PageMap, Run};
use super::super::record::RegionPlace;
use super::super::scan;
use super::{MAP_AGE, State};
use std::time::Instant;

/// The maximum number of pages to query while a checkpoint is captured: of a region that is queried page by page, of a region that is
/// sampled, and of all regions that are queried page by page, taken together (about a millisecond).
const EXACT_MAX: u64 = 2048;
const SAMPLES_MAX: usize = 2048;
pub(super) const EXACT_BUDGET: u64 = 8192;
/// With at least this many runs, a map is one of pages that are spread over nodes one by one, and its end is not known.
const DEALT_RUNS: usize = scan::WHOLE_RUNS_MAX;
/// The maximum number of regions whose maps are kept, and for how many checkpoints a map is kept without its region.
const MAPS_MAX: usize = 4096;
pub(super) const MAP_UNUSED_MAX: u64 = 2;

/// The map of one region.
pub(super) struct Mapped {
    pub(super) map: PageMap,
    /// The page after each of its runs.
    ends: Vec<u64>,
    /// The map as it is recorded, with short runs merged.
    pub(super) coarse: PageMap,
    pub(super) taken: Instant,
    pub(super) is_whole: bool,
    /// A whole map is to be made in the background.
    pub(super) is_wished: bool,
    /// The number of the last record that included it.
    pub(super) used: u64,
}

impl Mapped {
    /// A map that has just been made, of all pages of the region at `address`.
    pub(super) fn whole(map: PageMap, address: usize) -> Mapped {
        let sum = |end: &mut u64, run: &Run| {
            *end += run.pages;
            Some(*end)
        };
        let ends = map.runs.iter().scan(0, sum).collect();
        let coarse = map.coarsened(address as u64);
        Mapped { map, ends, coarse, taken: Instant::now(), is_whole: true, is_wished: false, used: 0 }
    }

    /// A new map in place of this one.
    pub(super) fn remade(&self, map: PageMap, address: usize) -> Mapped {
        Mapped { used: self.used, ..Mapped::whole(map, address) }
    }

    /// Do the pages alternate between nodes one by one? Either the policy of the process places them so, which it will do again
    /// after a restart, or there are so many of them that the end of the map is not known.
    pub(super) fn is_dealt(&self, is_interleaved: bool) -> bool {
        self.map.runs.len() >= DEALT_RUNS || is_interleaved && self.map.is_short()
    }

    fn node_at(&self, page: u64) -> Option<u32> {
        let run = self.ends.partition_point(|end| *end <= page);
        self.map.runs.get(run)?.node
    }
}

impl State {
    /// Where a region is. A small region is queried page by page while the budget lasts. Of other regions, whole maps are made in the
    /// background, and are used as long as they agree with the answers for a few pages. The calling thread is about to read the region.
    pub(super) fn pages_of(
        &mut self,
        address: usize,
        bytes: usize,
        budget: &mut u64,
        is_interleaved: bool,
    ) -> Option<RegionPlace> {
        let refused = |error: &std::io::Error| numa::told("move_pages", error);
        let mut query = |addresses: &[usize]| numa::query_before_reading(addresses);
        let pages = (bytes as u64).div_ceil(PAGE_BYTES) + 1;
        if pages <= EXACT_MAX.min(*budget) {
            *budget -= pages;
            let map = scan::whole(address, bytes as u64, &mut || true, &mut query).inspect_err(refused).ok()??;
            return Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: true });
        }
        let key = (address, bytes);
        let last = self.records;
        let known = self.maps.get(&key).filter(|mapped| mapped.is_whole);
        if let Some(dealt) = known.filter(|mapped| mapped.is_dealt(is_interleaved)) {
            // The answers for a few pages are worth little. If a policy spreads the pages, the record has the policy.
            let (is_old, age) = (dealt.taken.elapsed() >= MAP_AGE, dealt.taken.elapsed());
            let unknown = Run { pages: dealt.map.pages(), node: None };
            let pages = PageMap::from_runs(address as u64, [unknown]);
            self.maps.entry(key).and_modify(|mapped| (mapped.used, mapped.is_wished) = (last, is_old));
            return Some(RegionPlace::Host { pages, age_ms: age.as_millis() as u64, is_whole: true });
        }
        let (mut asked, mut wrong) = (0, 0);
        let mut query = |addresses: &[usize]| {
            let answers = query(addresses)?;
            if let Some(known) = known {
                let page = |at: &usize| (at / PAGE_BYTES as usize - address / PAGE_BYTES as usize) as u64;
                let node = |status: &i32| u32::try_from(*status).ok();
                asked += answers.len();
                wrong += addresses.iter().zip(&answers).filter(|(at, it)| known.node_at(page(at)) != node(it)).count();
            }
            Ok(answers)
        };
        let map = scan::bounded(address, bytes as u64, SAMPLES_MAX, &mut query).inspect_err(refused).ok()?;
        // If single pages have wandered, few answers differ from the map; if the region was made anew, many do.
        if known.is_some() && wrong * 10 <= asked {
            let mapped = self.maps.get_mut(&key)?;
            mapped.used = last;
            mapped.is_wished |= wrong > 0 || mapped.taken.elapsed() >= MAP_AGE;
            let age_ms = mapped.taken.elapsed().as_millis() as u64;
            return Some(RegionPlace::Host { pages: mapped.coarse.clone(), age_ms, is_whole: true });
        }
        if self.maps.len() < MAPS_MAX {
            let mapped = Mapped { is_whole: false, is_wished: true, used: last, ..Mapped::whole(map.clone(), address) };
            self.maps.insert(key, mapped);
        }
        Some(RegionPlace::Host { pages: map, age_ms: 0, is_whole: false })
    }
}

/// The system does not say where pages are.
pub(super) struct Refused;

/// The map of all pages; `None`: it was interrupted.
pub(super) fn whole_map(
    (address, bytes): (usize, usize),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<PageMap>, Refused> {
    let map = scan::whole(address, bytes as u64, goes_on, &mut |addresses| numa::query(addresses));
    map.inspect_err(|error| numa::told("move_pages", error)).map_err(|_| Refused)
}
