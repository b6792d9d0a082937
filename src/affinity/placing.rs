//! Bringing the pages of some memory to the nodes they are wanted on, before it is loaded.
//!
//! The memory is the caller's to write to and about to be overwritten: what it holds afterwards is unspecified where pages were
//! dropped. In three steps:
//!
//! 1. **Blocks with several owners** ([`blocks`]): 2 MiB that are wanted on several nodes, or that other memory has a part in. A
//!    huge page there is taken apart, and huge pages are forbidden for the memory's part of the block. On the calling thread.
//! 2. **The rest**, on threads of each node that is wanted: pages that are present elsewhere are *migrated*, because they may be
//!    registered with a device (the system then refuses, and they stay); pages without memory get it, from a thread
//!    that runs on the node and prefers it.
//! 3. **A look** at where every page is now that was not seen where it is wanted already, with the reason for each that is not.
//!    Memory that is in its place is asked about once, which is what a restart pays for: 40 ms for each GiB and thread.
//!
//! Nothing here fails: what could not be done is in the report.
#![forbid(unsafe_code)]

mod blocks;
mod maps;
mod report;

pub use report::{PlaceReport, Reason};

use super::cpus::{self, Cpus};
use super::pages::PAGE_BYTES;
use super::scan::BLOCK_PAGES;
use super::{Node, numa, with_preferred};
use nix::sys::signal::SigSet;
use report::Progress;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the memory, counted from its start, and the number of the node that they are wanted on; `None`: no matter where.
pub type Wanted = (Range<u64>, Option<u32>);

/// Pages that a thread handles at once: 4 MiB.
const PART_PAGES: u64 = 1024;
/// Threads of one node: one clears pages at a fraction of what memory can take.
const THREADS_MAX: usize = 4;
/// How often it is asked again for pages that seem to have no memory.
const QUERIES_MAX: usize = 3;
/// How long the system takes to move some pages.
const MOVE_TIME: Duration = Duration::from_millis(1);
/// Pages that are worth a thread of their own: 64 MiB.
const THREAD_PAGES: u64 = (64 << 20) / PAGE_BYTES;

/// Pages of the memory (counted from the one that its first byte lies in) that are wanted on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    pages: Range<u64>,
    node: u32,
}

/// Where some memory lies.
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

    /// Pages of the machine before its first one.
    fn first(&self) -> u64 {
        self.start as u64 / PAGE_BYTES
    }

    /// Its pages, also those that it has a part of.
    fn pages(&self) -> u64 {
        if self.bytes == 0 { 0 } else { (self.offset() + self.bytes).div_ceil(PAGE_BYTES) }
    }

    /// Its pages of which all bytes are its own.
    fn whole_pages(&self) -> Range<u64> {
        let end = (self.offset() + self.bytes) / PAGE_BYTES;
        let start = self.offset().div_ceil(PAGE_BYTES);
        start..end.max(start)
    }

    /// The first page that begins at this byte or behind it; the very first one, of which it may have a part, begins at 0.
    fn page_from(&self, byte: u64) -> u64 {
        if byte == 0 { 0 } else { (self.offset() + byte).div_ceil(PAGE_BYTES).min(self.pages()) }
    }

    /// What it has of these pages, in bytes from its start.
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

    /// The block that a page lies in, counted over the whole address space.
    fn block(&self, page: u64) -> u64 {
        (self.first() + page) / BLOCK_PAGES
    }
}

