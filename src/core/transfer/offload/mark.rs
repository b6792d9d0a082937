//! A marked shard, until it lands.
#![forbid(unsafe_code)]

use super::REFRESHED;
use super::zones::{Happens, Zone, Zones};
use crate::base::Digest;
use crate::device::{Copied, DeviceError, DeviceSpan, Moment, Target};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How many digests are examined at a time: a write that is declared meanwhile waits that long.
const LOOK: usize = 8192;

/// A region in device memory, and its place.
#[derive(Clone)]
pub(in crate::transfer) struct Field {
    /// The name of the region.
    pub name: String,
    /// Its memory.
    pub span: DeviceSpan,
    /// Where the region begins in the target, in bytes.
    pub at: u64,
}

/// The data to be sent.
pub(in crate::transfer) struct Snapshot {
    /// The version, for the log.
    pub version: u64,
    /// The regions, in the order of the shard.
    pub fields: Vec<Field>,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The slot, which already contains everything but these regions.
    pub target: Arc<Target>,
    /// Reads the digests of what the target already holds of these regions, if they are known.
    pub known: Option<Known>,
    /// Called at the end.
    pub land: Land,
}

/// How a snapshot is sent.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// Selects those unchanged blocks that are sent nevertheless.
    pub turn: u64,
    /// Are the digests computed before the application continues?
    pub is_audited: bool,
    /// How long the shard may take at most.
    pub limit: Duration,
}

/// Reads the digests of the target's content, beginning with the given block of the regions.
pub(in crate::transfer) type Known = Box<dyn Fn(usize, &mut [Digest]) + Send>;

/// Called once, with the shard or with the reason why there is none.
pub(in crate::transfer) type Land = Box<dyn FnOnce(Result<Landed<'_>, String>) + Send>;

/// A shard whose bytes are all in the slot.
pub(in crate::transfer) struct Landed<'a> {
    /// The slot.
    pub target: Arc<Target>,
    /// The digests, one for each block, in the order of the regions.
    pub digests: &'a [Digest],
}

/// A field and its place among the others.
pub(super) struct Placed {
    pub field: Field,
    /// The field's blocks among those of all fields.
    pub blocks: Range<usize>,
}

/// Where a transfer takes its bytes.
#[derive(Clone)]
pub(super) enum Source {
    Live,
    /// A part of the buffer: its number, and the range in it.
    Buffer(usize, Range<u64>),
}

/// Consecutive blocks of one field.
pub(super) struct Part {
    /// The index of the field.
    pub field: usize,
    pub blocks: Range<usize>,
    pub source: Source,
}

/// What is to be sent from live memory: long runs, short runs, and the bytes of all of them.
#[derive(Default)]
pub(super) struct Parts {
    pub long: Vec<Part>,
    pub short: Vec<Part>,
    pub bytes: u64,
}

/// A transfer on its way.
pub(super) struct Batch {
    /// The number of the stream.
    pub lane: usize,
    pub parts: Vec<Part>,
    pub copied: Box<dyn Copied>,
    pub moment: Arc<dyn Moment>,
}

/// Blocks in the buffer that are not on their way yet.
pub(super) struct Doubled {
    /// The field that contains all these blocks.
    pub field: usize,
    pub blocks: Range<usize>,
    pub ring: usize,
    pub place: Range<u64>,
    pub moment: Arc<dyn Moment>,
}

/// A copy of blocks into the buffer, until its digests are known.
pub(super) struct Doubling {
    pub blocks: Vec<Range<usize>>,
    pub copied: Box<dyn Copied>,
    pub moment: Arc<dyn Moment>,
}

/// The digests of the mark.
pub(super) struct Digesting {
    pub copied: Box<dyn Copied>,
    /// Done when the digests have been computed.
    pub moment: Arc<dyn Moment>,
    /// How many of them have been examined.
    pub looked: usize,
}

/// A marked shard.
pub(super) struct Mark {
    pub version: u64,
    pub fields: Vec<Placed>,
    /// The indices of the fields, in the order of their addresses.
    pub by_address: Vec<usize>,
    pub block_bytes: u64,
    /// The number of blocks in a piece.
    pub piece: usize,
    pub target: Arc<Target>,
    pub known: Option<Known>,
    pub terms: Terms,
    pub land: Land,
    pub zones: Zones,
    /// The moment at which the stream had done what precedes the mark; kept until our streams wait for it.
    pub start: Option<Arc<dyn Moment>>,
    /// The moment at which the stream will have done what precedes the mark, including the digests of an audit; `is_past` says whether it
    /// has passed.
    pub moment: Arc<dyn Moment>,
    pub is_past: bool,
    /// The next of the blocks that are sent whether the target holds them or not.
    pub refreshed: usize,
    /// The digests of all blocks, until they have been examined.
    pub digesting: Option<Digesting>,
    /// Buffers for the digests that are examined, and for the target's digests of the same blocks.
    pub looked_at: [Vec<Digest>; 2],
    /// Which of `digests` are known: the others are left over from an earlier mark.
    pub is_digested: Vec<bool>,
    pub digests: Vec<Digest>,
    /// The number of blocks that the target already held.
    pub equal: usize,
    /// Pieces that may contain blocks to be sent; the next one is the last.
    pub order: Vec<u32>,
    pub low: VecDeque<Batch>,
    pub urgent: VecDeque<Batch>,
    pub doubled: VecDeque<Doubled>,
    pub doublings: VecDeque<Doubling>,
    pub bytes: u64,
    /// Bytes from live memory that were let through.
    pub sent: u64,
    pub begun: Duration,
    /// How long the transfer of the shard may take.
    pub whole: Duration,
    pub failure: Option<String>,
}

