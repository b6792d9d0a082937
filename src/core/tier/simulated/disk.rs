//! What the simulated disk holds: the view that programs see, the view that no power cut can change, and the changes between them.
//!
//! Each file keeps its bytes twice, and each directory keeps its names twice: `live` as programs see them, and
//! `durable` as the last sync left them. `pending` holds the difference between the two, that is, the changes since
//! that sync in the order in which they were made. A sync applies all of them to `durable`; a power cut applies some
//! and makes the result the live view as well.
//!
//! Names stay in the directory in which they were made (renames do not leave it), so an inode's parent never changes. What is
//! below a directory follows from the parents alone, even for removed names.
//!
//! Nothing here counts steps, injects faults or locks a mutex; the parent module does that.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::SystemTime;

use rustix::io::Errno;

use crate::base::rng::Rng;

/// No simulated file grows beyond this, so that a wrong offset cannot exhaust the test machine's memory.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

/// Number of a file or directory. It is never used twice on one disk.
pub(super) type InodeId = u64;

/// The directory that contains everything.
const ROOT: InodeId = 0;

/// Number of one lock that was granted.
pub(super) type LockId = u64;

#[derive(Clone)]
enum DataChange {
    Write { offset: usize, bytes: Vec<u8> },
    Grow,
}

#[derive(Clone)]
enum NameChange {
    Link { name: String, inode: InodeId },
    Unlink { name: String },
    Rename { from: String, to: String },
}

type Names = BTreeMap<String, InodeId>;

#[derive(Clone, Default)]
struct FileBody {
    live: Vec<u8>,
    /// Invariant: never longer than `live`; files here only grow.
    durable: Vec<u8>,
    pending: Vec<DataChange>,
}

#[derive(Clone, Default)]
struct DirectoryBody {
    live: Names,
    durable: Names,
    pending: Vec<NameChange>,
}

#[derive(Clone)]
enum Body {
    File(FileBody),
    Directory(DirectoryBody),
}

/// A file or a directory.
#[derive(Clone)]
pub(super) struct Inode {
    parent: InodeId,
    body: Body,
    /// Number of open handles. An inode without a name lives as long as it has handles.
    pub(super) handles: u32,
    /// Handles of an earlier epoch are dead, because the power was cut in between.
    pub(super) epoch: u64,
    pub(super) modified: SystemTime,
    /// The lock that is held, and the process that holds it.
    pub(super) lock: Option<(LockId, u64)>,
}

/// A tree of inodes.
#[derive(Clone)]
pub(super) struct Disk {
    inodes: BTreeMap<InodeId, Inode>,
    next: InodeId,
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Link { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Unlink { name } => {
                names.remove(name);
            }
            NameChange::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }
}

impl FileBody {
    /// Overwrites bytes from `offset`; `contents` must be long enough.
    fn overwrite(contents: &mut [u8], offset: usize, bytes: &[u8]) {
        contents[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for change in self.pending.drain(..) {
            if let DataChange::Write { offset, bytes } = change {
                Self::overwrite(&mut self.durable, offset, &bytes);
            }
        }
    }

    /// Each sector of each unsynced write is kept, lost or torn; the length is anything between the old and the new one.
    /// A quarter of the files lose everything that was not synced, and another quarter keep all of it, because those
    /// cases hide the bugs of the others.
    fn cut(&mut self, rng: &mut Rng) {
        if self.pending.is_empty() {
            return;
        }
        let sector = if rng.chance(1, 2) { 512 } else { 4096 };
        let fate = rng.below(4);
        let mut contents = self.durable.clone();
        contents.resize(self.live.len(), 0);
        let mut kept_end = self.durable.len();
        for change in self.pending.drain(..) {
            let DataChange::Write { offset, bytes } = change else { continue };
            for (at, piece) in sectors(offset, &bytes, sector) {
                let kept = match fate {
                    0 => 0,
                    1 => piece.len(),
                    _ => [0, piece.len(), rng.below(piece.len() as u64) as usize][rng.below(3) as usize],
                };
                Self::overwrite(&mut contents, at, &piece[..kept]);
                if kept > 0 {
                    kept_end = kept_end.max(at + kept);
                }
            }
        }
        let growth = (self.live.len() - self.durable.len()) as u64;
        let length = match (fate, rng.below(4)) {
            (1, _) | (_, 0) => self.live.len(),
            (_, 1) => self.durable.len(),
            (_, 2) => kept_end,
            _ => self.durable.len() + rng.below(growth + 1) as usize,
        };
        contents.truncate(length);
        self.durable.clone_from(&contents);
        self.live = contents;
    }
}

/// Cuts a write at the boundaries of the file's sectors: offset and bytes of each piece.
fn sectors(offset: usize, bytes: &[u8], sector: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (sector - offset % sector).min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    let start = offset + first;
    let pieces = rest.chunks(sector).enumerate().map(move |(i, piece)| (start + i * sector, piece));
    std::iter::once((offset, head)).filter(|(_, head)| !head.is_empty()).chain(pieces)
}

impl DirectoryBody {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    fn keep_first(&mut self, count: usize) {
        for change in self.pending.drain(..).take(count) {
            change.apply(&mut self.durable);
        }
    }

