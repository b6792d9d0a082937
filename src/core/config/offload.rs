//! Section `[offload]`: checkpoints of GPU memory for which the GPU has no room.
#![forbid(unsafe_code)]

/// The behaviour of [`CheckpointBuilder::with_offload`](crate::session::CheckpointBuilder::with_offload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadConfig {
    /// Which shards are marked.
    pub mode: OffloadMode,
    /// Blocks are digested when they are marked, so that a checkpoint with an undeclared write is refused.
    pub audit: bool,
    /// How live host memory is copied before it is written to.
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
    /// Shards for which the GPU cache does not have room immediately.
    #[default]
    Auto,
    /// All shards.
    Always,
}

/// What happens if the program writes to live host memory before it is copied
/// ([`CheckpointBuilder::save_live`](crate::session::CheckpointBuilder::save_live)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostWrites {
    /// The kernel holds back a write until the old content has been copied.
    #[default]
    Watched,
    /// The program declares all writes.
    Declared,
    /// The memory is copied before the capture returns.
    Copied,
}
