//! Captures with regions that come from live memory: of a device ([`super::offload`]), of the host ([`super::live`]), or both. After that
//! they are treated as in [`super::landing`].
#![forbid(unsafe_code)]

use super::capture::{self, DevicePart};
use super::checkpoint::{CaptureSpec, OnDevice, Taken};
use super::engine::Engine;
use super::error::FillError;
use super::landing::{Landing, Unsealed};
use super::live::{Copied, Watched};
use super::offload::{Field, Known, Landed, Snapshot};
use crate::base::Digest;
use crate::base::sync::Lock;
use crate::config::{HostWrites, OffloadConfig};
use crate::device::Target;
use crate::format::ShardHeader;
use crate::format::shard::{Head, Layout};
use crate::segment::SlotMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A shard whose slot contains everything except for the bytes that are copied from live memory.
pub(super) struct Marked {
    slot: SlotMut,
    /// Everything that is still to be written into the slot.
    pub unsealed: Unsealed,
    /// The device regions.
    parts: Vec<DevicePart>,
    /// The regions of the host.
    live: Option<Watched>,
    /// The head of the earlier shard whose bytes the slot holds, if that is known.
    here: Option<Arc<Head>>,
}

impl Marked {
    /// A shard that is complete except for landing.
    pub fn whole(slot: SlotMut, unsealed: Unsealed) -> Marked {
        Marked { slot, unsealed, parts: Vec::new(), live: None, here: None }
    }
}

impl Engine {
    /// Are the device regions of a shard marked instead of copied?
    pub(super) fn is_to_be_marked(&self, spec: &CaptureSpec<'_>, parts: &[DevicePart], slot: &SlotMut) -> bool {
        // Without threads nobody would send them.
        let device = spec.device.filter(|_| !parts.is_empty() && !self.setup.is_inline);
        let Some(OnDevice { offload: Some(offload), .. }) = device else { return false };
        if !offload.wants(parts.iter().map(|part| part.memory.bytes()).sum()) {
            return false;
        }
        if capture::has_rows(parts) {
            self.desk.note_once("rows-not-marked", || {
                "event=not-marked: a region in device memory has a margin around its boxes, or has several boxes, so the checkpoint is \
                 copied; logged once"
                    .into()
            });
            return false;
        }
        let is_ready = offload.is_ready(slot);
        if !is_ready {
            self.desk.note_once("not-marked", || match offload.may_mark() {
                true => "event=not-marked: the slot in node memory is not pinned yet, so the checkpoint is copied; Offload::prepare (bvk_offload) at \
                         the start makes slots ready, and more are used where checkpoints come faster than other levels store them; said once"
                    .into(),
                false => "event=not-marked: as configured (history.pin = \"never\") node memory is not pinned, so no checkpoint is marked, and all \
                          are copied; said once"
                    .into(),
            });
        }
        is_ready
    }

    /// Fills a slot with everything except for device regions that are to be marked and live regions of the host.
    #[allow(clippy::too_many_arguments)] // What a shard consists of.
    pub(super) fn mark_slot(
        &self,
        spec: &CaptureSpec<'_>,
        layout: &Layout,
        header: &ShardHeader,
        mut slot: SlotMut,
        mut digests: Vec<Digest>,
        parts: Vec<DevicePart>,
        live: Option<Watched>,
    ) -> Result<Taken, FillError> {
        let mut here = None;
        if let Some(OnDevice { offload: Some(offload), .. }) = spec.device.filter(|_| !parts.is_empty()) {
            offload.wait();
            self.has_marked.store(true, Ordering::Relaxed);
            here = self.remains.lock().here(&spec.name, spec.operation, layout, &slot);
        }
        capture::copy_host(layout, &spec.regions, slot.as_mut_slice(), &mut digests, None);
        capture::read_kept(layout, &spec.regions, slot.as_mut_slice(), &mut digests)?;
        let OffloadConfig { audit, host_writes, .. } = self.setup.config.job.offload;
        let is_trusted = live.is_some() && host_writes == HostWrites::Declared;
        let header = ShardHeader { is_unaudited: is_trusted || !parts.is_empty() && !audit, ..header.clone() };
        if header.is_unaudited {
            self.say_unaudited();
        }
        // Chunks are searched for in the slot, never in live memory.
        self.reducer.found_no_room(&spec.name);
        let unsealed = Unsealed { name: spec.name.clone(), layout: layout.clone(), header, digests };
        Ok(Taken::Marked(Box::new(Marked { slot, unsealed, parts, live, here })))
    }