    /// Every inode to which a name leads, now or after a power cut.
    fn children(&self) -> impl Iterator<Item = InodeId> {
        let pending = self.pending.iter().filter_map(|change| match change {
            NameChange::Link { inode, .. } => Some(*inode),
            _ => None,
        });
        self.live.values().chain(self.durable.values()).copied().chain(pending)
    }
}

impl Disk {
    pub(super) fn new(modified: SystemTime) -> Self {
        let body = Body::Directory(DirectoryBody::default());
        let root = Inode { parent: ROOT, body, handles: 0, epoch: 0, modified, lock: None };
        Disk { inodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn inode(&mut self, inode: InodeId) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&inode).ok_or_else(|| Errno::STALE.into())
    }

    fn file(&mut self, inode: InodeId) -> io::Result<&mut FileBody> {
        match &mut self.inode(inode)?.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => Err(Errno::ISDIR.into()),
        }
    }

    fn names(&mut self, inode: InodeId) -> io::Result<&mut DirectoryBody> {
        match &mut self.inode(inode)?.body {
            Body::Directory(names) => Ok(names),
            Body::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn is_directory(&mut self, inode: InodeId) -> io::Result<bool> {
        Ok(matches!(self.inode(inode)?.body, Body::Directory(_)))
    }

    /// Finds what programs see at a path.
    pub(super) fn find(&mut self, path: &[String]) -> io::Result<InodeId> {
        path.iter().try_fold(ROOT, |directory, name| {
            self.names(directory)?.live.get(name).copied().ok_or_else(|| Errno::NOENT.into())
        })
    }

    /// Finds the directory of a path, and the path's last name.
    fn find_parent<'a>(&mut self, path: &'a [String]) -> io::Result<(InodeId, &'a String)> {
        let (name, parents) = path.split_last().ok_or(Errno::INVAL)?;
        let parent = self.find(parents)?;
        self.names(parent)?;
        Ok((parent, name))
    }

    fn add(&mut self, path: &[String], body: Body, epoch: u64, modified: SystemTime) -> io::Result<InodeId> {
        let (parent, name) = self.find_parent(path)?;
        let inode = self.next;
        let names = self.names(parent)?;
        if names.live.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        names.change(NameChange::Link { name: name.clone(), inode });
        self.inode(parent)?.modified = modified;
        self.inodes.insert(inode, Inode { parent, body, handles: 0, epoch, modified, lock: None });
        self.next += 1;
        Ok(inode)
    }

    pub(super) fn add_file(&mut self, path: &[String], epoch: u64, now: SystemTime) -> io::Result<InodeId> {
        self.add(path, Body::File(FileBody::default()), epoch, now)
    }

    pub(super) fn add_directory(&mut self, path: &[String], epoch: u64, now: SystemTime) -> io::Result<InodeId> {
        self.add(path, Body::Directory(DirectoryBody::default()), epoch, now)
    }

    pub(super) fn length(&mut self, inode: InodeId) -> io::Result<u64> {
        Ok(self.file(inode)?.live.len() as u64)
    }

    /// The bytes that programs see in a file.
    pub(super) fn contents(&mut self, inode: InodeId) -> io::Result<&[u8]> {
        Ok(&self.file(inode)?.live)
    }

    /// By how much a file would grow if it had to be `end` bytes long.
    pub(super) fn growth(&mut self, inode: InodeId, end: u64) -> io::Result<u64> {
        if end > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        Ok(end.saturating_sub(self.length(inode)?))
    }

    /// Writes into a file; the caller has checked the growth.
    pub(super) fn write(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file(inode)?;
        let offset = offset as usize;
        if file.live.len() < offset + bytes.len() {
            file.live.resize(offset + bytes.len(), 0);
        }
        FileBody::overwrite(&mut file.live, offset, bytes);
        file.pending.push(DataChange::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Makes a file at least `length` bytes long; the caller has checked the growth.
    pub(super) fn grow(&mut self, inode: InodeId, length: u64) -> io::Result<()> {
        let file = self.file(inode)?;
        if length as usize > file.live.len() {
            file.live.resize(length as usize, 0);
            file.pending.push(DataChange::Grow);
        }
        Ok(())
    }

    pub(super) fn sync_file(&mut self, inode: InodeId) -> io::Result<()> {
        self.file(inode)?.sync();
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, inode: InodeId) -> io::Result<()> {
        let names = self.names(inode)?;
        let removes = names.pending.iter().any(|change| !matches!(change, NameChange::Link { .. }));
        names.keep_first(usize::MAX);
        if removes {
            self.sweep();
        }
        Ok(())
    }

    /// Does a directory have name changes that a power cut could undo?
    pub(super) fn has_unsynced_names(&mut self, inode: InodeId) -> io::Result<bool> {
        Ok(!self.names(inode)?.pending.is_empty())
    }

    pub(super) fn rename(&mut self, from: &[String], to: &[String], now: SystemTime) -> io::Result<()> {
        let (parent, old) = self.find_parent(from)?;
        let (target_parent, new) = self.find_parent(to)?;
        if parent != target_parent {
            return Err(Errno::XDEV.into());
        }
        let source = self.find(from)?;
        if let Some(&target) = self.names(parent)?.live.get(new) {
            self.check_replaceable(source, target)?;
        }
        if old != new {
            self.names(parent)?.change(NameChange::Rename { from: old.clone(), to: new.clone() });
            self.inode(parent)?.modified = now;
        }
        Ok(())
    }

    fn check_replaceable(&mut self, source: InodeId, target: InodeId) -> io::Result<()> {
        match (self.is_directory(source)?, self.is_directory(target)?) {
            (false, true) => Err(Errno::ISDIR.into()),
            (true, false) => Err(Errno::NOTDIR.into()),
            (true, true) if source != target && !self.names(target)?.live.is_empty() => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Removes the name of a file or of an empty directory.
    pub(super) fn unlink(&mut self, path: &[String], directory: bool, now: SystemTime) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        let inode = self.find(path)?;
        match (directory, self.is_directory(inode)?) {
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, false) => return Err(Errno::NOTDIR.into()),
            (true, true) if !self.names(inode)?.live.is_empty() => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        self.names(parent)?.change(NameChange::Unlink { name: name.clone() });
        self.inode(parent)?.modified = now;
        Ok(())
    }

    /// The live names of a directory.
    pub(super) fn list(&mut self, inode: InodeId) -> io::Result<Vec<(String, InodeId)>> {
        Ok(self.names(inode)?.live.iter().map(|(name, inode)| (name.clone(), *inode)).collect())
    }

    /// All live files and directories at and below an inode: their paths, and the lengths of the files.
    pub(super) fn tree(&self, inode: InodeId, path: &[String]) -> Vec<(Vec<String>, Option<u64>)> {
        let Some(Inode { body, .. }) = self.inodes.get(&inode) else { return Vec::new() };
        match body {
            Body::File(file) => vec![(path.to_vec(), Some(file.live.len() as u64))],
            Body::Directory(names) => {
                let mut found = vec![(path.to_vec(), None)];
                for (name, child) in &names.live {
                    found.extend(self.tree(*child, &[path, std::slice::from_ref(name)].concat()));
                }
                found
            }
        }
    }

    fn is_below(&self, inode: InodeId, top: InodeId) -> bool {
        let mut at = inode;
        while at != top && at != ROOT {
            match self.inodes.get(&at) {
                Some(inode) => at = inode.parent,
                None => return false,
            }
        }
        at == top
    }

    /// Cuts the power of everything at and below `top`. Inodes get the new epoch, so old handles are no longer valid.
    pub(super) fn cut(&mut self, top: InodeId, epoch: u64, rng: &mut Rng) {
        let hit: Vec<InodeId> = self.inodes.keys().copied().filter(|inode| self.is_below(*inode, top)).collect();
        for (_, inode) in self.inodes.iter_mut().filter(|(id, _)| hit.binary_search(id).is_ok()) {
            inode.renew(epoch);
            match &mut inode.body {
                Body::File(file) => file.cut(rng),
                Body::Directory(names) => {
                    names.keep_first(rng.below(names.pending.len() as u64 + 1) as usize);
                    names.live.clone_from(&names.durable);
                }
            }
        }
        self.sweep();
    }

    /// Ends all handles and locks, as if the disk were moved to another machine.
    pub(super) fn renew_all(&mut self, epoch: u64) {
        self.inodes.values_mut().for_each(|inode| inode.renew(epoch));
        self.sweep();
    }

    /// Ends the locks for which `held` returns true.
    pub(super) fn drop_locks(&mut self, held: impl Fn(u64) -> bool) {
        for inode in self.inodes.values_mut() {
            inode.lock = inode.lock.filter(|(_, process)| !held(*process));
        }
    }

    /// Forgets inodes to which no name leads, before or after a power cut, and which no handle holds.
    fn sweep(&mut self) {
        let mut reached = BTreeSet::new();
        let mut waiting: Vec<InodeId> =
            self.inodes.iter().filter(|(id, inode)| **id == ROOT || inode.handles > 0).map(|(id, _)| *id).collect();
        while let Some(inode) = waiting.pop() {
            if reached.insert(inode)
                && let Some(Inode { body: Body::Directory(names), .. }) = self.inodes.get(&inode)
            {
                waiting.extend(names.children());
            }
        }
        self.inodes.retain(|inode, _| reached.contains(inode));
    }

    /// Changes a file's bytes without any program knowing; the result counts as durable.
    pub(super) fn damage(&mut self, inode: InodeId, damage: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let file = self.file(inode)?;
        damage(&mut file.live);
        file.pending.clear();
        file.durable.clone_from(&file.live);
        Ok(())
    }

    /// Takes a file or a whole directory off the disk, durably.
    pub(super) fn lose(&mut self, path: &[String]) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        self.find(path)?;
        let names = self.names(parent)?;
        names.keep_first(usize::MAX);
        names.live.remove(name);
        names.durable.clone_from(&names.live);
        self.sweep();
        Ok(())
    }
}

impl Inode {
    fn renew(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.handles = 0;
        self.lock = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('/').map(String::from).collect()
    }

    fn disk() -> Disk {
        Disk::new(SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn writes_are_cut_at_sector_borders() {
        let bytes = vec![7u8; 1500];
        let pieces: Vec<_> = sectors(500, &bytes, 512).map(|(at, piece)| (at, piece.len())).collect();
        assert_eq!(pieces, [(500, 12), (512, 512), (1024, 512), (1536, 464)]);
        assert_eq!(sectors(512, &[], 512).count(), 0);
        assert_eq!(sectors(1024, &[1], 512).map(|(at, _)| at).collect::<Vec<_>>(), [1024]);
    }

    #[test]
    fn removed_files_are_forgotten_once_no_power_cut_can_bring_them_back() {
        let now = SystemTime::UNIX_EPOCH;
        let mut disk = disk();
        let file = disk.add_file(&path("file"), 0, now).unwrap();
        disk.sync_directory(ROOT).unwrap();
        disk.unlink(&path("file"), false, now).unwrap();
        disk.sweep();
        assert!(disk.inode(file).is_ok(), "a power cut could still undo the removal");
        disk.inode(file).unwrap().handles = 1;
        disk.sync_directory(ROOT).unwrap();
        assert!(disk.inode(file).is_ok(), "an open handle holds it");
        disk.inode(file).unwrap().handles = 0;
        disk.sweep();
        assert!(disk.inode(file).is_err());
    }

    #[test]
    fn a_cut_below_a_directory_spares_its_neighbours() {
        let now = SystemTime::UNIX_EPOCH;
        let mut lost = 0;
        for seed in 0..50 {
            let mut disk = disk();
            let names = ["a", "b"];
            let [top, other] = names.map(|name| disk.add_directory(&path(name), 0, now).unwrap());
            let files = [path("a/file"), path("b/file")].map(|path| disk.add_file(&path, 0, now).unwrap());
            for file in files {
                disk.write(file, 0, b"bytes").unwrap();
            }
            disk.cut(top, 1, &mut Rng::new(seed));
            assert_eq!(disk.contents(files[1]).unwrap(), b"bytes");
            assert!(disk.has_unsynced_names(other).unwrap());
            lost += usize::from(disk.find(&path("a/file")).is_err());
        }
        assert!((10..40).contains(&lost), "an unsynced name is lost about every other time, not {lost} times in 50");
    }
}
