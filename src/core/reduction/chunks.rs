//! Finds duplicates of chunks, either at the same place as before or anywhere in what the files of a series store.
//!
//! Unchanged blocks are skipped. The others are cut into chunks of the same length, which are the leaves of a tree over contiguous ranges.
//! The node at place j of a level covers what the nodes 2j and 2j + 1 below it cover. So the level above n nodes has half as many, rounded
//! up, and the root covers the block, or [`LEAVES_MAX`] chunks of a longer block. The method follows Tan, Luettgau, Marquez, Teranishi,
//! Morales, Bhowmick, Cappello, Taufer, Nicolae: Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication (ICPP 2023),
//! section 2.2. A leaf is
//!
//! - *fixed* if the chunk at its place had the same digest in the version before, and the file that stores it may be referred to;
//! - *shifted* if the table has its digest: a chunk that a file of the series stores, or a chunk at a lower place of this shard;
//! - a *first* occurrence otherwise, which is entered in the table.
//!
//! Two fixed children make a fixed node. Two first occurrences make a first occurrence, which is entered in the table with the digest of
//! both digests. Two shifted children make a shifted node if the table has the digest of their digests, after all first occurrences of the
//! shard have been entered. A node without a parent of its kind is an extent. Neighbours that are stored side by side form one extent, even
//! across the borders of blocks.
//!
//! `device/kernels/chunks.cu` does the same on a GPU. A change to one must be made in both.
//!
//! This differs from the paper's algorithm 1 where that is unsafe. The lowest place of equal chunks is the first occurrence, whatever the
//! order of the work. A chunk is never dropped because the table is full; it is then a first occurrence. Pairs of fixed leaves do not spoil
//! their parents. The root is an extent if it is of one kind. A reference always leads to bytes that the file of its version stores itself.

use super::homes::{Field, Found, Home, Question, Stretch, push};
use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::config::CHUNK_MAX;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// The shortest chunk that `chunk = "auto"` tries.
const CHUNK_AUTO: u64 = 128;
/// The maximum number of leaves of a tree, for which a thread block of a GPU has room.
pub const LEAVES_MAX: u64 = 1024;
/// The number of bytes that are kept of a chunk: its digest, and a part of the place where it is stored.
const LEAF_BYTES: u64 = 32;
/// The number of bytes of an entry of the table. The table may be less than half full, because it doubles when it is seven eighths full.
const ENTRY_BYTES: u64 = 76;

/// How chunks are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Grouping {
    /// Not at all: each chunk is looked up separately.
    List,
    /// In a tree.
    Tree,
}

/// Chunks of a range that are stored side by side: their number, and where the first chunk is stored.
type Run = (u32, Home);

/// A region in the version before.
#[derive(Default)]
struct Before {
    /// The offset of its first byte among the bodies.
    at: u64,
    bytes: u64,
    /// The digests of the region's blocks.
    blocks: Vec<Digest>,
    /// The digests of the region's chunks.
    chunks: Vec<Digest>,
    /// Where the chunks of each range are stored.
    homes: Vec<Vec<Run>>,
}

/// What a node's leaves have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Fixed,
    First,
    Shifted(Home),
    /// They have nothing in common.
    Mixed,
}

#[derive(Clone, Copy)]
struct Node {
    digest: Digest,
    kind: Kind,
}

/// What is known of a range (a block, or the part of a block that a tree covers) before its nodes are looked up.
enum Piece {
    /// The range has not changed, and everything that stores it may be referred to.
    Kept(Vec<Run>),
    /// The levels of the range's tree, leaves first, and where each leaf is stored.
    Cut(Vec<Vec<Node>>, Vec<Home>),
}

/// Uses digests as hashes, because they are as good as any.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut word = [0; 8];
        let length = bytes.len().min(8);
        word[..length].copy_from_slice(&bytes[..length]);
        self.0 = u64::from_le_bytes(word);
    }
}

/// The chunks of a series that a rank's files store.
pub struct Chunks {
    chunk: u64,
    /// The length in bytes of the longest shard for which there is room.
    bytes: u64,
    grouping: Grouping,
    /// The regions of the version that was looked at last, by name.
    regions: BTreeMap<String, Before>,
    /// Where the files of the series store chunks and the ranges of nodes, by digest.
    table: HashMap<Digest, Home, BuildHasherDefault<AsItIs>>,
    /// The maximum number of entries in the table.
    most: usize,
}

