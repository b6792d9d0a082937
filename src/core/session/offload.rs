//! Checkpoints that are sent from live memory of a session's GPU.
#![forbid(unsafe_code)]

use super::error::Result;
use super::session::Session;
use crate::transfer::history::Caches;
use crate::transfer::offload::{Offload, OffloadSpec};
use std::sync::Arc;

impl Session {
    /// Opens the offloader of a GPU, which marks checkpoints of the GPU's memory as configured (`[offload]`). Its buffer is a part of the
    /// GPU cache of `caches`. Each device has one offloader, which lives no longer than the session.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// Until the GPU cache is mapped, which takes some milliseconds.
    ///
    /// # Errors
    /// [`Error::History`](crate::Error::History).
    pub fn offload(&self, caches: &Caches) -> Result<Offload> {
        let config = self.engine.config();
        let engine = Arc::downgrade(&self.engine);
        let spec = OffloadSpec {
            config: config.job.offload,
            buffer: config.node.offload_buffer.of(caches.device_bytes()),
            cpus: config.node.device_cpus,
            limit: config.job.timeouts.abandon / 4,
            segment: self.engine.memory().cloned(),
            is_read: config.job.has_files() || config.job.redundancy.first_scheme().is_some(),
            stats: self.engine.count_marks(),
            is_waited_for: Box::new(move || engine.upgrade().is_none_or(|engine| engine.is_landing_awaited())),
        };
        Ok(Offload::open(caches, spec)?)
    }
}
