//! Reading a shard back from wherever it is kept, with every block checked against its digest.

mod blocks;
mod pass;
mod scattered;
mod share;

pub use blocks::Again;
pub use pass::Pass;
pub use share::{BlockShare, SHARE_BYTES};

use super::names::Series;
use super::posix::PageBuffer;
use super::storage::{ReadFile, read_range};
use super::{TierError, TierId};
use crate::base::digest::{copy_digest, digest_bytes, store_fence};
use crate::base::sync::Lock;
use crate::base::threads::{self, spawn_scoped};
use crate::base::units::{PAGE, page_ceil};
use crate::base::{CheckpointKey, Digest, Rank};
use crate::comm::Slice;
use crate::device::{DeviceError, DeviceSpan, Run, Stream};
use crate::format::packed::{Outline, SourceKey};
use crate::format::shard::Head;
use crate::format::{ContainerEntry, Content, FormatError, Region, ShardHeader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};

/// Bytes per read from a file.
const READ_BYTES: usize = 4 << 20;
/// How far beyond the current piece a file is told what is going to be read.
const HINT_BYTES: u64 = 4 * READ_BYTES as u64;
/// Several threads read memory if at least this many bytes are read. The next constant is how much each takes at once.
const MEMORY_THREADS_MIN: u64 = 2 << 20;
const MEMORY_PART: usize = 1 << 20;
/// Regions of at least this size are read ahead by separate threads.
const READ_AHEAD_MIN: usize = 4 * READ_BYTES;
/// Threads that read memory. One alone reaches a third of the speed of a socket's memory.
pub const MEMORY_READERS: usize = 4;
/// Threads that read one file, which wait for storage more than they compute.
pub const FILE_READERS: usize = 4;
/// How many buffers circulate between each reader and the checker: one is in use and one is on the way.
const READER_BUFFERS: usize = 2;

/// A shard in a container file. Everything before the bodies has been read and checked.
#[derive(Clone)]
pub struct FileShard {
    tier: TierId,
    path: PathBuf,
    file: Arc<dyn ReadFile>,
    offset: u64,
    head: Arc<Head>,
    /// The checkpoints whose files hold a part of it.
    sources: Arc<[SourceKey]>,
}

impl FileShard {
    /// Reads and checks the head of the shard that `entry` places in `file`.
    ///
    /// # Errors
    /// [`TierError`] if the shard is damaged or belongs to another checkpoint, rank, job, group or series.
    pub fn open(
        tier: TierId,
        path: PathBuf,
        file: Arc<dyn ReadFile>,
        entry: &ContainerEntry,
        series: &Series,
    ) -> Result<FileShard, TierError> {
        let shard = FileShard::open_any(tier, path, file, entry)?;
        check_identity(tier, &shard.path, &shard.head, series, &entry.key, entry.rank)?;
        Ok(shard)
    }

    /// Opens a file whose checkpoint is not known. The head must be sound, and only its length must agree with its entry. Meant for
    /// tools; a restart says what it looks for.
    ///
    /// # Errors
    /// [`TierError`] if it is damaged.
    pub fn open_any(
        tier: TierId,
        path: PathBuf,
        file: Arc<dyn ReadFile>,
        entry: &ContainerEntry,
    ) -> Result<FileShard, TierError> {
        let io = |source| TierError::io(tier, "read", &path, source);
        let format = |source| TierError::Format { tier, path: path.clone(), source };
        let mut first = vec![0; (PAGE.min(entry.length)) as usize];
        file.read_at(entry.offset, &mut first).map_err(io)?;
        let header = ShardHeader::decode(&first).map_err(format)?;
        // If the ranks of a node write one container, the entry of a packed shard is as long as the whole shard.
        let fits =
            header.total_len == entry.length || (header.content == Content::Packed && header.total_len < entry.length);
        if !fits {
            let (need, have) = (header.total_len, entry.length);
            return Err(format(FormatError::Short { what: "shard", need, have }));
        }
        // This is inside the entry, which the container's own checks keep inside the file.
        let bytes = read_range(&*file, entry.offset..entry.offset + header.body_offset).map_err(io)?;
        let head = Head::decode(&bytes).map_err(format)?;
        Ok(FileShard { tier, path, file, offset: entry.offset, head: head.into(), sources: Arc::default() })
    }

