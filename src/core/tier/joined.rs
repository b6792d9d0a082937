//! Shards that refer to files of earlier checkpoints, read as what they stand for ([`crate::format::packed`]).
//!
//! [`join`] opens the sources of a packed shard on the same tier, and makes a [`FileShard`] of the whole shard: to whoever reads it, it is one
//! that lies in a file. Its digests are those of the capture, so what a source lacks or has wrong is found like any damage.
#![forbid(unsafe_code)]

mod stores;

pub use stores::packing_of;

use super::TierError;
use super::contract::{MANIFEST_MAX, Tier, read_whole};
use super::names::{Series, is_node_file, is_rank_file, rank_file};
use super::source::{FileShard, Source};
use super::storage::ReadFile;
use crate::base::Rank;
use crate::format::packed::{Packing, Placed, SourceKey, Stored};
use crate::format::shard::Head;
use crate::format::{Content, FormatError, Manifest, ShardMeta, manifest};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use stores::{At, OwnBytes, Store};

/// A packed shard with its sources, read as the shard that it stands for.
struct Joined {
    own: Store,
    packing: Arc<Packing>,
    sources: Vec<Store>,
}

/// A range of one of the files, and where it is wanted.
struct Wanted {
    /// 0: the own one, or the place of a source and 1.
    file: usize,
    at: At,
    bytes: usize,
    target: usize,
}

impl Wanted {
    fn end(&self) -> u64 {
        self.at.byte() + self.bytes as u64
    }
}

/// What lies so close together in a file is read in one go, of so many bytes at most.
const GAP_MAX: u64 = 64 << 10;
const READ_MAX: u64 = 1 << 20;

impl Joined {
    fn store(&self, file: usize) -> &Store {
        if file == 0 { &self.own } else { &self.sources[file - 1] }
    }

    /// Reads ranges of the files, in the order in which they lie there.
    fn fetch(&self, mut wanted: Vec<Wanted>, buffer: &mut [u8]) -> Result<(), TierError> {
        wanted.sort_unstable_by_key(|part| (part.file, part.at.byte()));
        let mut scratch = Vec::new();
        let mut rest = &wanted[..];
        while let [first, ..] = rest {
            let (from, mut end, mut count) = (first.at.byte(), first.end(), 1);
            for next in &rest[1..] {
                let is_near = next.file == first.file && next.at.byte() <= end + GAP_MAX;
                if !is_near || next.end().max(end) - from > READ_MAX {
                    break;
                }
                (end, count) = (end.max(next.end()), count + 1);
            }
            let (these, others) = rest.split_at(count);
            let store = self.store(first.file);
            if let [only] = these {
                store.read(only.at, 0, &mut buffer[only.target..only.target + only.bytes])?;
            } else {
                scratch.resize((end - from) as usize, 0);
                store.read(first.at, 0, &mut scratch)?;
                for part in these {
                    let inside = (part.at.byte() - from) as usize;
                    buffer[part.target..part.target + part.bytes]
                        .copy_from_slice(&scratch[inside..inside + part.bytes]);
                }
            }
            rest = others;
        }
        Ok(())
    }

    /// Where a range of an extent is, and in which file.
    fn place(&self, extent: &Placed, range: Range<u64>) -> Option<(usize, At)> {
        let inside = range.start - extent.at;
        let moved = |offset: u64| {
            let start = offset.checked_add(inside)?;
            Some(start..start.checked_add(range.end - range.start)?)
        };
        match extent.stored {
            Stored::Own => Some((0, At::Own(extent.own_before + inside))),
            Stored::Same { offset } => self.own.find(moved(offset)?).map(|at| (0, at)),
            Stored::In { source, offset } => {
                let store = self.sources.get(source as usize)?;
                store.find(moved(offset)?).map(|at| (source as usize + 1, at))
            }
        }
    }
}

