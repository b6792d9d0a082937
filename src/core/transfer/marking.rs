//! Captures whose device regions are marked, and sent from live memory ([`super::offload`]): as [`super::landing`] from there on.
#![forbid(unsafe_code)]

use super::capture::{self, DevicePart};
use super::checkpoint::{CaptureSpec, OnDevice, Taken};
use super::engine::Engine;
use super::error::FillError;
use super::landing::{Landing, Unsealed};
use super::offload::{Field, Known, Landed, Offload, Snapshot};
use crate::base::Digest;
use crate::device::{Stream, Target};
use crate::format::ShardHeader;
use crate::format::shard::{Head, Layout};
use crate::segment::SlotMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A shard of which everything but device regions is in its slot.
pub(super) struct Marked {
    slot: SlotMut,
    /// What is still to be written into it.
    pub unsealed: Unsealed,
    /// The device regions.
    parts: Vec<DevicePart>,
    /// The head of what the slot holds of an earlier one, if that is known.
    here: Option<Arc<Head>>,
}

impl Engine {
    /// Are the device regions of a shard marked, and not copied?
    pub(super) fn is_to_be_marked(&self, spec: &CaptureSpec<'_>, parts: &[DevicePart], slot: &SlotMut) -> bool {
        // Without threads nobody would send them.
        let device = spec.device.filter(|_| !parts.is_empty() && !self.setup.is_inline);
        let Some(OnDevice { offload: Some(offload), .. }) = device else { return false };
        if !offload.wants(parts.iter().map(|part| part.span.bytes()).sum()) {
            return false;
        }
        let is_ready = offload.is_ready(slot);
        if !is_ready {
            self.desk.note_once("not-marked", || {
                "event=not-marked: the slot in node memory is not pinned yet, so the checkpoint is copied; Offload::prepare at the start makes it \
                 ready; said once"
                    .into()
            });
        }
        is_ready
    }

    /// Fills a slot with all but device regions, which are to be marked.
    pub(super) fn mark_slot(
        &self,
        spec: &CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        mut slot: SlotMut,
        mut digests: Vec<Digest>,
        parts: Vec<DevicePart>,
    ) -> Result<Taken, FillError> {
        if let Some(OnDevice { offload: Some(offload), .. }) = spec.device {
            offload.wait();
        }
        self.has_marked.store(true, Ordering::Relaxed);
        let here = self.remains.lock().here(&spec.name, spec.operation, layout, &slot);
        capture::copy_host(layout, &spec.regions, slot.as_mut_slice(), &mut digests, None);
        capture::read_kept(layout, &spec.regions, slot.as_mut_slice(), &mut digests)?;
        // Chunks are found in the slot, never in live memory.
        self.reducer.found_no_room(&spec.name);
        let unsealed = Unsealed { name: spec.name.clone(), layout: layout.clone(), header: header.clone(), digests };
        Ok(Taken::Marked(Box::new(Marked { slot, unsealed, parts, here })))
    }

    /// Marks the device regions of a shard whose checkpoint is in the books.
    pub(super) fn send_marked(self: &Arc<Self>, marked: Marked, offload: &Offload, stream: &dyn Stream, call: String) {
        let Marked { slot, unsealed, parts, here } = marked;
        let (version, block_bytes) = (unsealed.header.key.version, unsealed.layout.block_size);
        let field = |part: &DevicePart| {
            let name = unsealed.layout.meta.regions[part.region].name.clone();
            Field { name, span: part.span.clone(), at: part.at }
        };
        let fields = parts.iter().map(field).collect();
        let blocks: Vec<_> = parts.iter().map(|part| part.blocks.clone()).collect();
        let known = here.map(|head| -> Known { Box::new(move |first, into| read_known(&head, &blocks, first, into)) });
        let mut landing = Landing::new(self.clone(), unsealed, call);
        let land = Box::new(move |landed: Result<Landed<'_>, String>| {
            let slot = landed.and_then(|Landed { target, digests }| {
                landing.place_digests(&parts, digests);

                let slot = target.take_back::<SlotMut>();
                slot.map_err(|_| "something is still on its way to its slot".to_owned())
            });
            landing.land(slot);
        });
        let snapshot = Snapshot {
            version,
            fields,
            block_bytes,
            target: Target::new(slot),
            known,
            turn: 0,
            is_audited: true,
            limit: Duration::ZERO,
            land,
        };
        offload.mark(snapshot, stream);
    }

    /// Does anything wait for a shard that is landing?
    pub(crate) fn is_landing_awaited(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed) || self.books().has_vote_waiting()
    }
}

/// The digests of a head's blocks, which are in these ranges, from number `first` of them on.
fn read_known(head: &Head, blocks: &[Range<usize>], mut first: usize, mut into: &mut [Digest]) {
    for blocks in blocks {
        let skipped = first.min(blocks.len());
        first -= skipped;
        let count = (blocks.len() - skipped).min(into.len());
        let start = blocks.start + skipped;
        let (own, rest) = into.split_at_mut(count);
        own.copy_from_slice(&head.digests[start..start + count]);
        into = rest;
    }
}
