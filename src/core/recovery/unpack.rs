//! Makes a checkpoint whole in its place: afterwards its files refer to no others, and it can be copied away by itself.
//!
//! Each rank's shard is written to a file of that rank, joined with its sources and checked block by block, then the manifest that names
//! these files, and last the containers go that nothing names any more. Stopped at any point it leaves a checkpoint that is what it was:
//! until the manifest is another one it refers to its sources, and a file of a rank is read before its node's container.
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

/// Bytes of a write.
const WRITE_BYTES: u64 = 4 << 20;

/// Makes one checkpoint whole, whose manifest this is; no run may be at work on it. `unique` is in the names of unfinished files. Returns the
/// bytes that were written.
///
/// # Errors
/// [`TierError`]: a shard or what it refers to is damaged or missing, or something could not be written. Nothing is lost, and it may be
/// tried again.
///
/// # Blocking
/// On the tier, for reading and writing all shards.
pub fn unpack(tier: &dyn Tier, series: &Series, manifest: &Manifest, unique: &str) -> Result<u64, TierError> {
    if manifest.sources.is_empty() {
        return Ok(0);
    }
    let folder = tier.folder_path(series, &manifest.key);
    // What one before has left that was stopped.
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
