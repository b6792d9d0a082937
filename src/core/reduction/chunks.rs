//! Duplicates of chunks: at the same place as before, or anywhere in what the files of a series store.
//!
//! Blocks that have not changed are passed over. The others are cut into chunks of one length, the leaves of a tree over contiguous ranges:
//! the node at place j of a level covers what the nodes 2j and 2j + 1 below it cover, so a level of n nodes has half as many above it,
//! rounded up, and the root covers the block. After Tan, Luettgau, Marquez, Teranishi, Morales, Bhowmick, Cappello, Taufer, Nicolae:
//! Scalable Incremental Checkpointing using GPU-Accelerated De-Duplication (ICPP 2023), section 2.2. A leaf is
//!
//! - *fixed* if the chunk at its place had its digest in the version before, and what stores that may be referred to;
//! - *shifted* if the table has its digest: a chunk that a file of the series stores, or one at a lower place of this shard;
//! - a *first* occurrence otherwise, which enters the table.
//!
//! Two fixed children make a fixed node, two first ones a first one, which enters the table with the digest of both digests. Two shifted
//! ones make a shifted node if the table has that digest, after all first ones of the region have entered it. What has no parent of its kind
//! is an extent; neighbours that are stored side by side are one, also over the borders of blocks.
//!
//! Where the paper's algorithm 1 is unsafe this differs: the lowest place of equal chunks is the first occurrence whatever the order of the
//! work; a chunk is never dropped because the table is full (it is then a first occurrence); pairs of fixed leaves do not spoil their
//! parents; the root is an extent if it is of one kind; and a reference always leads to bytes that the file of its version stores itself.

use crate::base::Digest;
use crate::base::digest::digest_bytes;
use crate::config::CHUNK_MAX;
use crate::format::packed::{Extent, Stored, append};
use crate::format::shard::Head;
use crate::format::{Region, RegionKind, codec};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// What `chunk = "auto"` begins with.
const CHUNK_AUTO: u64 = 128;
/// Bytes that are kept of a chunk: its digest, and a part of where it is stored.
const LEAF_BYTES: u64 = 32;
/// Bytes of an entry of the table, which may be less than half full: it doubles when it is at seven eighths.
const ENTRY_BYTES: u64 = 76;

/// Bytes of an encoded extent at most.
const EXTENT_BYTES: usize = 24;

/// How chunks are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grouping {
    /// Not at all: each is looked up by itself.
    List,
    /// By a tree.
    Tree,
}

/// Where bytes are stored: by the files of which checkpoint, and from which byte of its bodies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Home {
    operation: u64,
    offset: u64,
}

impl Home {
    fn behind(self, bytes: u64) -> Home {
        Home { offset: self.offset + bytes, ..self }
    }
}

/// Chunks of a block that are stored side by side: how many, and where the first is.
type Run = (u32, Home);

/// A region as it was.
#[derive(Default)]
struct Before {
    bytes: u64,
    /// The digests of its blocks.
    blocks: Vec<Digest>,
    /// Those of its chunks.
    chunks: Vec<Digest>,
    /// Where the chunks of each block are stored.
    homes: Vec<Vec<Run>>,
}

/// What a node's leaves have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Fixed,
    First,
    Shifted(Home),
    /// Nothing.
    Mixed,
}

#[derive(Clone, Copy)]
struct Node {
    digest: Digest,
    kind: Kind,
}

/// What is known of a block before anything is looked up for its ranges.
enum Block {
    /// It has not changed, and all that stores it may be referred to.
    Kept(Vec<Run>),
    /// The levels of its tree, leaves first, and where each leaf is stored.
    Cut(Vec<Vec<Node>>, Vec<Home>),
}

/// Digests are as good as any hash of theirs.
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
    /// Bytes of the longest shard that it has room for.
    bytes: u64,
    grouping: Grouping,
    /// Of the version that was looked at last: each region, by name.
    regions: BTreeMap<String, Before>,
    /// Where chunks, and the ranges of nodes, are stored that files of the series store.
    table: HashMap<Digest, Home, BuildHasherDefault<AsItIs>>,
    /// The entries that it may have.
    most: usize,
}

