//! What a tier whose files are written and read must do, as a trait: a directory tree, or an object store.
//!
//! A [`Tier`] keeps files in folders below its root. The parts of a checkpoint and the names of its files are the same on every
//! tier, and the provided methods define them; an implementor says how a file gets there whole or not at all, how it is read,
//! listed and removed, and whether several processes can tell who came first ([`Tier::records`]).
#![forbid(unsafe_code)]

use super::error::TierError;
use super::joined::join;
use super::names::{Series, is_component, is_node_file, is_rank_file, parse_rank_file};
use super::records::Records;
use super::source::{FileShard, check_identity};
use super::spec::TierId;
use super::storage::{Entry, ReadFile, Stat, Storage, read_range};
use crate::base::{CheckpointKey, Clock, Generation, Incarnation, Rank};
use crate::catalog::Folder;
use crate::config::Config;
use crate::format::container::{FOOTER_LEN, Footer};
use crate::format::{Container, ContainerEntry, ContainerInfo, Content, FormatError, Manifest, manifest};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A manifest lists ranks with four bytes each; 64 MiB is the metadata limit of the format.
pub(super) const MANIFEST_MAX: u64 = 64 << 20;

/// What a tier is made from.
pub struct Around<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The directory to which relative paths refer.
    pub directory: &'a Path,
    /// The file system that all nodes share.
    pub storage: &'a Arc<dyn Storage>,
}

/// Who writes a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writers<'a> {
    /// One process. No other file is in its way.
    One,
    /// The ranks of a node, each its own slice. Allowed only where [`super::Gathering::Slices`] says so.
    Node,
    /// One of several writers that are unaware of each other and write the same content: the last one to publish wins. The
    /// name belongs to this writer alone.
    Rival(&'a str),
}

/// A file that is being written, which nobody sees before it is published.
///
/// # Contract
/// Threads may write different ranges at the same time, but each byte only once. [`Upload::reserve`] comes first and gives the minimum
/// length of the file. After [`Upload::sync`] everything that this process has written survives; [`Upload::publish`] then makes the whole
/// file appear under its name. Bytes that were never written read as zeros. After any error the file is condemned: the caller discards it
/// and starts over. Dropping an upload that was neither published nor discarded leaves at most what [`Tier::remove`] removes with the
/// folder, or what the store deletes by itself.
pub trait Upload: Send + Sync {
    /// The tier on which the file is.
    fn kind(&self) -> TierId;

    /// The path that messages show.
    fn path(&self) -> &Path;

    /// Reserves room for the first `length` bytes.
    ///
    /// # Errors
    /// [`TierError::Io`], usually that the file system is full.
    fn reserve(&self, length: u64) -> Result<(), TierError>;

    /// Writes a piece.
    ///
    /// # Errors
    /// [`TierError::Io`]; the file is condemned.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), TierError>;

    /// Makes what this process wrote durable.
    ///
    /// # Errors
    /// [`TierError::Io`]; the file is condemned.
    fn sync(&self) -> Result<(), TierError>;

    /// Gives the durable file its name, durably.
    ///
    /// # Errors
    /// [`TierError::Io`]; recovery then determines whether the name was taken.
    fn publish(&self) -> Result<(), TierError>;

    /// Removes what was written. Errors are only logged.
    fn discard(&self);

    /// What was written, so that it can be read before it is published.
    ///
    /// # Errors
    /// `Unsupported` where a file cannot be read before it is published.
    fn read_back(&self) -> io::Result<Box<dyn ReadFile>>;
}

/// A durable place for checkpoints.
///
/// # Contract
/// Paths begin with [`Tier::root`]. Every method may block on the place, and may be called by many threads. A file that has its name is
/// whole and durable. [`Tier::list`] shows it at once, or after a while on a store whose lists lag, which costs a restart at most one
/// version ([`Tier::open`] of a known name does not depend on the list). Every implementor runs `tests/contract_tier.rs`.
pub trait Tier: Send + Sync {
    /// Which tier this is; [`TierId::spec`] tells the rest.
    fn kind(&self) -> TierId;

