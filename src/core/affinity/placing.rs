//! Brings the pages of some memory to the nodes on which they are wanted, before the memory is loaded.
//!
//! The caller may write to the memory and is about to overwrite it: where pages were dropped, its content is unspecified afterwards. Small
//! memory that is already right is only looked at, which costs nothing more. Otherwise, there are three steps:
//!
//! 1. **Blocks with several owners** (`blocks`): these are 2 MiB that are wanted on several nodes, or in which other memory
//!    has a part. A huge page there is taken apart, and huge pages are forbidden for the memory's part of the block. The
//!    calling thread does this.
//! 2. **The rest**, on threads of each node that is wanted: pages that are present elsewhere are *migrated*, because they may be
//!    registered with a device (the system then refuses, and they stay); pages without memory get it, from a thread that runs on
//!    the node and prefers it. Few pages of a large part are queried first. If all of these are right, the part is left as it
//!    is, because no more than single pages of it can be elsewhere.
//! 3. **The count**: where every page is now, with the reason for each that is not where it is wanted. The threads count the pages
//!    that they handle, so a page that was right is queried once, and other pages twice. Only the pages of blocks with several
//!    owners are queried again when all threads are done, because one thread may move another one's pages there.
//!
//! Nothing here fails: what could not be done is in the report.
#![forbid(unsafe_code)]

mod blocks;
mod maps;
mod report;

use crate::base::sync::Lock;
use crate::base::threads::spawn_scoped;
pub use report::{PlaceReport, Reason};

use super::cpus::{self, Cpus};
use super::pages::PAGE_BYTES;
use super::scan::BLOCK_PAGES;
use super::{Node, numa, with_preferred};
use maps::Maps;
use report::Progress;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of the memory, counted from its start, and the number of the node on which they are wanted; `None`: no matter where.
pub type Wanted = (Range<u64>, Option<u32>);

/// The number of pages that a thread handles at once: 64 MiB. With each call to move pages, the system empties the page
/// caches of all CPUs under a machine-wide lock, so calls should be few. The data that are kept about these pages while
/// they move take half a MiB.
const PART_PAGES: u64 = (64 << 20) / PAGE_BYTES;
/// Up to this many pages are all queried before anything is done: 4 MiB.
const FIRST_PAGES: u64 = (4 << 20) / PAGE_BYTES;
/// The least number of pages of a part, and the step at which they are queried first, which makes a few hundred queries. The steps are
/// primes, so that pages that are spread over nodes in turn do not all seem to be on one.
const SAMPLE_STEPS: [(u64, usize); 2] = [((32 << 20) / PAGE_BYTES, 61), ((4 << 20) / PAGE_BYTES, 13)];
/// Up to this many pages are placed by the calling thread: 1 MiB.
const SMALL_PAGES: u64 = (1 << 20) / PAGE_BYTES;
/// The maximum number of threads of one node: a single thread clears pages at a fraction of what memory can take.
const THREADS_MAX: usize = 4;
/// Pages that are worth a thread of their own: 64 MiB.
const THREAD_PAGES: u64 = (64 << 20) / PAGE_BYTES;

/// Pages of the memory, counted from the one that contains its first byte, that are wanted on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    pages: Range<u64>,
    node: u32,
}

/// Where some memory is.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    bytes: u64,
}

impl Place {
    fn of(target: &[u8]) -> Place {
        Place { start: target.as_ptr() as usize, bytes: target.len() as u64 }
    }

    /// Where in its page it begins.
    fn offset(&self) -> u64 {
        self.start as u64 % PAGE_BYTES
    }

    /// The number of the machine's pages before its first one.
    fn first(&self) -> u64 {
        self.start as u64 / PAGE_BYTES
    }

    /// The number of its pages, including those of which it has only a part.
    fn pages(&self) -> u64 {
        if self.bytes == 0 { 0 } else { (self.offset() + self.bytes).div_ceil(PAGE_BYTES) }
    }

    /// Its pages of which all bytes are its own.
    fn whole_pages(&self) -> Range<u64> {
        let end = (self.offset() + self.bytes) / PAGE_BYTES;
        let start = self.offset().div_ceil(PAGE_BYTES);
        start..end.max(start)
    }

    /// The first page that begins at this byte or after it. The very first page, of which the memory may have only a part, begins at 0.
    fn page_from(&self, byte: u64) -> u64 {
        if byte == 0 { 0 } else { (self.offset() + byte).div_ceil(PAGE_BYTES).min(self.pages()) }
    }