/// The length of chunks with which the tables of a shard of so many bytes take `budget` bytes at most; `None` if the longest is too short.
pub fn chunk_that_fits(bytes: u64, budget: u64, wanted: Option<u64>, grouping: Grouping) -> Option<u64> {
    let entries = if grouping == Grouping::Tree { 2 } else { 1 };
    let takes = |chunk: u64| bytes.div_ceil(chunk).saturating_mul(LEAF_BYTES + entries * ENTRY_BYTES);
    let mut lengths =
        std::iter::successors(Some(CHUNK_AUTO), |chunk| Some(chunk * 2)).take_while(|chunk| *chunk <= CHUNK_MAX);
    match wanted {
        Some(chunk) => Some(chunk).filter(|chunk| takes(*chunk) <= budget),
        None => lengths.find(|chunk| takes(*chunk) <= budget),
    }
}

/// The version that is looked at.
struct Version<'a> {
    operation: u64,
    /// The checkpoints whose files may be referred to; none: its file is to hold all of it.
    allowed: &'a [u64],
}

impl Version<'_> {
    fn is_whole(&self) -> bool {
        self.allowed.is_empty()
    }

    fn may_refer(&self, home: &Home) -> bool {
        self.allowed.contains(&home.operation)
    }
}

impl Chunks {
    /// Without any, for shards of so many bytes, whose tables take `budget` bytes at most.
    pub fn new(chunk: u64, grouping: Grouping, bytes: u64, budget: u64) -> Chunks {
        let left = budget.saturating_sub(bytes.div_ceil(chunk) * LEAF_BYTES);
        let most = (left / ENTRY_BYTES).try_into().unwrap_or(usize::MAX);
        Chunks { chunk, bytes, grouping, regions: BTreeMap::new(), table: HashMap::default(), most }
    }