/// The length of chunks with which the tables of a shard of `bytes` bytes take at most `budget` bytes; `None` if even the
/// longest chunks are too short.
pub fn chunk_that_fits(bytes: u64, budget: u64, wanted: Option<u64>, grouping: Grouping) -> Option<u64> {
    let entries = if grouping == Grouping::Tree { 2 } else { 1 };
    let takes = |chunk: u64| bytes.div_ceil(chunk).saturating_mul(LEAF_BYTES + entries * ENTRY_BYTES);
    chunk_of(wanted, |chunk| takes(chunk) <= budget)
}

/// The wanted length if its tables fit; without one, the shortest length whose tables fit.
pub fn chunk_of(wanted: Option<u64>, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let mut lengths =
        std::iter::successors(Some(CHUNK_AUTO), |chunk| Some(chunk * 2)).take_while(|chunk| *chunk <= CHUNK_MAX);
    match wanted {
        Some(chunk) => Some(chunk).filter(|chunk| fits(*chunk)),
        None => lengths.find(|chunk| fits(*chunk)),
    }
}

/// The number of bytes that a tree covers.
pub fn range_bytes(block: u64, chunk: u64) -> u64 {
    block.min(LEAVES_MAX * chunk)
}

impl Chunks {
    /// Returns an empty set of chunks for shards of `bytes` bytes, whose tables take at most `budget` bytes.
    pub fn new(chunk: u64, grouping: Grouping, bytes: u64, budget: u64) -> Chunks {
        let left = budget.saturating_sub(bytes.div_ceil(chunk) * LEAF_BYTES);
        Chunks { bytes, ..Chunks::with_entries(chunk, grouping, left / ENTRY_BYTES) }
    }

    /// Returns an empty set of chunks for shards of any length, with room for `most` entries.
    pub fn with_entries(chunk: u64, grouping: Grouping, most: u64) -> Chunks {
        let most = most.try_into().unwrap_or(usize::MAX);
        Chunks { chunk, bytes: u64::MAX, grouping, regions: BTreeMap::new(), table: HashMap::default(), most }
    }

