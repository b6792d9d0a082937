//! Section `[offload]`: checkpoints of GPU memory for which there is no room on the GPU.
#![forbid(unsafe_code)]

/// How [`CheckpointBuilder::with_offload`](crate::session::CheckpointBuilder::with_offload) works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadConfig {
    /// Which shards are marked.
    pub mode: OffloadMode,
    /// Blocks are digested when they are marked, so that a write that nobody has declared is refused.
    pub audit: bool,
    /// Who sees to it that live host memory is copied before it is written to.
    pub host_writes: HostWrites,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        OffloadConfig { mode: OffloadMode::Auto, audit: true, host_writes: HostWrites::Watched }
    }
}

/// Which shards are marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OffloadMode {
    /// Those for which the GPU cache has no room at once.
    #[default]
    Auto,
    /// All.
    Always,
}

/// What becomes of host memory that the program writes to again before it was copied ([`CheckpointBuilder::save_live`](crate::session::CheckpointBuilder::save_live)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostWrites {
    /// The kernel stops a write until what is there was copied.
    #[default]
    Watched,
    /// The program declares all that it writes to.
    Declared,
    /// It is copied before the capture returns.
    Copied,
}
