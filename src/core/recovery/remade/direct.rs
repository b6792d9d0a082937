//! Reads what a rank loads by itself: pieces of shards on its node and on tiers that all nodes share, block by block. Each block is checked
//! as a whole before the wanted part of it counts.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::super::outline::Dealt;
use super::landing::{FILLERS, Landing, Lane, STAGED};
use super::target::{Mapper, Share, Slot, Target};
use crate::base::Rank;
use crate::base::digest::store_fence;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::threads;
use crate::decomposition::matching::Piece;
use crate::decomposition::strides::{Both, Strides};
use crate::decomposition::{DIMS, Parts};
use crate::device;
use crate::format::Region;
use crate::tier::source::{Again, BlockShare, FILE_READERS, MEMORY_READERS, Pass, Source};
use crate::tier::{TierError, TierId};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The minimum number of bytes for which several threads load.
const THREADS_MIN: u64 = 2 << 20;
/// The minimum and the maximum number of bytes in a thread's task.
const TASK: Range<u64> = 2 << 20..16 << 20;
/// Gaps of up to this many bytes between two wanted blocks of a file are read with the blocks.
const GAP: usize = 512 << 10;

/// Elements on their way from a region to a box.
pub(super) struct Move {
    /// Where they lie in the region, relative to the first byte of the part of the shard to which they belong.
    from: Strides,
    base: usize,
    /// Where they go in the memory of their box.
    to: Strides,
    /// The slot of the task that has that place, and the offset from the beginning of the slot.
    slot: usize,
    behind: usize,
}

impl Move {
    /// The place of the first byte in the region.
    fn first(&self) -> usize {
        self.base + self.from.place_of(0)
    }
}

