//! A segment of another run, opened to read what was sealed in it.
//!
//! Nothing that the file says is trusted: the header is checked as a whole, slot entries one by one, and the control area is
//! read like any file, not through a map. Shard bytes are mapped, but are handed out only where the file has pages: touching
//! a hole of a tmpfs file allocates a page, which on a full tmpfs would be SIGBUS. No check can prevent somebody from
//! truncating the file afterwards; none of our processes ever does so.
#![forbid(unsafe_code)]

use super::layout::{SLOTS_PER_RANK, SegmentHeader, SlotWords, slot_word, unpack_level, unpack_state};
use super::map::{self, View};
use super::state::SlotState;
use super::{SegmentError, file};
use crate::base::ids::Level;
use crate::base::units::PAGE;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A slot that was in use when the segment was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldSlot {
    /// The rank on the node to which the slot belongs.
    pub node_rank: u32,
    /// Which slot of that rank.
    pub index: u32,
    /// What the slot was doing. An unknown code reads as `Writing`, that is, torn.
    pub state: SlotState,
    /// Start of the shard in the file.
    pub offset: u64,
    /// Length of the shard in bytes.
    pub length: u64,
    /// The collective operation that took the slot.
    pub operation: u64,
    /// The version that the application gave the checkpoint.
    pub version: u64,
    /// Hash of the checkpoint's name.
    pub name: u64,
    /// The committed level according to the entry. It is only a hint: the other ranks' entries may differ.
    pub level: Level,
    /// Is the slot sealed, inside the data area, and is its check word right? Only then can [`OldSegment::bytes`] succeed.
    pub intact: bool,
}

/// Another run's segment, for reading.
pub struct OldSegment {
    file: File,
    path: PathBuf,
    header: SegmentHeader,
    slots: Vec<OldSlot>,
    view: View,
}

impl OldSegment {
    /// Opens and checks a segment and lists its slots.
    ///
    /// It may be opened while its run still lives ([`OldSegment::is_alive`]); the list then shows the slots at that moment.
    ///
    /// # Errors
    /// [`SegmentError::NotFound`], [`SegmentError::Unfinished`] for a segment whose creator died early,
    /// [`SegmentError::NotOurs`], [`SegmentError::Damaged`], [`SegmentError::Name`], [`SegmentError::Os`].
    pub fn open(directory: &Path, name: &str) -> Result<OldSegment, SegmentError> {
        let path = file::path_of(directory, name)?;
        // Writing is needed only for punching holes.
        let (file, metadata) = match file::open_checked(&path, true) {
            Err(SegmentError::Os { call: "open", .. }) => file::open_checked(&path, false)?,
            other => other?,
        };
        let header = file::read_header(&file, &path, &metadata)?;
        let slots = read_slots(&file, &header).map_err(|source| SegmentError::io(&path, "read", source))?;
        let view = View::new(&file, header.file_len()).map_err(|errno| SegmentError::os(&path, "mmap", errno))?;
        Ok(OldSegment { file, path, header, slots, view })
    }

    /// What the header says.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The slots that were not empty, by rank and index, torn ones included.
    pub fn slots(&self) -> &[OldSlot] {
        &self.slots
    }