    /// Where the tier is, as messages show it.
    fn root(&self) -> &Path;

    /// Begins a file, and makes the folders above it.
    ///
    /// # Errors
    /// [`TierError::Io`] naming the path and the answer.
    fn begin(&self, file: &Path, writers: Writers<'_>) -> Result<Box<dyn Upload>, TierError>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    fn open(&self, file: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// The entries of a folder, by name.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;

    /// What is known about a file.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    fn stat(&self, file: &Path) -> io::Result<Stat>;

    /// Writes or replaces a small file: whole and durable, or not at all.
    ///
    /// # Errors
    /// The error of the storage.
    fn put(&self, file: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Removes a file. A missing file is not an error.
    ///
    /// # Errors
    /// The error of the storage.
    fn remove_file(&self, file: &Path) -> io::Result<()>;

    /// Removes an empty folder, where folders exist as such. A folder that is not empty stays, which is not an error.
    ///
    /// # Errors
    /// The error of the storage.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;

    /// The id of the store at the root: the existing one, or `fresh`, which is then recorded. Used only for tiers that all nodes share.
    ///
    /// # Errors
    /// [`TierError::Io`] if the place cannot be used or belongs to somebody else.
    ///
    /// # Blocking
    /// Up to half a minute, if somebody else has begun to write the id.
    fn hold_store(&self, fresh: Incarnation, clock: &dyn Clock) -> Result<Incarnation, TierError>;

    /// Takes hold of the store at the root and returns its id; `None` if there is no store.
    ///
    /// # Errors
    /// [`TierError::Io`] if the place cannot be used or belongs to somebody else, or if its id file holds no id.
    fn find_store(&self) -> Result<Option<Incarnation>, TierError>;

    /// The small files by which several processes find out who came first.
    fn records(&self) -> Arc<dyn Records>;

    /// Can this place tell who came first? If it cannot, a run on it cannot be fenced off. The call may test this once.
    fn can_fence(&self) -> bool {
        true
    }

    /// Removes what others have left of a file that will never be published. Errors are only logged.
    fn discard(&self, file: &Path) {
        let _ = file;
    }

    /// Removes an unfinished file of a writer that has its own name ([`Writers::Rival`]), unless the writer is still alive.
    /// Errors are only logged.
    fn discard_abandoned(&self, file: &Path) {
        let _ = file;
    }

    /// Free bytes, if known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    // ---- What follows is the same on all tiers.

    /// The folder of all checkpoints of a series.
    fn series_path(&self, series: &Series) -> PathBuf {
        self.root().join(&series.job).join(&series.group).join(&series.name)
    }

    /// The folder of one checkpoint.
    fn folder_path(&self, series: &Series, key: &CheckpointKey) -> PathBuf {
        self.series_path(series).join(key.folder())
    }

    /// The entries of a folder, or no entries if there is no such folder.
    ///
    /// # Errors
    /// [`TierError::Io`].
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>, TierError> {
        match self.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|source| TierError::io(self.kind(), "list", folder, source)),
        }
    }

    /// Writes the manifest of a checkpoint, which is its last file: whole and durable, or absent.
    ///
    /// # Errors
    /// [`TierError`] if it could not be encoded or made durable.
    fn write_manifest(&self, series: &Series, manifest: &Manifest) -> Result<(), TierError> {
        let path = self.folder_path(series, &manifest.key).join(manifest::FILE_NAME);
        let format = |source| TierError::Format { tier: self.kind(), path: path.clone(), source };
        let bytes = manifest.encode().map_err(format)?;
        self.put(&path, &bytes).map_err(|source| TierError::io(self.kind(), "write", &path, source))
    }