/// Where the parts of a shard begin in a region whose elements have `size` bytes.
pub(super) fn starts(parts: &Parts, size: u64) -> Vec<usize> {
    let ends = parts.own().iter().scan(0, |end, own| {
        *end += (own.volume() * size) as usize;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The blocks of a region that these moves touch, joined where no more than `gap` bytes lie between them. The moves must be sorted by their
/// first bytes.
pub(super) fn touched(moves: &[Move], block: usize, length: usize, gap: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::<Range<usize>>::new();
    // `begun` has the moves that have begun, each with the place of its next byte.
    let (mut waiting, mut begun) = (moves.iter().peekable(), Vec::<(usize, &Move)>::new());
    loop {
        let first = waiting.peek().map(|next| next.first());
        let Some(next) = begun.iter().map(|(next, _)| *next).chain(first).min() else { return ranges };
        let start = next - next % block;
        let end = (start + block).min(length);
        match ranges.last_mut() {
            Some(last) if start - last.end <= gap => last.end = end,
            _ => ranges.push(start..end),
        }
        while let Some(next) = waiting.next_if(|next| next.first() < end) {
            begun.push((next.first(), next));
        }
        begun.retain_mut(|(next, of)| {
            let done = of.from.before(end.saturating_sub(of.base));
            let is_open = done < of.from.bytes();
            if is_open {
                *next = of.base + of.from.place_of(done);
            }
            is_open
        });
    }
}

/// The progress of a region's moves, block by block.
struct Walk<'m> {
    moves: &'m [Move],
    /// The ways of the moves that have begun.
    ways: Vec<Both<'m>>,
    /// The moves that have begun, by the place of the next byte of each in the region.
    next: BinaryHeap<Reverse<(usize, usize)>>,
}

impl<'m> Walk<'m> {
    /// `moves` must be sorted by their first bytes.
    fn new(moves: &'m [Move]) -> Walk<'m> {
        Walk { moves, ways: Vec::new(), next: BinaryHeap::new() }
    }

    /// Takes what is wanted from the block that begins at `at`. Bytes that two moves want are taken twice.
    fn take(&mut self, at: usize, pass: &mut Pass<'_>, slots: &mut [Slot<'_>]) -> Again {
        let end = at + pass.left();
        while let Some(next) = self.moves.get(self.ways.len()).filter(|next| next.first() < end) {
            self.next.push(Reverse((next.first(), self.ways.len())));
            self.ways.push(Both::new(&next.from, &next.to));
        }
        let mut passed = Vec::new();
        while let Some(mut top) = self.next.peek_mut() {
            let Reverse((place, index)) = *top;
            if place >= end {
                break;
            }
            let Some(skipped) = place.checked_sub(at + pass.at()) else {
                passed.push(PeekMut::pop(top));
                continue;
            };
            pass.skip(skipped);
            let (of, way) = (&self.moves[index], &mut self.ways[index]);
            let (_, to, count) = way.next();
            let count = count.min(end - place);
            pass.copy(slots[of.slot].place(of.behind + to, count));
            way.skip(count);
            let (from, _, left) = way.next();
            match left {
                0 => _ = PeekMut::pop(top),
                _ => *top = Reverse((of.base + from, index)),
            }
        }
        pass.skip(pass.left());
        let again = if passed.is_empty() { Again::No } else { Again::Yes };
        self.next.extend(passed);
        again
    }
}

/// The longest gap in a copy that is read, in bytes.
pub(super) fn gap_of(source: &Source) -> usize {
    if matches!(source, Source::Memory(_)) { 0 } else { GAP }
}

/// The moves of whole pieces of one shard, in the order in which the region has them.
pub(super) fn moves_of(pieces: &[Piece], parts: &Parts, mapper: &Mapper<'_>) -> Vec<Move> {
    let starts = starts(parts, mapper.size());
    let moves = pieces.iter().filter_map(|piece| move_of(piece, (parts, &starts), mapper, 0));
    let mut moves: Vec<Move> = moves.collect();
    moves.sort_by_key(Move::first);
    moves
}

/// The move of a piece to a slot. The parts of the shard begin in the region at `starts`.
fn move_of(piece: &Piece, (parts, starts): (&Parts, &[usize]), mapper: &Mapper<'_>, slot: usize) -> Option<Move> {
    let from = inside(piece, parts, mapper.size())?;
    let to = mapper.strides(piece.number, &piece.cuboid)?;
    Some(Move { from, base: starts[piece.part as usize], to, slot, behind: 0 })
}

/// Where a piece lies in its part of a shard.
pub(super) fn inside(piece: &Piece, parts: &Parts, size: u64) -> Option<Strides> {
    let of = parts.own().get(piece.part as usize).filter(|of| of.contains(&piece.cuboid))?;
    let none = [0; DIMS];
    Some(Strides::inside(&piece.cuboid, of, &none, &none, size))
}

/// What a rank reads for itself of a region.
pub(super) struct Direct<'p> {
    pub region: &'p str,
    /// The pieces of each shard; those of one box are consecutive.
    pub pieces: &'p BTreeMap<Rank, Vec<Piece>>,
}

/// A shard that is read: the copy, the region in it, where the parts begin, and what was wrong with the copy.
struct Opened {
    source: Source,
    region: Region,
    starts: Vec<usize>,
    dealt: Dealt,
    read: AtomicU64,
    failed: Lock<Option<TierError>>,
    /// What this rank adds to the checks of the blocks, if others copy the rest of these blocks.
    shares: Option<Lock<Vec<BlockShare>>>,
}

impl Opened {
    fn blocks(&self) -> usize {
        self.region.bytes.div_ceil(u64::from(self.source.head().header.block_size)) as usize
    }
}

impl Direct<'_> {
    /// Loads everything from `shards`. If a copy is damaged, the next copy is read.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Device`].
    ///
    /// # Blocking
    /// On the tiers that hold the shards, and for the device.
    pub fn load(&self, mut shards: Vec<&mut ShardAccess>, target: &mut Target<'_>) -> Result<(), LoadError> {
        while !shards.is_empty() {
            let size = target.mapper().size();
            let opened = shards.iter_mut().map(|access| self.open(access, size));
            let opened: Vec<(Rank, Opened)> = opened.collect::<Result<_, LoadError>>()?;
            self.load_from(&opened, target);
            self.check_device(&shards, target)?;
            let mut again = Vec::new();
            for (access, (shard, opened)) in shards.into_iter().zip(opened) {
                let tier = opened.source.tier();
                access.add_read(tier, opened.read.into_inner());
                match opened.failed.into_inner() {
                    Some(error) => {
                        log::warn!("event=copy-distrusted rank={} error={error}", access.rank());
                        access.distrust(error.to_string(), tier);
                        again.push(access);
                    }
                    None => target.add_delivered(self.bytes_of(shard, size)),
                }
            }
            shards = again;
        }
        Ok(())
    }

    /// Loads everything, without a check, from shards of whose blocks other ranks load the rest. Returns what this rank adds to the checks
    /// of each shard's blocks, block by block. What was loaded does not count until all of it has been checked.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Device`].
    ///
    /// # Blocking
    /// On the device.
    pub fn load_shared(
        &self,
        mut shards: Vec<&mut ShardAccess>,
        target: &mut Target<'_>,
    ) -> Result<Vec<(Rank, Vec<BlockShare>)>, LoadError> {
        let size = target.mapper().size();
        let mut opened = Vec::new();
        for access in &mut shards {
            let (shard, mut shared) = self.open(access, size)?;
            shared.shares = Some(Lock::new(vec![BlockShare::default(); shared.blocks()]));
            opened.push((shard, shared));
        }
        self.load_from(&opened, target);
        self.check_device(&shards, target)?;
        for (access, (_, opened)) in shards.iter_mut().zip(&opened) {
            access.add_read(opened.source.tier(), opened.read.load(Ordering::Relaxed));
        }
        Ok(opened
            .into_iter()
            .map(|(shard, opened)| (shard, opened.shares.map_or_else(Vec::new, Lock::into_inner)))
            .collect())
    }

    /// The number of bytes that are loaded.
    pub fn bytes(&self, size: u64) -> u64 {
        self.pieces.keys().map(|shard| self.bytes_of(*shard, size)).sum()
    }

    /// Has the device failed that contains the target?
    fn check_device(&self, shards: &[&mut ShardAccess], target: &Target<'_>) -> Result<(), LoadError> {
        match (target.landing().and_then(Landing::failure), shards.first()) {
            (Some(source), Some(access)) => Err(access.failed_device(self.region, source)),
            _ => Ok(()),
        }
    }

    fn bytes_of(&self, shard: Rank, size: u64) -> u64 {
        self.pieces.get(&shard).into_iter().flatten().map(|piece| piece.cuboid.volume() * size).sum()
    }

    fn open(&self, access: &mut ShardAccess, size: u64) -> Result<(Rank, Opened), LoadError> {
        let dealt = access.dealt(self.region)?;
        let starts = starts(dealt.parts().1, size);
        let (source, region) = (dealt.source.clone(), dealt.region.clone());
        let (read, failed) = (AtomicU64::new(0), Lock::default());
        let opened = Opened { source, region, starts, dealt, read, failed, shares: None };
        Ok((access.shard(), opened))
    }

    /// Loads what these copies have. A damaged copy notes its own damage.
    fn load_from(&self, shards: &[(Rank, Opened)], target: &mut Target<'_>) {
        let mapper = target.mapper();
        let size = mapper.size();
        let bytes: u64 = shards.iter().map(|(shard, _)| self.bytes_of(*shard, size)).sum();
        // Only this thread asks for what comes from other nodes.
        let is_near = shards.iter().all(|(_, opened)| opened.source.tier() != TierId::PEERS);
        let in_files = shards.iter().any(|(_, opened)| matches!(opened.source, Source::File(_)));
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let readers = if target.landing().is_some() { FILLERS } else { MEMORY_READERS };
        let count = match (is_near && bytes >= THREADS_MIN, in_files) {
            (false, _) => 1,
            (true, true) => FILE_READERS,
            (true, false) => readers.min(processors),
        };
        let task = match count {
            1 => u64::MAX,
            _ => (bytes / (4 * count as u64)).clamp(TASK.start, TASK.end),
        };
        // For each box, the shards that have parts of it.
        let mut by_box: BTreeMap<u32, Vec<(usize, &Piece)>> = BTreeMap::new();
        for (at, (shard, _)) in shards.iter().enumerate() {
            let pieces = self.pieces.get(shard).into_iter().flatten();
            pieces.for_each(|piece| by_box.entry(piece.number).or_default().push((at, piece)));
        }
        if let Some(landing) = target.landing() {
            let tasks = Lock::new(target.shares(task.min(STAGED)).into_iter());
            let next = || tasks.lock().next();
            let land = || Ashore { shards, by_box: &by_box, mapper: &mapper, landing }.all(next);
            return threads::in_threads(count, "bvk-read", || land().unwrap_or_else(|error| landing.fail(error)));
        }
        let tasks = Lock::new(target.tasks(task).into_iter());
        let next = || tasks.lock().next();
        threads::in_threads(count, "bvk-read", || {
            while let Some(slots) = next() {
                work(shards, &by_box, &mapper, slots);
            }
        });
    }
}