/// What is wanted, page by page: a page belongs to the range that its first byte lies in. Ranges that overlap others lose what
/// these have, and what lies behind the memory is left out.
fn pieces(place: Place, wanted: &[Wanted]) -> Vec<Piece> {
    let mut ranges: Vec<&Wanted> = wanted.iter().collect();
    ranges.sort_by_key(|(range, _)| range.start);
    let (mut pieces, mut done): (Vec<Piece>, u64) = (Vec::new(), 0);
    for (range, node) in ranges {
        if range.start >= place.bytes || range.is_empty() {
            continue;
        }
        let pages = place.page_from(range.start).max(done)..place.page_from(range.end.min(place.bytes));
        // The last page ends behind the memory.
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

/// Brings the pages of `target` to the nodes that are wanted, as far as the system allows, and says what became of each. `cpus`
/// are the CPUs of each node that this process may use; threads of a node that has none run where they may.
///
/// Contents are lost where a huge page had to be taken apart; memory outside of `target` keeps its contents and its nodes.
///
/// # Blocking
/// As long as it takes to clear or copy the pages. Memory that this takes beside the pages: some bytes for each range that is
/// wanted, and a few hundred KiB.
pub fn place(target: &mut [u8], wanted: &[Wanted], cpus: &BTreeMap<u32, Cpus>) -> PlaceReport {
    let place = Place::of(target);
    let pieces = pieces(place, wanted);
    let Some(first) = pieces.first() else { return PlaceReport::default() };
    if let Err(error) = numa::query(&[place.address(first.pages.start)]) {
        numa::told("move_pages", &error);
        return PlaceReport::refused(pieces.iter().map(|piece| piece.pages.end - piece.pages.start).sum());
    }
    let maps = maps::read();
    let (shared, mut progress) = blocks::take_apart(target, place, &pieces, &maps);
    progress.add(run(shares(target, place, &pieces, &shared), cpus));
    look(place, &pieces, &maps, progress)
}

/// Says where the pages of `target` are, compared with what is wanted. Changes nothing.
///
/// # Blocking
/// About 40 ms for each GiB.
pub fn verify(target: &[u8], wanted: &[Wanted]) -> PlaceReport {
    let place = Place::of(target);
    look(place, &pieces(place, wanted), &maps::read(), Progress::default())
}

/// A part of a piece, handled at once.
struct Share<'a> {
    place: Place,
    bytes: &'a mut [u8],
    /// Page of the memory that the bytes begin in.
    first: u64,
    /// Lies in a block with several owners, where nothing more is migrated.
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
    shares: Mutex<Vec<Share<'a>>>,
}

impl Queue<'_> {
    /// Handles shares until none is left.
    fn drain(&self) -> Progress {
        with_preferred(Some(Node(self.node)), || {
            let mut progress = Progress::default();
            loop {
                let next = self.shares.lock().unwrap_or_else(PoisonError::into_inner).pop();
                match next {
                    Some(share) => share.settle(self.node, &mut progress),
                    None => return progress,
                }
            }
        })
    }

    /// Pages that nobody has taken yet.
    fn pages(&self) -> u64 {
        let shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.iter().map(|share| share.place.pages()).sum()
    }

    fn threads(&self, cpus: Option<&Cpus>) -> usize {
        let most = cpus.map_or(1, Cpus::len).clamp(1, THREADS_MAX);
        (self.pages().div_ceil(THREAD_PAGES) as usize).clamp(1, most)
    }
}

/// Handles all shares, each on a thread of its node.
fn run(shares: BTreeMap<u32, Vec<Share>>, cpus: &BTreeMap<u32, Cpus>) -> Progress {
    let queues: Vec<Queue> = shares
        .into_iter()
        .map(|(node, mut shares)| {
            // They are taken from the end.
            shares.reverse();
            Queue { node, shares: Mutex::new(shares) }
        })
        .collect();
    let mut progress = Progress::default();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for queue in &queues {
            let cpus = cpus.get(&queue.node).filter(|cpus| !cpus.is_empty());
            for _ in 0..queue.threads(cpus) {
                let work = move || {
                    // Signals are the application's.
                    if let Err(error) = SigSet::all().thread_block() {
                        log::debug!("event=signals-not-blocked error={error}");
                    }
                    if let Some(cpus) = cpus {
                        cpus::run_on(cpus);
                    }
                    queue.drain()
                };
                threads.extend(std::thread::Builder::new().name("bvk-place".into()).spawn_scoped(scope, work));
            }
        }
        threads.into_iter().filter_map(|thread| thread.join().ok()).for_each(|part| progress.add(part));
    });
    // Where no thread could be had.
    queues.iter().filter(|queue| queue.pages() > 0).for_each(|queue| progress.add(queue.drain()));
    progress
}