impl Mark {
    /// The fields, with their blocks.
    pub fn place(fields: Vec<Field>, block_bytes: u64) -> Vec<Placed> {
        let mut next = 0;
        let place = |field: Field| {
            let blocks = next..next + field.span.bytes().div_ceil(block_bytes) as usize;
            next = blocks.end;
            Placed { field, blocks }
        };
        fields.into_iter().map(place).collect()
    }

    /// Cuts a range of blocks where fields end; returns the fields and their blocks.
    pub fn cut(&self, blocks: &Range<usize>) -> impl Iterator<Item = (&Placed, Range<usize>)> {
        let Range { start, end } = *blocks;
        let first = self.fields.partition_point(|placed| placed.blocks.end <= start);
        let touched = self.fields[first..].iter().take_while(move |placed| placed.blocks.start < end);
        let cut = move |placed: &'_ Placed| placed.blocks.start.max(start)..placed.blocks.end.min(end);
        touched.map(move |placed| (placed, cut(placed))).filter(|(_, blocks)| !blocks.is_empty())
    }

    /// The first block whose digest has not been examined; all later ones have not been examined either.
    pub fn looked(&self) -> usize {
        self.digesting.as_ref().map_or(self.digests.len(), |digesting| digesting.looked)
    }

    /// The first block that may already be in the target; this block and later ones are not sent before that is known.
    pub fn sendable(&self) -> usize {
        if self.known.is_some() { self.looked() } else { self.digests.len() }
    }

    /// The range of some blocks of a field, in bytes from the start of the field.
    pub fn bytes_of(&self, placed: &Placed, blocks: &Range<usize>) -> Range<u64> {
        let start = (blocks.start - placed.blocks.start) as u64 * self.block_bytes;
        let end = (blocks.end - placed.blocks.start) as u64 * self.block_bytes;
        start..end.min(placed.field.span.bytes())
    }

    /// The field of a block.
    pub fn field_of(&self, block: usize) -> usize {
        self.fields.partition_point(|placed| placed.blocks.end <= block)
    }

    /// Blocks in live memory as parts of one field each; long parts are listed separately.
    pub fn live_parts(&self, runs: &[Range<usize>], is_long: impl Fn(u64) -> bool) -> Parts {
        let (mut parts, mut field) = (Parts { short: Vec::with_capacity(runs.len()), ..Parts::default() }, 0);
        for run in runs {
            // Usually the same field as that of the previous run.
            if !self.fields.get(field).is_some_and(|placed| placed.blocks.contains(&run.start)) {
                field = self.field_of(run.start);
            }
            let mut start = run.start;
            while start < run.end {
                let placed = &self.fields[field];
                let blocks = start..run.end.min(placed.blocks.end);
                let bytes = self.bytes_of(placed, &blocks);
                let length = bytes.end - bytes.start;
                start = blocks.end;
                parts.bytes += length;
                let of = if is_long(length) { &mut parts.long } else { &mut parts.short };
                of.push(Part { field, blocks, source: Source::Live });
                if start < run.end {
                    field = self.field_of(start);
                }
            }
        }
        parts
    }

    /// The blocks that contain a span, in all fields that it touches.
    pub fn blocks_in(&self, span: &DeviceSpan) -> Vec<Range<usize>> {
        let (start, end) = (span.address(), span.address() + span.bytes());
        let first = self.by_address.partition_point(|index| {
            let span = &self.fields[*index].field.span;
            span.address() + span.bytes() <= start
        });
        let fields = self.by_address[first..].iter().map(|index| &self.fields[*index]);
        let touched = fields.take_while(|placed| placed.field.span.address() < end).filter_map(|placed| {
            let own = &placed.field.span;
            let from = start.max(own.address()) - own.address();
            let to = end.min(own.address() + own.bytes()) - own.address();
            let blocks = (from / self.block_bytes) as usize..to.div_ceil(self.block_bytes) as usize;
            (from < to).then(|| placed.blocks.start + blocks.start..placed.blocks.start + blocks.end)
        });
        touched.collect()
    }

    /// The index, in each group of `REFRESHED` blocks, of the block that is sent although the target holds it.
    fn refreshed_of(&self) -> usize {
        (self.terms.turn % REFRESHED as u64) as usize
    }

    /// Blocks that are sent before it is known which ones the target holds, up to a piece of them.
    pub fn next_refreshed(&mut self) -> Vec<Range<usize>> {
        let (count, first) = (self.is_digested.len(), self.refreshed_of());
        let mut blocks = Vec::new();
        while blocks.len() < self.piece && self.refreshed + first < count {
            let block = self.refreshed + first;
            if self.zones.state(block) == Zone::Pending {
                blocks.push(block..block + 1);
            }
            self.refreshed += REFRESHED;
        }
        blocks
    }

