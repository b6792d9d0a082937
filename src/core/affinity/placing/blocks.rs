//! Blocks of 2 MiB with several owners: their pages are wanted on different nodes, or other memory has a part in them.
//!
//! If such a block is one huge page, it is on one node, and moving any of its pages moves all of them. The system does not say
//! whether it is one. Its pages are therefore migrated as if they were small, to one node after another, the most wanted node last.
//! Pages that others dragged along are then found astray. That they moved at all proves that no device holds them, so they are
//! dropped and get small pages afterwards. Pages of other memory that were dragged along are brought back to where they were. For
//! this, the whole of this memory's part is dropped, because it would otherwise come along.
#![forbid(unsafe_code)]

use super::maps::Maps;
use super::report::{Progress, Reason};
use super::{PAGE_BYTES, Piece, Place, is_astray, migrate};
use crate::affinity::numa;
use crate::affinity::scan::BLOCK_PAGES;
use crate::base::log;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The maximum number of ranges of some memory for which huge pages are forbidden one by one.
const RANGES_MAX: usize = 1024;
/// Bytes of a block.
const BLOCK_BYTES: usize = (BLOCK_PAGES * PAGE_BYTES) as usize;

/// For how many more ranges this process may forbid huge pages. Each range may turn one mapping into three. A process may
/// have 65,530 mappings; these ranges take half of that.
static BANS_LEFT: Bans = Bans(AtomicUsize::new(1 << 14));

struct Bans(AtomicUsize);

impl Bans {
    /// Takes this many, if as many are left.
    fn take(&self, ranges: usize) -> bool {
        #[allow(deprecated, reason = "its new name, try_update, is not in the oldest Rust that builds this")]
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(ranges)).is_ok()
    }
}

/// The blocks with several owners.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Shared(BTreeSet<u64>);

impl Shared {
    pub(super) fn contains(&self, block: u64) -> bool {
        self.0.contains(&block)
    }

    /// How many mappings they would make; neighbouring blocks make one.
    fn runs(&self) -> usize {
        self.0.iter().filter(|block| !self.0.contains(&(*block + 1))).count()
    }
}

/// The blocks that are wanted on several nodes, and those at the ends that may be one huge page together with other memory.
fn shared(place: Place, pieces: &[Piece], maps: &Maps) -> Shared {
    let mut shared = BTreeSet::new();
    for pair in pieces.windows(2) {
        let border = place.block(pair[1].pages.start);
        if pair[0].node != pair[1].node && place.block(pair[0].pages.end - 1) == border {
            shared.insert(border);
        }
    }
    let ends = [place.block(0), place.block(place.pages().saturating_sub(1))];
    let is_wanted = |block: u64| {
        let next = pieces.partition_point(|piece| place.block(piece.pages.end - 1) < block);
        pieces.get(next).is_some_and(|piece| place.block(piece.pages.start) <= block)
    };
    for block in ends {
        let addresses = block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES;
        let is_inside = place.start <= addresses.start && addresses.end <= place.start + place.bytes as usize;
        if !is_inside && is_wanted(block) && maps.is_one(addresses) {
            shared.insert(block);
        }
    }
    Shared(shared)
}

/// Takes apart huge pages in blocks with several owners, and prevents new ones there as long as this makes few enough mappings. For
/// memory that is smaller than a block, and in which no block is wanted on several nodes, prevention is not worth it: others may do
/// with the block what they like. Returns the blocks.
pub(super) fn take_apart(target: &mut [u8], place: Place, pieces: &[Piece], maps: &Maps) -> (Shared, Progress) {
    let shared = shared(place, pieces, maps);
    let mut progress = Progress::default();
    let (is_large, ranges) = (target.len() >= BLOCK_BYTES, shared.runs());
    let may_each = is_large && ranges <= RANGES_MAX && BANS_LEFT.take(ranges);
    if is_large && !may_each && BANS_LEFT.take(1) {
        forbid_huge(target);
    }
    let mut next = 0;
    for block in &shared.0 {
        while pieces.get(next).is_some_and(|piece| place.block(piece.pages.end - 1) < *block) {
            next += 1;
        }
        let block = Block::new(place, *block, &pieces[next..]);
        let may_forbid = may_each || !is_large && block.is_mixed() && BANS_LEFT.take(1);
        block.settle(target, maps, may_forbid, &mut progress);
    }
    (shared, progress)
}

