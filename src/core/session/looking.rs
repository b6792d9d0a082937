//! Finds out what the root reports in its line when a session opens. File systems may be slow, and the line must not delay the session.
#![forbid(unsafe_code)]

use super::open::Lost;
use super::summary::TierState;
use crate::base::Generation;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::threads::spawn;
use crate::config::{Config, JobConfig};
use crate::coordination::join;
use crate::format::shard::Head;
use crate::format::supervision::SeriesStatus;
use crate::segment::{OldSegment, OldSlot, Segment};
use crate::tier::{Means, Tier, TierId};
use crate::transfer::Identity;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// How long the opening line waits for the file systems.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// What was found in a directory.
pub(super) struct Seen {
    tier: TierId,
    free: Option<u64>,
    /// The newest version with a manifest, for each series.
    newest: Vec<(String, Generation, u64)>,
}

/// Looks at the directories in use. Returns `None` if they have not all answered within `limit`; the thread that waits for them then ends
/// by itself.
pub(super) fn look_within(limit: Duration, tiers: Vec<Arc<dyn Tier>>, identity: &Identity) -> Option<Vec<Seen>> {
    let (identity, (tell, told)) = (identity.clone(), sync_channel(1));
    let all = move || _ = tell.send(tiers.iter().map(|tier| look(&**tier, &identity)).collect());
    spawn("bvk-look".into(), all).inspect_err(|error| log::warn!("event=no-thread error={error}")).ok()?;
    told.recv_timeout(limit).ok()
}

fn look(tier: &dyn Tier, identity: &Identity) -> Seen {
    let mut newest = Vec::new();
    for name in tier.names(&identity.job, &identity.group).unwrap_or_default() {
        let folders = tier.survey(&identity.series(&name)).unwrap_or_default();
        newest.extend(folders.iter().find(|folder| folder.committed).map(|at| (name, at.generation, at.version)));
    }
    Seen { tier: tier.kind(), free: tier.free_bytes(), newest }
}

/// The state of the tiers, nearest first.
pub(super) fn tiers(
    config: &Config,
    memory: Option<&Segment>,
    used: &[Arc<dyn Tier>],
    seen: Option<&[Seen]>,
    lost: &[Lost],
) -> Vec<(TierId, TierState)> {
    let folder = |path: &std::path::Path| path.display().to_string();
    let place = |tier: TierId| match tier.spec().means {
        Means::Memory => memory.map(|_| folder(&config.node.memory_directory)),
        _ => used.iter().find(|it| it.kind() == tier).map(|it| folder(it.root())),
    };
    // A tier that neither the configuration nor the default switches on is not mentioned.
    let is_known = |tier: &TierId| [&config.job, &JobConfig::default()].iter().any(|job| tier.wish(job).is_enabled);
    let all = TierId::all().filter(|tier| tier.spec().means != Means::Peers).filter(is_known);
    let all = all.map(|tier| (tier, tier.wish(&config.job).is_enabled.then(|| place(tier).unwrap_or_default())));
    let state = |(tier, place): (TierId, Option<String>)| {
        let is_it = |seen: &&Seen| seen.tier == tier;
        let state = match (lost.iter().find(|(lost, _)| *lost == tier), place) {
            (Some((_, culprits)), _) => TierState::Lost(join(culprits)),
            (None, None) => TierState::Disabled,
            (None, Some(place)) => TierState::On {
                place,
                bytes: match tier {
                    TierId::MEMORY => memory.map(Segment::capacity),
                    _ => seen.and_then(|seen| seen.iter().find(is_it)?.free),
                },
            },
        };
        (tier, state)
    };
    all.map(state).collect()
}

/// The series of a slot, as the head of its shard names it.
fn name_of(segment: &OldSegment, slot: &OldSlot) -> Option<String> {
    let head = Head::decode(segment.bytes(slot).ok()?).ok()?;
    Some(head.meta.name.clone())
}

/// The newest version of each series on a tier that the root can see. In directories, versions with a manifest count; in memory, versions
/// whose slot is sealed and intact. An election may choose otherwise, because it asks all ranks.
pub(super) fn found(seen: &[Seen], old: &[OldSegment]) -> Vec<SeriesStatus> {
    let mut newest: BTreeMap<String, (Generation, u64, TierId)> = BTreeMap::new();
    for (tier, (name, generation, version)) in seen.iter().flat_map(|seen| seen.newest.iter().map(|at| (seen.tier, at)))
    {
        let found = (*generation, *version, tier);
        newest.entry(name.clone()).and_modify(|known| *known = (*known).max(found)).or_insert(found);
    }
    for (segment, slot) in old.iter().flat_map(|segment| segment.slots().iter().map(move |slot| (segment, slot))) {
        // A version whose verdict was not heard before the run was killed may nevertheless have been committed, so every intact slot
        // counts.
        if !slot.intact {
            continue;
        }
        let known = newest.keys().find(|name| text_hash(name) == slot.name).cloned();
        let Some(name) = known.or_else(|| name_of(segment, slot)) else { continue };
        let found = (segment.header().generation, slot.version, TierId::MEMORY);
        let entry = newest.entry(name).or_insert(found);
        *entry = (*entry).max(found);
    }
    let series = newest.into_iter().map(|(name, (_, version, tier))| SeriesStatus {
        name,
        level: tier.name().into(),
        version,
        unix: 0.0,
    });
    series.collect()
}