    /// The part of these pages that belongs to it, in bytes from its start.
    fn bytes_of(&self, pages: &Range<u64>) -> Range<usize> {
        let byte = |page: u64| (page * PAGE_BYTES).saturating_sub(self.offset()).min(self.bytes) as usize;
        byte(pages.start)..byte(pages.end)
    }

    fn address(&self, page: u64) -> usize {
        ((self.first() + page) * PAGE_BYTES) as usize
    }

    fn addresses(&self, pages: Range<u64>) -> Vec<usize> {
        pages.map(|page| self.address(page)).collect()
    }

    /// Some of its pages, including the last one; none if it has so few that all may be queried.
    fn sample(&self) -> Vec<u64> {
        let step = SAMPLE_STEPS.into_iter().find(|(pages, _)| self.pages() >= *pages);
        let last = self.pages().saturating_sub(1);
        step.map_or_else(Vec::new, |(_, step)| (0..last).step_by(step).chain([last]).collect())
    }

    /// Are these pages of the memory on this node?
    fn are_on(&self, pages: &[u64], node: u32) -> bool {
        let addresses: Vec<usize> = pages.iter().map(|page| self.address(*page)).collect();
        let is_there = |status: &i32| u32::try_from(*status) == Ok(node);
        numa::query(&addresses).is_ok_and(|found| found.iter().all(is_there))
    }

    /// The block that contains a page, counted over the whole address space.
    fn block(&self, page: u64) -> u64 {
        (self.first() + page) / BLOCK_PAGES
    }
}

/// The wanted nodes, page by page: a page belongs to the range that its first byte is in. A range loses whatever it shares
/// with an earlier one, and anything beyond the memory is left out.
fn pieces(place: Place, wanted: &[Wanted]) -> Vec<Piece> {
    let mut ranges: Vec<&Wanted> = wanted.iter().collect();
    ranges.sort_by_key(|(range, _)| range.start);
    let (mut pieces, mut done): (Vec<Piece>, u64) = (Vec::new(), 0);
    for (range, node) in ranges {
        if range.start >= place.bytes || range.is_empty() {
            continue;
        }
        let pages = place.page_from(range.start).max(done)..place.page_from(range.end.min(place.bytes));
        // The last page ends beyond the memory.
        let pages = pages.start..if range.end >= place.bytes { place.pages() } else { pages.end };
        if pages.is_empty() {
            continue;
        }
        done = pages.end;
        match (pieces.last_mut(), node) {
            (_, None) => {}
            (Some(last), Some(node)) if last.node == *node && last.pages.end == pages.start => {
                last.pages.end = pages.end
            }
            (_, Some(node)) => pieces.push(Piece { pages, node: *node }),
        }
    }
    pieces
}

/// Brings the pages of `target` to the wanted nodes, where the system allows it, and says what became of each. `cpus` are the
/// CPUs of each node that this process may use; threads of a node that has none run where they may.
///
/// Contents are lost where a huge page had to be taken apart; memory outside of `target` keeps its contents and its nodes.
///
/// # Blocking
/// As long as it takes to clear or copy the pages. In addition to the pages, this takes some bytes of memory for each range that
/// is wanted, and a MiB for each thread.
pub fn place(target: &mut [u8], wanted: &[Wanted], cpus: &BTreeMap<u32, Cpus>) -> PlaceReport {
    let place = Place::of(target);
    let pieces = pieces(place, wanted);
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return PlaceReport::default() };
    let is_small = last.pages.end - first.pages.start <= FIRST_PAGES;
    // If there are more pages, the first one shows whether the system answers.
    let pages = first.pages.start..if is_small { last.pages.end } else { first.pages.start + 1 };
    match numa::query(&place.addresses(pages.clone())) {
        Ok(found) if is_small && are_right(&pieces, &found) => {
            return PlaceReport::all_right(page_count(&pieces));
        }
        Ok(_) => {}
        Err(error) => {
            numa::told("move_pages", &error);
            return PlaceReport::refused(page_count(&pieces));
        }
    }
    let maps = Maps::of_this_process();
    let (shared, mut progress) = blocks::take_apart(target, place, &pieces, &maps);
    progress.add(run(shares(target, place, &pieces, &shared), cpus));
    progress.finish(place, &maps)
}

fn page_count(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.pages.end - piece.pages.start).sum()
}

