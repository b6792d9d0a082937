//! Section `[offload]`: checkpoints of GPU memory for which there is no room on the GPU.
#![forbid(unsafe_code)]

/// How [`Checkpoint::mark_on`](crate::session::Checkpoint::mark_on) works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadConfig {
    /// Which shards are marked.
    pub mode: OffloadMode,
    /// Blocks are digested when they are marked, so that a write that nobody has declared is refused.
    pub audit: bool,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        OffloadConfig { mode: OffloadMode::Auto, audit: true }
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