fn forbid_huge(bytes: &mut [u8]) {
    if let Err(error) = numa::forbid_huge(bytes) {
        log::debug!("event=huge-pages-allowed bytes={} error=\"{error}\"", bytes.len());
    }
}

/// The pages of a block.
struct Block {
    place: Place,
    /// The pages of which the memory has a part.
    own: Range<u64>,
    /// For each of them, the node on which it is wanted.
    wishes: Vec<Option<u32>>,
    /// Addresses of its own pages, then those of others.
    addresses: Vec<usize>,
}

impl Block {
    /// `pieces` begins with the first piece that may reach into the block.
    fn new(place: Place, block: u64, pieces: &[Piece]) -> Block {
        let first = block * BLOCK_PAGES;
        let own = first.max(place.first()) - place.first()
            ..(first + BLOCK_PAGES).min(place.first() + place.pages()) - place.first();
        let mut wishes = vec![None; (own.end - own.start) as usize];
        for piece in pieces.iter().take_while(|piece| piece.pages.start < own.end) {
            let (from, to) = (piece.pages.start.max(own.start), piece.pages.end.min(own.end));
            wishes[(from - own.start) as usize..(to - own.start) as usize].fill(Some(piece.node));
        }
        let others = (first..place.first() + own.start).chain(place.first() + own.end..first + BLOCK_PAGES);
        let others: Vec<usize> = others.map(|page| (page * PAGE_BYTES) as usize).collect();
        let addresses = [place.addresses(own.clone()), others].concat();
        Block { place, own, wishes, addresses }
    }

    /// Its own pages, counted from its first one, that are present on a node other than the wanted one, by the wanted node.
    fn astray(&self, found: &[i32]) -> BTreeMap<u32, Vec<u64>> {
        let mut astray: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (index, (wish, status)) in self.wishes.iter().zip(found).enumerate() {
            if let Some(node) = wish
                && is_astray(*status, *node)
            {
                astray.entry(*node).or_default().push(index as u64);
            }
        }
        astray
    }

    /// Are its pages wanted on different nodes?
    fn is_mixed(&self) -> bool {
        let mut wishes = self.wishes.iter().flatten();
        let first = wishes.next();
        wishes.any(|wish| Some(wish) != first)
    }

    /// Brings its present pages to their nodes; some may be absent afterwards.
    fn settle(&self, target: &mut [u8], maps: &Maps, may_forbid: bool, progress: &mut Progress) {
        let Ok(before) = numa::query(&self.addresses) else { return };
        let mut groups: Vec<(u32, Vec<u64>)> = self.astray(&before).into_iter().collect();
        groups.sort_by_key(|(_, pages)| pages.len());
        let is_absent = self.wishes.iter().zip(&before).any(|(wish, status)| wish.is_some() && *status < 0);
        if may_forbid && (self.is_mixed() || is_absent || !groups.is_empty()) {
            // This is done before anything is moved, because the system turns small pages into huge ones in the background.
            forbid_huge(&mut target[self.place.bytes_of(&self.own)]);
        }
        if groups.is_empty() {
            return;
        }
        let (mut now, mut has_moved) = (before.clone(), vec![false; before.len()]);
        for (node, pages) in groups {
            let pages: Vec<u64> = pages.into_iter().map(|page| self.own.start + page).collect();
            progress.migrated += migrate(self.place, &pages, node, |page, outcome| {
                if let Err(why) = outcome {
                    progress.note(page..page + 1, why);
                }
            });
            let Ok(found) = numa::query(&self.addresses) else { return };
            for (index, status) in found.iter().enumerate() {
                has_moved[index] |= *status >= 0 && now[index] >= 0 && *status != now[index];
            }
            now = found;
        }
        self.drop_what_came_along(target, maps, [&before, &now], &has_moved, progress);
    }