    /// Reads a manifest and checks that it belongs to this checkpoint.
    ///
    /// # Errors
    /// [`TierError`] if it is absent or damaged, or belongs to another checkpoint.
    fn read_manifest(&self, series: &Series, folder: &str) -> Result<Manifest, TierError> {
        let path = self.series_path(series).join(folder).join(manifest::FILE_NAME);
        let read = self.open(&path).and_then(|file| read_whole(&*file, MANIFEST_MAX));
        let bytes = read.map_err(|source| TierError::io(self.kind(), "read", &path, source))?;
        let format = |source| TierError::Format { tier: self.kind(), path: path.clone(), source };
        let manifest = Manifest::decode(&bytes).map_err(format)?;
        let is_ours = (&manifest.job, &manifest.group, &manifest.name) == (&series.job, &series.group, &series.name);
        if !is_ours || manifest.key.folder() != folder {
            let found =
                format!("the manifest of {}/{}/{} {}", manifest.job, manifest.group, manifest.name, manifest.key);
            let expected = format!("that of {}/{}/{} {folder}", series.job, series.group, series.name);
            return Err(TierError::Foreign { tier: self.kind(), path, found, expected });
        }
        Ok(manifest)
    }

    /// The checkpoint folders of a series, newest first. If there is no folder at all, the list is empty.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists but cannot be listed.
    fn folders(&self, series: &Series) -> Result<Vec<(Generation, u64, u64)>, TierError> {
        let entries = self.entries(&self.series_path(series))?;
        let named = entries.iter().filter(|entry| entry.is_dir);
        let mut found: Vec<_> = named.filter_map(|entry| CheckpointKey::parse_folder(&entry.name)).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// The folders in a folder that can be a job, a group or a series.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists but cannot be listed.
    fn components(&self, folder: &Path) -> Result<Vec<String>, TierError> {
        let entries = self.entries(folder)?.into_iter();
        Ok(entries.filter(|entry| entry.is_dir && is_component(&entry.name)).map(|entry| entry.name).collect())
    }

    /// The names of all series of a job and group that have a folder here.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists but cannot be listed.
    fn names(&self, job: &str, group: &str) -> Result<Vec<String>, TierError> {
        self.components(&self.root().join(job).join(group))
    }

    /// The groups of a job that have a folder here.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists but cannot be listed.
    fn groups(&self, job: &str) -> Result<Vec<String>, TierError> {
        self.components(&self.root().join(job))
    }

    /// All series that have a folder here, in the order of their names.
    ///
    /// # Errors
    /// [`TierError::Io`] if a directory exists but cannot be listed.
    fn all_series(&self) -> Result<Vec<Series>, TierError> {
        let mut all = Vec::new();
        for job in self.components(self.root())? {
            for group in self.groups(&job)? {
                for name in self.names(&job, &group)? {
                    all.push(Series { job: job.clone(), group: group.clone(), name });
                }
            }
        }
        Ok(all)
    }

    /// What [`crate::catalog::Ledger`] needs to know: each folder, and whether it holds a manifest.
    ///
    /// # Errors
    /// [`TierError::Io`] if the series cannot be listed.
    fn survey(&self, series: &Series) -> Result<Vec<Folder>, TierError> {
        let folders = self.folders(series)?.into_iter().map(|(generation, version, operation)| {
            let key = CheckpointKey { generation, version, operation, ..Default::default() };
            let manifest = self.folder_path(series, &key).join(manifest::FILE_NAME);
            Folder { generation, version, operation, committed: self.stat(&manifest).is_ok() }
        });
        Ok(folders.collect())
    }

    /// Deletes a checkpoint folder: the manifest first, so that it stops being committed before it stops being whole.
    /// Files that others delete at the same time are not an error.
    ///
    /// # Errors
    /// [`TierError::Io`] for the first file that could not be deleted.
    fn remove(&self, series: &Series, folder: &str) -> Result<(), TierError> {
        let path = self.series_path(series).join(folder);
        let mut names: Vec<String> = self.entries(&path)?.into_iter().map(|entry| entry.name).collect();
        names.sort_by_key(|name| (name != manifest::FILE_NAME, name.clone()));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TierError::io(self.kind(), "delete", &path, source)
        };
        for name in names {
            let file = path.join(name);
            self.remove_file(&file).map_err(failed(&file))?;
        }
        // Another rank of the node may be writing or deleting here at this moment; it finishes the job.
        self.remove_folder(&path).map_err(failed(&path))
    }