impl ReadFile for Joined {
    fn len(&self) -> io::Result<u64> {
        Ok(self.packing.head.header.total_len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let header = &self.packing.head.header;
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= header.total_len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Between the regions there are zeros.
        buffer.fill(0);
        let body = header.body_offset;
        if offset < body {
            let head = &self.packing.head_bytes[offset as usize..end.min(body) as usize];
            buffer[..head.len()].copy_from_slice(head);
        }
        let bodies = offset.max(body) - body..end.max(body) - body;
        let mut wanted = Vec::new();
        for extent in self.packing.extents_in(bodies.clone()) {
            let range = extent.at.max(bodies.start)..extent.end().min(bodies.end);
            let (file, at) = self.place(extent, range.clone()).ok_or(io::ErrorKind::InvalidData)?;
            let target = (body + range.start - offset) as usize;
            wanted.push(Wanted { file, at, bytes: (range.end - range.start) as usize, target });
        }
        self.fetch(wanted, buffer).map_err(io::Error::other)
    }

    fn readers(&self) -> usize {
        self.own.shard.readers()
    }
}

/// Makes the shard that a raw one stands for: itself, unless it is packed. Its sources are looked for beside its own folder.
///
/// # Errors
/// [`TierError::Format`] if it is damaged or refers to what its source does not store itself; [`TierError::Source`] if a source cannot be opened.
///
/// # Blocking
/// On the tier.
pub fn join<T: Tier + ?Sized>(tier: &T, raw: FileShard) -> Result<FileShard, TierError> {
    if raw.head().header.content != Content::Packed {
        return Ok(raw);
    }
    let packing = Arc::new(packing_of(&raw)?);
    let (path, rank, series) = (raw.path().to_owned(), raw.head().header.rank, series_of(&raw));
    let beside = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let open = |source: &SourceKey| {
        let opened = open_source(tier, &series, beside, source, rank).and_then(Store::of);
        opened.map_err(|cause| lacks(&raw, source, cause))
    };
    let sources = packing.sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    joined(raw, packing, sources)
}

/// Joins a packed shard of whose sources one is missing or damaged on its own tier, with good copies of them on any of `tiers`. `None` if
/// that is no help: it is not packed, or all are good where it lies.
///
/// # Errors
/// As [`join`]: no tier has a good copy of a source.
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
    let packing = Arc::new(packing_of(&raw)?);
    let series = series_of(&raw);
    let mut is_help = false;
    let mut open = |source: &SourceKey| {
        let good = |tier: &dyn Tier| {
            let shard = open_source(tier, &series, &tier.series_path(&series), source, rank)?;
            Source::File(shard.clone()).verify(|_| ())?;
            Store::of(shard)
        };
        good(own).or_else(|cause| {
            is_help = true;
            let others = tiers.iter().filter(|tier| tier.kind() != own.kind());
            others.filter_map(|tier| good(&**tier).ok()).next().ok_or_else(|| lacks(&raw, source, cause))
        })
    };
    let sources = packing.sources.iter().map(&mut open).collect::<Result<Vec<_>, _>>()?;
    if is_help { joined(raw, packing, sources).map(Some) } else { Ok(None) }
}