/// What one thread brings into device memory.
struct Ashore<'d, 'p> {
    shards: &'d [(Rank, Opened)],
    /// For each box, the shards that have parts of it.
    by_box: &'d BTreeMap<u32, Vec<(usize, &'p Piece)>>,
    mapper: &'d Mapper<'d>,
    landing: &'d Landing<'d>,
}

impl Ashore<'_, '_> {
    /// Does one task after the other, until none is left or the device has failed in some thread.
    fn all(&self, next: impl Fn() -> Option<Vec<Share>>) -> device::Result<()> {
        let mut lane: Option<Lane<'_>> = None;
        while let Some(task) = next().filter(|_| !self.landing.failed()) {
            let bytes = |share: &Share| share.within.volume() * self.mapper.size();
            let room = task.iter().map(bytes).sum::<u64>();
            match &mut lane {
                Some(lane) if room <= STAGED => self.one(&task, lane)?,
                _ => {
                    // A longer element gets a separate memory.
                    let mut made = self.landing.lane(room.max(STAGED))?;
                    self.one(&task, &mut made)?;
                    if let Some(before) = lane.replace(made) {
                        before.finish()?;
                    }
                }
            }
        }
        lane.map_or(Ok(()), Lane::finish)
    }

    /// Reads what is wanted of some parts of boxes, one piece after the other, and has the device move them to their places.
    fn one(&self, task: &[Share], lane: &mut Lane<'_>) -> device::Result<()> {
        let mut moves: BTreeMap<usize, Vec<Move>> = BTreeMap::new();
        let (mut copies, mut behind) = (Vec::new(), 0);
        for share in task {
            for (at, piece) in self.by_box.get(&share.number).into_iter().flatten() {
                let Some(cuboid) = piece.cuboid.common(&share.within) else { continue };
                let opened = &self.shards[*at].1;
                let place = (opened.dealt.parts().1, &opened.starts[..]);
                let Some(whole) = move_of(&Piece { cuboid, ..**piece }, place, self.mapper, 0) else { continue };
                let none = [0; DIMS];
                let packed = Strides::of(&cuboid, &none, &none, self.mapper.size());
                let bytes = packed.bytes();
                copies.push((*at, self.landing.copy(share.number, &whole.to, 0..bytes, behind)?));
                moves.entry(*at).or_default().push(Move { to: packed, behind, ..whole });
                behind += bytes;
            }
        }
        let memory = lane.memory()?;
        read_moves(self.shards, moves, &mut [Slot::apart(memory)]);
        // The stores must be complete before the device reads them.
        store_fence();
        // Nothing from a damaged copy counts, because all of it is read again from the next copy.
        let is_right = |at: usize| self.shards[at].1.failed.lock().is_none();
        let copies = copies.into_iter().filter(|(at, _)| is_right(*at)).map(|(_, copy)| copy);
        lane.send(&copies.collect::<Vec<_>>())
    }
}

