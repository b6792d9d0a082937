//! Shards that refer to files of earlier checkpoints, read as the whole shards that they stand for
//! ([`crate::format::packed`]).
//!
//! [`join`] opens the sources of a packed shard on the same tier, and makes a [`FileShard`] of the whole shard. For its readers, that is a
//! shard like any other in a file. Its digests were made at the capture, so anything that a source lacks or has wrong is found like any
//! other damage. Where each byte is stored is read together with the first bytes of the bodies: a look at a hundred versions does not read
//! the tables of each version and of all its sources.
#![forbid(unsafe_code)]

mod stores;

pub use stores::packing_of;

use super::TierError;
use super::contract::{MANIFEST_MAX, Tier, read_whole};
use super::names::{Series, is_node_file, is_rank_file, rank_file};
use super::source::{FileShard, Source, check_identity};
use super::storage::ReadFile;
use crate::base::sync::{Lock, Order};
use crate::base::{CheckpointKey, Rank};
use crate::format::packed::{Outline, Packing, SourceKey, Stored};
use crate::format::shard::Head;
use crate::format::{Content, Manifest, ShardMeta, manifest};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use stores::{Store, Stores, StoresError, outline_of};

/// A packed shard with its sources, read as the shard that it stands for.
struct Joined {
    own: FileShard,
    outline: Outline,
    sources: Vec<FileShard>,
    /// The tables of the shard and its sources, which are read with the first bytes of the bodies. A look at what
    /// exists spends no time on them.
    stores: Lock<Option<Arc<Stores>>>,
}

impl Joined {
    fn stores(&self) -> Result<Arc<Stores>, TierError> {
        let mut stores = self.stores.lock();
        if let Some(stores) = &*stores {
            return Ok(stores.clone());
        }
        let opened = Stores::open(&self.own, &self.outline, &self.sources).map_err(|error| match error {
            StoresError::Own(error) => error,
            StoresError::Source(of) => lacks(&self.own, &of.0, of.1),
        })?;
        Ok(stores.insert(Arc::new(opened)).clone())
    }
}