/// Is every page of the pieces where it is wanted? `found` begins with the first page of the first piece.
fn are_right(pieces: &[Piece], found: &[i32]) -> bool {
    let from = pieces.first().map_or(0, |piece| piece.pages.start);
    pieces.iter().all(|piece| {
        let found = found.get((piece.pages.start - from) as usize..(piece.pages.end - from) as usize);
        found.is_some_and(|found| found.iter().all(|status| u32::try_from(*status) == Ok(piece.node)))
    })
}

/// Says where the pages of `target` are, compared with what is wanted. Changes nothing.
///
/// # Blocking
/// For about 40 ms per GiB.
pub fn verify(target: &[u8], wanted: &[Wanted]) -> PlaceReport {
    let place = Place::of(target);
    let mut progress = Progress::default();
    pieces(place, wanted).into_iter().for_each(|piece| progress.leave_open(piece.pages, piece.node));
    progress.finish(place, &Maps::of_this_process())
}

/// A part of a piece, handled at once.
struct Share<'a> {
    place: Place,
    bytes: &'a mut [u8],
    /// The page of the memory in which the bytes begin.
    first: u64,
    /// It lies in a block with several owners, where nothing more is migrated.
    is_shared: bool,
}

/// Pieces cut at the borders of parts and of blocks with several owners, for each node.
fn shares<'a>(
    target: &'a mut [u8],
    place: Place,
    pieces: &[Piece],
    shared: &blocks::Shared,
) -> BTreeMap<u32, Vec<Share<'a>>> {
    let mut shares: BTreeMap<u32, Vec<Share>> = BTreeMap::new();
    let (mut rest, mut done) = (target, 0);
    for piece in pieces {
        let mut at = piece.pages.start;
        while at < piece.pages.end {
            let is_shared = shared.contains(place.block(at));
            let mut end = at;
            while end < piece.pages.end {
                let next = (place.first() + end) / BLOCK_PAGES * BLOCK_PAGES + BLOCK_PAGES - place.first();
                end = next.min(piece.pages.end);
                let is_full = (place.first() + end).is_multiple_of(PART_PAGES);
                if is_full || end == piece.pages.end || shared.contains(place.block(end)) != is_shared {
                    break;
                }
            }
            let bytes = place.bytes_of(&(at..end));
            let (_, tail) = rest.split_at_mut(bytes.start - done);
            let (bytes, tail) = tail.split_at_mut(bytes.len());
            let share = Share { place: Place::of(bytes), bytes, first: at, is_shared };
            done = place.bytes_of(&(at..end)).end;
            rest = tail;
            shares.entry(piece.node).or_default().push(share);
            at = end;
        }
    }
    shares
}

/// The shares of one node, from which its threads take.
struct Queue<'a> {
    node: u32,
    shares: Lock<Vec<Share<'a>>>,
}

impl Queue<'_> {
    /// Handles shares until none is left.
    fn drain(&self) -> Progress {
        with_preferred(Some(Node(self.node)), || {
            let (mut progress, missed) = (Progress::default(), missed(self.node));
            loop {
                let next = self.shares.lock().pop();
                match next {
                    Some(share) => share.settle(self.node, missed, &mut progress),
                    None => return progress,
                }
            }
        })
    }

    /// Pages that nobody has taken yet.
    fn pages(&self) -> u64 {
        let shares = self.shares.lock();
        shares.iter().map(|share| share.place.pages()).sum()
    }

    fn threads(&self, cpus: Option<&Cpus>) -> usize {
        let most = cpus.map_or(1, Cpus::len).clamp(1, THREADS_MAX);
        (self.pages().div_ceil(THREAD_PAGES) as usize).clamp(1, most)
    }
}

/// Handles all shares, each on a thread of its node; if there are few pages, on the calling thread.
fn run(shares: BTreeMap<u32, Vec<Share>>, cpus: &BTreeMap<u32, Cpus>) -> Progress {
    let queues: Vec<Queue> = shares
        .into_iter()
        .map(|(node, mut shares)| {
            // Shares are taken from the end.
            shares.reverse();
            Queue { node, shares: Lock::new(shares) }
        })
        .collect();
    let mut progress = Progress::default();
    if queues.iter().map(Queue::pages).sum::<u64>() > SMALL_PAGES {
        run_threads(&queues, cpus).into_iter().for_each(|part| progress.add(part));
    }
    // There are few pages, or no thread could be started.
    queues.iter().filter(|queue| queue.pages() > 0).for_each(|queue| progress.add(queue.drain()));
    progress
}

