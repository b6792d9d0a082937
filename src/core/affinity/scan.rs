//! Finds out on which nodes the pages of some memory are, by asking for a few of them or for all. The question is a closure
//! (in production [`numa::query`](super::numa::query)), so nothing here depends on a machine.
//!
//! Placement is usually piecewise: a thread's share is on its node. Therefore, one page in each 2 MiB is asked for (a huge page is
//! on one node), and where two neighbours in this sample differ, the border between them is found by halving the gap. A change that
//! is undone between two samples stays unseen. A whole scan sees it, but takes as many questions as there are pages.
#![forbid(unsafe_code)]

use super::pages::{PAGE_BYTES, PageMap, Run};
use std::collections::BTreeMap;
use std::io;

/// Pages of a block, which a huge page would fill.
pub const BLOCK_PAGES: u64 = 512;
/// The number of pages that are asked for at once: the system answers under locks that the application may also want.
const PART_PAGES: usize = 4096;
/// The maximum number of runs that a whole scan distinguishes: more are single pages on changing nodes, for which the individual nodes say
/// little.
pub const WHOLE_RUNS_MAX: usize = 1 << 16;

/// The node of each of these pages (by their addresses) or a negative number, as `move_pages` gives it.
pub type Query<'a> = dyn FnMut(&[usize]) -> io::Result<Vec<i32>> + 'a;

/// The number of pages from the one of the first byte to the one of the last byte.
fn page_count(start: usize, bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        bytes => (start as u64 % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES),
    }
}

fn offset(start: usize) -> u32 {
    (start as u64 % PAGE_BYTES) as u32
}

/// Adds pages to runs, so that neighbouring runs differ.
fn push(runs: &mut Vec<Run>, pages: u64, node: Option<u32>) {
    match runs.last_mut() {
        _ if pages == 0 => {}
        Some(run) if run.node == node => run.pages += pages,
        _ => runs.push(Run { pages, node }),
    }
}

/// Asks for pages by their numbers, in parts.
fn ask(start: usize, pages: &[u64], query: &mut Query) -> io::Result<Vec<Option<u32>>> {
    let first = start as u64 / PAGE_BYTES;
    let mut answers = Vec::with_capacity(pages.len());
    for part in pages.chunks(PART_PAGES) {
        let addresses: Vec<usize> = part.iter().map(|page| ((first + page) * PAGE_BYTES) as usize).collect();
        let found = query(&addresses)?;
        if found.len() != addresses.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        answers.extend(found.into_iter().map(|status| u32::try_from(status).ok()));
    }
    Ok(answers)
}

/// Two pages on different nodes, with pages between them that nobody has asked for.
#[derive(Clone, Copy)]
struct Gap {
    low: (u64, Option<u32>),
    high: (u64, Option<u32>),
}

impl Gap {
    fn between(low: (u64, Option<u32>), high: (u64, Option<u32>)) -> Option<Gap> {
        (low.1 != high.1 && high.0 - low.0 > 1).then_some(Gap { low, high })
    }

    fn middle(&self) -> u64 {
        u64::midpoint(self.low.0, self.high.0)
    }
}

/// The map of `bytes` at the address `start`, with at most this many queries (it takes at least one): exact if
/// neighbouring samples are right about the pages between them. If the queries run out, borders are put in the middle of the range
/// that they are known to be in.
///
/// # Errors
/// Those of `query`.
pub fn bounded(start: usize, bytes: u64, questions_max: usize, query: &mut Query) -> io::Result<PageMap> {
    let count = page_count(start, bytes);
    let samples = samples(count, questions_max.max(1));
    let mut left = questions_max.saturating_sub(samples.len());
    let answers = ask(start, &samples, query)?;
    let mut known: BTreeMap<u64, Option<u32>> = samples.into_iter().zip(answers).collect();
    let mut gaps: Vec<Gap> =
        known.iter().zip(known.iter().skip(1)).filter_map(|(a, b)| Gap::between((*a.0, *a.1), (*b.0, *b.1))).collect();
    while left > 0 && !gaps.is_empty() {
        gaps.truncate(left);
        left -= gaps.len();
        let middles: Vec<u64> = gaps.iter().map(Gap::middle).collect();
        let answers = ask(start, &middles, query)?;
        let mut next = Vec::with_capacity(gaps.len());
        for (gap, middle) in gaps.into_iter().zip(middles.into_iter().zip(answers)) {
            known.insert(middle.0, middle.1);
            next.extend(Gap::between(gap.low, middle));
            next.extend(Gap::between(middle, gap.high));
        }
        gaps = next;
    }
    Ok(PageMap { offset: offset(start), runs: runs_of(&known, count) })
}