impl ReadFile for Joined {
    fn len(&self) -> io::Result<u64> {
        Ok(self.outline.head.header.total_len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let header = &self.outline.head.header;
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= header.total_len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let body = header.body_offset;
        let (head, bodies) = buffer.split_at_mut((offset.max(body) - offset).min(end - offset) as usize);
        if !head.is_empty() {
            head.copy_from_slice(&self.outline.head_bytes[offset as usize..offset as usize + head.len()]);
        }
        if bodies.is_empty() {
            return Ok(());
        }
        let stores = self.stores().map_err(io::Error::other)?;
        stores.read(offset.max(body) - body, bodies).map_err(io::Error::other)
    }

    fn readers(&self) -> usize {
        self.own.readers()
    }
}

/// Makes the shard that a raw one stands for: the raw shard itself, unless it is packed. The sources are looked for in the
/// folders next to its own.
///
/// # Errors
/// [`TierError::Format`] if the shard's description of itself is damaged; [`TierError::Source`] if a source cannot be opened. If it
/// refers to bytes that its source does not store, this is found when its bodies are read.
///
/// # Blocking
/// On the tier.
pub fn join<T: Tier + ?Sized>(tier: &T, raw: FileShard) -> Result<FileShard, TierError> {
    if raw.head().header.content != Content::Packed {
        return Ok(raw);
    }
    let (path, rank, series) = (raw.path().to_owned(), raw.head().header.rank, series_of(&raw));
    let beside = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    join_with(raw, |source| open_source(tier, &series, beside, source, rank))
}

/// Joins a raw shard, if it is packed, with its sources, which `open` opens in their raw form.
fn join_with(
    raw: FileShard,
    mut open: impl FnMut(&SourceKey) -> Result<FileShard, TierError>,
) -> Result<FileShard, TierError> {
    if raw.head().header.content != Content::Packed {
        return Ok(raw);
    }
    let outline = outline_of(&raw)?;
    let open = |source: &SourceKey| open(source).map_err(|cause| lacks(&raw, source, cause));
    let sources = outline.sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    Ok(joined(raw, outline, sources))
}

/// A packed shard and its sources, all opened.
fn joined(raw: FileShard, outline: Outline, sources: Vec<FileShard>) -> FileShard {
    let joined = Joined { own: raw.clone(), outline: outline.clone(), sources, stores: Lock::at(Order::Outer, None) };
    FileShard::joined(&raw, &outline, Arc::new(joined))
}

/// Joins a packed shard with good copies of its sources from any of `tiers`, if a source is missing or damaged on the shard's own tier.
/// `None` if that does not help: the shard is not packed, or all its sources on its own tier are good.
///
/// # Errors
/// As [`join`], if no tier has a good copy of a source.
///
/// # Blocking
/// On the tiers: each copy of a source is read as a whole.
pub fn mend(own: &dyn Tier, tiers: &[Arc<dyn Tier>], path: &Path, rank: Rank) -> Result<Option<FileShard>, TierError> {
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    let (handle, entry) = own.open_entry(path.to_owned(), folder, rank)?;
    let raw = FileShard::open_any(own.kind(), path.to_owned(), handle.into(), &entry)?;
    if raw.head().header.content != Content::Packed {
        return Ok(None);
    }
    let outline = outline_of(&raw)?;
    let series = series_of(&raw);
    let mut is_help = false;
    let mut open = |source: &SourceKey| {
        let good = |tier: &dyn Tier| {
            let shard = open_source(tier, &series, &tier.series_path(&series), source, rank)?;
            Source::File(shard.clone()).verify(|_| ())?;
            Ok(shard)
        };
        good(own).or_else(|cause| {
            is_help = true;
            let others = tiers.iter().filter(|tier| tier.kind() != own.kind());
            others.filter_map(|tier| good(&**tier).ok()).next().ok_or_else(|| lacks(&raw, source, cause))
        })
    };
    let sources = outline.sources.iter().map(&mut open).collect::<Result<Vec<_>, _>>()?;
    Ok(is_help.then(|| joined(raw, outline, sources)))
}

/// Opens the shard of `rank` in a container file. What it refers to and its own tier lacks is taken from other tiers.
///
/// # Errors
/// As [`Tier::open_shard`].
///
/// # Blocking
/// On the tier. If a source is missing, as [`mend`].
pub fn open_or_mend(
    tier: &dyn Tier,
    tiers: &[Arc<dyn Tier>],
    series: &Series,
    folder: &str,
    file: &str,
    rank: Rank,
) -> Result<FileShard, TierError> {
    let path = tier.series_path(series).join(folder).join(file);
    or_mended(tier, tiers, &path, rank, tier.open_shard(series, folder, file, rank))
}

fn or_mended(
    tier: &dyn Tier,
    tiers: &[Arc<dyn Tier>],
    path: &Path,
    rank: Rank,
    opened: Result<FileShard, TierError>,
) -> Result<FileShard, TierError> {
    match opened {
        Err(error @ TierError::Source { .. }) if tiers.iter().any(|other| other.kind() != tier.kind()) => {
            mend(tier, tiers, path, rank).and_then(|mended| mended.ok_or(error))
        }
        opened => opened,
    }
}

/// A look at the files of one rank and one series on a tier. It opens each file once, however many others refer to that file.
pub struct Look<'t> {
    tier: &'t dyn Tier,
    series: &'t Series,
    rank: Rank,
    /// By folder: the file's shard, and the checkpoint to which it belongs according to its container.
    opened: HashMap<String, (FileShard, CheckpointKey)>,
}