/// Opens the shard of `rank` in a container file, with what it refers to taken from other tiers where its own lacks it.
///
/// # Errors
/// As [`Tier::open_shard`].
///
/// # Blocking
/// On the tier, and, where a source is missing, as [`mend`].
pub fn open_or_mend(
    tier: &dyn Tier,
    tiers: &[Arc<dyn Tier>],
    series: &Series,
    folder: &str,
    file: &str,
    rank: Rank,
) -> Result<FileShard, TierError> {
    match tier.open_shard(series, folder, file, rank) {
        Err(error @ TierError::Source { .. }) if tiers.iter().any(|other| other.kind() != tier.kind()) => {
            let path = tier.series_path(series).join(folder).join(file);
            mend(tier, tiers, &path, rank).and_then(|mended| mended.ok_or(error))
        }
        opened => opened,
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

/// A packed shard and its sources, all opened.
fn joined(raw: FileShard, packing: Arc<Packing>, sources: Vec<Store>) -> Result<FileShard, TierError> {
    let (kind, path) = (raw.tier(), raw.path().to_owned());
    let own = OwnBytes::new(&raw, packing.clone())?;
    let joined = Joined { own: Store { shard: raw, packed: Some(own) }, packing: packing.clone(), sources };
    if let Some(extent) = packing.extents.iter().find(|extent| joined.place(extent, extent.at..extent.end()).is_none())
    {
        let why = format!("its bytes from {} on refer to what their source does not store itself", extent.at);
        return Err(TierError::Format { tier: kind, path, source: FormatError::invalid("packed shard", why) });
    }
    Ok(FileShard::with_packing(kind, path, Arc::new(joined), packing.head.clone(), packing))
}

/// Opens all that a packed shard refers to on a tier, and makes sure that each range is stored there; with `bodies`, those of the shard that it
/// stands for, also that they are these bytes. Says what is wrong if that is not so, or cannot be read.
///
/// # Errors
/// [`TierError::Source`] if a source cannot be opened.
///
/// # Blocking
/// On the tier: for the tables of the sources, or for all bytes that are referred to.
pub fn check_sources(
    tier: &dyn Tier,
    series: &Series,
    packed: &FileShard,
    bodies: Option<&[u8]>,
) -> Result<Option<String>, TierError> {
    let Some(packing) = packed.packing() else { return Ok(None) };
    let folders = tier.series_path(series);
    let rank = packing.head.header.rank;
    let open = |source: &SourceKey| {
        let opened = open_source(tier, series, &folders, source, rank).and_then(Store::of);
        let path = folders.join(packing.head.header.key.folder());
        opened.map_err(|cause| TierError::Source {
            tier: tier.kind(),
            path,
            rank,
            key: source.key,
            cause: Box::new(cause),
        })
    };
    let sources = packing.sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut buffer = vec![0; if bodies.is_some() { CHECKED_AT_ONCE } else { 0 }];
    for extent in &packing.extents {
        let Stored::In { source, offset } = extent.stored else { continue };
        let (store, key) = (&sources[source as usize], &packing.sources[source as usize].key);
        let end = offset.checked_add(extent.length);
        let Some(at) = end.and_then(|end| store.find(offset..end)) else {
            return Ok(Some(format!("byte {} of its bodies is to be in {key}, which does not store it", extent.at)));
        };
        let Some(bodies) = bodies else { continue };
        for start in (0..extent.length).step_by(CHECKED_AT_ONCE) {
            let length = (extent.length - start).min(CHECKED_AT_ONCE as u64) as usize;
            if let Err(error) = store.read(at, start, &mut buffer[..length]) {
                return Ok(Some(error.to_string()));
            }
            let from = extent.at + start;
            if bodies.get(from as usize..from as usize + length) != Some(&buffer[..length]) {
                return Ok(Some(format!(
                    "what {key} stores for byte {from} of its bodies, or near it, is something else"
                )));
            }
        }
    }
    Ok(None)
}

/// Bytes of a source that are compared at once.
const CHECKED_AT_ONCE: usize = 1 << 20;

/// Opens the file with a rank's shard of a source, as it lies; the folders of the series are in `folders`.
///
/// # Errors
/// [`TierError`] if there is none, or one of another checkpoint.
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
    let Head { header, meta, .. } = shard.head();
    let is_it = (header.key, header.agreement, header.rank) == (source.key, source.agreement, rank)
        && header.content != Content::Parity
        && (&meta.job, &meta.group, &meta.name) == (&series.job, &series.group, &series.name);
    if is_it {
        return Ok(shard);
    }
    let found = format!("rank {} of {}/{}/{} {}", header.rank, meta.job, meta.group, meta.name, header.key);
    let expected = format!("rank {rank} of {}/{}/{} {}", series.job, series.group, series.name, source.key);
    Err(TierError::Foreign { tier: tier.kind(), path: shard.path().to_owned(), found, expected })
}

/// The container in which a rank stands with those of its node: the manifest names it, or, where that cannot be read, a look into each shows it.
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

/// What the packed shards in a checkpoint's folder refer to, as far as they can be read: for whoever cannot ask the manifest.
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
            sources
                .extend(packed.and_then(|raw| packing_of(&raw).ok()).into_iter().flat_map(|packing| packing.sources));
        }
    }
    sources.sort_unstable();
    sources.dedup();
    sources
}

#[cfg(test)]
mod tests;
