//! Makes a checkpoint whole in place: afterwards, its files refer to no others, and it can be copied elsewhere by itself.
//!
//! First, each rank's shard is joined with its sources, checked block by block, and written to a file of that rank. Then the manifest that
//! names these files is written. Last, the containers that nothing names any more are deleted. If this is stopped at any point, the
//! checkpoint is still what it was: it refers to its sources until its manifest is replaced, and a rank's own file is read before the
//! container of its node.
#![forbid(unsafe_code)]

use crate::base::Rank;
use crate::format::{ContainerEntry, ContainerInfo, Manifest};
use crate::tier::names::{Series, rank_file};
use crate::tier::source::Source;
use crate::tier::{Tier, TierError, Writers};
use crate::transfer::write::{WriteJob, WriteSpec};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// The number of bytes in a write.
const WRITE_BYTES: u64 = 4 << 20;

/// Makes the checkpoint with this manifest whole; no run may be working on it. The names of unfinished files contain `unique`. Returns the
/// number of bytes that were written.
///
/// # Errors
/// [`TierError`]: a shard or what it refers to is damaged or missing, or something could not be written. Nothing is lost, and the call may
/// be repeated.
///
/// # Blocking
/// On the tier, for reading and writing all shards.
pub fn unpack(tier: &dyn Tier, series: &Series, manifest: &Manifest, unique: &str) -> Result<u64, TierError> {
    if manifest.sources.is_empty() {
        return Ok(0);
    }
    let folder = tier.folder_path(series, &manifest.key);
    // These were left by an earlier call that was stopped.
    for entry in tier.entries(&folder)?.iter().filter(|entry| entry.name.ends_with(".tmp")) {
        tier.discard_abandoned(&folder.join(&entry.name));
    }
    let (mut containers, mut bytes) = (Vec::new(), 0);
    for container in &manifest.containers {
        for rank in &container.ranks {
            let info = write_whole(tier, series, manifest, &container.file, *rank, unique)?;
            bytes += info.bytes;
            containers.push(info);
        }
    }
    containers.sort_by(|one, other| one.file.cmp(&other.file));
    let named: BTreeSet<&String> = containers.iter().map(|container| &container.file).collect();
    let whole = Manifest { containers: containers.clone(), sources: Vec::new(), ..manifest.clone() };
    tier.write_manifest(series, &whole)?;
    for container in manifest.containers.iter().filter(|container| !named.contains(&container.file)) {
        let path = folder.join(&container.file);
        match tier.remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(TierError::io(tier.kind(), "delete", &path, source));
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Writes the whole shard of a rank to a file of its own.
fn write_whole(
    tier: &dyn Tier,
    series: &Series,
    manifest: &Manifest,
    file: &str,
    rank: Rank,
    unique: &str,
) -> Result<ContainerInfo, TierError> {
    let shard = tier.open_shard(series, &manifest.key.folder(), file, rank)?;
    let (own, length) = (rank_file(rank), shard.head().header.total_len);
    let path = tier.folder_path(series, &manifest.key).join(&own);
    let spec = WriteSpec {
        operation: manifest.key.operation,
        tier: tier.kind(),
        started: Duration::ZERO,
        sources: vec![(rank, Source::File(shard))],
        upload: tier.begin(&path, Writers::Rival(unique))?,
        file: own,
        entries: vec![ContainerEntry { key: manifest.key, rank, offset: 0, length }],
        shared: None,
        write_bytes: WRITE_BYTES,
    };
    WriteJob::run_alone(spec, &mut None, |_| ())
}