    /// Has it room for a shard of so many bytes? A little longer ones lose some entries.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        bytes <= self.bytes + self.bytes / 4
    }

    /// Looks at the next version of the series, and says where its bytes are stored: files of `allowed` checkpoints may be referred to, each
    /// by its place in that list. `bodies` are those of its shard. `None` if its file is to hold all of it.
    pub fn look(&mut self, operation: u64, head: &Head, bodies: &[u8], allowed: &[u64]) -> Option<Vec<Extent>> {
        let version = Version { operation, allowed };
        self.make_room(&version);
        let (mut extents, mut regions) = (Vec::new(), BTreeMap::new());
        for region in &head.meta.regions {
            if region.kind == RegionKind::Value {
                extents.extend((region.bytes > 0).then_some(Extent { length: region.bytes, stored: Stored::Own }));
                continue;
            }
            let (first, block) = (region.first_block as usize, u64::from(head.header.block_size));
            let blocks = head.digests[first..first + region.blocks(block) as usize].to_vec();
            let body = &bodies[region.offset as usize..(region.offset + region.bytes) as usize];
            let before = self.regions.remove(&region.name).unwrap_or_default();
            let (chunks, found) = self.cut(&version, region, body, block, &blocks, &before);
            let mut emit =
                Emit { chunk: self.chunk, version: &version, region, at: 0, extents: &mut extents, first: 0 };
            emit.first = emit.extents.len();
            let homes = found.into_iter().map(|block| emit.block(block)).collect();
            regions.insert(region.name.clone(), Before { bytes: region.bytes, blocks, chunks, homes });
        }
        self.regions = regions;
        // So many ranges that to describe them would take what it saves, or more than there may be.
        let is_too_much = extents.len() > (bodies.len() / 2).min(codec::LIMIT) / EXTENT_BYTES;
        let is_reduced = extents.iter().any(|extent| extent.stored != Stored::Own);
        (is_reduced && !is_too_much).then_some(extents)
    }

    /// Lets go of what files may not refer to any more, when the table is nearly full.
    fn make_room(&mut self, version: &Version<'_>) {
        if self.table.len() > self.most / 5 * 4 {
            let last = version.allowed.iter().max().copied().unwrap_or_default();
            self.table.retain(|_, home| home.operation > last || version.may_refer(home));
        }
    }

    /// Where a digest is stored that the file of a version may refer to.
    fn find(&self, digest: &Digest, version: &Version<'_>) -> Option<Home> {
        let may = |home: &&Home| home.operation == version.operation || version.may_refer(home);
        self.table.get(digest).filter(may).copied()
    }

    /// Enters a digest, unless it is there or there is no room.
    fn insert(&mut self, digest: Digest, home: Home, version: &Version<'_>) {
        let is_full = self.table.len() >= self.most;
        match self.table.get_mut(&digest) {
            Some(known) if known.operation == version.operation || version.may_refer(known) => {}
            Some(dead) => *dead = home,
            None if is_full => {}
            None => _ = self.table.insert(digest, home),
        }
    }

    /// Cuts what has changed of a region into chunks, whose first occurrences enter the table; then looks for ranges. Returns the digests of all
    /// its chunks, too.
    fn cut(
        &mut self,
        version: &Version<'_>,
        region: &Region,
        body: &[u8],
        block: u64,
        blocks: &[Digest],
        before: &Before,
    ) -> (Vec<Digest>, Vec<Block>) {
        let per_block = (block / self.chunk) as usize;
        let mut chunks = Vec::with_capacity(body.len().div_ceil(self.chunk as usize));
        let mut found = Vec::with_capacity(blocks.len());
        for (index, bytes) in body.chunks(block as usize).enumerate() {
            let offset = region.offset + index as u64 * block;
            let is_same = before.bytes == region.bytes && before.blocks[index] == blocks[index];
            let old = before.chunks.get(index * per_block..).unwrap_or_default();
            let runs = before.homes.get(index).map(Vec::as_slice).unwrap_or_default();
            if is_same {
                let leaves = bytes.len().div_ceil(self.chunk as usize);
                chunks.extend_from_slice(&old[..leaves]);
                if !version.is_whole() && runs.iter().all(|(_, home)| version.may_refer(home)) {
                    found.push(Block::Kept(runs.to_vec()));
                    continue;
                }
            } else {
                chunks.extend(bytes.chunks(self.chunk as usize).map(digest_bytes));
            }
            let digests = &chunks[index * per_block..];
            found.push(self.cut_block(version, offset, digests, old, runs));
        }
        if self.grouping == Grouping::Tree {
            found.iter_mut().for_each(|block| self.look_up(version, block));
        }
        (chunks, found)
    }

    /// The leaves of a block whose chunks have these digests, and the tree above them.
    fn cut_block(
        &mut self,
        version: &Version<'_>,
        offset: u64,
        digests: &[Digest],
        old: &[Digest],
        runs: &[Run],
    ) -> Block {
        let operation = version.operation;
        let mut old_homes = runs.iter().flat_map(|(count, home)| {
            let (chunk, home) = (self.chunk, *home);
            (0..u64::from(*count)).map(move |number| home.behind(number * chunk))
        });
        let before: Vec<(Digest, Home)> = old.iter().copied().zip(&mut old_homes).collect();
        let (mut nodes, mut homes) = (Vec::with_capacity(digests.len()), Vec::with_capacity(digests.len()));
        for (index, digest) in digests.iter().enumerate() {
            let own = Home { operation, offset: offset + index as u64 * self.chunk };
            let fixed = before.get(index).filter(|(old, home)| old == digest && version.may_refer(home));
            // Runs of one chunk make a first block of it, of which later ones are found as a whole.
            let repeats = nodes.last().is_some_and(|left: &Node| left.kind == Kind::First && left.digest == *digest);
            let is_first = version.is_whole() || (repeats && self.grouping == Grouping::Tree);
            let shifted = || self.find(digest, version).filter(|_| !is_first);
            let (kind, home) = match fixed {
                Some((_, home)) => (Kind::Fixed, *home),
                None => shifted().map_or((Kind::First, own), |home| (Kind::Shifted(home), home)),
            };
            if kind == Kind::First {
                self.insert(*digest, own, version);
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
                    self.insert(node.digest, Home { operation, offset }, version);
                }
            }
            levels.push(nodes);
        }
        Block::Cut(levels, homes)
    }

    /// Looks for ranges that were found chunk by chunk, now that all first occurrences are in the table.
    fn look_up(&self, version: &Version<'_>, block: &mut Block) {
        let Block::Cut(levels, _) = block else { return };
        for level in 1..levels.len() {
            let (below, here) = levels.split_at_mut(level);
            for (pair, node) in below[level - 1].chunks(2).zip(&mut here[0]) {
                if pair.iter().all(|child| matches!(child.kind, Kind::Shifted(_))) {
                    node.kind = self.find(&node.digest, version).map_or(Kind::Mixed, Kind::Shifted);
                }
            }
        }
    }
}

