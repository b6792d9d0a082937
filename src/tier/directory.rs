//! A tier that is a directory tree on some [`Storage`].
//!
//! ```text
//! <root>/store                                   store id (global tier only)
//! <root>/<job>/<group>/claims/g000003            claims of runs (see `claims`)
//! <root>/<job>/<group>/<name>/g000003-v0000000070-o000009/
//!     r000002.bvs        container with the shard of rank 2          (local tier)
//!     p000002.bvp        container with the parity part of rank 2    (local tier; on the global one until a rebuild)
//!     c000000.bvc        container of a node, named by its first rank (global tier)
//!     manifest           written last
//!     *.tmp              a container that is being written
//! ```
//!
//! A file takes its final name only when it is whole and durable: temp name, write, fsync, rename, fsync of the
//! folder. After any error the temp file is removed and never synced again; a later checkpoint has another folder.

use super::source::FileShard;
use super::storage::{Create, ReadFile, Storage, WriteFile, read_range};
use super::{TierError, TierKind};
use crate::base::log;
use crate::base::{CheckpointKey, Generation, Rank};
use crate::catalog::Folder;
use crate::format::container::{FOOTER_LEN, Footer};
use crate::format::{Container, ContainerEntry, ContainerInfo, Content, FormatError, Manifest, manifest};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A manifest lists ranks at four bytes each: 64 MiB is the metadata limit of the format.
const MANIFEST_MAX: u64 = 64 << 20;

/// The file of one rank on the local tier (and on the global tier when a rank writes alone).
pub fn rank_file(rank: Rank) -> String {
    format!("r{:06}.bvs", rank.0)
}

/// The file of the parity that a rank keeps for its redundancy set.
pub fn parity_file(rank: Rank) -> String {
    format!("p{:06}.bvp", rank.0)
}

/// The rank and content that a file name of the form of [`rank_file`] or [`parity_file`] stands for.
pub fn parse_rank_file(name: &str) -> Option<(Rank, Content)> {
    let (stem, content) = match (name.strip_suffix(".bvs"), name.strip_suffix(".bvp")) {
        (Some(stem), _) => (stem.strip_prefix('r')?, Content::Shard),
        (_, Some(stem)) => (stem.strip_prefix('p')?, Content::Parity),
        _ => return None,
    };
    let is_plain = stem.len() >= 6 && stem.bytes().all(|byte| byte.is_ascii_digit());
    Some((Rank(stem.parse().ok().filter(|_| is_plain)?), content))
}

/// The file of several ranks, named by the first.
pub fn node_file(first: Rank) -> String {
    format!("c{:06}.bvc", first.0)
}

/// Is it the name of a container of one rank?
pub fn is_rank_file(name: &str) -> bool {
    name.ends_with(".bvs")
}

/// Is it the name of a container of several ranks?
pub fn is_node_file(name: &str) -> bool {
    name.ends_with(".bvc")
}

/// Is it the name of a container of one rank's parity part?
pub fn is_parity_file(name: &str) -> bool {
    name.ends_with(".bvp")
}

/// Which job, group and series a tier is asked about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Series {
    /// Job key: one path component.
    pub job: String,
    /// Group within the job: one path component.
    pub group: String,
    /// The application's name: one path component.
    pub name: String,
}

/// May `name` be one component of a path, on any system and in any listing?
pub fn is_component(name: &str) -> bool {
    let plain = |c: char| !c.is_control() && c != '/' && c != '\\';
    !name.is_empty() && name.len() <= 128 && name.chars().all(plain) && !name.starts_with('.') && name != "claims"
}

/// A directory tree that keeps checkpoints.
#[derive(Clone)]
pub struct DirectoryTier {
    kind: TierKind,
    storage: Arc<dyn Storage>,
    root: PathBuf,
}

impl DirectoryTier {
    /// The tier at `root`. Nothing is touched yet.
    pub fn new(kind: TierKind, storage: Arc<dyn Storage>, root: PathBuf) -> DirectoryTier {
        DirectoryTier { kind, storage, root }
    }