fn run_threads(queues: &[Queue], cpus: &BTreeMap<u32, Cpus>) -> Vec<Progress> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for queue in queues {
            let cpus = cpus.get(&queue.node).filter(|cpus| !cpus.is_empty());
            for _ in 0..queue.threads(cpus) {
                let work = move || {
                    if let Some(cpus) = cpus {
                        cpus::run_on(cpus);
                    }
                    queue.drain()
                };
                threads.extend(spawn_scoped(scope, "bvk-place", work));
            }
        }
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Why pages that the calling thread populates for this node get memory elsewhere: the node is full, unless the thread could
/// not be made to prefer it.
fn missed(node: u32) -> Reason {
    match numa::policy() {
        Ok(policy) if policy.nodes == [node] => Reason::NodeFull,
        Ok(_) => Reason::NoNode,
        Err(_) => Reason::Forbidden,
    }
}

impl Share<'_> {
    /// Migrates pages that are on other nodes, populates pages without memory, and counts. The calling thread prefers the
    /// node; pages that it populates elsewhere are there because of `missed`.
    fn settle(self, node: u32, missed: Reason, progress: &mut Progress) {
        let Share { place, bytes, first, is_shared } = self;
        let all = first..first + place.pages();
        let sample = if is_shared { Vec::new() } else { place.sample() };
        if !sample.is_empty() && place.are_on(&sample, node) {
            return progress.count_sampled(place.pages(), sample.len() as u64);
        }
        let mut now = match numa::query(&place.addresses(0..place.pages())) {
            Ok(found) => found,
            Err(error) => return progress.give_up(&all, Reason::of(&error)),
        };
        if !is_shared {
            bring(place, first, 0..place.pages(), &mut now, node, progress);
        }
        let mut page = 0;
        while page < place.pages() {
            let is_absent = |page: &u64| now[*page as usize] < 0;
            let length = (page..place.pages()).take_while(is_absent).count() as u64;
            if length > 0 {
                let pages = page..page + length;
                match numa::populate(&mut bytes[place.bytes_of(&pages)]) {
                    Ok(()) => progress.populate(first + pages.start..first + pages.end, missed),
                    Err(error) => progress.note(first + pages.start..first + pages.end, Reason::of(&error)),
                }
                // With Linux 6.1 to 6.5, a page that automatic balancing has marked seems absent; populating it removes the mark.
                if let Ok(found) = numa::query(&place.addresses(pages.clone())) {
                    now[pages.start as usize..pages.end as usize].copy_from_slice(&found);
                    bring(place, first, pages, &mut now, node, progress);
                }
            }
            page += length + 1;
        }
        match is_shared {
            true => progress.leave_open(all, node),
            false => progress.count(all, &now, node),
        }
    }
}

/// Migrates those of these pages of a share that were found on other nodes; `now` says where each page of the share is, before and
/// after. The first page of the share is `first`.
fn bring(place: Place, first: u64, pages: Range<u64>, now: &mut [i32], node: u32, progress: &mut Progress) {
    let astray: Vec<u64> = pages.filter(|page| is_astray(now[*page as usize], node)).collect();
    progress.migrated += migrate(place, &astray, node, |page, outcome| match outcome {
        Ok(found) => now[page as usize] = found,
        Err(why) => progress.note(first + page..first + page + 1, why),
    });
}

/// Is a page with this status present on another node?
fn is_astray(status: i32, node: u32) -> bool {
    u32::try_from(status).is_ok_and(|found| found != node)
}

/// Migrates some pages. Says how many arrived and, for each, where it is now or why it did not arrive.
fn migrate(place: Place, pages: &[u64], node: u32, mut tell: impl FnMut(u64, Result<i32, Reason>)) -> u64 {
    if pages.is_empty() {
        return 0;
    }
    let addresses: Vec<usize> = pages.iter().map(|page| place.address(*page)).collect();
    match numa::migrate(&addresses, node) {
        Ok(status) => {
            let mut came = 0;
            for (page, status) in pages.iter().zip(status) {
                let has_come = u32::try_from(status) == Ok(node);
                came += u64::from(has_come);
                tell(*page, if has_come { Ok(status) } else { Err(Reason::of_page(status)) });
            }
            came
        }
        Err(error) => {
            let reason = Reason::of(&error);
            pages.iter().for_each(|page| tell(*page, Err(reason)));
            0
        }
    }
}

#[cfg(test)]
mod tests;