impl<'t> Look<'t> {
    /// A look that has not opened anything yet.
    pub fn new(tier: &'t dyn Tier, series: &'t Series, rank: Rank) -> Look<'t> {
        Look { tier, series, rank, opened: HashMap::new() }
    }

    /// Opens the shard in the rank's own file in a folder, as [`open_or_mend`] does.
    ///
    /// # Errors
    /// As [`Tier::open_shard`].
    ///
    /// # Blocking
    /// As [`open_or_mend`].
    pub fn open_or_mend(&mut self, tiers: &[Arc<dyn Tier>], folder: &str) -> Result<FileShard, TierError> {
        let (raw, key) = self.raw(folder)?;
        let path = raw.path().to_owned();
        let shard = or_mended(self.tier, tiers, &path, self.rank, join_with(raw, |source| self.source(source)))?;
        check_identity(self.tier.kind(), &path, shard.head(), self.series, &key, self.rank)?;
        Ok(shard)
    }

    fn source(&mut self, source: &SourceKey) -> Result<FileShard, TierError> {
        match self.raw(&source.key.folder()) {
            Ok((raw, _)) => check_source(&raw, self.series, source, self.rank).map(|()| raw),
            Err(error) if error.is_absent() => {
                open_source(self.tier, self.series, &self.tier.series_path(self.series), source, self.rank)
            }
            Err(error) => Err(error),
        }
    }

    fn raw(&mut self, folder: &str) -> Result<(FileShard, CheckpointKey), TierError> {
        if let Some(opened) = self.opened.get(folder) {
            return Ok(opened.clone());
        }
        let path = self.tier.series_path(self.series).join(folder).join(rank_file(self.rank));
        let (file, entry) = self.tier.open_entry(path.clone(), folder, self.rank)?;
        let raw = FileShard::open_any(self.tier.kind(), path, file.into(), &entry)?;
        self.opened.insert(folder.to_owned(), (raw.clone(), entry.key));
        Ok((raw, entry.key))
    }
}

fn series_of(raw: &FileShard) -> Series {
    let ShardMeta { job, group, name, .. } = &*raw.head().meta;
    Series { job: job.clone(), group: group.clone(), name: name.clone() }
}

fn lacks(raw: &FileShard, source: &SourceKey, cause: TierError) -> TierError {
    let (tier, path, rank) = (raw.tier(), raw.path().to_owned(), raw.head().header.rank);
    TierError::Source { tier, path, rank, key: source.key, cause: Box::new(cause) }
}

/// Opens everything on a tier to which a packed shard refers, and checks that each range is stored there. With `bodies`, the bodies of the
/// shard that it stands for, also checks that the bytes are the same. If a check fails or something cannot be read, returns what is wrong.
///
/// # Errors
/// [`TierError::Source`] if a source cannot be opened.
///
/// # Blocking
/// On the tier: for the tables of the sources, or for all bytes to which the shard refers.
pub fn check_sources(
    tier: &dyn Tier,
    series: &Series,
    packing: &Packing,
    bodies: Option<&[u8]>,
) -> Result<Option<String>, TierError> {
    let outline = &packing.outline;
    let folders = tier.series_path(series);
    let rank = outline.head.header.rank;
    let open = |source: &SourceKey| {
        let opened = open_source(tier, series, &folders, source, rank).and_then(Store::of);
        let path = folders.join(outline.head.header.key.folder());
        opened.map_err(|cause| TierError::Source {
            tier: tier.kind(),
            path,
            rank,
            key: source.key,
            cause: Box::new(cause),
        })
    };
    let sources = outline.sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut buffer = vec![0; if bodies.is_some() { CHECKED_AT_ONCE } else { 0 }];
    for extent in &packing.extents {
        let Stored::In { source, offset } = extent.stored else { continue };
        let (store, key) = (&sources[source as usize], &outline.sources[source as usize].key);
        let end = offset.checked_add(extent.length);
        let Some(at) = end.and_then(|end| store.find(offset..end)) else {
            return Ok(Some(format!("byte {} of its bodies should be in {key}, which does not store it", extent.at)));
        };
        let Some(bodies) = bodies else { continue };
        for start in (0..extent.length).step_by(CHECKED_AT_ONCE) {
            let length = (extent.length - start).min(CHECKED_AT_ONCE as u64) as usize;
            if let Err(error) = store.read(at, start, &mut buffer[..length]) {
                return Ok(Some(error.to_string()));
            }
            let from = extent.at + start;
            if bodies.get(from as usize..from as usize + length) != Some(&buffer[..length]) {
                return Ok(Some(format!("{key} stores something else for byte {from} of its bodies, or near it")));
            }
        }
    }
    Ok(None)
}