    /// Is there room for a shard of this many bytes? A slightly longer shard loses some entries.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        bytes <= self.bytes.saturating_add(self.bytes / 4)
    }

    /// Looks at the next version of the series, and returns where its bytes are stored. `read` returns the bytes of a block of a field, and
    /// is called for blocks that have changed.
    ///
    /// # Errors
    /// Those of `read`; most of what was known of earlier versions is then forgotten.
    pub fn look<'b, E>(
        &mut self,
        asked: &Question,
        read: impl Fn(usize, u64) -> Result<Cow<'b, [u8]>, E>,
    ) -> Result<Found, E> {
        self.make_room(asked);
        self.note_kept(asked);
        let mut before = std::mem::take(&mut self.regions);
        let mut cut = Vec::with_capacity(asked.fields.len());
        for (index, field) in asked.fields.iter().enumerate() {
            let mut old = before.remove(&field.name).filter(|old| old.bytes == field.bytes).unwrap_or_default();
            self.learn(asked, index, &mut old, &read)?;
            let chunks = self.digests(asked, index, &old, &read)?;
            let parts = self.cut(asked, index, &chunks, &old);
            cut.push((chunks, parts));
        }
        let mut found = Found::new();
        for (field, (chunks, mut parts)) in asked.fields.iter().zip(cut) {
            if self.grouping == Grouping::Tree {
                parts.iter_mut().for_each(|part| self.look_up(asked, part));
            }
            let homes: Vec<Vec<Run>> = parts.into_iter().map(|part| self.homes(asked, part)).collect();
            let (mut stretches, mut left) = (Vec::new(), field.bytes);
            for (count, home) in homes.iter().flatten() {
                let bytes = (u64::from(*count) * self.chunk).min(left);
                left -= bytes;
                push(&mut stretches, Stretch { bytes, home: *home });
            }
            found.insert(field.name.clone(), stretches);
            let before = Before { at: field.at, bytes: field.bytes, blocks: field.blocks.clone(), chunks, homes };
            self.regions.insert(field.name.clone(), before);
        }
        Ok(found)
    }

    /// Drops entries to which files may no longer refer, when the table is nearly full.
    fn make_room(&mut self, asked: &Question) {
        if self.table.len() > self.most / 5 * 4 {
            let last = asked.allowed.iter().max().copied().unwrap_or_default();
            self.table.retain(|_, home| home.operation > last || asked.may_refer(home));
        }
    }

    /// Notes what the file of the version before stores itself.
    fn note_kept(&mut self, asked: &Question) {
        let Some((operation, parts)) = asked.kept() else { return };
        for part in parts {
            let field = &asked.fields[part.field];
            let is_there = |before: &Before| (before.at, before.bytes) == (field.at, field.bytes);
            if !self.regions.get(&field.name).is_some_and(is_there) {
                continue;
            }
            let mut before = self.regions.remove(&field.name).unwrap_or_default();
            let per_range = (range_bytes(asked.block, self.chunk) / self.chunk) as usize;
            let chunks = (part.start / self.chunk) as usize..(part.start + part.bytes).div_ceil(self.chunk) as usize;
            let length = self.chunk;
            let own = |chunk: usize| Home { operation, offset: field.at + chunk as u64 * length };
            for range in chunks.start / per_range..chunks.end.div_ceil(per_range) {
                let mut homes: Vec<Home> = self.each(&before.homes[range]).collect();
                for (home, chunk) in
                    homes.iter_mut().zip(range * per_range..).filter(|(_, chunk)| chunks.contains(chunk))
                {
                    *home = own(chunk);
                }
                before.homes[range] = self.runs(homes);
            }
            chunks.for_each(|chunk| self.insert(before.chunks[chunk], own(chunk), asked));
            self.regions.insert(field.name.clone(), before);
        }
    }

    /// Learns from the digests of blocks what versions that were not looked at have stored, as if the version before had been looked at.
    /// Chunks of such a block are hashed once.
    fn learn<'b, E>(
        &mut self,
        asked: &Question,
        index: usize,
        old: &mut Before,
        read: impl Fn(usize, u64) -> Result<Cow<'b, [u8]>, E>,
    ) -> Result<(), E> {
        let field = &asked.fields[index];
        let Some(known) = asked.known.get(&field.name) else { return Ok(()) };
        let range = range_bytes(asked.block, self.chunk);
        let mut start = 0;
        for Stretch { bytes, home } in known {
            let blocks = start / asked.block..(start + bytes).div_ceil(asked.block);
            let stretch = start;
            start += bytes;
            for block in blocks.filter(|_| asked.may_refer(home)) {
                let digest = field.blocks[block as usize];
                if old.blocks.get(block as usize) == Some(&digest) {
                    continue;
                }
                if old.blocks.is_empty() {
                    *old = self.unknown(field, range);
                }
                let first = block * asked.block;
                let home = home.behind(first - stretch);
                let chunks: Vec<Digest> = read(index, block)?.chunks(self.chunk as usize).map(digest_bytes).collect();
                let at = (first / self.chunk) as usize;
                old.chunks[at..at + chunks.len()].copy_from_slice(&chunks);
                old.blocks[block as usize] = digest;
                let ranges = chunks.chunks((range / self.chunk) as usize).zip((first / range) as usize..);
                for ((chunks, number), behind) in ranges.zip((0..).step_by(range as usize)) {
                    old.homes[number] = vec![(chunks.len() as u32, home.behind(behind))];
                }
                for (chunk, behind) in chunks.iter().zip((0..).step_by(self.chunk as usize)) {
                    self.insert(*chunk, home.behind(behind), asked);
                }
            }
        }
        Ok(())
    }

    /// A region of which nothing is known. No block has the digests that it contains.
    fn unknown(&self, field: &Field, range: u64) -> Before {
        let nowhere = Home { operation: u64::MAX, offset: 0 };
        let chunks = field.bytes.div_ceil(self.chunk) as usize;
        let per_range = (range / self.chunk) as usize;
        let of = |number: usize| vec![(per_range.min(chunks - number * per_range) as u32, nowhere)];
        Before {
            at: field.at,
            bytes: field.bytes,
            blocks: vec![Digest::default(); field.blocks.len()],
            chunks: vec![Digest::default(); chunks],
            homes: (0..chunks.div_ceil(per_range)).map(of).collect(),
        }
    }

    /// Where each chunk of these runs is stored.
    fn each(&self, runs: &[Run]) -> impl Iterator<Item = Home> {
        let chunk = self.chunk;
        runs.iter().flat_map(move |(count, home)| {
            let home = *home;
            (0..u64::from(*count)).map(move |number| home.behind(number * chunk))
        })
    }

    /// Combines places where chunks are stored into runs.
    fn runs(&self, homes: Vec<Home>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for home in homes {
            match runs.last_mut() {
                Some((count, first)) if first.behind(u64::from(*count) * self.chunk) == home => *count += 1,
                _ => runs.push((1, home)),
            }
        }
        runs
    }

    /// Where a digest is stored, if the file of the version may refer to that place.
    fn find(&self, digest: &Digest, asked: &Question) -> Option<Home> {
        let may = |home: &&Home| home.operation == asked.operation || asked.may_refer(home);
        self.table.get(digest).filter(may).copied()
    }

    /// Enters a digest, unless it is in the table or the table has no room. Of several places in one version, the lowest is kept.
    fn insert(&mut self, digest: Digest, home: Home, asked: &Question) {
        let is_full = self.table.len() >= self.most;
        match self.table.get_mut(&digest) {
            Some(known) if known.operation == home.operation => known.offset = known.offset.min(home.offset),
            Some(known) if asked.may_refer(known) => {}
            Some(dead) => *dead = home,
            None if is_full => {}
            None => _ = self.table.insert(digest, home),
        }
    }

    /// The digests of all chunks of a field.
    fn digests<'b, E>(
        &self,
        asked: &Question,
        index: usize,
        old: &Before,
        read: impl Fn(usize, u64) -> Result<Cow<'b, [u8]>, E>,
    ) -> Result<Vec<Digest>, E> {
        let (field, per_block) = (&asked.fields[index], (asked.block / self.chunk) as usize);
        let mut chunks = Vec::with_capacity(field.bytes.div_ceil(self.chunk) as usize);
        for (block, digest) in field.blocks.iter().enumerate() {
            if old.blocks.get(block) == Some(digest) {
                let leaves = block * per_block..((block + 1) * per_block).min(old.chunks.len());
                chunks.extend_from_slice(&old.chunks[leaves]);
            } else {
                chunks.extend(read(index, block as u64)?.chunks(self.chunk as usize).map(digest_bytes));
            }
        }
        Ok(chunks)
    }

    /// Cuts the changed parts of a field, whose chunks have these digests. First occurrences are entered in the table.
    fn cut(&mut self, asked: &Question, index: usize, chunks: &[Digest], old: &Before) -> Vec<Piece> {
        let (field, range) = (&asked.fields[index], range_bytes(asked.block, self.chunk));
        let per_range = (range / self.chunk) as usize;
        let mut parts = Vec::with_capacity(chunks.len().div_ceil(per_range));
        for (number, digests) in chunks.chunks(per_range).enumerate() {
            let (from, at) = (number as u64 * range, number * per_range);
            let block = (from / asked.block) as usize;
            let runs = old.homes.get(number).map(Vec::as_slice).unwrap_or_default();
            let is_same = old.blocks.get(block) == Some(&field.blocks[block]);
            if is_same && runs.iter().all(|(_, home)| asked.may_refer(home)) {
                parts.push(Piece::Kept(runs.to_vec()));
                continue;
            }
            let old = old.chunks.get(at..).unwrap_or_default();
            parts.push(self.cut_range(asked, field.at + from, digests, old, runs));
        }
        parts
    }

    /// Finds the leaves of a range whose chunks have these digests, and builds the tree above them.
    fn cut_range(&mut self, asked: &Question, offset: u64, digests: &[Digest], old: &[Digest], runs: &[Run]) -> Piece {
        let operation = asked.operation;
        let before: Vec<(Digest, Home)> = old.iter().copied().zip(self.each(runs)).collect();
        let (mut nodes, mut homes) = (Vec::with_capacity(digests.len()), Vec::with_capacity(digests.len()));
        for (index, digest) in digests.iter().enumerate() {
            let own = Home { operation, offset: offset + index as u64 * self.chunk };
            let fixed = before.get(index).filter(|(old, home)| old == digest && asked.may_refer(home));
            // A series of equal chunks becomes a range of first occurrences, as which later ones are found as a whole.
            let repeats = nodes.last().is_some_and(|left: &Node| left.kind == Kind::First && left.digest == *digest);
            let is_first = asked.is_whole() || (repeats && self.grouping == Grouping::Tree);
            let shifted = || self.find(digest, asked).filter(|_| !is_first);
            let (kind, home) = match fixed {
                Some((_, home)) => (Kind::Fixed, *home),
                None => shifted().map_or((Kind::First, own), |home| (Kind::Shifted(home), home)),
            };
            if kind == Kind::First {
                self.insert(*digest, own, asked);
            }
            nodes.push(Node { digest: *digest, kind });
            homes.push(home);
        }
        let (mut levels, mut width) = (vec![nodes], self.chunk);
        while self.grouping == Grouping::Tree
            && let Some(below) = levels.last().filter(|below| below.len() > 1)
        {
            width *= 2;
            let nodes: Vec<Node> = below.chunks(2).map(above).collect();
            for (node, offset) in nodes.iter().zip((offset..).step_by(width as usize)) {
                if node.kind == Kind::First {
                    self.insert(node.digest, Home { operation, offset }, asked);
                }
            }
            levels.push(nodes);
        }
        Piece::Cut(levels, homes)
    }

    /// Looks up ranges whose chunks were found one by one, now that all first occurrences are in the table.
    fn look_up(&self, asked: &Question, part: &mut Piece) {
        let Piece::Cut(levels, _) = part else { return };
        for level in 1..levels.len() {
            let (below, here) = levels.split_at_mut(level);
            for (pair, node) in below[level - 1].chunks(2).zip(&mut here[0]) {
                if pair.iter().all(|child| matches!(child.kind, Kind::Shifted(_))) {
                    node.kind = self.find(&node.digest, asked).map_or(Kind::Mixed, Kind::Shifted);
                }
            }
        }
    }

    /// Where the chunks of a range are stored, each according to the highest node above it that is of one kind.
    fn homes(&self, asked: &Question, part: Piece) -> Vec<Run> {
        let (levels, mut homes) = match part {
            Piece::Kept(runs) => return runs,
            Piece::Cut(levels, homes) => (levels, homes),
        };
        debug_assert!(homes.iter().all(|home| home.operation == asked.operation || asked.may_refer(home)));
        let top = levels.len() - 1;
        (0..levels[top].len()).for_each(|index| self.settle(&levels, &mut homes, top, index));
        self.runs(homes)
    }

    /// Replaces what was found for each leaf of a node by what was found for the node.
    fn settle(&self, levels: &[Vec<Node>], homes: &mut [Home], level: usize, index: usize) {
        let Some(node) = levels[level].get(index) else { return };
        match node.kind {
            Kind::First | Kind::Fixed => {}
            Kind::Shifted(home) => {
                let leaves = (index << level)..((index + 1) << level).min(homes.len());
                for (leaf, number) in homes[leaves].iter_mut().zip(0..) {
                    *leaf = home.behind(number * self.chunk);
                }
            }
            Kind::Mixed => {
                self.settle(levels, homes, level - 1, 2 * index);
                self.settle(levels, homes, level - 1, 2 * index + 1);
            }
        }
    }
}