    /// The files in a checkpoint's folder that belong to single ranks: name, rank, content.
    ///
    /// # Errors
    /// [`TierError::Io`] if the folder exists but cannot be listed.
    fn rank_files(&self, series: &Series, folder: &str) -> Result<Vec<(String, Rank, Content)>, TierError> {
        let entries = self.entries(&self.series_path(series).join(folder))?;
        let named = entries.into_iter().filter(|entry| !entry.is_dir);
        Ok(named.filter_map(|entry| parse_rank_file(&entry.name).map(|(rank, c)| (entry.name, rank, c))).collect())
    }

    /// Opens what the container file holds of `rank`, as stored: a shard, a packed shard or a parity part, of any job.
    ///
    /// # Errors
    /// [`TierError`] if the file is absent, cut short or damaged, or holds nothing of that rank and checkpoint.
    fn open_raw(&self, series: &Series, folder: &str, file: &str, rank: Rank) -> Result<FileShard, TierError> {
        let path = self.series_path(series).join(folder).join(file);
        let (handle, entry) = self.open_entry(path.clone(), folder, rank)?;
        FileShard::open_any(self.kind(), path, handle.into(), &entry)
    }

    /// Opens what the container file holds of `rank`: a shard, joined with its sources if it is packed, or a parity part, of any job.
    ///
    /// # Errors
    /// As [`Tier::open_raw`], and if a source cannot be opened.
    fn open_any(&self, series: &Series, folder: &str, file: &str, rank: Rank) -> Result<FileShard, TierError> {
        join(self, self.open_raw(series, folder, file, rank)?)
    }

    /// Opens the shard of `rank` in a container file and checks everything before its bodies.
    ///
    /// # Errors
    /// [`TierError`] if the file is absent, cut short, damaged, or of another checkpoint, rank or job, or a source cannot be opened.
    fn open_shard(&self, series: &Series, folder: &str, file: &str, rank: Rank) -> Result<FileShard, TierError> {
        let path = self.series_path(series).join(folder).join(file);
        let (handle, entry) = self.open_entry(path.clone(), folder, rank)?;
        self.open_placed(series, path, handle.into(), &entry)
    }

    /// Opens the shard that `entry` places in a container file, as [`Tier::open_shard`] does.
    ///
    /// # Errors
    /// As [`Tier::open_shard`].
    fn open_placed(
        &self,
        series: &Series,
        path: PathBuf,
        file: Arc<dyn ReadFile>,
        entry: &ContainerEntry,
    ) -> Result<FileShard, TierError> {
        let shard = join(self, FileShard::open_any(self.kind(), path, file, entry)?)?;
        check_identity(self.kind(), shard.path(), shard.head(), series, &entry.key, entry.rank)?;
        Ok(shard)
    }

    /// Opens a container file and finds a rank's entry in it.
    ///
    /// # Errors
    /// As [`Tier::open_any`].
    fn open_entry(
        &self,
        path: PathBuf,
        folder: &str,
        rank: Rank,
    ) -> Result<(Box<dyn ReadFile>, ContainerEntry), TierError> {
        let (container, handle) = self.open_container(&path)?;
        match container.entries.iter().find(|entry| entry.rank == rank && entry.key.folder() == folder) {
            Some(entry) => Ok((handle, entry.clone())),
            None => Err(TierError::Foreign {
                tier: self.kind(),
                path,
                found: match container.entries.first() {
                    Some(entry) => format!("rank {} of {}", entry.rank, entry.key),
                    None => "no shard".into(),
                },
                expected: format!("rank {rank} of {folder}"),
            }),
        }
    }