    /// Local or global.
    pub fn kind(&self) -> TierKind {
        self.kind
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The storage below.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The folder of all checkpoints of a series.
    pub fn series_path(&self, series: &Series) -> PathBuf {
        self.root.join(&series.job).join(&series.group).join(&series.name)
    }

    /// The folder of one checkpoint.
    pub fn folder_path(&self, series: &Series, key: &CheckpointKey) -> PathBuf {
        self.series_path(series).join(key.folder())
    }

    fn wrap<T>(&self, action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, TierError> {
        result.map_err(|source| TierError::io(self.kind, action, path, source))
    }

    fn format<T>(&self, path: &Path, result: Result<T, FormatError>) -> Result<T, TierError> {
        result.map_err(|source| TierError::Format { tier: self.kind, path: path.to_owned(), source })
    }

    /// Starts a container file in the checkpoint's folder, which is made if need be.
    ///
    /// # Errors
    /// [`TierError::Io`] naming the path and the system's answer.
    pub fn begin(&self, series: &Series, key: &CheckpointKey, file: &str, create: Create) -> Result<Upload, TierError> {
        self.begin_as(series, key, file, &format!("{file}.tmp"), create)
    }

    /// The same under a temp name of the writer's own, for writers that know nothing of each other: the file must be new,
    /// and whoever publishes last wins with the same content.
    ///
    /// # Errors
    /// As [`DirectoryTier::begin`]; the system's answer is "exists" if the temp name is taken.
    pub fn begin_private(
        &self,
        series: &Series,
        key: &CheckpointKey,
        file: &str,
        owner: &str,
    ) -> Result<Upload, TierError> {
        self.begin_as(series, key, file, &format!("{file}.{owner}.tmp"), Create::New)
    }

    fn begin_as(
        &self,
        series: &Series,
        key: &CheckpointKey,
        file: &str,
        temp: &str,
        create: Create,
    ) -> Result<Upload, TierError> {
        let folder = self.folder_path(series, key);
        self.wrap("create", &folder, self.storage.create_dir_all(&folder))?;
        let temp = folder.join(temp);
        let target = folder.join(file);
        let handle = self.wrap("create", &temp, self.storage.open_write(&temp, create))?;
        Ok(Upload { tier: self.clone(), folder, temp, target, handle })
    }

    /// Removes what others have left under the temp name of a file that nobody is going to publish. Errors are only logged: a
    /// leftover is removed by retention.
    pub fn discard(&self, series: &Series, key: &CheckpointKey, file: &str) {
        self.remove_temp(&self.folder_path(series, key).join(format!("{file}.tmp")));
    }

    fn remove_temp(&self, temp: &Path) {
        if let Err(error) = self.storage.remove_file(temp)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("event=temp-file-left path={} error={error}", temp.display());
        }
    }

    /// Writes the manifest of a checkpoint: the last file, whole and durable or absent.
    ///
    /// # Errors
    /// [`TierError`] if it could not be encoded or made durable.
    pub fn write_manifest(&self, series: &Series, manifest: &Manifest) -> Result<(), TierError> {
        let folder = self.folder_path(series, &manifest.key);
        let path = folder.join(manifest::FILE_NAME);
        let bytes = self.format(&path, manifest.encode())?;
        self.wrap("create", &folder, self.storage.create_dir_all(&folder))?;
        self.wrap("write", &path, self.storage.write_all(&path, &bytes))
    }

    /// Reads a manifest and checks that it is that of this checkpoint.
    ///
    /// # Errors
    /// [`TierError`] if it is absent, damaged, or of another checkpoint.
    pub fn read_manifest(&self, series: &Series, folder: &str) -> Result<Manifest, TierError> {
        let path = self.series_path(series).join(folder).join(manifest::FILE_NAME);
        let bytes = self.wrap("read", &path, self.storage.read_all(&path, MANIFEST_MAX))?;
        let manifest = self.format(&path, Manifest::decode(&bytes))?;
        let is_ours = (&manifest.job, &manifest.group, &manifest.name) == (&series.job, &series.group, &series.name);
        if !is_ours || manifest.key.folder() != folder {
            let found =
                format!("the manifest of {}/{}/{} {}", manifest.job, manifest.group, manifest.name, manifest.key);
            let expected = format!("that of {}/{}/{} {folder}", series.job, series.group, series.name);
            return Err(TierError::Foreign { tier: self.kind, path, found, expected });
        }
        Ok(manifest)
    }

    /// The checkpoint folders of a series, newest first. No folder at all is an empty list.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists and cannot be listed.
    pub fn folders(&self, series: &Series) -> Result<Vec<(Generation, u64, u64)>, TierError> {
        let path = self.series_path(series);
        let entries = match self.storage.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => self.wrap("list", &path, other)?,
        };
        let mut found: Vec<_> = entries
            .iter()
            .filter(|entry| entry.is_dir)
            .filter_map(|entry| CheckpointKey::parse_folder(&entry.name))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// The names of all series of a job and group that have a folder here.
    ///
    /// # Errors
    /// [`TierError::Io`] if the directory exists and cannot be listed.
    pub fn names(&self, job: &str, group: &str) -> Result<Vec<String>, TierError> {
        let path = self.root.join(job).join(group);
        match self.storage.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => {
                let entries = self.wrap("list", &path, other)?;
                Ok(entries.into_iter().filter(|e| e.is_dir && is_component(&e.name)).map(|e| e.name).collect())
            }
        }
    }

