//! The choice of those regions of a capture that are copied after it ([`super::live`]).
#![forbid(unsafe_code)]

use super::checkpoint::CaptureSpec;
use super::engine::Engine;
use super::live::{LiveRegion, Watched};
use crate::config::HostWrites;
use crate::format::shard::Layout;
use crate::live::{Mappings, Watch, WatchError, page_bytes};
use crate::region::RegionData;
use std::ops::Range;
use std::sync::Arc;

/// Shorter regions are copied at once, because the copy takes no longer than their protection, which may cost a mapping for each region.
const SHORTEST: u64 = 1 << 20;

impl Engine {
    /// Protects those live regions of a capture for which it is worthwhile; all other live regions are copied before the capture returns,
    /// like any other region.
    ///
    /// # Blocking
    /// For the copy that follows the previous capture.
    pub(super) fn watch_live(&self, spec: &mut CaptureSpec<'_>, layout: &Layout, is_possible: bool) -> Option<Watched> {
        let is_live = |data: &RegionData<'_>| matches!(data, RegionData::Live(_));
        if !spec.regions.iter().any(|saved| is_live(&saved.data)) {
            return None;
        }
        let how = self.setup.config.job.offload.host_writes;
        let watch = match how {
            _ if !is_possible || self.setup.is_inline || layout.block_size < page_bytes() as u64 => None,
            HostWrites::Copied => None,
            HostWrites::Declared => Some(None),
            HostWrites::Watched => self.lives.watch().inspect_err(|why| self.say_copied(why)).ok().map(Some),
        };
        let watched = watch.and_then(|watch| self.watch_regions(spec, layout, watch));
        let left: Vec<&str> = watched.iter().flat_map(Watched::names).collect();
        let others = spec.regions.iter_mut().filter(|saved| !left.contains(&saved.region.name.as_str()));
        let at_once = others.map(|saved| u64::from(saved.copy_at_once())).sum::<u64>();
        self.lives.count_at_once(at_once);
        watched
    }

    fn say_copied(&self, why: &WatchError) {
        self.desk.note_once("live-copied", || {
            format!(
                "event=live-copied: memory that was saved as live is copied before the capture returns: {why}. Where the program declares all that \
                 it writes there (before_write), offload.host_writes = \"declared\" does without; said once"
            )
        });
    }

    fn watch_regions(&self, spec: &CaptureSpec<'_>, layout: &Layout, watch: Option<Arc<Watch>>) -> Option<Watched> {
        let busy = self.lives.begin();
        let (mut regions, mut first, mut mappings) = (Vec::new(), 0, None);
        for (placed, saved) in layout.meta.regions.iter().zip(&spec.regions) {
            let RegionData::Live(memory) = &saved.data else { continue };
            let is_worth_it = || self.lives.is_worth_it(&placed.name);
            if memory.bytes() < SHORTEST || !is_worth_it() {
                continue;
            }
            let (range, page) = (memory.range(), page_bytes());
            let whole = range.start & !(page - 1)..range.end.next_multiple_of(page);
            // If two regions share a page, a write that is let pass for one of them would also be let pass for the other.
            if regions.iter().any(|other: &LiveRegion| other.meets(&whole)) {
                continue;
            }
            let protected = match &watch {
                None => None,
                Some(watch) => {
                    let pages = range.start.next_multiple_of(page)..range.end & !(page - 1);
                    match watch.protect(pages, mappings.get_or_insert_with(Mappings::now)) {
                        Ok(protected) => Some(protected),
                        Err(why) => {
                            self.say_copied(&why);
                            continue;
                        }
                    }
                }
            };
            let start = placed.first_block as usize;
            let blocks = start..start + placed.blocks(layout.block_size) as usize;
            let at = layout.body_offset + placed.offset;
            regions.push(LiveRegion::new(&placed.name, memory.clone(), at, blocks.clone(), first, protected));
            first += blocks.len();
        }
        (!regions.is_empty()).then(|| Watched::new(regions, layout.block_size as usize, busy))
    }

    /// The program is about to write to these addresses.
    pub fn before_write(&self, addresses: &Range<usize>) {
        self.lives.before(addresses);
    }

    /// Waits until no checkpoint needs live host memory any more.
    pub(crate) fn settle_live(&self) {
        self.lives.settle();
    }
}