    /// The shard at `offset` of a file that this process has just written, with this head.
    pub fn written(tier: TierId, path: PathBuf, file: Arc<dyn ReadFile>, offset: u64, head: Head) -> FileShard {
        FileShard { tier, path, file, offset, head: head.into(), sources: Arc::default() }
    }

    /// The shard that a packed one stands for, read through `file`.
    pub(super) fn joined(packed: &FileShard, outline: &Outline, file: Arc<dyn ReadFile>) -> FileShard {
        let (tier, path) = (packed.tier, packed.path.clone());
        FileShard { tier, path, file, offset: 0, head: outline.head.clone(), sources: outline.sources.clone() }
    }

    /// The checkpoints from whose files the shard takes bytes, if it was joined.
    pub fn sources(&self) -> &[SourceKey] {
        &self.sources
    }

    /// The tier on which the shard is.
    pub fn tier(&self) -> TierId {
        self.tier
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &dyn ReadFile {
        &*self.file
    }

    /// Where the shard begins in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn readers(&self) -> usize {
        self.file.readers()
    }

    /// The error that the shard breaks a rule of the format.
    pub(super) fn wrong(&self, source: FormatError) -> TierError {
        TierError::Format { tier: self.tier, path: self.path.clone(), source }
    }

    /// The decoded head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Reads a range of the shard as it is stored, without looking at digests.
    ///
    /// # Errors
    /// [`TierError::Io`].
    pub fn read_raw(&self, at: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        self.file
            .read_at(self.offset + at, buffer)
            .map_err(|source| TierError::io(self.tier, "read", &self.path, source))
    }
}

/// Is this the head that was looked for?
///
/// # Errors
/// [`TierError::Foreign`] naming what was found and what was expected.
pub fn check_identity(
    tier: TierId,
    path: &Path,
    head: &Head,
    series: &Series,
    key: &CheckpointKey,
    rank: Rank,
) -> Result<(), TierError> {
    let meta = &head.meta;
    let same_series = (&meta.job, &meta.group, &meta.name) == (&series.job, &series.group, &series.name);
    let is_shard = head.header.content == Content::Shard;
    if same_series && is_shard && head.header.key == *key && head.header.rank == rank {
        return Ok(());
    }
    let text = |job: &str, group: &str, name: &str, key: &CheckpointKey, rank| {
        format!("rank {rank} of {job}/{group}/{name} {key}")
    };
    Err(TierError::Foreign {
        tier,
        path: path.to_owned(),
        found: text(&meta.job, &meta.group, &meta.name, &head.header.key, head.header.rank),
        expected: text(&series.job, &series.group, &series.name, key, rank),
    })
}

pub use crate::comm::SharedBytes;

/// A shard in node memory.
#[derive(Clone)]
pub struct MemoryShard {
    /// The tier of the copy that this shard stands for: node memory itself, or the tier of the file from which it was read.
    tier: TierId,
    path: PathBuf,
    bytes: SharedBytes,
    head: Arc<Head>,
}

impl MemoryShard {
    /// Checks the head of the shard in `bytes`; `path` names the segment in messages.
    ///
    /// # Errors
    /// [`TierError`] if the shard is damaged or is not the one that was looked for.
    pub fn open(path: &Path, bytes: SharedBytes, series: &Series, rank: Rank) -> Result<MemoryShard, TierError> {
        let shard = MemoryShard::open_any(path, bytes)?;
        check_identity(TierId::MEMORY, path, &shard.head, series, &shard.head.header.key, rank)?;
        Ok(shard)
    }