    /// The bytes of an intact slot. They may be wrong: check their digests.
    ///
    /// # Errors
    /// [`SegmentError::Torn`] if the slot is not intact, [`SegmentError::Hole`] if bytes are missing,
    /// [`SegmentError::Os`] if the file system cannot tell.
    pub fn bytes(&self, slot: &OldSlot) -> Result<&[u8], SegmentError> {
        let OldSlot { node_rank, index, offset, length, .. } = *slot;
        if !slot.intact || !self.header.holds_data(offset, length) {
            return Err(SegmentError::Torn { path: self.path.clone(), node_rank, index });
        }
        if length == 0 {
            return Ok(&[]);
        }
        match rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(hole) if hole >= offset + length => Ok(self.view.bytes(offset, length)),
            // NXIO: the file has become shorter than `offset`.
            Ok(_) | Err(Errno::NXIO) => Err(SegmentError::Hole { path: self.path.clone(), node_rank, index }),
            Err(errno) => Err(SegmentError::os(&self.path, "lseek", errno)),
        }
    }

    /// The first bytes of an intact slot, a page at most, read from the file and not through the map: a hole reads as zeros and takes no
    /// memory. The rest of the slot may be missing.
    pub fn first_bytes(&self, slot: &OldSlot) -> Option<Vec<u8>> {
        if !slot.intact || !self.header.holds_data(slot.offset, slot.length) {
            return None;
        }
        let mut bytes = vec![0; slot.length.min(PAGE) as usize];
        self.file.read_exact_at(&mut bytes, slot.offset).ok().map(|()| bytes)
    }

    /// How much of the machine's memory the file occupies, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// The bytes without looking for holes, for a slot in which [`OldSegment::bytes`] has just found none. Memory that
    /// has been given back since then reads as zeros.
    pub fn bytes_unlooked(&self, slot: &OldSlot) -> &[u8] {
        if slot.intact && slot.length > 0 && self.header.holds_data(slot.offset, slot.length) {
            self.view.bytes(slot.offset, slot.length)
        } else {
            &[]
        }
    }

    /// Does any process of that run still live on this node? (A forked child of one counts.)
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn is_alive(&self) -> Result<bool, SegmentError> {
        map::is_locked(&self.file, 0, u64::from(self.header.node_ranks))
            .map_err(|errno| SegmentError::os(&self.path, "fcntl", errno))
    }

    /// Frees all memory except that of the slots to `keep`. The bytes of those slots do not change; other slots have
    /// holes afterwards. Returns by how many bytes the file has shrunk.
    ///
    /// Do not call this on the segment of a run that is alive.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn punch_except(&self, keep: &[OldSlot]) -> Result<u64, SegmentError> {
        let before = self.blocks()?;
        for (start, end) in gaps(&self.header, keep) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            loop {
                match rustix::fs::fallocate(&self.file, flags, start, end - start) {
                    Err(Errno::INTR) => continue,
                    Err(errno) => return Err(SegmentError::os(&self.path, "fallocate", errno)),
                    Ok(()) => break,
                }
            }
        }
        Ok(before.saturating_sub(self.blocks()?) * 512)
    }

    /// Removes the file's name, unless the name now belongs to another file. What is mapped stays readable.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn unlink(&self) -> Result<(), SegmentError> {
        file::unlink(&self.file, &self.path)
    }

    fn blocks(&self) -> Result<u64, SegmentError> {
        let metadata = self.file.metadata().map_err(|source| SegmentError::io(&self.path, "fstat", source))?;
        Ok(metadata.blocks())
    }
}

impl fmt::Debug for OldSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OldSegment({}, {} slots)", self.path.display(), self.slots.len())
    }
}

/// A slot of an older segment as shared bytes.
pub struct OldBytes {
    segment: Arc<OldSegment>,
    slot: OldSlot,
    made: Instant,
    /// Until when the slot need not be looked at again, in nanoseconds since this value was made; 0 if the slot has not been seen whole.
    whole_until: AtomicU64,
}

/// The minimum time for which a look for holes is valid.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// A look is also valid for this many times as long as it took. It continues to the next hole, wherever that is, which takes a
/// few milliseconds per hundred MiB.
const LOOK_SHARE: u32 = 16;

impl OldBytes {
    /// The bytes of an intact slot. The slot is looked at when the bytes are taken.
    pub fn new(segment: &Arc<OldSegment>, slot: &OldSlot) -> Arc<OldBytes> {
        let whole_until = AtomicU64::new(0);
        Arc::new(OldBytes { segment: segment.clone(), slot: *slot, made: Instant::now(), whole_until })
    }

