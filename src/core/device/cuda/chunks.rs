//! Tables of chunks in a GPU's memory, and the kernels that look into them.

use super::super::chunks::{ChunkTable, Place, TableSize, check_question, within};
use super::super::{DeviceError, Priority, Result, Stream};
use super::context::Shared;
use super::kernels::Functions;
use super::memory::Allocation;
use super::pinned::PinnedLoan;
use super::stream::{GpuStream, Owned};
use crate::base::log;
use crate::base::units::PAGE;
use crate::reduction::{Field, Found, Grouping, Home, Part, Question, Stretch};
use cudarc::driver::{CudaFunction, result};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Threads of a thread block; the kernels are built for it.
const THREADS: u64 = 256;
/// How many versions have numbers of their own: 0 is not the number of a version.
const VERSIONS: u64 = 1 << 16;
/// How many versions are remembered although they may not be referred to.
const REMEMBERED: u64 = 1000;
/// The bits of a place that are its offset, and the unit of the offset in bytes.
const UNIT_BITS: u32 = 46;
const UNIT: u64 = 32;

/// `struct Block` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct KernelBlock {
    from: u64,
    second: u64,
    at: u64,
    split: u32,
    bytes: u32,
    is_first: u32,
    pad: u32,
}

/// `struct Part` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct KernelPart {
    leaf: u64,
    leaves: u64,
    place: u64,
}

/// `struct Table` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct KernelTable {
    digests: u64,
    homes: u64,
    tags: u64,
    checks: u64,
    places: u64,
    entries: u64,
    most: u64,
    blocks: u64,
    alive: u64,
    counters: u64,
    runs: u64,
    runs_most: u64,
    chunk_shift: u32,
    block_shift: u32,
    range_shift: u32,
    version: u32,
    is_whole: u32,
    is_tree: u32,
}

/// What the kernels are told about one version.
struct Told<'a> {
    table: KernelTable,
    /// The number of blocks, and the number of parts that the previous version stores itself.
    blocks: usize,
    kept: usize,
    /// All of these, one after the other, with the bits of the versions between them.
    pinned: &'a PinnedLoan,
    is_anew: bool,
}

/// A table of chunks.
pub(super) struct CudaChunks {
    shared: Arc<Shared>,
    stream: GpuStream,
    functions: Arc<Functions>,
    memory: Allocation,
    size: TableSize,
    /// What the kernels are told, except what belongs to one version.
    table: KernelTable,
    /// The number of each version by its operation.
    versions: BTreeMap<u64, u64>,
    next: u64,
    /// The fields that were looked at last; empty: the content of the memory is not valid.
    before: Vec<Field>,
    /// Entries in use.
    used: u64,
}