/// The node above one or two others: with the digest of the only one, or of the digests of both.
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

/// Makes the extents of a region, block by block.
struct Emit<'a> {
    chunk: u64,
    version: &'a Version<'a>,
    region: &'a Region,
    /// Bytes of the region that have their extents.
    at: u64,
    extents: &'a mut Vec<Extent>,
    /// The first extent of the region.
    first: usize,
}

impl Emit<'_> {
    /// The extents of the next block; returns where its chunks are stored.
    fn block(&mut self, block: Block) -> Vec<Run> {
        match block {
            Block::Kept(runs) => {
                for (count, home) in &runs {
                    self.refer(u64::from(*count), *home);
                }
                runs
            }
            Block::Cut(levels, mut homes) => {
                let top = levels.len() - 1;
                (0..levels[top].len()).for_each(|index| self.node(&levels, &mut homes, top, index));
                self.runs(&homes)
            }
        }
    }

    fn runs(&self, homes: &[Home]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for home in homes {
            match runs.last_mut() {
                Some((count, first)) if first.behind(u64::from(*count) * self.chunk) == *home => *count += 1,
                _ => runs.push((1, *home)),
            }
        }
        runs
    }

    fn node(&mut self, levels: &[Vec<Node>], homes: &mut [Home], level: usize, index: usize) {
        let Some(node) = levels[level].get(index) else { return };
        let leaves: Range<usize> = (index << level)..((index + 1) << level).min(homes.len());
        let count = leaves.len() as u64;
        match node.kind {
            Kind::First => self.push(count, Stored::Own),
            Kind::Fixed => homes[leaves].iter().for_each(|home| self.refer(1, *home)),
            Kind::Shifted(home) => {
                for (leaf, number) in homes[leaves].iter_mut().zip(0..) {
                    *leaf = home.behind(number * self.chunk);
                }
                self.refer(count, home);
            }
            Kind::Mixed => {
                self.node(levels, homes, level - 1, 2 * index);
                self.node(levels, homes, level - 1, 2 * index + 1);
            }
        }
    }

    /// So many chunks are stored there.
    fn refer(&mut self, chunks: u64, home: Home) {
        let stored = match self.version.allowed.iter().position(|operation| *operation == home.operation) {
            Some(source) => Stored::In { source: source as u32, offset: home.offset },
            None => Stored::Same { offset: home.offset },
        };
        debug_assert!(home.operation == self.version.operation || self.version.may_refer(&home));
        self.push(chunks, stored);
    }

    /// Neighbours that are stored side by side are one extent.
    fn push(&mut self, chunks: u64, stored: Stored) {
        let length = (chunks * self.chunk).min(self.region.bytes - self.at);
        self.at += length;
        append(self.extents, self.first, Extent { length, stored });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{CheckpointKey, Rank};
    use crate::format::ShardMeta;
    use crate::format::shard::{Layout, encode_head};

    /// A shard with these regions: its head and its bodies.
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
        chunks.look(operation, &head, &bodies, allowed)
    }

    /// Chunks of one letter each.
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
            // What 2 has stored is taken from 2, and what it has taken from 1 from there: one hop.
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

    /// What a tree is for: chunks that each occurred somewhere before lie in one piece somewhere else.
    #[test]
    fn a_tree_takes_a_range_where_a_list_takes_chunks_from_wherever_they_were_first() {
        // Eight chunks that occur in another order before, and then as they are.
        let mut tree = chunks(Grouping::Tree);
        look(&mut tree, 1, &[], &[&of("hgfedcba"), &of("abcdefgh")]);
        let moved = look(&mut tree, 2, &[1], &[&of("12345678"), &of("hgfedcba"), &of("abcdefgh")]).unwrap();
        assert_eq!(moved, [own(8), taken(8, 0, 0), taken(8, 0, 128)]);
        let mut list = chunks(Grouping::List);
        look(&mut list, 1, &[], &[&of("hgfedcba"), &of("abcdefgh")]);
        let moved = look(&mut list, 2, &[1], &[&of("12345678"), &of("hgfedcba"), &of("abcdefgh")]).unwrap();
        assert_eq!(moved.len(), 1 + 1 + 8, "{moved:?}");
    }

    /// An array of zeros is no rare thing.
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
        assert_eq!(extents(Grouping::List), None, "to describe each chunk would take as much");
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
        // Fixed ones need no table.
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