/// The node above one or two nodes. It has the digest of the only node, or the digest of both digests.
fn above(children: &[Node]) -> Node {
    let is_all = |kind: Kind| children.iter().all(|child| child.kind == kind);
    let kind = match (is_all(Kind::Fixed), is_all(Kind::First)) {
        (true, _) => Kind::Fixed,
        (_, true) => Kind::First,
        _ => Kind::Mixed,
    };
    let digest = match children {
        [left, right] => {
            let mut both = [0; 32];
            both[..16].copy_from_slice(&left.digest.0);
            both[16..].copy_from_slice(&right.digest.0);
            digest_bytes(&both)
        }
        only => only[0].digest,
    };
    Node { digest, kind }
}

#[cfg(test)]
mod tests {
    use super::super::homes::extents;
    use super::*;
    use crate::base::ids::{CheckpointKey, Rank};
    use crate::format::packed::{Extent, Stored};
    use crate::format::shard::{Head, Layout, encode_head};
    use crate::format::{Region, RegionKind, ShardMeta};
    use std::convert::Infallible;

    /// A shard with these regions, as its head and its bodies.
    fn shard(operation: u64, regions: &[&[u8]]) -> (Head, Vec<u8>) {
        let region = |(index, bytes): (usize, &&[u8])| {
            Region::of_bytes(index.to_string(), RegionKind::Array, bytes.len() as u64)
        };
        let regions_of = regions.iter().enumerate().map(region).collect();
        let meta = ShardMeta { job: "j".into(), group: "g".into(), name: "n".into(), regions: regions_of };
        let layout = Layout::new(meta, 4096).unwrap();
        let header = layout.header(CheckpointKey { operation, ..Default::default() }, 1, 1, Rank(0), None);
        let digests: Vec<Digest> = regions.iter().flat_map(|bytes| bytes.chunks(4096)).map(digest_bytes).collect();
        let mut head = vec![0; layout.body_offset as usize];
        encode_head(&layout, &header, &digests, &mut head);
        let mut bodies = vec![0; (layout.total_len - layout.body_offset) as usize];
        for (region, bytes) in layout.meta.regions.iter().zip(regions) {
            bodies[region.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        (Head::decode(&head).unwrap(), bodies)
    }

    fn chunks(grouping: Grouping) -> Chunks {
        Chunks::new(32, grouping, 1 << 20, 1 << 30)
    }

    fn look(chunks: &mut Chunks, operation: u64, allowed: &[u64], regions: &[&[u8]]) -> Option<Vec<Extent>> {
        let (head, bodies) = shard(operation, regions);
        let fields = Field::of(&head, |_| true);
        let asked =
            Question { operation, allowed: allowed.to_vec(), block: 4096, fields, kept: None, known: Found::new() };
        let read = |field: usize, block: u64| {
            Ok::<_, Infallible>(Cow::Borrowed(&bodies[asked.fields[field].block(block, 4096)]))
        };
        let found = chunks.look(&asked, read).unwrap();
        extents(&head, &found, allowed)
    }

    /// Returns a chunk for each letter, filled with that letter.
    fn of(letters: &str) -> Vec<u8> {
        letters.bytes().flat_map(|letter| [letter; 32]).collect()
    }

    fn own(chunks: u64) -> Extent {
        Extent { length: 32 * chunks, stored: Stored::Own }
    }

    fn taken(chunks: u64, source: u32, from: u64) -> Extent {
        Extent { length: 32 * chunks, stored: Stored::In { source, offset: 32 * from } }
    }

    fn same(chunks: u64, from: u64) -> Extent {
        Extent { length: 32 * chunks, stored: Stored::Same { offset: 32 * from } }
    }

    #[test]
    fn the_first_version_is_whole_and_chunks_that_stay_are_taken_from_it() {
        for grouping in [Grouping::List, Grouping::Tree] {
            let mut chunks = chunks(grouping);
            assert_eq!(look(&mut chunks, 1, &[], &[&of("abcdefg")]), None);
            let second = look(&mut chunks, 2, &[1], &[&of("abcXefg")]);
            assert_eq!(second, Some(vec![taken(3, 0, 0), own(1), taken(3, 0, 4)]), "{grouping:?}");
            // What version 2 has stored is taken from 2, and what 2 has taken from 1 is taken from 1: one hop.
            let third = look(&mut chunks, 3, &[1, 2], &[&of("aYcXefg")]);
            assert_eq!(third, Some(vec![taken(1, 0, 0), own(1), taken(1, 0, 2), taken(1, 1, 3), taken(3, 0, 4)]));
        }
    }

    #[test]
    fn what_has_moved_is_found_anywhere_and_the_lowest_of_equal_chunks_is_the_first() {
        let mut list = chunks(Grouping::List);
        look(&mut list, 1, &[], &[&of("abcdefgh"), &of("p")]);
        // Region 1 begins on the next page, at chunk 128.
        let second = look(&mut list, 2, &[1], &[&of("efghZZpZ"), &of("Z")]).unwrap();
        assert_eq!(second, [taken(4, 0, 4), own(1), same(1, 4), taken(1, 0, 128), same(1, 4), same(1, 4)]);
    }

    /// Shows what a tree is for: chunks that each occurred somewhere before are in one piece somewhere else.
    #[test]
    fn a_tree_takes_a_range_where_a_list_takes_chunks_from_wherever_they_were_first() {
        // The eight chunks occur first in another order, and then in this order.
        let mut tree = chunks(Grouping::Tree);
        look(&mut tree, 1, &[], &[&of("hgfedcba"), &of("abcdefgh")]);
        let moved = look(&mut tree, 2, &[1], &[&of("12345678"), &of("hgfedcba"), &of("abcdefgh")]).unwrap();
        assert_eq!(moved, [own(8), taken(8, 0, 0), taken(8, 0, 128)]);
        let mut list = chunks(Grouping::List);
        look(&mut list, 1, &[], &[&of("hgfedcba"), &of("abcdefgh")]);
        let moved = look(&mut list, 2, &[1], &[&of("12345678"), &of("hgfedcba"), &of("abcdefgh")]).unwrap();
        assert_eq!(moved.len(), 1 + 1 + 8, "{moved:?}");
    }

    /// Arrays of zeros are common.
    #[test]
    fn a_tree_stores_a_block_of_what_repeats_itself_and_finds_the_others_whole() {
        let zeros = |blocks: usize| vec![0u8; blocks * 4096];
        let extents = |grouping| {
            let mut chunks = Chunks::new(32, grouping, 1 << 20, 1 << 30);
            look(&mut chunks, 1, &[], &[&of("a")]);
            look(&mut chunks, 2, &[1], &[&of("a"), &zeros(50)])
        };
        let tree = extents(Grouping::Tree).expect("much is saved");
        let same = |block: u64| Extent { length: 4096, stored: Stored::Same { offset: block } };
        assert_eq!((tree.len(), tree[1]), (51, Extent { length: 4096, stored: Stored::Own }));
        assert!(tree[2..].iter().all(|extent| *extent == same(4096)), "{tree:?}");
        let list = extents(Grouping::List).expect("what describes a chunk is shorter than it");
        assert_eq!(list.len(), 2 + 50 * 128 - 1, "each for itself");
    }

    #[test]
    fn what_may_not_be_referred_to_any_more_is_stored_again() {
        let mut chunks = chunks(Grouping::Tree);
        look(&mut chunks, 1, &[], &[&of("abcd")]);
        look(&mut chunks, 2, &[1], &[&of("abXX")]);
        let third = look(&mut chunks, 3, &[2], &[&of("abXX")]).unwrap();
        assert_eq!(third, [own(2), taken(2, 0, 2)]);
        let fourth = look(&mut chunks, 4, &[3], &[&of("abXX")]).unwrap();
        assert_eq!(fourth, [taken(2, 0, 0), own(2)]);
    }

    #[test]
    fn a_full_table_costs_duplicates_and_no_chunk() {
        let mut chunks = Chunks::new(32, Grouping::Tree, 256, 8 * LEAF_BYTES + 2 * ENTRY_BYTES);
        look(&mut chunks, 1, &[], &[&of("abcdefgh")]);
        assert!(chunks.table.len() <= 2);
        // Fixed chunks need no table.
        assert_eq!(look(&mut chunks, 2, &[1], &[&of("abcdefgh")]), Some(vec![taken(8, 0, 0)]));
        let moved = look(&mut chunks, 3, &[1], &[&of("hgfedcba")]).unwrap();
        assert_eq!(moved.iter().map(|extent| extent.length).sum::<u64>(), 256);
    }

    #[test]
    fn the_length_of_chunks_goes_by_the_room_for_their_tables() {
        let fits = |budget, wanted| chunk_that_fits(1 << 20, budget, wanted, Grouping::Tree);
        assert_eq!(fits(1 << 30, None), Some(128));
        assert_eq!(fits(1 << 20, None), Some(256));
        assert_eq!(fits(100_000, None), Some(2048));
        assert_eq!(fits(40_000, None), None);
        assert_eq!((fits(1 << 30, Some(32)), fits(1 << 20, Some(32))), (Some(32), None));
    }
}