    /// All series that have a folder here, in the order of their names.
    ///
    /// # Errors
    /// [`TierError::Io`] if a directory exists and cannot be listed.
    pub fn all_series(&self) -> Result<Vec<Series>, TierError> {
        let folders = |path: &Path| -> Result<Vec<String>, TierError> {
            match self.storage.list(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                other => {
                    let entries = self.wrap("list", path, other)?.into_iter();
                    Ok(entries
                        .filter(|entry| entry.is_dir && is_component(&entry.name))
                        .map(|entry| entry.name)
                        .collect())
                }
            }
        };
        let mut all = Vec::new();
        for job in folders(&self.root)? {
            for group in folders(&self.root.join(&job))? {
                for name in folders(&self.root.join(&job).join(&group))? {
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
    pub fn survey(&self, series: &Series) -> Result<Vec<Folder>, TierError> {
        let folders = self.folders(series)?.into_iter().map(|(generation, version, operation)| {
            let key = CheckpointKey { generation, version, operation, ..Default::default() };
            let manifest = self.folder_path(series, &key).join(manifest::FILE_NAME);
            let committed = self.storage.modified(&manifest).is_ok();
            Folder { generation, version, operation, committed }
        });
        Ok(folders.collect())
    }

    /// Deletes a checkpoint folder: the manifest first, so that it stops being committed before it stops being whole.
    /// What others delete at the same time is no error.
    ///
    /// # Errors
    /// [`TierError::Io`] for the first file that could not be deleted.
    pub fn remove(&self, series: &Series, folder: &str) -> Result<(), TierError> {
        let path = self.series_path(series).join(folder);
        let entries = match self.storage.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => self.wrap("list", &path, other)?,
        };
        let manifest_first = |name: &str| (name != manifest::FILE_NAME, name.to_owned());
        let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
        names.sort_by_key(|name| manifest_first(name));
        for name in names {
            let file = path.join(name);
            self.ignore_absent("delete", &file, self.storage.remove_file(&file))?;
        }
        match self.storage.remove_dir(&path) {
            // Another rank of the node may just be writing or deleting here; it finishes the job.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => self.ignore_absent("delete", &path, other),
        }
    }

    fn ignore_absent(&self, action: &'static str, path: &Path, result: io::Result<()>) -> Result<(), TierError> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => self.wrap(action, path, other),
        }
    }

    /// The files of single ranks in a checkpoint's folder: name, rank, content.
    ///
    /// # Errors
    /// [`TierError::Io`] if the folder exists and cannot be listed.
    pub fn rank_files(&self, series: &Series, folder: &str) -> Result<Vec<(String, Rank, Content)>, TierError> {
        let path = self.series_path(series).join(folder);
        let entries = match self.storage.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => self.wrap("list", &path, other)?,
        };
        let named = entries.into_iter().filter(|entry| !entry.is_dir);
        Ok(named.filter_map(|entry| parse_rank_file(&entry.name).map(|(rank, c)| (entry.name, rank, c))).collect())
    }

    /// Opens whatever the container file holds of `rank`: a shard or a parity part, of whatever job.
    ///
    /// # Errors
    /// [`TierError`] if the file is absent, cut short or damaged, or holds nothing of that rank and checkpoint.
    pub fn open_any(&self, series: &Series, folder: &str, file: &str, rank: Rank) -> Result<FileShard, TierError> {
        let path = self.series_path(series).join(folder).join(file);
        let (handle, entry) = self.open_entry(path.clone(), folder, rank)?;
        FileShard::open_any(self.kind, path, handle.into(), &entry)
    }

    /// Opens the shard of `rank` in a container file and checks everything before its bodies.
    ///
    /// # Errors
    /// [`TierError`] if the file is absent, cut short, damaged, or of another checkpoint, rank or job.
    pub fn open_shard(&self, series: &Series, folder: &str, file: &str, rank: Rank) -> Result<FileShard, TierError> {
        let path = self.series_path(series).join(folder).join(file);
        let (handle, entry) = self.open_entry(path.clone(), folder, rank)?;
        FileShard::open(self.kind, path, handle.into(), &entry, series)
    }

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
                tier: self.kind,
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
    pub fn open_container(&self, path: &Path) -> Result<(Container, Box<dyn super::storage::ReadFile>), TierError> {
        let file = self.wrap("open", path, self.storage.open_read(path))?;
        let length = self.wrap("read", path, file.len())?;
        let footer_at = length.checked_sub(FOOTER_LEN as u64).ok_or_else(|| TierError::Format {
            tier: self.kind,
            path: path.to_owned(),
            source: FormatError::Short { what: "container", need: FOOTER_LEN as u64, have: length },
        })?;
        let mut footer = [0; FOOTER_LEN];
        self.wrap("read", path, file.read_at(footer_at, &mut footer))?;
        let footer = self.format(path, Footer::decode(&footer, length))?;
        let tail = self.wrap("read", path, read_range(&*file, footer.index_offset..length))?;
        let container = self.format(path, Container::decode(&footer, &tail))?;
        Ok((container, file))
    }

    /// Puts together the manifest of a checkpoint whose own is missing, if all its shards are present, complete and
    /// equal (roll forward); `None` if they are not.
    ///
    /// A rank may have several copies here: one in the container of its node, and one in a file of its own, which was
    /// written because the container was damaged or never finished. The own file counts. A container that cannot be read
    /// counts for nothing.
    ///
    /// # Errors
    /// [`TierError::Io`] if the folder cannot be listed.
    pub fn reconstruct(&self, series: &Series, folder: &str) -> Result<Option<Manifest>, TierError> {
        let path = self.series_path(series).join(folder);
        let entries = match self.storage.list(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => self.wrap("list", &path, other)?,
        };
        let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| is_rank_file(name) || is_node_file(name));
        names.sort_by_key(|name| !is_rank_file(name));
        let mut manifest: Option<Manifest> = None;
        let mut placed = HashSet::new();
        for name in names {
            let Ok((container, file)) = self.open_container(&path.join(&name)) else { continue };
            let file: Arc<dyn super::storage::ReadFile> = file.into();
            let bytes = self.wrap("read", &path, file.len())?;
            let mut ranks = Vec::new();
            for entry in container.entries.iter().filter(|entry| entry.key.folder() == folder) {
                let Ok(shard) = FileShard::open(self.kind, path.join(&name), file.clone(), entry, series) else {
                    continue;
                };
                let header = &shard.head().header;
                let whole = manifest.get_or_insert_with(|| Manifest {
                    job: series.job.clone(),
                    group: series.group.clone(),
                    name: series.name.clone(),
                    key: header.key,
                    agreement: header.agreement,
                    group_size: header.group_size,
                    origin: header.origin,
                    level: crate::base::Level::System,
                    containers: Vec::new(),
                });
                let equal =
                    (whole.key, whole.agreement, whole.group_size) == (header.key, header.agreement, header.group_size);
                if !equal {
                    return Ok(None);
                }
                if placed.insert(entry.rank) {
                    ranks.push(entry.rank);
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

    /// Retries `ENOENT` for a short while: a name that a manifest promises may be late on a network file system.
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
}

/// A container that is being written under its temp name.
pub struct Upload {
    tier: DirectoryTier,
    folder: PathBuf,
    temp: PathBuf,
    target: PathBuf,
    handle: Box<dyn WriteFile>,
}

impl Upload {
    /// On which tier.
    pub fn kind(&self) -> TierKind {
        self.tier.kind()
    }

    /// The temp path, for error messages and for reading back.
    pub fn temp_path(&self) -> &Path {
        &self.temp
    }

    /// Reserves room for the whole file.
    ///
    /// # Errors
    /// [`TierError::Io`], usually that the file system is full.
    pub fn reserve(&self, length: u64) -> Result<(), TierError> {
        self.tier.wrap("reserve", &self.temp, self.handle.reserve(length))
    }

    /// Writes a piece.
    ///
    /// # Errors
    /// [`TierError::Io`]; the file is condemned.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.tier.wrap("write", &self.temp, self.handle.write_at(offset, bytes))
    }

    /// Makes what this rank wrote durable, still under the temp name.
    ///
    /// # Errors
    /// [`TierError::Io`]; the file is condemned.
    pub fn sync(&self) -> Result<(), TierError> {
        self.tier.wrap("sync", &self.temp, self.handle.sync())
    }

    /// Gives the durable file its final name, durably.
    ///
    /// # Errors
    /// [`TierError::Io`]; whether the name was taken is then found out by recovery.
    pub fn publish(&self) -> Result<(), TierError> {
        self.tier.wrap("rename", &self.temp, self.tier.storage.rename(&self.temp, &self.target))?;
        self.tier.wrap("sync", &self.folder, self.tier.storage.sync_dir(&self.folder))
    }

    /// Removes the temp file. Errors are only logged: a leftover is removed by retention.
    pub fn discard(&self) {
        self.tier.remove_temp(&self.temp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Incarnation;
    use crate::base::digest::digest_bytes;
    use crate::format::container::encode_tail;
    use crate::format::shard::{Layout, ShardMeta, encode_head};
    use crate::format::{ElementType, Region, RegionKind, ShardHeader};
    use crate::tier::simulated::Simulated;

    fn series() -> Series {
        Series { job: "job".into(), group: "world".into(), name: "heat".into() }
    }

    /// Publishes the shard of a rank of a checkpoint of two, whose header is changed before.
    fn publish(tier: &DirectoryTier, rank: u32, change: impl Fn(&mut ShardHeader)) -> String {
        let Series { job, group, name } = series();
        let (kind, element) = (RegionKind::Array, ElementType::U8);
        let region = Region { name: "t".into(), kind, element, shape: vec![8], bytes: 8, offset: 0, first_block: 0 };
        let layout = Layout::new(ShardMeta { job, group, name, regions: vec![region] }, 4096).unwrap();
        let incarnation = Incarnation([1; 16]);
        let key = CheckpointKey { generation: Generation(3), version: 70, operation: 9, incarnation };
        let mut header = layout.header(key, 5, 2, Rank(rank), None);
        change(&mut header);
        let mut bytes = vec![0; layout.total_len as usize];
        let head = &mut bytes[..layout.body_offset as usize];
        encode_head(&layout, &header, &[digest_bytes(&[0; 8])], head);
        let entry = ContainerEntry { key: header.key, rank: header.rank, offset: 0, length: layout.total_len };
        bytes.extend(encode_tail(&[entry]).unwrap());
        let upload = tier.begin(&series(), &header.key, &rank_file(header.rank), Create::New).unwrap();
        upload.write_at(0, &bytes).and_then(|()| upload.sync()).and_then(|()| upload.publish()).unwrap();
        header.key.folder()
    }

    /// Two runs of one number, or two calls that did not agree, have left their shards in one folder.
    #[test]
    fn shards_that_are_not_of_one_checkpoint_make_none_together() {
        let made = |change: &dyn Fn(&mut ShardHeader)| {
            let tier = DirectoryTier::new(TierKind::Global, Arc::new(Simulated::new()), "/global".into());
            let folder = publish(&tier, 0, |_| ());
            assert_eq!(publish(&tier, 1, change), folder, "they lie in one folder");
            tier.reconstruct(&series(), &folder).unwrap()
        };
        assert!(made(&|_| ()).is_some_and(|manifest| manifest.is_complete()));
        assert_eq!(made(&|header| header.key.incarnation = Incarnation([2; 16])), None);
        assert_eq!(made(&|header| header.agreement += 1), None);
        assert_eq!(made(&|header| header.group_size += 1), None);
        assert_eq!(made(&|header| header.content = Content::Parity), None, "a part is no shard");
    }
}