    /// The shard will not land.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        self.failure.get_or_insert_with(why);
    }

    /// Makes the mark fail because of a device error.
    pub fn fail_by(&mut self, error: &DeviceError) {
        self.fail(|| error.to_string());
    }

    /// Notes the digest of a block, as computed where the block was read.
    pub fn note(&mut self, block: usize, digest: Digest) {
        match self.is_digested[block] {
            true if self.digests[block] != digest => self.fail_at(block),
            true => {}
            false => (self.digests[block], self.is_digested[block]) = (digest, true),
        }
    }

    /// Notes the digests of several consecutive blocks.
    pub fn note_all(&mut self, blocks: Range<usize>, digests: &[Digest]) {
        let (is_digested, known) = (&mut self.is_digested[blocks.clone()], &mut self.digests[blocks.clone()]);
        let count = is_digested.iter().map(|is_digested| usize::from(*is_digested)).sum::<usize>();
        if count == 0 {
            known.copy_from_slice(digests);
            is_digested.fill(true);
        } else if count < digests.len() || *known != *digests {
            blocks.zip(digests).for_each(|(block, digest)| self.note(block, *digest));
        }
    }

    /// Notes the digests of blocks that were read from the buffer.
    pub fn note_doubled(&mut self, blocks: Range<usize>, digests: &[Digest]) {
        let mut known = blocks.clone().zip(digests);
        if known.any(|(block, digest)| self.is_digested[block] && self.digests[block] != *digest) {
            self.fail(|| "a block in the buffer has changed since it was copied there".to_owned());
        }
        self.note_all(blocks, digests);
    }

    /// Examines the next digests of the mark, which have been computed. Blocks that the target already holds are safe, except for those
    /// whose turn it is to be sent again. Without an audit, this only makes the digests of those blocks known to which nobody can have
    /// written yet.
    pub fn look_at_digests(&mut self) {
        let Some(Digesting { copied, looked, .. }) = &mut self.digesting else { return };
        let (at, end) = (*looked, self.digests.len().min(*looked + LOOK));
        let [mut made, mut held] = std::mem::take(&mut self.looked_at);
        made.resize(end - at, Digest::default());
        let read = copied.read_digests(at, &mut made);
        *looked = end;
        if end == self.digests.len() {
            self.digesting = None;
        }
        if let Err(error) = read {
            return self.fail_by(&error);
        }
        if let Some(known) = &self.known {
            held.resize(end - at, Digest::default());
            known(at, &mut held);
        }
        let pending = self.zones.runs(at..end, |zone| zone == Zone::Pending);
        match self.terms.is_audited {
            true => self.note_all(at..end, &made),
            false => pending.iter().for_each(|run| self.note_all(run.clone(), &made[run.start - at..run.end - at])),
        }
        let refreshed = self.refreshed_of();
        for run in pending.into_iter().filter(|_| !held.is_empty()) {
            // A run of equal blocks.
            let mut equal = run.start..run.start;
            for block in run {
                if block % REFRESHED != refreshed && held[block - at] == made[block - at] {
                    equal.start = if equal.end == block { equal.start } else { block };
                    equal.end = block + 1;
                } else if !equal.is_empty() {
                    self.is_equal(std::mem::replace(&mut equal, block..block));
                }
            }
            self.is_equal(equal);
        }
        self.looked_at = [made, held];
    }

    /// The target already holds these blocks.
    fn is_equal(&mut self, blocks: Range<usize>) {
        self.equal += blocks.len();
        self.zones.all(blocks, Happens::Equal);
    }

    /// A block was written to without a declaration.
    fn fail_at(&mut self, block: usize) {
        let blocks = block..block + 1;
        let place = self.cut(&blocks).next();
        let place = place.map(|(placed, blocks)| (placed.field.name.clone(), self.bytes_of(placed, &blocks)));
        if let Some((region, bytes)) = place {
            self.fail(|| undeclared(&region, &bytes));
        }
    }
}

impl Batch {
    /// Do any blocks of this transfer overlap these ascending ranges?
    pub fn meets(&self, blocks: &[Range<usize>]) -> bool {
        self.parts.iter().any(|part| meets(std::slice::from_ref(&part.blocks), blocks))
    }
}

/// Do any two ranges, one of each list, have a block in common? The second list ascends.
pub(super) fn meets(some: &[Range<usize>], others: &[Range<usize>]) -> bool {
    some.iter().any(|one| {
        let first = others.partition_point(|other| other.end <= one.start);
        others.get(first).is_some_and(|other| other.start < one.end)
    })
}

/// The error for an undeclared write.
fn undeclared(region: &str, bytes: &Range<u64>) -> String {
    format!(
        "region {region:?} has changed in bytes {} to {} since it was marked, although no write to it was declared: call before_write, \
         or before with its write set, ahead of the work that writes there",
        bytes.start, bytes.end
    )
}
