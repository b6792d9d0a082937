//! Regions whose bytes are put in place before their checkpoint is captured, because the application may change its memory before the
//! capture.
//!
//! They are the first in their shard, which is in a slot or, if no slot can hold it, in a file under its temporary name. The lengths of the
//! tables and of the other regions are not known yet, so some room is reserved for them. A shard that needs more than that is laid out
//! anew, with a copy from slot to slot.
//!
//! # What happens
//!
//! Where the application may change its memory before the capture (`VELOC_Checkpoint_mem`), regions are *held* (`transfer::held`): copied
//! with their digests into the slot that the shard will have, or into its file where no slot is long enough. They come first in the shard,
//! after a head with room for the tables to come; the capture adds the other regions, writes the head, cuts the slot to its length and
//! seals it. If there are more regions than the slot has room for, the shard is laid out anew in another slot, and the digests of the held
//! regions are compared. A held checkpoint that is given up returns its slot or file.
#![forbid(unsafe_code)]

use super::capture::{self, FileError};
use super::checkpoint::{Agreed, CaptureSpec, Taken};
use super::engine::Engine;
use super::error::{CaptureError, FillError};
use crate::base::units::{KIB, PAGE, page_ceil};
use crate::base::{Digest, Origin};
use crate::format::ShardHeader;
use crate::format::shard::{Layout, SPARE_HEAD_MAX};
use crate::region::{RegionData, SavedRegion};
use crate::segment::SlotMut;
use crate::tier::TierId;
use crate::tier::Upload;
use std::borrow::Cow;
use std::sync::Arc;

pub(super) const GONE: &str = "the bytes to be held for it could not be copied";
pub(super) const CHANGED: &str = "memory tier: bytes that were held for it have changed there";

/// Regions in their place, without a head. If dropped without a capture, gives the room back.
pub struct Held {
    /// Present until a capture takes it.
    pub(super) store: Option<Store>,
    /// The layout of the regions so far; its head is longer than their tables need.
    pub(super) layout: Layout,
    pub(super) digests: Vec<Digest>,
    /// What the checkpoint descends from. After another restart, the held bytes are no longer part of the program's state.
    pub(super) origin: Option<Origin>,
}

pub(super) enum Store {
    Slot(SlotMut),
    File(Box<dyn Upload>),
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(Store::File(upload)) = self.store.take() {
            upload.discard();
        }
    }
}

impl Held {
    /// Where the bodies begin.
    pub(super) fn head(&self) -> u64 {
        self.layout.body_offset
    }

    /// Does `layout` leave the held regions where they are, and does the store have room for the rest?
    fn has_place_for(&self, layout: &Layout) -> bool {
        let is_long_enough = match &self.store {
            Some(Store::Slot(slot)) => layout.total_len <= slot.len() as u64,
            _ => true,
        };
        layout.body_offset == self.layout.body_offset && is_long_enough
    }

    /// The regions, with the held ones given as bytes in memory; `None` if these are in a file.
    pub(super) fn resolve<'r>(&'r self, regions: &'r [SavedRegion<'_>]) -> Option<Vec<SavedRegion<'r>>> {
        let Some(Store::Slot(slot)) = &self.store else { return None };
        let body = &slot.as_slice()[self.layout.body_offset as usize..];
        let mut resolved: Vec<SavedRegion<'r>> = regions.to_vec();
        for (saved, placed) in resolved.iter_mut().zip(&self.layout.meta.regions) {
            if matches!(saved.data, RegionData::Held { .. }) {
                let bytes = &body[placed.offset as usize..][..placed.bytes as usize];
                saved.data = RegionData::Host(Cow::Borrowed(bytes));
            }
        }
        Some(resolved)
    }

    /// This one as a replacement for `before`, if the held part of `regions` is the same in both.
    pub(super) fn in_place_of(mut self, before: &Held, regions: &[SavedRegion<'_>]) -> Option<Held> {
        self.origin = before.origin;
        before.is_unchanged(regions, &self.digests).then_some(self)
    }

    /// Do the held ones among these regions still have the same digests where they are now? Their blocks are still the first ones.
    fn is_unchanged(&self, regions: &[SavedRegion<'_>], digests: &[Digest]) -> bool {
        let held = regions.iter().zip(&self.layout.meta.regions);
        let mut held = held.filter(|(saved, _)| matches!(saved.data, RegionData::Held { .. }));
        held.all(|(saved, placed)| {
            // Less of a stream may have been moved than was reserved for it: only whole blocks.
            let first = placed.first_block as usize;
            let blocks = first..first + saved.region.blocks(self.layout.block_size) as usize;
            digests.get(blocks.clone()) == Some(&self.digests[blocks])
        })
    }
}

/// The regions to be held, and their checkpoint.
pub struct HoldSpec<'s, 'a> {
    /// Number of the collective call, taken when the checkpoint was begun.
    pub operation: u64,
    /// Series.
    pub name: &'s str,
    /// Version.
    pub version: u64,
    /// All regions so far; those that were already held come first.
    pub regions: &'s [SavedRegion<'a>],
    /// Bytes of regions that are still to come.
    pub room: u64,
}

