//! Open files and locks of the simulated disk. They hold numbers, not the things themselves, and at each call they ask the
//! disk whether the numbers are still valid.
#![forbid(unsafe_code)]

use std::io;

use rustix::io::Errno;

use super::disk::{InodeId, LockId};
use super::{Fault, Intent, Interruption, Parts, Simulated, State};
use crate::base::sync::Guard;
use crate::tier::storage::{FileLock, ReadFile, WriteFile};

/// An open file, for writing or for reading.
pub(super) struct SimulatedFile {
    pub(super) storage: Simulated,
    /// The path under which the file was opened; faults and counters use it.
    pub(super) path: Parts,
    pub(super) inode: InodeId,
    /// The inode's epoch when the file was opened. If the inode has another epoch now, the power was cut.
    pub(super) epoch: u64,
}

impl SimulatedFile {
    fn enter(&self, intent: Intent) -> io::Result<Guard<'_, State>> {
        let mut state = self.storage.enter(&self.path, intent)?;
        match state.disk.inode(self.inode) {
            Ok(inode) if inode.epoch == self.epoch => Ok(state),
            _ => Err(Interruption::PowerCut.into()),
        }
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut state = self.storage.lock();
        if let Ok(inode) = state.disk.inode(self.inode)
            && inode.epoch == self.epoch
        {
            inode.handles = inode.handles.saturating_sub(1);
        }
    }
}

impl WriteFile for SimulatedFile {
    fn reserve(&self, length: u64) -> io::Result<()> {
        let mut state = self.enter(Intent::Change)?;
        if state.has_fault(&self.path, Fault::NoReserve) {
            return Ok(());
        }
        let growth = state.disk.growth(self.inode, length)?;
        state.check_room(&self.path, growth)?;
        state.disk.grow(self.inode, length)?;
        state.steps += 1;
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.enter(Intent::Change)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        let growth = state.disk.growth(self.inode, end)?;
        state.check_room(&self.path, growth)?;
        state.disk.write(self.inode, offset, bytes)?;
        let now = state.now();
        state.disk.inode(self.inode)?.modified = now;
        *state.bytes_written.entry(self.path.clone()).or_default() += bytes.len() as u64;
        state.steps += 1;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.enter(Intent::Change)?;
        state.disk.sync_file(self.inode)?;
        state.steps += 1;
        Ok(())
    }
}

impl ReadFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.enter(Intent::Look)?.disk.length(self.inode)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.enter(Intent::Look)?;
        let contents = state.disk.contents(self.inode)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        match from.checked_add(buffer.len()) {
            Some(end) if end <= contents.len() => buffer.copy_from_slice(&contents[from..end]),
            // No bytes are wanted, so none are missing.
            _ if buffer.is_empty() => {}
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        *state.bytes_read.entry(self.path.clone()).or_default() += buffer.len() as u64;
        Ok(())
    }
}

/// A lock that was granted.
pub(super) struct SimulatedLock {
    pub(super) storage: Simulated,
    pub(super) inode: InodeId,
    pub(super) id: LockId,
}

impl FileLock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut state = self.storage.lock();
        if let Ok(inode) = state.disk.inode(self.inode) {
            // After a simulated death, somebody else may hold the lock by now.
            inode.lock = inode.lock.filter(|(id, _)| *id != self.id);
        }
    }
}
