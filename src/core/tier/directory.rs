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
//! A file gets its final name only when it is whole and durable, in these steps: temp name, write, fsync, rename, fsync of
//! the folder. After any error, the temp file is removed and never synced again; a later checkpoint has another folder.

use super::contract::{Tier, Upload, Writers};
use super::error::TierError;
use super::ours::Trust;
use super::owner::{STORE_FILE, STORE_MAX, id_of, store_id};
use super::records::{Files, Records};
use super::spec::TierId;
use super::storage::{Create, Entry, FileLock, ReadFile, Stat, Storage, WriteFile};
use crate::base::log;
use crate::base::{Clock, Incarnation};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often a writer tries to lock a new temp file, each time under another name. Others may hold the lock for a
/// moment to see whether the file's writer is alive.
const TEMP_ATTEMPTS: u32 = 20;

/// A directory tree that keeps checkpoints.
#[derive(Clone)]
pub struct DirectoryTier {
    kind: TierId,
    storage: Arc<dyn Storage>,
    root: PathBuf,
}

impl DirectoryTier {
    /// The tier at `root`. Nothing is touched yet.
    pub fn new(kind: TierId, storage: Arc<dyn Storage>, root: PathBuf) -> DirectoryTier {
        DirectoryTier { kind, storage, root }
    }