    /// Opens a shard whose checkpoint is not known. The head must be sound and must give the length of the bytes.
    ///
    /// # Errors
    /// [`TierError`] if it is damaged.
    pub fn open_any(path: &Path, bytes: SharedBytes) -> Result<MemoryShard, TierError> {
        let tier = TierId::MEMORY;
        let format = |source| TierError::Format { tier, path: path.to_owned(), source };
        let slice = (*bytes).as_ref();
        let head = Head::decode(slice).map_err(format)?;
        if head.header.total_len != slice.len() as u64 {
            return Err(format(FormatError::Short {
                what: "shard",
                need: head.header.total_len,
                have: slice.len() as u64,
            }));
        }
        Ok(MemoryShard { tier, path: path.to_owned(), bytes, head: head.into() })
    }

    /// The shard in `bytes` whose head this process has just written.
    pub fn sealed(path: &Path, bytes: SharedBytes, head: Head) -> MemoryShard {
        debug_assert_eq!(head.header.total_len, (*bytes).as_ref().len() as u64);
        MemoryShard { tier: TierId::MEMORY, path: path.to_owned(), bytes, head: head.into() }
    }

    /// The shard that [`Source::read_regions`] has read from a copy.
    pub fn read_from(source: &Source, bytes: SharedBytes) -> MemoryShard {
        MemoryShard { tier: source.tier(), path: source.path().to_owned(), bytes, head: source.shared_head() }
    }

    /// The decoded head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// All bytes of the shard.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// All bytes of the shard, in shared ownership.
    pub fn shared(&self) -> SharedBytes {
        self.bytes.clone()
    }

    /// A part of the shard.
    ///
    /// # Errors
    /// [`TierError::Format`] if the bytes no longer exist: another process may have given an older segment's memory
    /// back since the shard was opened.
    pub fn part(&self, start: usize, length: usize) -> Result<&[u8], TierError> {
        let bytes = self.bytes();
        let end = start.checked_add(length);
        end.and_then(|end| bytes.get(start..end)).ok_or_else(|| TierError::Format {
            tier: self.tier,
            path: self.path.clone(),
            source: FormatError::Short { what: "shard", need: self.head.header.total_len, have: bytes.len() as u64 },
        })
    }
}

/// Does work on all parts. For large regions, it uses several threads if this process has as many processors. Returns one of the errors.
fn in_threads<P: Send>(
    bytes: u64,
    parts: impl Iterator<Item = P> + Send,
    work: impl Fn(P) -> Result<(), TierError> + Sync,
) -> Result<(), TierError> {
    let wanted = if bytes < MEMORY_THREADS_MIN { 1 } else { MEMORY_READERS };
    let count = std::thread::available_parallelism().map_or(1, |processors| wanted.min(processors.get()));
    let (parts, failed) = (Lock::new(parts), OnceLock::new());
    let next = || parts.lock().next();
    let run = || {
        while failed.get().is_none()
            && let Some(part) = next()
        {
            if let Err(error) = work(part) {
                _ = failed.set(error);
            }
        }
    };
    threads::in_threads(count, "bvk-read", run);
    failed.into_inner().map_or(Ok(()), Err)
}

/// Is the region too small for threads to read it ahead, or does the file allow no such threads?
fn is_read_in_place(shard: &FileShard, region: &Region) -> bool {
    region.bytes < READ_AHEAD_MIN as u64 || shard.file.readers() == 0
}

/// Reads the part of a region that begins at `at`, and tells the file what is going to be read next.
fn read_piece(shard: &FileShard, region: &Region, at: usize, part: &mut [u8]) -> Result<(), TierError> {
    let start = shard.head.header.body_offset + region.offset;
    let next = shard.offset + start + at as u64;
    let end = shard.offset + start + region.bytes;
    shard.file.will_read(next..end.min(next + HINT_BYTES));
    shard.read_raw(start + at as u64, part)
}

/// The blocks that a range of the shard touches: index, offset, length.
fn touched_blocks<'a>(head: &'a Head, range: &Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> + use<'a> {
    let (start, end) = (range.start, range.end);
    let size = u64::from(head.header.block_size);
    head.meta.regions.iter().flat_map(move |region| {
        let base = head.header.body_offset + region.offset;
        let from = start.clamp(base, base + region.bytes) - base;
        let to = end.clamp(base, base + region.bytes) - base;
        let touched = if from < to { from / size..to.div_ceil(size) } else { 0..0 };
        touched
            .map(move |block| (region.first_block + block, base + block * size, size.min(region.bytes - block * size)))
    })
}