impl Engine {
    /// Copies the regions that are not held yet, after those of `before`, into the nearest tier that has room.
    ///
    /// # Collective
    /// Local; the vote is cast by the capture.
    ///
    /// # Blocking
    /// As a capture.
    ///
    /// # Errors
    /// [`CaptureError`]; in this case, nothing is held.
    pub fn hold(&self, spec: &HoldSpec<'_, '_>, before: Option<Held>) -> Result<Held, CaptureError> {
        // From now on, retention leaves the checkpoint's folder alone.
        self.books().on_held(spec.operation);
        let rank = self.setup.rank();
        if let Some(reason) = self.failed() {
            return Err(CaptureError::Failed { rank, reason });
        }
        let failed = |causes| self.no_tier(spec.name, spec.version, causes);
        let Some(before) = before else {
            // After a failure, nothing is left of the held regions.
            return match spec.regions.iter().any(|saved| matches!(saved.data, RegionData::Held { .. })) {
                true => Err(failed(vec![GONE.into()])),
                false => self.hold_anew(spec),
            };
        };
        let layout = self.layout(spec.name, spec.regions, before.head())?;
        if before.has_place_for(&layout) {
            return self.hold_in_place(spec, layout, before);
        }
        let Some(regions) = before.resolve(spec.regions) else {
            return Err(failed(vec!["the file that holds the first regions has no room for more of them".into()]));
        };
        let (operation, name, version, room) = (spec.operation, spec.name, spec.version, spec.room);
        let moved = self.hold_anew(&HoldSpec { operation, name, version, regions: &regions, room })?;
        moved.in_place_of(&before, spec.regions).ok_or_else(|| failed(vec![CHANGED.into()]))
    }

    fn hold_anew(&self, spec: &HoldSpec<'_, '_>) -> Result<Held, CaptureError> {
        let mut causes = Vec::new();
        match self.hold_in_memory(spec, 0, &mut causes)? {
            Some(held) => Ok(held),
            None => self.hold_in_file(spec, causes),
        }
    }

    /// Holds the regions in a slot that has room for `must` more bytes; if there is none, adds the reasons to `causes`.
    pub(super) fn hold_in_memory(
        &self,
        spec: &HoldSpec<'_, '_>,
        must: u64,
        causes: &mut Vec<String>,
    ) -> Result<Option<Held>, CaptureError> {
        let tables = self.layout(spec.name, spec.regions, 0)?;
        let spare = 4 * PAGE + tables.body_offset / 4 + 16 * spec.room.div_ceil(tables.block_size);
        let head = tables.body_offset + page_ceil(spare).min(SPARE_HEAD_MAX);
        let layout = self.layout(spec.name, spec.regions, head)?;
        // The session itself adds information on the location of threads and pages.
        let added = 64 * KIB + 512 * spec.regions.len() as u64;
        let least = layout.total_len + page_ceil(added) + page_ceil(must);
        // Room for regions that may still be added justifies neither waiting nor a file: perhaps only few of them are added.
        let roomy = self.setup.memory.as_ref().filter(|_| spec.room > must);
        let roomy = roomy.and_then(|segment| segment.reserve(least + page_ceil(spec.room - must)).ok().flatten());
        match roomy.map_or_else(|| self.wait_for_slot(spec.operation, least), |slot| Ok(Some(slot))) {
            Ok(Some(slot)) => {
                let held = self.nothing_held(spec, Store::Slot(slot), &layout);
                return self.hold_in_place(spec, layout, held).map(Some);
            }
            Ok(None) => causes.push("memory tier: off".to_owned()),
            Err(cause) => causes.push(cause),
        }
        self.say_direct(spec.version, layout.total_len, causes);
        Ok(None)
    }