/// Does one task: fills these slots from each shard that has parts of them.
fn work(
    shards: &[(Rank, Opened)],
    by_box: &BTreeMap<u32, Vec<(usize, &Piece)>>,
    mapper: &Mapper<'_>,
    mut slots: Vec<Slot<'_>>,
) {
    let mut moves: BTreeMap<usize, Vec<Move>> = BTreeMap::new();
    for (slot, of) in slots.iter().enumerate() {
        for (at, piece) in by_box.get(&of.number).into_iter().flatten() {
            let Some(cuboid) = piece.cuboid.common(&of.within) else { continue };
            let opened = &shards[*at].1;
            let place = (opened.dealt.parts().1, &opened.starts[..]);
            moves.entry(*at).or_default().extend(move_of(&Piece { cuboid, ..**piece }, place, mapper, slot));
        }
    }
    read_moves(shards, moves, &mut slots);
}

/// Carries out the moves of some shards, into slots.
fn read_moves(shards: &[(Rank, Opened)], moves: BTreeMap<usize, Vec<Move>>, slots: &mut [Slot<'_>]) {
    for (at, mut moves) in moves {
        let opened = &shards[at].1;
        let Opened { source, region, read, failed, shares, .. } = opened;
        if failed.lock().is_some() {
            continue;
        }
        moves.sort_by_key(Move::first);
        let block = source.head().header.block_size as usize;
        let mut walk = Walk::new(&moves);
        if shares.is_some() {
            let bytes: usize = moves.iter().map(|of| of.from.bytes()).sum();
            read.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        for range in touched(&moves, block, region.bytes as usize, gap_of(source)) {
            if shares.is_none() {
                read.fetch_add(range.len() as u64, Ordering::Relaxed);
            }
            let take = |at: usize, pass: &mut Pass<'_>| walk.take(at, pass, slots);
            let outcome = match shares {
                Some(shares) => {
                    let mut added = vec![BlockShare::default(); range.len().div_ceil(block)];
                    let first = range.start / block;
                    let outcome = source.read_shared(region, range, &mut added, take);
                    shares.lock()[first..].iter_mut().zip(added).for_each(|(share, added)| share.merge(added));
                    outcome
                }
                None => source.read_through(region, range, take),
            };
            if let Err(error) = outcome {
                failed.lock().get_or_insert(error);
                break;
            }
        }
    }
    store_fence();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decomposition::cells::{Cells, Sums};
    use crate::decomposition::{Boxes, Decomposition, Identity};
    use proptest::prelude::*;

    fn decomposition(boxes: &Boxes) -> Decomposition {
        let own = boxes.check().expect("inside");
        let cells = Cells::new(own.parts(), &Sums::of_rank(own.parts(), Rank(0), 1), 1);
        Decomposition::of_boxes(own, Identity::default(), cells, (Rank(0), 1))
    }

    /// Boxes that cut an array in one dimension after the other, some of them left out.
    fn some(shape: [u64; 2], dim: usize, cuts: u64, left_out: u64) -> Boxes {
        (0..cuts).filter(|cut| cut % 5 != left_out).fold(Boxes::of(shape), |boxes, cut| {
            let (mut origin, mut extent) = ([0, 0], shape);
            origin[dim] = cut * shape[dim] / cuts;
            extent[dim] = (cut + 1) * shape[dim] / cuts - origin[dim];
            boxes.own(origin, extent)
        })
    }

    proptest! {
        #[test]
        fn what_is_wanted_of_a_region_comes_to_its_place_and_only_its_blocks_are_read(
            shape in (1u64..40, 1u64..40),
            old in (0usize..2, 1u64..6, 0u64..8),
            new in (0usize..2, 1u64..6, 0u64..8),
            halo in (0u64..3, 0u64..3),
            size in 1u64..9,
            block in 4usize..7,
            task in 1u64..4000,
            is_wanted_twice in any::<bool>(),
        ) {
            let (shape, block) = ([shape.0, shape.1], 1 << block);
            let old = some(shape, old.0, old.1, old.2).check().expect("inside");
            let mut boxes = some(shape, new.0, new.1, new.2).halo([halo.0, halo.1]);
            if is_wanted_twice {
                boxes = boxes.own([0, 0], shape);
            }
            let on = decomposition(&boxes);
            let pieces: Vec<Piece> = (0..).zip(old.parts().own()).flat_map(|(part, has)| {
                let wants = (0..).zip(on.own().parts().own());
                wants.filter_map(move |(number, wants)| {
                    let cuboid = has.common(wants)?;
                    let (reader, shard, to) = (Rank(0), Rank(0), Rank(0));
                    Some(Piece { reader, is_shared: false, shard, part, to, number, cuboid })
                })
            }).collect();
            let value = |y: u64, x: u64, byte: u64| ((y * shape[1] + x) * 11 + byte) as u8;
            let mut region = Vec::new();
            for own in old.parts().own() {
                for y in own.from[0]..own.to[0] {
                    for x in own.from[1]..own.to[1] {
                        region.extend((0..size).map(|byte| value(y, x, byte)));
                    }
                }
            }
            let lengths = (0..on.boxes()).map(|number| (on.own().memory_elements(number) * size) as usize);
            let mut memory: Vec<Vec<u8>> = lengths.map(|length| vec![0xee; length]).collect();
            let lent = memory.iter_mut().map(|memory| &mut memory[..]).collect();
            let mut target = Target::new(on.own(), lent, size);
            let mapper = target.mapper();
            let starts = starts(old.parts(), size);
            let mut read = vec![false; region.len().div_ceil(block)];
            for mut slots in target.tasks(task) {
                let mut moves = Vec::new();
                for (slot, of) in slots.iter().enumerate() {
                    for piece in pieces.iter().filter(|piece| piece.number == of.number) {
                        let Some(cuboid) = piece.cuboid.common(&of.within) else { continue };
                        moves.extend(move_of(&Piece { cuboid, ..*piece }, (old.parts(), &starts), &mapper, slot));
                    }
                }
                moves.sort_by_key(Move::first);
                let mut walk = Walk::new(&moves);
                for range in touched(&moves, block, region.len(), 0) {
                    for at in range.clone().step_by(block) {
                        read[at / block] = true;
                        let bytes = &region[at..(at + block).min(range.end)];
                        while walk.take(at, &mut Pass::checked(bytes), &mut slots) == Again::Yes {}
                    }
                }
                prop_assert!(walk.next.is_empty() && walk.ways.len() == moves.len());
            }
            let mut is_needed = vec![false; read.len()];
            for piece in &pieces {
                let strides = inside(piece, old.parts(), size).expect("inside");
                let places = (0..strides.bytes()).map(|byte| starts[piece.part as usize] + strides.place_of(byte));
                places.for_each(|place| is_needed[place / block] = true);
            }
            prop_assert_eq!(read, is_needed);
            drop(target);
            for ((number, own), memory) in (0..).zip(on.own().parts().own()).zip(&memory) {
                let strides = on.own().strides(number, size);
                let mut expected = vec![0xee; memory.len()];
                let has = |y, x| old.parts().own().iter().any(|has| (has.from[0]..has.to[0]).contains(&y) && (has.from[1]..has.to[1]).contains(&x));
                let mut at = 0;
                for y in own.from[0]..own.to[0] {
                    for x in own.from[1]..own.to[1] {
                        for byte in 0..size {
                            if has(y, x) {
                                expected[strides.place_of(at)] = value(y, x, byte);
                            }
                            at += 1;
                        }
                    }
                }
                prop_assert_eq!(memory, &expected);
            }
        }
    }
}