impl Share<'_> {
    /// Migrates what is on other nodes and populates what is nowhere. The calling thread prefers the node.
    fn settle(self, node: u32, progress: &mut Progress) {
        let Share { place, bytes, first, is_shared } = self;
        let found = match numa::query(&place.addresses(0..place.pages())) {
            Ok(found) => found,
            Err(error) => return progress.note(first..first + place.pages(), Reason::of(&error)),
        };
        if !is_shared {
            if found.iter().all(|status| u32::try_from(*status) == Ok(node)) {
                return progress.see(first..first + place.pages());
            }
            bring(place, first, 0, &found, node, progress);
        }
        let mut page = 0;
        while page < place.pages() {
            let is_absent = |page: &u64| found[*page as usize] < 0;
            let length = (page..place.pages()).take_while(is_absent).count() as u64;
            if length > 0 {
                let pages = page..page + length;
                match numa::populate(&mut bytes[place.bytes_of(&pages)]) {
                    Ok(()) => progress.populate(first + pages.start..first + pages.end),
                    Err(error) => progress.note(first + pages.start..first + pages.end, Reason::of(&error)),
                }
                // Linux 6.1 to 6.5 take pages for absent that automatic balancing has marked; populating takes the mark off.
                if let Ok(found) = numa::query(&place.addresses(pages.clone())) {
                    bring(place, first, pages.start, &found, node, progress);
                }
            }
            page += length + 1;
        }
    }
}

/// Migrates pages that were found on other nodes; `found` begins with the page `from` of a share whose first page is `first`.
fn bring(place: Place, first: u64, from: u64, found: &[i32], node: u32, progress: &mut Progress) {
    let astray = found.iter().zip(from..).filter(|(status, _)| is_astray(**status, node)).map(|(_, page)| page);
    let astray: Vec<u64> = astray.collect();
    progress.migrated += migrate(place, &astray, node, |page, why| progress.note(first + page..first + page + 1, why));
}

/// Is a page with this status present on another node?
fn is_astray(status: i32, node: u32) -> bool {
    u32::try_from(status).is_ok_and(|found| found != node)
}

/// Migrates some pages and says how many came; the others are noted.
fn migrate(place: Place, pages: &[u64], node: u32, mut note: impl FnMut(u64, Reason)) -> u64 {
    if pages.is_empty() {
        return 0;
    }
    let addresses: Vec<usize> = pages.iter().map(|page| place.address(*page)).collect();
    match numa::migrate(&addresses, node) {
        Ok(status) => {
            let mut came = 0;
            for (page, status) in pages.iter().zip(status) {
                match u32::try_from(status) {
                    Ok(found) if found == node => came += 1,
                    _ => note(*page, Reason::of_page(status)),
                }
            }
            came
        }
        Err(error) => {
            let reason = Reason::of(&error);
            pages.iter().for_each(|page| note(*page, reason));
            0
        }
    }
}

/// Compares where pages are with where they are wanted.
fn look(place: Place, pieces: &[Piece], maps: &maps::Maps, mut progress: Progress) -> PlaceReport {
    let mut report = progress.begin();
    for piece in pieces {
        let mut from = piece.pages.start;
        while from < piece.pages.end {
            // Parts are those that were settled, as far as one node was wanted there.
            let end = (place.first() + from) / PART_PAGES * PART_PAGES + PART_PAGES - place.first();
            let pages = from..piece.pages.end.min(end);
            from = pages.end;
            report.wanted += pages.end - pages.start;
            if progress.has_seen(&pages) {
                report.right += pages.end - pages.start;
                continue;
            }
            let Ok(found) = query_again(&place.addresses(pages.clone())) else {
                report.wrong(Reason::Forbidden, pages.end - pages.start);
                continue;
            };
            for (page, status) in pages.zip(found) {
                match u32::try_from(status) {
                    Ok(node) if node == piece.node => report.right += 1,
                    found => {
                        let is_own = maps.is_private_anonymous(place.address(page));
                        report.wrong(progress.reason(page, found.is_ok(), is_own), 1);
                    }
                }
            }
        }
    }
    report
}

/// Where pages are; asked more than once if a few seem to have no memory: while the system moves a page, to make room for huge ones
/// for example, it says so of it.
fn query_again(addresses: &[usize]) -> std::io::Result<Vec<i32>> {
    let mut found = numa::query(addresses)?;
    for _ in 0..QUERIES_MAX {
        let absent: Vec<usize> = (0..found.len()).filter(|index| found[*index] < 0).collect();
        if absent.is_empty() || absent.len() as u64 > BLOCK_PAGES {
            break;
        }
        std::thread::sleep(MOVE_TIME);
        let again: Vec<usize> = absent.iter().map(|index| addresses[*index]).collect();
        absent.into_iter().zip(numa::query(&again)?).for_each(|(index, status)| found[index] = status);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