    fn drop_what_came_along(
        &self,
        target: &mut [u8],
        maps: &Maps,
        [before, now]: [&[i32]; 2],
        has_moved: &[bool],
        progress: &mut Progress,
    ) {
        let own = self.wishes.len();
        let dragged: Vec<usize> = (own..now.len()).filter(|i| before[*i] >= 0 && before[*i] != now[*i]).collect();
        let whole = self.place.whole_pages();
        for (index, wish) in self.wishes.iter().enumerate() {
            let page = self.own.start + index as u64;
            let is_wrong = wish.is_some_and(|node| is_astray(now[index], node));
            let is_in_the_way = wish.is_some() && !dragged.is_empty();
            if !(has_moved[index] && (is_wrong || is_in_the_way)) {
                continue;
            }
            let may = whole.contains(&page) && maps.is_private_anonymous(self.place.address(page));
            let bytes = self.place.bytes_of(&(page..page + 1));
            if may && numa::discard(&mut target[bytes]).is_ok() {
                progress.dropped += 1;
            } else if is_wrong {
                progress.note(page..page + 1, Reason::HugePage);
            }
        }
        self.bring_back(before, &dragged);
    }

    /// Returns pages of other memory to their nodes.
    fn bring_back(&self, before: &[i32], dragged: &[usize]) {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for index in dragged {
            if let Ok(node) = u32::try_from(before[*index]) {
                groups.entry(node).or_default().push(self.addresses[*index]);
            }
        }
        for (node, addresses) in groups {
            if let Err(error) = numa::migrate(&addresses, node) {
                log::debug!("event=neighbour-moved pages={} error=\"{error}\"", addresses.len());
            }
        }
    }
}

#[cfg(test)]
pub(super) fn shared_by(blocks: &[u64]) -> Shared {
    Shared(blocks.iter().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(pages: Range<u64>, node: u32) -> Piece {
        Piece { pages, node }
    }

    #[test]
    fn blocks_have_several_owners_inside_or_at_the_ends() {
        let maps = Maps::none();
        // From the second page of block 8 to the end of block 11.
        let place = Place { start: (8 << 21) + 4096, bytes: (4 << 21) - 4096 };
        let blocks = |pieces: &[Piece]| shared(place, pieces, &maps);
        assert_eq!(blocks(&[piece(0..2047, 0)]), shared_by(&[8]), "others have the first page");
        assert_eq!(blocks(&[piece(511..2047, 0)]), shared_by(&[]), "the first block is not wanted anywhere");
        assert_eq!(blocks(&[piece(511..1023, 0), piece(1023..2047, 1)]), shared_by(&[]), "a border between blocks");
        assert_eq!(blocks(&[piece(511..1024, 0), piece(1024..2047, 1)]), shared_by(&[10]));
        assert_eq!((shared_by(&[1, 2, 4, 7, 8]).runs(), shared_by(&[]).runs()), (3, 0));
        assert_eq!(blocks(&[piece(511..1024, 0), piece(1030..2047, 0)]), shared_by(&[]), "one owner");
        assert_eq!(blocks(&[piece(0..1, 0), piece(1..2, 1), piece(2..2047, 2)]), shared_by(&[8]));
    }

    #[test]
    fn bans_are_counted() {
        let bans = Bans(AtomicUsize::new(5));
        assert_eq!([3, 3, 2, 1, 0].map(|ranges| bans.take(ranges)), [true, false, true, false, true]);
    }

    #[test]
    fn a_block_knows_what_is_wanted_of_its_pages_and_whose_the_others_are() {
        let place = Place { start: (8 << 21) + 4096 * 500, bytes: 4096 * 100 };
        let block = Block::new(place, 8, &[piece(0..5, 3), piece(7..100, 4)]);
        assert_eq!(block.own, 0..12);
        let wishes: Vec<i64> = block.wishes.iter().map(|wish| wish.map_or(-1, i64::from)).collect();
        assert_eq!(wishes, [3, 3, 3, 3, 3, -1, -1, 4, 4, 4, 4, 4]);
        assert!(block.is_mixed() && !Block::new(place, 8, &[piece(0..5, 3), piece(7..9, 3)]).is_mixed());
        assert_eq!(block.addresses.len(), 512);
        assert_eq!((block.addresses[0], block.addresses[12]), (place.start, 8 << 21));
        let mut found = vec![3; 512];
        found[1] = -2;
        assert_eq!(block.astray(&found), BTreeMap::from([(4, vec![7, 8, 9, 10, 11])]));
    }
}