    /// Holds the regions in a file, because of these `causes`. In a file nothing can be moved, and unwritten ranges take no room.
    pub(super) fn hold_in_file(&self, spec: &HoldSpec<'_, '_>, mut causes: Vec<String>) -> Result<Held, CaptureError> {
        let tables = self.layout(spec.name, spec.regions, 0)?;
        let layout = self.layout(spec.name, spec.regions, tables.body_offset + SPARE_HEAD_MAX)?;
        let (series, key) =
            (self.setup.identity.series(spec.name), self.setup.identity.key(spec.version, spec.operation));
        for tier in TierId::files() {
            match self.begin_file(&series, &key, tier) {
                Some(Ok(upload)) => {
                    let held = self.nothing_held(spec, Store::File(upload), &layout);
                    match self.hold_in_place(spec, layout.clone(), held) {
                        Err(CaptureError::NoTier { causes: why, .. }) => causes.extend(why),
                        other => return other,
                    }
                }
                Some(Err(cause)) => causes.push(cause),
                None => {}
            }
        }
        Err(self.no_tier(spec.name, spec.version, causes))
    }

    fn nothing_held(&self, spec: &HoldSpec<'_, '_>, store: Store, layout: &Layout) -> Held {
        let digests = bytemuck::zeroed_vec(layout.block_count as usize);
        Held { store: Some(store), layout: layout.clone(), digests, origin: self.books().origin(spec.name) }
    }

    /// Copies the missing regions of `layout` into the store of `held`, which has room for them.
    fn hold_in_place(&self, spec: &HoldSpec<'_, '_>, layout: Layout, mut held: Held) -> Result<Held, CaptureError> {
        held.digests.resize(layout.block_count as usize, Digest::default());
        let digests = &mut held.digests;
        let written = match &mut held.store {
            Some(Store::Slot(slot)) => {
                capture::copy_host(&layout, spec.regions, slot.as_mut_slice(), digests, None);
                capture::read_kept(&layout, spec.regions, slot.as_mut_slice(), digests).map_err(FileError::Region)
            }
            Some(Store::File(upload)) => {
                let (rank, bytes) = (self.setup.rank(), self.setup.config.node.write_bytes as usize);
                capture::bodies_into_file(&layout, rank, spec.regions, None, &**upload, bytes, digests)
            }
            None => Ok(()),
        };
        if let (Err(FileError::Tier(error)), Some(Store::File(upload))) = (&written, &held.store) {
            self.reporter().on_tier_failure(upload.kind(), error);
        }
        written.map_err(|error| self.capture_error(spec.name, spec.version, error.into()))?;
        held.layout = layout;
        Ok(held)
    }

    /// Captures a checkpoint some of whose regions are held.
    pub(super) fn place_held(
        self: &Arc<Self>,
        spec: &mut CaptureSpec<'_>,
        mut held: Held,
        layout: &Layout,
        header: &ShardHeader,
    ) -> Result<Taken, CaptureError> {
        // The order of the bytes in the slot is already settled.
        spec.regions.iter_mut().for_each(|saved| _ = saved.copy_at_once());
        let failed = |cause: &str| self.no_tier(&spec.name, spec.version, vec![cause.into()]);
        if held.origin != header.origin {
            return Err(failed("there was a restart between the copy of its regions and the capture"));
        }
        if !held.has_place_for(layout) {
            let Some(regions) = held.resolve(&spec.regions) else {
                return Err(failed("the file that holds the first regions has no room for all tables"));
            };
            let mut again = CaptureSpec {
                operation: spec.operation,
                name: spec.name.clone(),
                version: spec.version,
                regions,
                held: None,
                own_regions: spec.own_regions,
                // What all ranks must agree on is part of the agreement, which was made before.
                agreed: Agreed::default(),
                bound: None,
                device: spec.device,
                begun: spec.begun,
            };
            let taken = self.place(&mut again, header.agreement)?;
            let is_right = held.is_unchanged(&spec.regions, taken.digests());
            return if is_right { Ok(taken) } else { Err(failed(CHANGED)) };
        }
        let mut digests = std::mem::take(&mut held.digests);
        digests.resize(layout.block_count as usize, Digest::default());
        let filled = match held.store.take() {
            Some(Store::Slot(mut slot)) => {
                slot.shorten(layout.total_len);
                self.fill_slot(spec, layout, header, slot, digests)
            }
            Some(Store::File(upload)) => self.finish_file(spec, layout, header, upload, digests),
            None => Err(FillError::Tier("it has been captured already".into())),
        };
        filled.map_err(|error| self.capture_error(&spec.name, spec.version, error))
    }
}