/// Pages as shared bytes.
pub struct SharedPages(pub PageBuffer);

impl AsRef<[u8]> for SharedPages {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Why a region could not be loaded into device memory.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The copy of the shard is at fault: another one may help.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The device is at fault.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// One copy of a rank's shard.
#[derive(Clone)]
pub enum Source {
    /// In node memory.
    Memory(MemoryShard),
    /// In a file of the local or global tier.
    File(FileShard),
}

impl Source {
    /// The tier on which the copy is.
    pub fn tier(&self) -> TierId {
        match self {
            Source::Memory(shard) => shard.tier,
            Source::File(shard) => shard.tier,
        }
    }

    /// The path of the segment or file.
    pub fn path(&self) -> &Path {
        match self {
            Source::Memory(shard) => &shard.path,
            Source::File(shard) => &shard.path,
        }
    }

    /// May other threads read the copy while the thread that opened it does something else?
    pub fn is_read_beside(&self) -> bool {
        match self {
            Source::Memory(_) => true,
            Source::File(shard) => shard.readers() > 0,
        }
    }

    /// The decoded head, in shared ownership.
    pub fn shared_head(&self) -> Arc<Head> {
        match self {
            Source::Memory(shard) => shard.head.clone(),
            Source::File(shard) => shard.head.clone(),
        }
    }

    /// The decoded head.
    pub fn head(&self) -> &Head {
        match self {
            Source::Memory(shard) => shard.head(),
            Source::File(shard) => shard.head(),
        }
    }

    /// Reads a whole region into `target` (of exactly its length), checking each block.
    ///
    /// # Errors
    /// [`TierError::Damaged`] for the first block whose digest differs; [`TierError::Io`]. `target` is then
    /// partly overwritten.
    ///
    /// # Blocking
    /// On the device that holds the file.
    pub fn read_region(&self, region: &Region, target: &mut [u8]) -> Result<(), TierError> {
        match self {
            Source::Memory(shard) => {
                let start = (shard.head.header.body_offset + region.offset) as usize;
                let bytes = shard.part(start, region.bytes as usize)?;
                self.copy_blocks(region, 0, bytes, target, copy_digest)
            }
            Source::File(shard) => {
                if is_read_in_place(shard, region) {
                    self.read_in_place(shard, region, target)
                } else {
                    self.read_ahead(shard, region, |at, bytes| self.check_and_copy(region, at, bytes, target))?;
                    store_fence();
                    Ok(())
                }
            }
        }
    }

    /// Uploads whole regions into device memory of exactly their lengths, with digests made on the device that are compared with those
    /// of the shard.
    ///
    /// # Errors
    /// As [`Source::upload_region`]; targets are then partly overwritten.
    ///
    /// # Blocking
    /// As [`Source::upload_region`].
    pub fn upload_regions(&self, regions: &[(&Region, DeviceSpan)], stream: &dyn Stream) -> Result<(), UploadError> {
        let Source::Memory(shard) = self else {
            return regions.iter().try_for_each(|(region, target)| self.upload_region(region, target, stream));
        };
        let place = |(region, target): &(&Region, DeviceSpan)| {
            let start = (shard.head.header.body_offset + region.offset) as usize;
            Ok((shard.part(start, region.bytes as usize)?, target.clone()))
        };
        let copies = regions.iter().map(place).collect::<Result<Vec<_>, TierError>>()?;
        let block = u64::from(shard.head.header.block_size);
        let mut found = stream.upload_blocks(&copies, block)?.into_iter();
        for (region, _) in regions {
            let blocks = region.bytes.div_ceil(block) as usize;
            (0..).zip(found.by_ref().take(blocks)).try_for_each(|(index, found)| self.compare(region, index, found))?;
        }
        Ok(())
    }

