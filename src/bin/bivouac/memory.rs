//! Taking stock of memory segments.
#![forbid(unsafe_code)]

use crate::target::SEGMENT_PREFIX;
use bivouac::base::Level;
use bivouac::format::Content;
use bivouac::format::shard::Head;
use bivouac::segment::{OldSegment, OldSlot, SegmentError, SlotState, list};
use serde::Serialize;
use std::path::Path;
use std::time::SystemTime;

/// A segment that could be opened.
pub struct Stock {
    /// The segment.
    pub segment: OldSegment,
    /// Does a process of its run live?
    pub is_alive: bool,
    /// Last change of the file; writes through a mapping need not show.
    pub modified: Option<SystemTime>,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
}

/// One slot that is in use.
#[derive(Serialize)]
pub struct Slot {
    /// Whose it is, as a rank on the node.
    pub node_rank: u32,
    /// Which slot of that rank.
    pub index: u32,
    /// `writing` (torn, if the process is dead), `sealed`, `retired`, or `damaged`: sealed, with unusable content.
    pub state: &'static str,
    /// `shard`, or `parity`: what the rank keeps for its redundancy set.
    pub content: Option<&'static str>,
    /// Rank in the group, by the shard's own header. Not always one of the node: it may be a copy that is kept for another.
    pub rank: Option<u32>,
    /// Ranks in the group.
    pub group_size: Option<u32>,
    /// Job, by the shard's own header.
    pub job: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// Name of the series.
    pub name: Option<String>,
    /// Version.
    pub version: u64,
    /// Operation.
    pub operation: u64,
    /// The level that was committed, as far as this node has noted.
    pub level: Option<&'static str>,
    /// Length of the shard.
    pub bytes: u64,
    /// What is wrong with it.
    pub why: Option<String>,
}

impl Slot {
    /// Sealed, with content that is not as it was written?
    pub fn is_damaged(&self) -> bool {
        self.state == "damaged"
    }
}

impl Stock {
    /// Opens a segment and looks whether its run lives.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn open(folder: &Path, name: &str) -> Result<Stock, SegmentError> {
        use std::os::unix::fs::MetadataExt;
        let segment = OldSegment::open(folder, name)?;
        let is_alive = segment.is_alive()?;
        let metadata = segment.path().metadata().ok();
        Ok(Stock {
            is_alive,
            modified: metadata.as_ref().and_then(|metadata| metadata.modified().ok()),
            memory_bytes: metadata.map_or(0, |metadata| metadata.blocks() * 512),
            segment,
        })
    }

    /// The head of a sealed slot's shard, or what is wrong with it.
    pub fn head(&self, slot: &OldSlot) -> Result<Head, String> {
        let bytes = self.segment.bytes(slot).map_err(|error| error.to_string())?;
        let head = Head::decode(bytes).map_err(|error| error.to_string())?;
        if head.header.total_len != slot.length {
            return Err(format!("the shard has {} bytes, its slot {}", head.header.total_len, slot.length));
        }
        Ok(head)
    }

    /// All slots that are in use.
    pub fn slots(&self) -> Vec<Slot> {
        self.segment.slots().iter().map(|slot| self.slot(slot)).collect()
    }

    fn slot(&self, slot: &OldSlot) -> Slot {
        let head = match slot.state {
            SlotState::Sealed => Some(self.head(slot)),
            _ => None,
        };
        let (state, why) = match (slot.state, &head) {
            (SlotState::Sealed, Some(Err(why))) => ("damaged", Some(why.clone())),
            (SlotState::Sealed, _) => ("sealed", None),
            (SlotState::Writing, _) if !self.is_alive => ("writing", Some("torn: its process died".to_owned())),
            (SlotState::Writing, _) => ("writing", None),
            (SlotState::Retired | SlotState::Empty, _) => ("retired", None),
        };
        let head = head.and_then(Result::ok);
        let sealed = state == "sealed";
        Slot {
            node_rank: slot.node_rank,
            index: slot.index,
            state,
            content: head.as_ref().map(|head| content(head.header.content)),
            rank: head.as_ref().map(|head| head.header.rank.0),
            group_size: head.as_ref().map(|head| head.header.group_size),
            job: head.as_ref().map(|head| head.meta.job.clone()),
            group: head.as_ref().map(|head| head.meta.group.clone()),
            name: head.map(|head| head.meta.name.clone()),
            version: slot.version,
            operation: slot.operation,
            level: sealed.then(|| slot.level.name()),
            bytes: slot.length,
            why,
        }
    }

    /// Versions that this segment may hold the only copy of: committed in memory, and nowhere else that is known.
    pub fn only_copies(&self) -> Vec<String> {
        let only = |slot: &&OldSlot| {
            slot.state == SlotState::Sealed && slot.level >= Level::Process && !is_elsewhere(slot.level)
        };
        let mut versions: Vec<String> = self
            .segment
            .slots()
            .iter()
            .filter(only)
            .filter_map(|slot| {
                self.head(slot).ok().map(|head| format!("version {} of {}", slot.version, head.meta.name))
            })
            .collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }
}

/// Does this level say that a version rests outside of node memory? Level `node-loss` does not: a redundancy set may lie in the
/// memory of its nodes alone, and a shard that is removed counts as one more that was lost.
pub fn is_elsewhere(level: Level) -> bool {
    matches!(level, Level::NodeReboot | Level::System)
}

/// The word for it.
pub fn content(content: Content) -> &'static str {
    match content {
        Content::Shard => "shard",
        Content::Parity => "parity",
    }
}

/// All segments of a folder: their names.
///
/// # Errors
/// [`SegmentError::Os`] if the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>, SegmentError> {
    list(folder, SEGMENT_PREFIX)
}
