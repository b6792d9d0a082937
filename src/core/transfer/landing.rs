//! Shards whose device regions are still in the GPU cache: they receive their head, their seal and this rank's vote when the bytes have
//! arrived in node memory.
//!
//! The capture has returned by then, and the checkpoint is already in the engine's books, marked as *landing*: its slot is reserved but has
//! no id yet, and no verdict on it can be positive, because this rank has not voted. A failure from now on becomes a negative vote with its
//! reason, which all ranks hear. The thread that copies the bytes is a thread of the GPU caches: it makes no MPI call, so it leaves the
//! vote to the engine and steps nothing. Votes are cast in the order of the calls, and verdicts arrive in that order.
//!
//! # What happens
//!
//! With regions in device memory, the slot is filled in two steps, and the vote follows the second:
//!
//! ```text
//!  application          GPU cache              bvk-d2h                        engine
//!  capture()            reserve slot; copy device regions into the GPU cache + digests (one pass, on the device)
//!                       slot ◄─ host regions + digests, padding
//!    returns            checkpoint is in the books as landing
//!                                              slot ◄─ device regions
//!                                              head with all digests, seal slot; post length
//!                                                                             vote CALL, in the order of the calls
//! ```
//!
//! - With `reduction.method` of chunks, these are examined on the device during the download ([`super::chunking`]).
//! - A shard does not say where its bytes came from; it restores into host and device memory alike.
//! - The digests of device regions are made before the bytes cross the link. `WriteJob` compares them before it writes to a durable tier, and
//!   so does the capture that goes straight to a file; a restart into device memory compares them on the device.
//! - If the GPU cache does not have room in time, or if the engine has no threads, the regions are copied straight to the slot, and only
//!   then does `capture` return.
//! - If the device fails, this rank votes no with the reason, before `capture` returns or after. The application continues.
#![forbid(unsafe_code)]

use super::chunking::Looking;
use super::engine::Engine;
use super::history::{LookAt, Staged};
use super::remains::Fill;

use crate::base::Digest;
use crate::base::log;
use crate::format::ShardHeader;
use crate::format::events::What;
use crate::format::shard::Layout;
use crate::reduction::Field;
use crate::segment::SlotMut;
use std::sync::Arc;

/// Everything except the bodies that a slot needs to become a shard.
pub(super) struct Unsealed {
    /// Series.
    pub name: String,
    /// The places of the regions.
    pub layout: Layout,
    /// The header.
    pub header: ShardHeader,
    /// The digests, one per block.
    pub digests: Vec<Digest>,
}

/// A shard in two places.
pub(super) struct Descent {
    /// The device regions.
    pub staged: Staged,
    /// The slot, which holds the rest of the bodies.
    pub slot: SlotMut,
    /// Everything that is still to be written into the slot.
    pub unsealed: Unsealed,
    /// The regions of the shard that are on the device.
    pub regions: Vec<usize>,
    /// The blocks of these regions that another slot holds.
    pub fill: Option<Fill>,
    /// Only the blocks that have changed are staged.
    pub is_partial: bool,
}

/// Makes sure that a rank votes: if the thread that was to land the shard ends before it has done so, this value is dropped, which casts a
/// negative vote.
pub(super) struct Landing {
    engine: Arc<Engine>,
    /// `None` once the shard has landed.
    unsealed: Option<Unsealed>,
    call: String,
}

impl Landing {
    /// The landing of a shard whose checkpoint is in the books.
    pub fn new(engine: Arc<Engine>, unsealed: Unsealed, call: String) -> Landing {
        Landing { engine, unsealed: Some(unsealed), call }
    }

    /// Puts digests that have arrived into their places among those of the shard.
    pub fn place_digests(&mut self, place: impl FnOnce(&mut [Digest])) {
        if let Some(unsealed) = &mut self.unsealed {
            place(&mut unsealed.digests);
        }
    }

    /// The shard has landed, or will never land.
    pub fn land(mut self, landed: Result<SlotMut, String>) {
        self.end(landed);
    }

    fn end(&mut self, landed: Result<SlotMut, String>) {
        if let Some(unsealed) = self.unsealed.take() {
            self.engine.on_landed(unsealed, &self.call, landed);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.end(Err("the thread that copies it from the device has ended".to_owned()));
    }
}

impl Engine {
    /// Sends a staged shard on its way to its slot; its checkpoint is in the books.
    pub(super) fn send_down(self: &Arc<Self>, descent: Descent, call: String) {
        let Descent { staged, slot, unsealed, regions, fill, is_partial } = descent;
        let version = unsealed.header.key.version;
        let look = self.reducer.looks_on_devices().then(|| self.look(&unsealed, &regions, is_partial));
        let bytes = regions.iter().map(|region| unsealed.layout.meta.regions[*region].bytes).sum();
        let landing = Landing::new(self.clone(), unsealed, call);
        let (engine, begun) = (self.clone(), self.setup.now());
        let land = move |landed: Result<SlotMut, String>| {
            if landed.is_ok() {
                let took = engine.setup.now().saturating_sub(begun);
                engine.reporter().count(|stats| stats.costs.landing.add(took, bytes));
                engine.reporter().note(|| What::Landed { version, bytes, seconds: took.as_secs_f64() });
            }
            landing.land(landed);
        };
        staged.send_down(slot, version, look, fill, Box::new(land));
    }

    /// The work to do during the download: examining the chunks of the regions on the device.
    fn look(self: &Arc<Self>, unsealed: &Unsealed, regions: &[usize], is_partial: bool) -> LookAt {
        let Unsealed { name, layout, header, digests } = unsealed;
        let field = |region: &usize| Field::new(&layout.meta.regions[*region], layout.block_size, digests);
        let fields: Vec<Field> = regions.iter().map(field).collect();
        let (engine, name, operation) = (self.clone(), name.clone(), header.key.operation);
        let (body, block) = (layout.body_offset, layout.block_size);
        Box::new(move |device, spans| {
            let spans = spans.into_iter().map(|(at, span)| (at - body, span)).collect();
            if let Some(took) =
                engine.reducer.look(device, Looking { name: &name, operation, block, fields, spans, is_partial })
            {
                engine.reporter().count(|stats| {
                    stats.reduction.looked_on_device += 1;
                    stats.reduction.device_time += took;
                });
            }
        })
    }

    /// The bytes of a staged shard are in its slot, or will never be there: seals the shard, and casts this rank's vote.
    fn on_landed(&self, unsealed: Unsealed, call: &str, landed: Result<SlotMut, String>) {
        let (key, agreement, blocks) = (unsealed.header.key, unsealed.header.agreement, unsealed.digests.len());
        let is_open = self.books().is_open(key.operation);
        let placed = landed.and_then(|slot| match is_open {
            true => self.seal(unsealed, slot),
            false => Err("the ranks have given it up".into()),
        });
        let ballot = match &placed {
            Ok(placed) => {
                self.post(key.operation, placed);
                self.vote_on(agreement, call, placed)
            }
            Err(why) => {
                self.remains.lock().forget();
                let rank = self.setup.identity.rank;
                log::info!("event=not-landed rank={rank} version={} error={why:?}", key.version);
                self.refusal(why)
            }
        };
        self.enter_landed(key.operation, placed.ok(), ballot);
        // Touched, because memory that is merely promised is provided page by page on first use.
        let mut spare = bytemuck::zeroed_vec(blocks);
        spare.fill(Digest::default());
        *self.spare_digests.lock() = spare;
    }
}