    /// Uploads a whole region into `target` (of exactly its length), through a bounded buffer if the region comes from a
    /// file, and checks each block on the device.
    ///
    /// # Errors
    /// [`UploadError::Tier`] as [`Source::read_region`]; [`UploadError::Device`]. `target` is then partly overwritten.
    ///
    /// # Blocking
    /// On the storage that holds the file, for the transfer, and for the check.
    pub fn upload_region(&self, region: &Region, target: &DeviceSpan, stream: &dyn Stream) -> Result<(), UploadError> {
        if region.bytes == 0 {
            return Ok(());
        }
        let put = |at: usize, bytes: &[u8]| -> Result<(), UploadError> {
            Ok(stream.upload(&[(bytes, target.part(at as u64, bytes.len() as u64)?)], None)?)
        };
        match self {
            Source::Memory(_) => return self.upload_regions(&[(region, target.clone())], stream),
            Source::File(shard) if is_read_in_place(shard, region) => {
                let mut buffer = PageBuffer::new(READ_BYTES.min(page_ceil(region.bytes) as usize));
                for at in (0..region.bytes as usize).step_by(READ_BYTES) {
                    let part = &mut buffer[..READ_BYTES.min(region.bytes as usize - at)];
                    read_piece(shard, region, at, part)?;
                    put(at, part)?;
                }
            }
            Source::File(shard) => self.read_ahead(shard, region, put)?,
        }
        let block = u64::from(self.head().header.block_size);
        let found = stream.copy_blocks(vec![Run::whole(target.clone(), None, 0)], block)?.digests()?;
        (0..).zip(found).try_for_each(|(index, found)| self.compare(region, index, found))?;
        Ok(())
    }

    /// Copies the piece of a region that begins at `at` to its place in `target`, and checks its blocks.
    fn check_and_copy(&self, region: &Region, at: usize, bytes: &[u8], target: &mut [u8]) -> Result<(), TierError> {
        let block = self.head().header.block_size as usize;
        let part = &mut target[at..at + bytes.len()];
        for (index, (from, to)) in bytes.chunks(block).zip(part.chunks_mut(block)).enumerate() {
            self.compare(region, (at / block + index) as u64, copy_digest(from, to))?;
        }
        Ok(())
    }

    /// Copies whole blocks of a region from memory, in several threads if there are many blocks. `first` is the number of the first block;
    /// `copy` returns the digest of what it has copied.
    fn copy_blocks(
        &self,
        region: &Region,
        first: u64,
        bytes: &[u8],
        target: &mut [u8],
        copy: impl Fn(&[u8], &mut [u8]) -> Digest + Sync,
    ) -> Result<(), TierError> {
        let block = self.head().header.block_size as usize;
        // Each part consists of whole blocks, because a block has at most 1 MiB.
        let parts = bytes.chunks(MEMORY_PART).zip(target.chunks_mut(MEMORY_PART));
        let parts = parts.zip((first..).step_by(MEMORY_PART / block));
        in_threads(bytes.len() as u64, parts, |((from, to), first)| {
            for (index, (from, to)) in (first..).zip(from.chunks(block).zip(to.chunks_mut(block))) {
                self.compare(region, index, copy(from, to))?;
            }
            store_fence();
            Ok(())
        })
    }

    fn read_in_place(&self, shard: &FileShard, region: &Region, target: &mut [u8]) -> Result<(), TierError> {
        let block = shard.head.header.block_size as usize;
        for (piece, part) in target.chunks_mut(READ_BYTES).enumerate() {
            let at = piece * READ_BYTES;
            read_piece(shard, region, at, part)?;
            for (index, bytes) in part.chunks(block).enumerate() {
                self.compare(region, (at / block + index) as u64, digest_bytes(bytes))?;
            }
        }
        Ok(())
    }