    /// Reads the index of a container file.
    ///
    /// # Errors
    /// [`TierError`] if the file is absent, cut short or damaged.
    fn open_container(&self, path: &Path) -> Result<(Container, Box<dyn ReadFile>), TierError> {
        let io = |action: &'static str| move |source| TierError::io(self.kind(), action, path, source);
        let format = |source| TierError::Format { tier: self.kind(), path: path.to_owned(), source };
        let file = self.open(path).map_err(io("open"))?;
        let length = file.len().map_err(io("read"))?;
        let short = || format(FormatError::Short { what: "container", need: FOOTER_LEN as u64, have: length });
        let footer_at = length.checked_sub(FOOTER_LEN as u64).ok_or_else(short)?;
        let mut footer = [0; FOOTER_LEN];
        file.read_at(footer_at, &mut footer).map_err(io("read"))?;
        let footer = Footer::decode(&footer, length).map_err(format)?;
        let tail = read_range(&*file, footer.index_offset..length).map_err(io("read"))?;
        let container = Container::decode(&footer, &tail).map_err(format)?;
        Ok((container, file))
    }

    /// Builds the missing manifest of a checkpoint, if all its shards are present, complete and
    /// equal (roll forward); `None` if they are not.
    ///
    /// A rank may have several copies here: one in the container of its node, and one in a separate file, which was written
    /// because the container was damaged or never finished. In that case, the separate file counts. A container that cannot
    /// be read does not count.
    ///
    /// # Errors
    /// [`TierError::Io`] if the folder cannot be listed.
    fn reconstruct(&self, series: &Series, folder: &str) -> Result<Option<Manifest>, TierError> {
        let path = self.series_path(series).join(folder);
        let mut names: Vec<String> = self.entries(&path)?.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| is_rank_file(name) || is_node_file(name));
        names.sort_by_key(|name| !is_rank_file(name));
        let mut manifest: Option<Manifest> = None;
        let mut placed = HashSet::new();
        for name in names {
            let Ok((container, file)) = self.open_container(&path.join(&name)) else { continue };
            let file: Arc<dyn ReadFile> = file.into();
            let bytes = file.len().map_err(|source| TierError::io(self.kind(), "read", &path, source))?;
            let mut ranks = Vec::new();
            for entry in container.entries.iter().filter(|entry| entry.key.folder() == folder) {
                let Ok(shard) = self.open_placed(series, path.join(&name), file.clone(), entry) else { continue };
                let header = &shard.head().header;
                let whole = manifest.get_or_insert_with(|| Manifest {
                    job: series.job.clone(),
                    group: series.group.clone(),
                    name: series.name.clone(),
                    key: header.key,
                    agreement: header.agreement,
                    group_size: header.group_size,
                    origin: header.origin,
                    level: self.kind().level(),
                    containers: Vec::new(),
                    sources: Vec::new(),
                });
                let equal =
                    (whole.key, whole.agreement, whole.group_size) == (header.key, header.agreement, header.group_size);
                if !equal {
                    return Ok(None);
                }
                if placed.insert(entry.rank) {
                    ranks.push(entry.rank);
                    whole.add_sources(shard.sources());
                }
            }
            ranks.sort_unstable();
            if let (Some(whole), false) = (&mut manifest, ranks.is_empty()) {
                whole.containers.push(ContainerInfo { file: name, bytes, ranks });
            }
        }
        if let Some(whole) = &mut manifest {
            whole.containers.sort_by(|a, b| a.file.cmp(&b.file));
        }
        Ok(manifest
            .filter(|whole| whole.is_complete() && whole.encode().is_ok_and(|bytes| Manifest::decode(&bytes).is_ok())))
    }
}

/// Reads a whole file of at most `limit` bytes; a longer one is `InvalidData`.
pub fn read_whole(file: &dyn ReadFile, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.len()?;
    if length > limit {
        let message = format!("{length} bytes, more than the {limit} expected");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    read_range(file, 0..length)
}

/// Retries after `ENOENT` for a short while, because a name that a manifest promises may appear late on a network file system.
///
/// # Errors
/// The last error of `open`.
pub fn patiently<T>(open: impl Fn() -> Result<T, TierError>, pause: impl Fn(Duration)) -> Result<T, TierError> {
    for wait_ms in [20, 80, 300] {
        match open() {
            Err(error) if error.is_absent() => pause(Duration::from_millis(wait_ms)),
            other => return other,
        }
    }
    open()
}