    fn say_unaudited(&self) {
        self.reporter().count(|stats| stats.unaudited += 1);
        self.desk.note_once("unaudited", || {
            "event=unaudited: as configured (offload.audit = false, or offload.host_writes = \"declared\"), nothing looks for writes that the program \
             did not declare: one of them puts a later state into a checkpoint, undetected; `bivouac inspect` names such shards; said once"
                .into()
        });
    }

    /// Makes the bytes in live memory follow, for a shard whose checkpoint is in the books.
    pub(super) fn send_marked(self: &Arc<Self>, marked: Marked, device: Option<OnDevice<'_>>, call: String) {
        let Marked { slot, unsealed, parts, live, here } = marked;
        let (version, block_bytes) = (unsealed.header.key.version, unsealed.layout.block_size);
        let field = |part: &DevicePart| {
            let name = unsealed.layout.meta.regions[part.region].name.clone();
            // Regions in rows are not marked.
            Some(Field { name, span: part.memory.span()?.clone(), at: part.at })
        };
        let fields: Vec<Field> = parts.iter().filter_map(field).collect();
        let marks = device.and_then(|on| on.offload.map(|offload| (offload, on.stream))).filter(|_| !fields.is_empty());
        let sources = usize::from(marks.is_some()) + usize::from(live.is_some());
        if let Some(later) = self.setup.later.as_ref().filter(|_| sources == 0) {
            let landing = Landing::new(self.clone(), unsealed, call);
            return later(Box::new(move |landed| landing.land(landed.map(|()| slot))));
        }
        // Only the parties that copy the bytes hold the target: the last of them takes the slot back, possibly before this returns.
        let mut target = Some(Target::new(slot));
        let arrivals = Arrivals::new(Landing::new(self.clone(), unsealed, call), sources);
        if let Some(live) = live
            && let Some(target) = if marks.is_some() { target.clone() } else { target.take() }
        {
            let arrivals = arrivals.clone();
            self.lives.copy(live, target, move |copied| {
                arrivals.arrive(copied.map(|(target, copied)| (target, place_copied(copied))));
            });
        }
        let Some(((offload, stream), target)) = marks.zip(target) else { return };
        let blocks: Vec<_> = parts.iter().map(|part| part.blocks.clone()).collect();
        let known = here.map(|head| -> Known { Box::new(move |first, into| read_known(&head, &blocks, first, into)) });
        let land = Box::new(move |landed: Result<Landed<'_>, String>| {
            arrivals.arrive(landed.map(|Landed { target, digests }| {
                (target, |all: &mut [Digest]| capture::place_digests(&parts, digests, all))
            }));
        });
        let snapshot = Snapshot { version, fields, block_bytes, target, known, land };
        offload.mark(snapshot, stream);
    }

    /// Does anything wait for a shard that is landing?
    pub(crate) fn is_landing_awaited(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed) || self.books().has_vote_waiting()
    }
}

/// The digests in a head of the blocks in these ranges, beginning with number `first` of these blocks.
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

/// Puts the digests of live regions into their places.
fn place_copied(copied: Copied) -> impl FnOnce(&mut [Digest]) {
    move |all| copied.into_iter().for_each(|(blocks, digests)| all[blocks].copy_from_slice(&digests))
}

/// A shard that lands when all parties have copied their bytes. If one of them ends without reporting, the shard does not land, and the
/// rank votes accordingly.
struct Arrivals(Lock<Option<Awaited>>);

struct Awaited {
    landing: Landing,
    /// The number of parties that have not reported yet.
    sources: usize,
    failure: Option<String>,
}

impl Arrivals {
    fn new(landing: Landing, sources: usize) -> Arc<Arrivals> {
        Arc::new(Arrivals(Lock::new(Some(Awaited { landing, sources, failure: None }))))
    }

    /// One of the parties has copied its bytes, and supplies a function that puts their digests into place, or has failed.
    fn arrive(&self, arrived: Result<(Arc<Target>, impl FnOnce(&mut [Digest])), String>) {
        let mut awaited = self.0.lock();
        let Some(Awaited { landing, sources, failure }) = &mut *awaited else { return };
        *sources -= 1;
        let mut target = None;
        match arrived {
            Ok((there, place)) => {
                landing.place_digests(place);
                target = Some(there);
            }
            Err(why) => *failure = Some(why),
        }
        // The other parties give up their hold on the target before their arrival is noted.
        let target = if *sources == 0 { target } else { None };
        if *sources > 0 {
            return;
        }
        let ended = awaited.take();
        drop(awaited);
        let Some(Awaited { landing, failure, .. }) = ended else { return };
        landing.land(match (failure, target) {
            (Some(why), _) => Err(why),
            (None, Some(target)) => {
                target.take_back::<SlotMut>().map_err(|_| "something is still on its way to its slot".to_owned())
            }
            (None, None) => Err("nothing has copied it".to_owned()),
        });
    }
}
