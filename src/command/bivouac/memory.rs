//! Takes stock of memory segments.
#![forbid(unsafe_code)]

use crate::target::SEGMENT_PREFIX;
use bivouac_core::base::Level;
use bivouac_core::catalog::{Ledger, LedgerEntry, Levels, Moment, Occasion, Place};
use bivouac_core::format::Content;
use bivouac_core::format::shard::Head;
use bivouac_core::segment::{OldSegment, OldSlot, SegmentError, SlotState, list};
use bivouac_core::tier::names::Series;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

/// A segment that could be opened.
pub struct Stock {
    /// The segment.
    pub segment: OldSegment,
    /// Does a process of its run live?
    pub is_alive: bool,
    /// Last change of the file; writes through a mapping may not change it.
    pub modified: Option<SystemTime>,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
}

/// One slot that is in use.
#[derive(Serialize)]
pub struct Slot {
    /// The rank on the node to which it belongs.
    pub node_rank: u32,
    /// Its index among the slots of that rank.
    pub index: u32,
    /// `writing` (torn, if the process is dead), `sealed`, `retired`, or `damaged`: sealed, with unusable content.
    pub state: &'static str,
    /// `shard`, or `parity`: what the rank keeps for its redundancy set.
    pub content: Option<&'static str>,
    /// Rank in the group, according to the shard's own header. It is not always a rank of this node: the shard may be a copy that is
    /// kept for another node.
    pub rank: Option<u32>,
    /// Ranks in the group.
    pub group_size: Option<u32>,
    /// Job, according to the shard's own header.
    pub job: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// Name of the series.
    pub name: Option<String>,
    /// Version.
    pub version: u64,
    /// Operation.
    pub operation: u64,
    /// The committed level, as noted on this node.
    pub level: Option<&'static str>,
    /// Length of the shard.
    pub bytes: u64,
    /// What is wrong with it.
    pub why: Option<String>,
}

impl Slot {
    /// Is it sealed, with content that differs from what was written?
    pub fn is_damaged(&self) -> bool {
        self.state == "damaged"
    }
}

impl Stock {
    /// Opens a segment and finds out whether its run is alive.
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
            return Err(format!("the shard has {} bytes, but its slot has {}", head.header.total_len, slot.length));
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

    /// The contents of the segment as entries for the ledger: the versions that were committed, and those that may have been committed
    /// although this node has not heard so. A rank seals its shard before it votes, and hears the verdict later. Other ranks may
    /// therefore have heard that a version was committed before this node was killed without hearing it. A drain takes the same versions,
    /// for the same reason.
    pub fn entries(&self) -> Vec<LedgerEntry<Series>> {
        let entry = |slot: &OldSlot| {
            let head = self.head(slot).ok()?;
            let [job, group, name] = [&head.meta.job, &head.meta.group, &head.meta.name].map(String::clone);
            let is_doubtful = slot.level == Level::Captured;
            Some(LedgerEntry {
                series: Series { job, group, name },
                taken: Moment::of(&head.header.key),
                version: head.header.key.version,
                place: Place::Slot,
                known: Levels::noted(slot.level),
                doubt: if is_doubtful { Levels::NONE.with(Level::Process) } else { Levels::NONE },
                is_open: false,
                needs: Vec::new(),
            })
        };
        let counts = |slot: &&OldSlot| slot.level > Level::Captured || self.may_be_committed(slot);
        self.sealed().filter(counts).filter_map(entry).collect()
    }

    fn sealed(&self) -> impl Iterator<Item = &OldSlot> {
        self.segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed)
    }

    /// May all ranks have voted for a checkpoint on which this node has heard no verdict? True if all ranks of this node have
    /// sealed their shards.
    fn may_be_committed(&self, slot: &OldSlot) -> bool {
        let of_it = self.sealed().filter(|other| (other.name, other.operation) == (slot.name, slot.operation));
        let ranks: BTreeSet<u32> = of_it.map(|other| other.node_rank).collect();
        ranks.len() as u64 == u64::from(self.segment.header().node_ranks)
    }

    /// Versions of which this segment may hold the only copy, according to its own entries.
    pub fn only_copies(&self) -> BTreeSet<String> {
        let ledger = Ledger::new(self.entries());
        let rulings = ledger.judge(&Occasion::Ended);
        let kept = ledger.entries().iter().zip(rulings).filter(|(_, ruling)| !ruling.may_go());
        kept.map(|(entry, _)| format!("version {} of {}", entry.version, entry.series.name)).collect()
    }
}

/// The word for a kind of content.
pub fn content(content: Content) -> &'static str {
    match content {
        Content::Shard => "shard",
        Content::Parity => "parity",
        Content::Packed => "packed",
    }
}

/// The names of all segments in a folder.
///
/// # Errors
/// [`SegmentError::Os`] if the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>, SegmentError> {
    list(folder, SEGMENT_PREFIX)
}