/// Bytes of a source that are compared at once.
const CHECKED_AT_ONCE: usize = 1 << 20;

/// Opens the file with a rank's shard of a source, in its raw form. `folders` is the path that contains the folders of the series.
///
/// # Errors
/// [`TierError`] if there is no such file, or the file belongs to another checkpoint.
///
/// # Blocking
/// On the tier.
pub fn open_source<T: Tier + ?Sized>(
    tier: &T,
    series: &Series,
    folders: &Path,
    source: &SourceKey,
    rank: Rank,
) -> Result<FileShard, TierError> {
    let folder = folders.join(source.key.folder());
    let open = |file: &str| {
        let path = folder.join(file);
        let (handle, entry) = tier.open_entry(path.clone(), &source.key.folder(), rank)?;
        FileShard::open_any(tier.kind(), path, handle.into(), &entry)
    };
    let shard = match open(&rank_file(rank)) {
        Err(absent) if absent.is_absent() => open(&container_of(tier, &folder, rank)?.ok_or(absent)?)?,
        opened => opened?,
    };
    check_source(&shard, series, source, rank)?;
    Ok(shard)
}

/// Is this the shard that was looked for?
fn check_source(shard: &FileShard, series: &Series, source: &SourceKey, rank: Rank) -> Result<(), TierError> {
    let Head { header, meta, .. } = shard.head();
    let is_it = (header.key, header.agreement, header.rank) == (source.key, source.agreement, rank)
        && header.content != Content::Parity
        && (&meta.job, &meta.group, &meta.name) == (&series.job, &series.group, &series.name);
    if is_it {
        return Ok(());
    }
    let found = format!("rank {} of {}/{}/{} {}", header.rank, meta.job, meta.group, meta.name, header.key);
    let expected = format!("rank {rank} of {}/{}/{} {}", series.job, series.group, series.name, source.key);
    Err(TierError::Foreign { tier: shard.tier(), path: shard.path().to_owned(), found, expected })
}

/// The container that holds a rank together with the other ranks of its node. The manifest names it; if the manifest cannot be read,
/// each container is examined.
fn container_of<T: Tier + ?Sized>(tier: &T, folder: &Path, rank: Rank) -> Result<Option<String>, TierError> {
    let manifest = tier.open(&folder.join(manifest::FILE_NAME)).and_then(|file| read_whole(&*file, MANIFEST_MAX));
    let manifest = manifest.ok().and_then(|bytes| Manifest::decode(&bytes).ok());
    if let Some(container) = manifest.as_ref().and_then(|manifest| manifest.container_of(rank)) {
        return Ok(Some(container.file.clone()));
    }
    let names = tier.entries(folder)?.into_iter().map(|entry| entry.name).filter(|name| is_node_file(name));
    let holds = |name: &String| {
        let opened = tier.open_container(&folder.join(name));
        opened.is_ok_and(|(container, _)| container.entries.iter().any(|entry| entry.rank == rank))
    };
    Ok(names.into_iter().find(holds))
}

/// What the packed shards in a checkpoint's folder refer to, insofar as they can be read. Meant for callers that cannot ask the manifest.
///
/// # Blocking
/// On the tier, for the tables of every shard there.
pub fn sources_in(tier: &dyn Tier, folder: &Path) -> Vec<SourceKey> {
    let mut sources = Vec::new();
    for entry in tier.entries(folder).unwrap_or_default() {
        if !is_node_file(&entry.name) && !is_rank_file(&entry.name) {
            continue;
        }
        let path = folder.join(&entry.name);
        let Ok((container, file)) = tier.open_container(&path) else { continue };
        let file: Arc<dyn ReadFile> = file.into();
        for entry in &container.entries {
            let raw = FileShard::open_any(tier.kind(), path.clone(), file.clone(), entry);
            let packed = raw.ok().filter(|raw| raw.head().header.content == Content::Packed);
            let outline = packed.and_then(|raw| outline_of(&raw).ok());
            sources.extend(outline.iter().flat_map(|outline| &*outline.sources));
        }
    }
    sources.sort_unstable();
    sources.dedup();
    sources
}

#[cfg(test)]
mod tests;