    /// The storage that keeps the tree.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    fn wrap<T>(&self, action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, TierError> {
        result.map_err(|source| TierError::io(self.kind, action, path, source))
    }

    fn remove_temp(&self, temp: &Path) {
        if let Err(error) = self.storage.remove_file(temp)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("event=temp-file-left path={} error={error}", temp.display());
        }
    }

    fn begin_as(&self, target: &Path, temp: PathBuf, create: Create) -> Result<FileUpload, TierError> {
        let folder = target.parent().unwrap_or(Path::new("."));
        self.wrap("create", folder, self.storage.create_dir_all(folder))?;
        let handle = self.wrap("create", &temp, self.storage.open_write(&temp, create))?;
        let (tier, folder, target) = (self.clone(), folder.to_owned(), target.to_owned());
        Ok(FileUpload { tier, folder, temp, target, handle, _lock: None })
    }

    /// Makes a temp file that belongs to this writer alone, and locks it, which tells others that it is being written. Without
    /// locks, nobody removes such a file.
    fn begin_rival(&self, target: &Path, writer: &str) -> Result<FileUpload, TierError> {
        for attempt in 0..TEMP_ATTEMPTS {
            let temp = with_suffix(target, &format!(".{writer}-{attempt}.tmp"));
            let mut upload = match self.begin_as(target, temp, Create::New) {
                Ok(upload) => upload,
                // Another writer on this host took the file for a leftover while it was being opened, before we could lock it.
                Err(error) if error.is_absent() => continue,
                Err(error) => return Err(error),
            };
            match self.storage.try_lock(&upload.temp) {
                Ok(Some(lock)) => {
                    upload._lock = Some(lock);
                    return Ok(upload);
                }
                // The same happened a moment later: the file is being removed, or no longer exists.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    log::debug!("event=temp-file-not-locked path={} error={error}", upload.temp.display());
                    return Ok(upload);
                }
            }
        }
        let folder = target.parent().unwrap_or(Path::new("."));
        Err(TierError::io(self.kind, "lock a new file in", folder, io::ErrorKind::ResourceBusy.into()))
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Tier for DirectoryTier {
    fn kind(&self) -> TierId {
        self.kind
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn begin(&self, file: &Path, writers: Writers<'_>) -> Result<Box<dyn Upload>, TierError> {
        let temp = || with_suffix(file, ".tmp");
        Ok(Box::new(match writers {
            Writers::One => self.begin_as(file, temp(), Create::New)?,
            Writers::Node => self.begin_as(file, temp(), Create::Shared)?,
            Writers::Rival(writer) => self.begin_rival(file, writer)?,
        }))
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.storage.open_read(file)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.storage.list(folder)
    }

    fn stat(&self, file: &Path) -> io::Result<Stat> {
        self.storage.stat(file)
    }

    fn put(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        self.storage.create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
        self.storage.write_all(file, bytes)
    }

    fn remove_file(&self, file: &Path) -> io::Result<()> {
        match self.storage.remove_file(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        match self.storage.remove_dir(folder) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Ok(()),
            other => other,
        }
    }

    fn hold_store(&self, fresh: Incarnation, clock: &dyn Clock) -> Result<Incarnation, TierError> {
        store_id(&*self.storage, &self.root, fresh, clock)
    }

    fn find_store(&self) -> Result<Option<Incarnation>, TierError> {
        match self.storage.hold(&self.root, Trust::Ours) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => self.wrap("use", &self.root, other)?,
        }
        let path = self.root.join(STORE_FILE);
        let bytes = match self.storage.read_all(&path, STORE_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => self.wrap("read", &path, other)?,
        };
        // Somebody is making the file at this moment, or died while doing so. The next process that may make one continues from there.
        if bytes.is_empty() {
            return Ok(None);
        }
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it holds no store id: is it in a global directory?");
        self.wrap("read", &path, id_of(&bytes).ok_or_else(wrong)).map(Some)
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(Files(self.storage.clone()))
    }

    fn discard(&self, file: &Path) {
        self.remove_temp(&with_suffix(file, ".tmp"));
    }

    fn discard_abandoned(&self, file: &Path) {
        if let Ok(Some(_lock)) = self.storage.try_lock(file) {
            self.remove_temp(file);
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        rustix::fs::statvfs(&self.root).ok().map(|fs| fs.f_bavail * fs.f_frsize)
    }
}

/// A file that is being written under its temp name.
struct FileUpload {
    tier: DirectoryTier,
    folder: PathBuf,
    temp: PathBuf,
    target: PathBuf,
    handle: Box<dyn WriteFile>,
    /// Tells others that the writer of the file is alive.
    _lock: Option<Box<dyn FileLock>>,
}

impl Upload for FileUpload {
    fn kind(&self) -> TierId {
        self.tier.kind
    }

    fn path(&self) -> &Path {
        &self.temp
    }

    fn reserve(&self, length: u64) -> Result<(), TierError> {
        self.tier.wrap("reserve", &self.temp, self.handle.reserve(length))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.tier.wrap("write", &self.temp, self.handle.write_at(offset, bytes))
    }

    fn sync(&self) -> Result<(), TierError> {
        self.tier.wrap("sync", &self.temp, self.handle.sync())
    }

    fn publish(&self) -> Result<(), TierError> {
        self.tier.wrap("rename", &self.temp, self.tier.storage.rename(&self.temp, &self.target))?;
        self.tier.wrap("sync", &self.folder, self.tier.storage.sync_dir(&self.folder))
    }

    fn discard(&self) {
        self.tier.remove_temp(&self.temp);
    }

    fn read_back(&self) -> io::Result<Box<dyn ReadFile>> {
        self.tier.storage.open_read(&self.temp)
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{Series, rank_file};
    use super::*;
    use crate::base::digest::digest_bytes;
    use crate::base::{CheckpointKey, Generation, Rank};
    use crate::format::container::encode_tail;
    use crate::format::shard::{Layout, ShardMeta, encode_head};
    use crate::format::{ContainerEntry, Content, ElementType, Region, RegionKind, ShardHeader};
    use crate::tier::simulated::Simulated;

    fn series() -> Series {
        Series { job: "job".into(), group: "world".into(), name: "heat".into() }
    }

    /// Publishes one rank's shard of a checkpoint of two ranks, after `change` has changed its header.
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
        let upload =
            tier.begin(&tier.folder_path(&series(), &header.key).join(rank_file(header.rank)), Writers::One).unwrap();
        upload.write_at(0, &bytes).and_then(|()| upload.sync()).and_then(|()| upload.publish()).unwrap();
        header.key.folder()
    }

    /// Two runs with the same number, or two calls that did not agree, have left their shards in one folder.
    #[test]
    fn shards_that_are_not_of_one_checkpoint_make_none_together() {
        let made = |change: &dyn Fn(&mut ShardHeader)| {
            let tier = DirectoryTier::new(TierId::GLOBAL, Arc::new(Simulated::new()), "/global".into());
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
