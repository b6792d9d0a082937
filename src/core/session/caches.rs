//! The caches of a session's GPU.
#![forbid(unsafe_code)]

use super::error::Result;
use super::session::Session;
use crate::device::Device;
use crate::tier::TierId;
use crate::transfer::history::{CacheConfig, Caches};
use std::sync::Arc;

impl Session {
    /// Opens the caches of this rank on `device`: GPU memory, leases of the node's memory tier, and a file on the local tier. The
    /// configuration gives their sizes (`[device]`, `[history]`). Histories are made from them, and checkpoints with regions in device
    /// memory pass through them ([`CheckpointBuilder::with_device`](crate::CheckpointBuilder::with_device)). The caches live no longer than
    /// the session.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// Until the first step of GPU memory is mapped, which takes well under a millisecond. The rest is made ready in the background. If
    /// ranks take turns at links (`stagger.bursts`), also until the node's topology has been read, which takes some tens of milliseconds.
    ///
    /// # Errors
    /// [`Error::History`](crate::Error::History).
    pub fn caches(&self, device: Arc<dyn Device>) -> Result<Caches> {
        self.caches_with(device, |_| {})
    }

    /// Opens caches as [`Session::caches`] does. `change` is called last. It receives the settings that follow from the configuration, and
    /// sets those that have no key, such as [`CacheConfig::trace`].
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// See [`Session::caches`].
    ///
    /// # Errors
    /// [`Error::History`](crate::Error::History).
    pub fn caches_with(&self, device: Arc<dyn Device>, change: impl FnOnce(&mut CacheConfig)) -> Result<Caches> {
        let config = self.engine.config();
        let history = config.node.history;
        let segment = self.engine.memory().cloned();
        let ranks = self.engine.identity().node_ranks.len() as u64;
        let share = self.memory_share();
        let directory = self.engine.tier(TierId::LOCAL).map(|tier| tier.root().to_owned());
        let free = |path: &std::path::PathBuf| {
            rustix::fs::statvfs(path).map_or(0, |fs| fs.f_bavail * fs.f_frsize / ranks.max(1))
        };
        let mut caches = CacheConfig {
            device_bytes: config.node.device_budget.of(device.info().memory_bytes),
            host_bytes: history.host_budget.of(share),
            store_bytes: history.store_budget.of(directory.as_ref().map_or(0, free)),
            store_directory: directory,
            block_bytes: config.job.block_bytes,
            cpus: config.node.device_cpus,
            touch: history.touch,
            pin: history.pin,
            stagger: config.job.stagger,
            room: config.job.timeouts.room,
            ..CacheConfig::default()
        };
        change(&mut caches);
        if let Some(keeper) = self.engine.affinity() {
            keeper.use_device(&device.info().bus_id);
        }
        Ok(Caches::open_beside(device, segment, caches, self.engine.waiting.clone())?)
    }

    /// This rank's share of the node memory tier, in bytes.
    #[doc(hidden)]
    pub fn memory_share(&self) -> u64 {
        self.engine.memory_share()
    }
}