/// The first page, one page in each block (or in a multiple of a block, if these are too many), and the last page. The
/// distance between two of them is one page less than that, so that pages that are spread over two, four or eight nodes in
/// turn do not all seem to be on one.
fn samples(count: u64, samples_max: usize) -> Vec<u64> {
    // Half of the questions are for the borders.
    let fit = (samples_max as u64 / 2).saturating_sub(2).max(1);
    let step = BLOCK_PAGES * count.div_ceil((BLOCK_PAGES - 1) * fit).max(1) - 1;
    let mut samples: Vec<u64> = (0..count).step_by(step as usize).collect();
    samples.extend(count.checked_sub(1));
    samples.dedup();
    samples.truncate(samples_max);
    samples
}

/// Makes runs from some known pages. Pages between two of them count as being on the same node; if the two differ, half of
/// these pages go with each.
fn runs_of(known: &BTreeMap<u64, Option<u32>>, count: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut done = 0;
    for ((page, node), next) in known.iter().zip(known.keys().skip(1).map(Some).chain([None])) {
        let end = next.map_or(count, |next| u64::midpoint(*page, *next) + u64::from((next - page) % 2 == 1));
        push(&mut runs, end - done, *node);
        done = end;
    }
    runs
}

/// The map, with a query for every page. `goes_on` is called between parts of a few thousand pages; `None` if it said no. After
/// 65,536 runs, there are no more queries, and the pages after them are reported as unknown.
///
/// # Errors
/// Those of `query`.
pub fn whole(
    start: usize,
    bytes: u64,
    goes_on: &mut dyn FnMut() -> bool,
    query: &mut Query,
) -> io::Result<Option<PageMap>> {
    let count = page_count(start, bytes);
    let mut runs: Vec<Run> = Vec::new();
    for from in (0..count).step_by(PART_PAGES) {
        if runs.len() > WHOLE_RUNS_MAX {
            break;
        }
        if !goes_on() {
            return Ok(None);
        }
        let part: Vec<u64> = (from..count.min(from + PART_PAGES as u64)).collect();
        for node in ask(start, &part, query)? {
            push(&mut runs, 1, node);
        }
    }
    runs.truncate(WHOLE_RUNS_MAX);
    let known = runs.iter().map(|run| run.pages).sum::<u64>();
    push(&mut runs, count - known, None);
    Ok(Some(PageMap { offset: offset(start), runs }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: usize = (3 << 21) + 5 * 4096 + 100;

    /// Answers from runs that begin at `START`'s page, and counts the questions.
    fn answering<'a>(runs: &'a [Run], asked: &'a mut usize) -> impl FnMut(&[usize]) -> io::Result<Vec<i32>> + 'a {
        move |addresses| {
            assert!(addresses.len() <= PART_PAGES);
            *asked += addresses.len();
            let node = |address: &usize| {
                assert_eq!(address % 4096, 0);
                let mut page = (address / 4096).checked_sub(START / 4096).expect("a page of the region") as u64;
                for run in runs {
                    if page < run.pages {
                        return run.node.map_or(-2, |node| node as i32);
                    }
                    page -= run.pages;
                }
                panic!("a page behind the region");
            };
            Ok(addresses.iter().map(node).collect())
        }
    }

    fn merged(runs: &[(u64, Option<u32>)]) -> Vec<Run> {
        let mut merged = Vec::new();
        runs.iter().for_each(|(pages, node)| push(&mut merged, *pages, *node));
        merged
    }

    fn bytes(runs: &[Run]) -> u64 {
        runs.iter().map(|run| run.pages).sum::<u64>() * 4096 - 100
    }

    #[test]
    fn a_region_in_pieces_is_found_exactly_with_few_questions() {
        let runs = merged(&[(70_001, Some(0)), (50_000, Some(3)), (1_000, None), (141_143, Some(1))]);
        let mut asked = 0;
        let map = bounded(START, bytes(&runs), 4096, &mut answering(&runs, &mut asked)).unwrap();
        assert_eq!(map.offset, 100);
        assert_eq!(map.runs, runs);
        assert!(asked < 600, "{asked} questions for 1 GiB");
    }

    #[test]
    fn without_questions_left_borders_are_guessed_and_all_pages_counted() {
        let runs = merged(&[(70_001, Some(0)), (50_000, Some(3)), (141_143, Some(1))]);
        for limit in [0, 1, 2, 3, 4, 7, 20, 100] {
            let mut asked = 0;
            let map = bounded(START, bytes(&runs), limit, &mut answering(&runs, &mut asked)).unwrap();
            assert!(asked <= limit.max(1), "{asked} of {limit}");
            assert_eq!(map.runs.iter().map(|run| run.pages).sum::<u64>(), 261_144);
        }
    }

    #[test]
    fn nothing_and_a_single_byte_are_regions() {
        let one = merged(&[(1, Some(2))]);
        let mut asked = 0;
        let mut query = answering(&one, &mut asked);
        assert_eq!(bounded(START, 0, 10, &mut query).unwrap().runs, []);
        assert_eq!(bounded(START, 1, 10, &mut query).unwrap().runs, one);
        assert_eq!(whole(START, 0, &mut || true, &mut query).unwrap().unwrap().runs, []);
        assert_eq!(whole(START, 1, &mut || true, &mut query).unwrap().unwrap().runs, one);
    }

    #[test]
    fn a_whole_scan_sees_what_a_sample_cannot_and_stops_when_told() {
        let every_other: Vec<_> = (0..9000).map(|page| (1, Some(page % 2))).collect();
        let runs = merged(&every_other);
        let mut asked = 0;
        let map = whole(START, bytes(&runs), &mut || true, &mut answering(&runs, &mut asked)).unwrap().unwrap();
        assert_eq!((map.runs, asked), (runs.clone(), 9000));
        let (mut parts, mut asked) = (2, 0);
        let mut goes_on = || {
            parts -= 1;
            parts >= 0
        };
        assert_eq!(whole(START, bytes(&runs), &mut goes_on, &mut answering(&runs, &mut asked)).unwrap(), None);
        assert_eq!(asked, 2 * PART_PAGES);
    }

    #[test]
    fn single_pages_on_changing_nodes_are_not_all_told_apart() {
        let pages = WHOLE_RUNS_MAX as u64 + 40_000;
        for first_unknown in [0, 1] {
            let node = |page: u64| (page % 2 == first_unknown).then_some(1u32);
            let runs = merged(&(0..pages).map(|page| (1, node(page))).collect::<Vec<_>>());
            // By address, because looking through all runs for each page takes long.
            let mut asked = 0;
            let mut query = |addresses: &[usize]| {
                asked += addresses.len();
                let page = |address: &usize| (address / 4096 - START / 4096) as u64;
                Ok(addresses.iter().map(|address| node(page(address)).map_or(-2, |node| node as i32)).collect())
            };
            let map = whole(START, bytes(&runs), &mut || true, &mut query).unwrap().unwrap();
            let equal = WHOLE_RUNS_MAX - 1;
            assert_eq!(map.runs[..equal], runs[..equal]);
            assert_eq!((map.pages(), map.runs.last().unwrap().node), (pages, None));
            assert!(map.runs.len() <= WHOLE_RUNS_MAX + 1 && asked <= WHOLE_RUNS_MAX + 2 * PART_PAGES, "{asked}");
            map.check_form().unwrap();
        }
    }

    #[test]
    fn a_system_that_refuses_or_answers_nonsense_is_an_error() {
        let mut refuse = |_: &[usize]| Err(io::Error::from_raw_os_error(1));
        assert!(bounded(START, 1 << 30, 100, &mut refuse).is_err());
        assert!(whole(START, 1 << 30, &mut || true, &mut refuse).is_err());
        let mut short = |_: &[usize]| Ok(vec![0]);
        assert!(bounded(START, 1 << 30, 100, &mut short).is_err());
    }

    proptest! {
        #[test]
        fn pieces_that_no_sample_misses_are_found_exactly(
            pieces in prop::collection::vec((BLOCK_PAGES..5000, prop::option::of(0u32..4)), 1..12)
        ) {
            let runs = merged(&pieces);
            let mut asked = 0;
            let map = bounded(START, bytes(&runs), 1 << 20, &mut answering(&runs, &mut asked)).unwrap();
            prop_assert_eq!(&map.runs, &runs);
            let total: u64 = runs.iter().map(|run| run.pages).sum();
            prop_assert!(asked as u64 <= total / BLOCK_PAGES + 3 + 18 * runs.len() as u64);
        }

        #[test]
        fn any_placement_gives_a_map_of_all_pages_within_the_limit(
            pieces in prop::collection::vec((1u64..2000, prop::option::of(0u32..4)), 1..40), limit in 0usize..300
        ) {
            let runs = merged(&pieces);
            let mut asked = 0;
            let map = bounded(START, bytes(&runs), limit, &mut answering(&runs, &mut asked)).unwrap();
            prop_assert!(asked <= limit.max(1));
            prop_assert_eq!(map.runs.iter().map(|run| run.pages).sum::<u64>(), runs.iter().map(|run| run.pages).sum::<u64>());
            prop_assert!(map.runs.windows(2).all(|pair| pair[0].node != pair[1].node));
            prop_assert!(map.runs.iter().all(|run| run.pages > 0));
            let mut asked = 0;
            let exact = whole(START, bytes(&runs), &mut || true, &mut answering(&runs, &mut asked)).unwrap().unwrap();
            prop_assert_eq!(exact.runs, runs);
        }
    }
}