    /// The bytes of a slot that another rank of this node has opened for the same restart, and has just looked at. If each rank that needs
    /// a part of each of eight shards of 256 MiB looked at all of them again, one after the other, it would need 60 ms for that.
    pub fn looked_at(segment: &Arc<OldSegment>, slot: &OldSlot) -> Arc<OldBytes> {
        let whole_until = AtomicU64::new(LOOK_MIN.as_nanos() as u64);
        Arc::new(OldBytes { segment: segment.clone(), slot: *slot, made: Instant::now(), whole_until })
    }
}

/// Until when a look that began and ended at these times is valid.
fn good_until(begun: Duration, ended: Duration) -> Duration {
    ended + LOOK_MIN.max(LOOK_SHARE * ended.saturating_sub(begun))
}

impl AsRef<[u8]> for OldBytes {
    /// The bytes of the slot, or none if the memory was given back: no digest matches that. No run or tool gives back
    /// what is being restored, so it suffices to look from time to time.
    fn as_ref(&self) -> &[u8] {
        let begun = self.made.elapsed();
        if begun < Duration::from_nanos(self.whole_until.load(Ordering::Relaxed)) {
            return self.segment.bytes_unlooked(&self.slot);
        }
        let (bytes, until) = match self.segment.bytes(&self.slot) {
            Ok(bytes) => (bytes, good_until(begun, self.made.elapsed())),
            Err(_) => (&[][..], Duration::ZERO),
        };
        self.whole_until.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        bytes
    }
}

/// Reads the directories of all ranks; empty slots are left out.
fn read_slots(file: &File, header: &SegmentHeader) -> std::io::Result<Vec<OldSlot>> {
    let entry_len = (header.slot_offset(0, 1) - header.slot_offset(0, 0)) as usize;
    let mut directory = vec![0u8; entry_len * SLOTS_PER_RANK as usize];
    let mut slots = Vec::new();
    for node_rank in 0..header.node_ranks {
        file.read_exact_at(&mut directory, header.slot_offset(node_rank, 0))?;
        let entries = directory.chunks_exact(entry_len).zip(0u32..);
        slots.extend(entries.filter_map(|(entry, index)| read_slot(entry, header, node_rank, index)));
    }
    Ok(slots)
}

/// One entry of a directory. Control words are native; the header has vouched for the byte order.
fn read_slot(entry: &[u8], header: &SegmentHeader, node_rank: u32, index: u32) -> Option<OldSlot> {
    let word = |at: u64| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&entry[at as usize..at as usize + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (state, uses) = unpack_state(word(slot_word::STATE));
    if state == Some(SlotState::Empty) {
        return None;
    }
    let words = SlotWords {
        uses,
        offset: word(slot_word::OFFSET),
        length: word(slot_word::LENGTH),
        operation: word(slot_word::OPERATION),
        version: word(slot_word::VERSION),
        name: word(slot_word::NAME),
    };
    let check = word(slot_word::CHECK);
    let sound = check == words.check_word(node_rank, index) && header.holds_data(words.offset, words.length);
    Some(OldSlot {
        node_rank,
        index,
        state: state.unwrap_or(SlotState::Writing),
        offset: words.offset,
        length: words.length,
        operation: words.operation,
        version: words.version,
        name: words.name,
        level: unpack_level(word(slot_word::LEVEL), check).unwrap_or(Level::Captured),
        intact: state == Some(SlotState::Sealed) && sound,
    })
}

/// The parts of the data area, in whole pages, that no slot in `keep` touches.
fn gaps(header: &SegmentHeader, keep: &[OldSlot]) -> Vec<(u64, u64)> {
    let mut kept: Vec<(u64, u64)> = keep
        .iter()
        .filter(|slot| header.holds_data(slot.offset, slot.length))
        .map(|slot| (slot.offset / PAGE * PAGE, (slot.offset + slot.length).next_multiple_of(PAGE)))
        .collect();
    kept.sort_unstable();
    let mut gaps = Vec::new();
    let mut at = header.data_offset();
    for (start, end) in kept {
        if start > at {
            gaps.push((at, start));
        }
        at = at.max(end);
    }
    if at < header.file_len() {
        gaps.push((at, header.file_len()));
    }
    gaps
}