/// The bytes of a part of the memory, which begins at a page.
const fn part(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

impl CudaChunks {
    /// An empty table. `load` provides the kernels, which are asked for once there is room.
    pub(super) fn new(
        shared: &Arc<Shared>,
        size: TableSize,
        load: impl FnOnce() -> Result<Arc<Functions>>,
    ) -> Result<CudaChunks> {
        if size.leaves() > 1 << 38 || size.blocks == 0 || size.blocks * size.per_block() / size.per_range() >= 1 << 31 {
            let reason = "a table must have 1 to 2^31 ranges of chunks";
            return Err(DeviceError::Range { offset: 0, bytes: size.blocks, reason });
        }
        let (leaves, entries) = (size.leaves(), size.entries);
        let parts = [
            16 * leaves,
            8 * leaves,
            8 * entries,
            8 * entries,
            8 * entries,
            size.blocks * size_of::<KernelBlock>() as u64,
            VERSIONS / 8,
            16,
            16 * size.runs,
        ];
        let memory = Allocation::new(shared, parts.iter().map(|bytes| part(*bytes)).sum())?;
        let mut next = memory.address();
        let [digests, homes, tags, checks, places, blocks, alive, counters, runs] = parts.map(|bytes| {
            let address = next;
            next += part(bytes);
            address
        });
        let table = KernelTable {
            digests,
            homes,
            tags,
            checks,
            places,
            entries,
            most: size.most(),
            blocks,
            alive,
            counters,
            runs,
            runs_most: size.runs,
            chunk_shift: size.chunk.trailing_zeros(),
            block_shift: size.per_block().trailing_zeros(),
            range_shift: size.per_range().trailing_zeros(),
            is_tree: u32::from(size.grouping == Grouping::Tree),
            ..KernelTable::default()
        };
        let functions = load()?;
        let stream = {
            let _bound = shared.bind()?;
            Owned::new(shared.clone(), Priority::Low)?.into_stream()
        };
        let (shared, versions, before) = (shared.clone(), BTreeMap::new(), Vec::new());
        Ok(CudaChunks { shared, stream, functions, memory, size, table, versions, next: 1, before, used: 0 })
    }

    /// Zeroes a part of the memory.
    fn zero(&self, address: u64, bytes: u64) -> Result<()> {
        debug_assert!(address + bytes <= self.memory.address() + self.memory.bytes());
        // SAFETY: the part is inside the memory, which lives as long as `self`, and is used on this stream only; `look` waits for the end.
        let zeroed = unsafe { result::memset_d8_async(address, 0, bytes as usize, self.stream.raw()) };
        zeroed.map_err(|error| self.shared.failed("cuMemsetD8Async", error))
    }

    /// Empties the table.
    fn empty(&self) -> Result<()> {
        let KernelTable { tags, checks, places, counters, .. } = self.table;
        [tags, checks, places].into_iter().try_for_each(|array| self.zero(array, 8 * self.size.entries))?;
        self.zero(counters, 16)
    }

    /// Enqueues a kernel. The arguments are those of the function.
    /// The function is one from `chunks.cu` that takes these arguments. Everything that the table points to stays
    /// until the stream has run it.
    /// # Safety
    /// The function is one of `chunks.cu` that takes these arguments; all that the table leads to stays until the stream has run it.
    unsafe fn launch(&self, function: &CudaFunction, groups: u64, arguments: &mut [*mut c_void]) -> Result<()> {
        let (grid, block) = ((groups as u32, 1, 1), (THREADS as u32, 1, 1));
        // SAFETY: as the caller says; the arguments are read during the call.
        let launched =
            unsafe { result::launch_kernel(function.cu_function(), grid, block, 0, self.stream.raw(), arguments) };
        launched.map_err(|error| self.shared.failed("cuLaunchKernel", error))
    }

    /// Waits for all enqueued work, first without burning a processor, then for certain. `enqueued` is the result of enqueuing it.
    fn wait(&self, enqueued: Result<()>) -> Result<()> {
        let finished = self.stream.finish();
        enqueued.and(finished).and(self.stream.drain())
    }

    /// What the kernels are told about the blocks; those that have not changed have no address.
    fn blocks(&self, asked: &Question, places: &[Place]) -> Result<Vec<KernelBlock>> {
        let size = self.size.block;
        let mut blocks = Vec::with_capacity(self.size.blocks as usize);
        for (index, field) in asked.fields.iter().enumerate() {
            for (block, digest) in field.blocks.iter().enumerate() {
                let from = block as u64 * size;
                let bytes = size.min(field.bytes - from);
                let mut known =
                    KernelBlock { at: field.at + from, bytes: bytes as u32, split: bytes as u32, ..Default::default() };
                known.is_first = u32::from(block == 0);
                if self.before.get(index).is_none_or(|before| before.blocks[block] != *digest) {
                    let spans = within(places, index, from, bytes)?;
                    spans.iter().try_for_each(|span| span.check_home(self.shared.home(), self.shared.info.ordinal))?;
                    known.from = spans[0].address();
                    match &spans[1..] {
                        [] => {}
                        [second] => (known.split, known.second) = (spans[0].bytes() as u32, second.address()),
                        _ => {
                            let reason = "a block is spread over more than two places";
                            return Err(DeviceError::Range { offset: from, bytes, reason });
                        }
                    }
                }
                blocks.push(known);
            }
        }
        Ok(blocks)
    }

    /// What the kernels are told about the parts that the previous version stores itself, as many as there is room for among the runs.
    fn kept(&self, asked: &Question) -> Vec<KernelPart> {
        let Some((operation, parts)) = asked.kept() else { return Vec::new() };
        let Some(number) = self.versions.get(&operation).filter(|_| !self.before.is_empty()) else { return Vec::new() };
        // The chunks of a region that is now elsewhere would get the wrong places.
        let is_there = |part: &&Part| self.before[part.field].at == asked.fields[part.field].at;
        let firsts: Vec<u64> = asked
            .fields
            .iter()
            .scan(0, |next, field| {
                let first = *next;
                *next += field.blocks.len() as u64 * self.size.per_block();
                Some(first)
            })
            .collect();
        let part = |part: &Part| {
            let chunk = part.start / self.size.chunk;
            let place = (number << UNIT_BITS) + (asked.fields[part.field].at + part.start) / UNIT;
            KernelPart { leaf: firsts[part.field] + chunk, leaves: part.bytes.div_ceil(self.size.chunk), place }
        };
        let room = self.size.runs as usize * 16 / size_of::<KernelPart>();
        parts.iter().filter(is_there).take(room).map(part).collect()
    }

    /// The number of a version.
    fn number(&mut self, asked: &Question) -> u64 {
        let number = self.next;
        self.next += 1;
        // A version that may not be referred to now may be referred to again later.
        self.versions.retain(|operation, other| asked.allowed.contains(operation) || *other + REMEMBERED > number);
        self.versions.insert(asked.operation, number);
        number
    }

    /// Enqueues everything, including the copy of the counters back to the host.
    ///
    /// # Safety
    /// The loan holds the blocks, the bits of the versions and the parts, and has room for the counters. The loan and the memory of the
    /// blocks stay until the stream has run everything, even if this fails.
    unsafe fn enqueue(&self, told: &Told<'_>) -> Result<()> {
        let Told { table, blocks, kept, pinned, is_anew } = *told;
        let stream = &self.stream;
        let (block_bytes, bits) = (blocks * size_of::<KernelBlock>(), (VERSIONS / 8) as usize);
        let kept_bytes = kept * size_of::<KernelPart>();
        let from = pinned.address();
        if block_bytes > 0 {
            // SAFETY: the loan holds that many bytes, as the caller says, and the memory has room for all blocks of the table.
            unsafe { stream.enqueue(from, table.blocks, block_bytes, false)? };
        }
        // SAFETY: as above; the bits follow the blocks.
        unsafe { stream.enqueue(from + block_bytes as u64, table.alive, bits, false)? };
        let leaves = self.size.leaves();
        let mut all = leaves;
        let pointer = (&raw const table).cast_mut().cast::<c_void>();
        if is_anew {
            self.zero(table.homes, 8 * leaves)?;
            self.empty()?;
        } else if self.used >= self.size.most() {
            self.empty()?;
            let mut arguments = [pointer, (&raw mut all).cast()];
            // SAFETY: `bvk_chunk_rebuild` takes the table and a number.
            unsafe { self.launch(&self.functions.rebuild, leaves.div_ceil(THREADS), &mut arguments)? };
        }
        if kept > 0 {
            let mut parts = table.runs;
            // SAFETY: the parts follow the bits, and the memory of the runs has room for them (`kept`); nothing else uses it yet.
            unsafe { stream.enqueue(from + (block_bytes + bits) as u64, parts, kept_bytes, false)? };
            // SAFETY: `bvk_chunk_keep` takes the table and the address of its parts, which name chunks of the fields that `check_question` has
            // seen.
            unsafe { self.launch(&self.functions.keep, kept as u64, &mut [pointer, (&raw mut parts).cast()])? };
        }
        self.zero(table.counters + 8, 8)?;
        let ranges = blocks as u64 * (self.size.per_block() / self.size.per_range());
        let functions = &self.functions;
        let lift = (self.size.grouping == Grouping::Tree && table.is_whole == 0).then_some(&functions.lift);
        let kernels = [Some(&functions.leaves), Some(&functions.label), lift, Some(&functions.runs)];
        for function in kernels.into_iter().flatten().filter(|_| ranges > 0) {
            // SAFETY: these kernels take the table alone. Its arrays lie in our memory with room for all blocks, which `check_question`
            // has counted; the blocks lie where the caller says.
            unsafe { self.launch(function, ranges, &mut [pointer])? };
        }
        // SAFETY: the loan has room for the counters after all that.
        unsafe { stream.enqueue(table.counters, from + (block_bytes + bits + kept_bytes) as u64, 16, true) }
    }

    /// Looks at the fields. If that fails, the content of the memory is not valid.
    fn answer(&mut self, asked: &Question, places: &[Place]) -> Result<Option<Found>> {
        let is_anew = self.before.is_empty();
        let blocks = self.blocks(asked, places)?;
        let block_bytes = size_of_val(&blocks[..]);
        if is_anew {
            self.versions.clear();
            self.next = 1;
        }
        let mut alive = vec![0u32; (VERSIONS / 32) as usize];
        for number in asked.allowed.iter().filter_map(|operation| self.versions.get(operation)) {
            alive[(number / 32) as usize] |= 1 << (number % 32);
        }
        let kept = self.kept(asked);
        let version = self.number(asked) as u32;
        let table = KernelTable { version, is_whole: u32::from(asked.allowed.is_empty()), ..self.table };
        let behind_bits = block_bytes + size_of_val(&alive[..]);
        let behind = behind_bits + size_of_val(&kept[..]);
        let mut pinned = self.shared.pinned.take(behind + 16)?;
        pinned.write(0, bytemuck::cast_slice(&blocks));
        pinned.write(block_bytes, bytemuck::cast_slice(&alive));
        pinned.write(behind_bits, bytemuck::cast_slice(&kept));
        let told = Told { table, blocks: blocks.len(), kept: kept.len(), pinned: &pinned, is_anew };
        // SAFETY: the loan has as many bytes as were asked for, and was filled; the spans of the blocks are the caller's, who waits for
        // this call, which waits for the stream before it returns.
        let enqueued = unsafe { self.enqueue(&told) };
        self.wait(enqueued)?;
        let mut counters = [0u64; 2];
        pinned.read(behind, bytemuck::cast_slice_mut(&mut counters));
        self.used = counters[0];
        if counters[1] > self.size.runs {
            return Ok(None);
        }
        let mut runs = vec![[0u64; 2]; counters[1] as usize];
        let bytes = size_of_val(&runs[..]);
        if bytes > 0 {
            let room = self.shared.pinned.take(bytes)?;
            // SAFETY: the loan has that many bytes, and that many runs were written; the copy is waited for.
            let enqueued = unsafe { self.stream.enqueue(table.runs, room.address(), bytes, true) };
            self.wait(enqueued)?;
            room.read(0, bytemuck::cast_slice_mut(&mut runs));
        }
        runs.sort_unstable();
        Ok(Some(self.found(asked, &runs)))
    }

    /// What the runs say about each field.
    fn found(&self, asked: &Question, runs: &[[u64; 2]]) -> Found {
        let operations: BTreeMap<u64, u64> =
            self.versions.iter().map(|(operation, number)| (*number, *operation)).collect();
        let mut found = Found::new();
        let (mut rest, mut block) = (runs, 0);
        for field in &asked.fields {
            let first = block * self.size.per_block();
            block += field.blocks.len() as u64;
            let chunks: Range<u64> = first..first + field.bytes.div_ceil(self.size.chunk);
            let (mine, others) = rest.split_at(rest.partition_point(|run| run[0] < chunks.end));
            rest = others;
            let ends = mine.iter().skip(1).map(|run| run[0]).chain([chunks.end]);
            let mut stretches = Vec::with_capacity(mine.len());
            let byte_of = |chunk: u64| ((chunk - first) * self.size.chunk).min(field.bytes);
            for ([chunk, place], end) in mine.iter().zip(ends) {
                let number = place >> UNIT_BITS;
                // Only places of these versions are alive to the kernels.
                let operation = operations.get(&number).copied().unwrap_or(asked.operation);
                let offset = (place & ((1 << UNIT_BITS) - 1)) * UNIT;
                stretches.push(Stretch { bytes: byte_of(end) - byte_of(*chunk), home: Home { operation, offset } });
            }
            found.insert(field.name.clone(), stretches);
        }
        found
    }
}

impl ChunkTable for CudaChunks {
    fn size(&self) -> &TableSize {
        &self.size
    }

    fn look(&mut self, asked: &Question, places: &[Place]) -> Result<Option<Found>> {
        check_question(&self.size, asked, places)?;
        let _bound = self.shared.bind()?;
        let is_same = |(old, new): (&Field, &Field)| (&old.name, old.bytes) == (&new.name, new.bytes);
        let is_alike = self.before.len() == asked.fields.len() && self.before.iter().zip(&asked.fields).all(is_same);
        if !is_alike || self.next >= VERSIONS {
            self.before.clear();
        }
        let answer = self.answer(asked, places);
        match &answer {
            Ok(Some(_)) => self.before.clone_from(&asked.fields),
            // Nobody would know which first chunks of this version its file stores.
            Ok(None) | Err(_) => self.before.clear(),
        }
        answer
    }
}

impl Drop for CudaChunks {
    fn drop(&mut self) {
        if let Err(error) = self.stream.drain() {
            log::debug!("event=chunks-failed error={error}");
        }
    }
}

impl fmt::Debug for CudaChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaChunks({:?})", self.size)
    }
}