    /// Reads page-aligned pieces around the page cache in separate threads. Hands each piece, with its place in the region,
    /// to `take` in this thread, in the order of arrival. So the storage is never idle while pieces are hashed or sent on.
    fn read_ahead<E: From<TierError>>(
        &self,
        shard: &FileShard,
        region: &Region,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = shard.head.header.body_offset + region.offset;
        let length = region.bytes as usize;
        let pieces = length.div_ceil(READ_BYTES);
        let next = AtomicUsize::new(0);
        let read = |mut buffer: PageBuffer| {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let at = piece * READ_BYTES;
            (piece < pieces).then(|| {
                let padded = page_ceil(READ_BYTES.min(length - at) as u64) as usize;
                shard.read_raw(start + at as u64, &mut buffer[..padded]).map(|()| (at, buffer))
            })
        };
        // Two readers keep a solid-state disk busy while one of them hands over its piece.
        let readers = shard.file.readers().min(pieces);
        let (arrive, arrived) = sync_channel(READER_BUFFERS * readers);
        let (empty, spare) = sync_channel::<PageBuffer>(READER_BUFFERS * readers);
        let spare = Lock::new(spare);
        // The channels that this thread uses move into the closure. If it returns early, the readers find them closed.
        std::thread::scope(|scope| {
            let (arrived, empty) = (arrived, empty);
            for _ in 0..readers {
                let (arrive, read, spare) = (arrive.clone(), &read, &spare);
                // One of two threads is enough. If none starts, the channel is closed, which is reported as an error.
                _ = spawn_scoped(scope, "bvk-ahead", move || {
                    let mut own = READER_BUFFERS;
                    loop {
                        let buffer = if own > 0 {
                            own -= 1;
                            PageBuffer::new(READ_BYTES)
                        } else {
                            let spare = spare.lock();
                            match spare.recv() {
                                Ok(buffer) => buffer,
                                Err(_) => return,
                            }
                        };
                        let Some(answer) = read(buffer) else { return };
                        if arrive.send(answer).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(arrive);
            for _ in 0..pieces {
                let gone = || TierError::io(shard.tier, "read", &shard.path, std::io::Error::other("the reader ended"));
                let (at, buffer) = arrived.recv().map_err(|_| gone())??;
                take(at, &buffer[..READ_BYTES.min(length - at)])?;
                // The readers may have finished already; the buffer is then simply dropped.
                drop(empty.send(buffer));
            }
            Ok(())
        })
    }

    /// A range of the shard as shared bytes. With `checked`, the blocks that the range touches are first compared with their digests.
    ///
    /// # Errors
    /// [`TierError`] if the range is not inside the shard, cannot be read, or is damaged.
    ///
    /// # Blocking
    /// On the device that holds the file.
    pub fn slice(&self, range: Range<u64>, checked: bool) -> Result<Slice, TierError> {
        let head = self.head();
        let short = || TierError::Format {
            tier: self.tier(),
            path: self.path().to_owned(),
            source: FormatError::Short { what: "shard", need: range.end, have: head.header.total_len },
        };
        if range.start > range.end || range.end > head.header.total_len {
            return Err(short());
        }
        let blocks: Vec<_> = if checked { touched_blocks(head, &range).collect() } else { Vec::new() };
        let start = blocks.first().map_or(range.start, |(_, at, _)| range.start.min(*at));
        let end = blocks.last().map_or(range.end, |(_, at, length)| range.end.max(at + length));
        let (bytes, base): (SharedBytes, u64) = match self {
            Source::Memory(shard) => (shard.shared(), 0),
            Source::File(shard) => {
                let mut buffer = PageBuffer::new(page_ceil(end - start) as usize);
                shard.read_raw(start, &mut buffer[..(end - start) as usize])?;
                (Arc::new(SharedPages(buffer)), start)
            }
        };
        if checked {
            self.check_unnamed(&range, (*bytes).as_ref(), base)?;
        }
        for (index, at, length) in blocks {
            let from = (at - base) as usize;
            let block = (*bytes).as_ref().get(from..from + length as usize).ok_or_else(short)?;
            let (_, _, expected, region) = head.block_at(index);
            let found = digest_bytes(block);
            if found != expected {
                return Err(TierError::Damaged {
                    tier: self.tier(),
                    path: self.path().to_owned(),
                    rank: head.header.rank,
                    region: region.to_owned(),
                    at,
                    expected,
                    found,
                });
            }
        }
        Slice::new(bytes, (range.start - base) as usize..(range.end - base) as usize).ok_or_else(short)
    }

    /// Checks the part of a range that no block covers: the head, and the zeros between regions. Parity includes them, too.
    fn check_unnamed(&self, range: &Range<u64>, bytes: &[u8], base: u64) -> Result<(), TierError> {
        let head = self.head();
        let wrong = |what: &'static str| TierError::Format {
            tier: self.tier(),
            path: self.path().to_owned(),
            source: FormatError::invalid("shard", what),
        };
        let body = head.header.body_offset;
        if range.start < body {
            let found = match self {
                Source::Memory(shard) => Head::decode(shard.part(0, body as usize)?),
                Source::File(shard) => {
                    let mut buffer = PageBuffer::new(page_ceil(body) as usize);
                    shard.read_raw(0, &mut buffer[..body as usize])?;
                    Head::decode(&buffer[..body as usize])
                }
            };
            if !found.is_ok_and(|found| found.header == head.header) {
                return Err(wrong("its head has changed since it was opened"));
            }
        }
        for region in &head.meta.regions {
            let end = body + region.offset + region.bytes;
            let (from, to) = (end.clamp(range.start, range.end), page_ceil(end).clamp(range.start, range.end));
            let gap = bytes.get((from - base) as usize..(to - base) as usize);
            if !gap.is_some_and(|gap| gap.iter().all(|byte| *byte == 0)) {
                return Err(wrong("the bytes after one of its regions are not zero"));
            }
        }
        Ok(())
    }

    /// Checks every block of every region, reading everything once.
    ///
    /// # Errors
    /// As [`Source::read_region`], for the first damaged block.
    ///
    /// # Blocking
    /// On the storage that holds the file.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<(), TierError> {
        let head = self.head();
        let block = head.header.block_size as usize;
        for region in &head.meta.regions {
            let check = |at: usize, bytes: &[u8]| {
                let mut blocks = (at as u64 / block as u64..).zip(bytes.chunks(block));
                blocks.try_for_each(|(index, bytes)| self.compare(region, index, digest_bytes(bytes)))
            };
            match self {
                Source::Memory(shard) => {
                    let start = (head.header.body_offset + region.offset) as usize;
                    let bytes = shard.part(start, region.bytes as usize)?;
                    let parts = bytes.chunks(MEMORY_PART).zip((0..).step_by(MEMORY_PART));
                    in_threads(region.bytes, parts, |(bytes, at)| check(at, bytes))?;
                }
                Source::File(shard) if is_read_in_place(shard, region) => {
                    let mut buffer = vec![0; READ_BYTES.min(region.bytes as usize)];
                    for at in (0..region.bytes as usize).step_by(READ_BYTES) {
                        let part = &mut buffer[..READ_BYTES.min(region.bytes as usize - at)];
                        read_piece(shard, region, at, part)?;
                        check(at, part)?;
                    }
                }
                Source::File(shard) => self.read_ahead(shard, region, check)?,
            }
            progress(region.bytes);
        }
        Ok(())
    }

    /// Reads all regions to their places in the shard, into `target`, which is as long as the shard. Checks each
    /// block. The head is not read.
    ///
    /// # Errors
    /// As [`Source::read_region`].
    ///
    /// # Blocking
    /// On the storage that holds the file.
    pub fn read_regions(&self, target: &mut [u8], mut progress: impl FnMut(u64)) -> Result<(), TierError> {
        let head = self.head();
        for region in &head.meta.regions {
            let start = (head.header.body_offset + region.offset) as usize;
            self.read_region(region, &mut target[start..start + region.bytes as usize])?;
            progress(region.bytes);
        }
        Ok(())
    }

    fn compare(&self, region: &Region, block: u64, found: crate::base::Digest) -> Result<(), TierError> {
        let head = self.head();
        let expected = head.digests[(region.first_block + block) as usize];
        if expected == found {
            return Ok(());
        }
        Err(TierError::Damaged {
            tier: self.tier(),
            path: self.path().to_owned(),
            rank: head.header.rank,
            region: region.name.clone(),
            at: block * u64::from(head.header.block_size),
            expected,
            found,
        })
    }
}
