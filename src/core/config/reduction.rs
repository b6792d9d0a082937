//! The section `[reduction]`: whether files refer to earlier ones for what these hold already.

use std::fmt;

/// The most checkpoints that one may refer to, in files, too.
pub const SOURCES_MAX: u64 = 32;
/// The shortest chunk.
pub const CHUNK_MIN: u64 = 32;
/// The longest: no longer than the shortest block.
pub const CHUNK_MAX: u64 = 4096;

/// Bytes of a block where a method is set and `job.block` is not.
pub const BLOCK_REDUCED: u64 = 64 << 10;

/// What of a shard files leave to earlier files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Nothing: each file holds whole shards.
    #[default]
    Full,
    /// Blocks that have not changed.
    Basic,
    /// Chunks that have not changed, and those that files store at another place.
    List,
    /// What [`Method::List`] finds, referred to in as few ranges as a tree of the chunks' digests comes to.
    Tree,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 4] = [Method::Full, Method::Basic, Method::List, Method::Tree];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Method::Full => "full",
            Method::Basic => "basic",
            Method::List => "list",
            Method::Tree => "tree",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How it is made sure that what files refer to is what was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Verify {
    /// By the digests alone.
    #[default]
    Digest,
    /// By reading it and comparing every byte, before the file is written.
    Bytes,
}

impl Verify {
    /// All of them.
    pub const ALL: [Verify; 2] = [Verify::Digest, Verify::Bytes];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Verify::Digest => "digest",
            Verify::Bytes => "bytes",
        }
    }
}

/// Whether what files store themselves is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Compress {
    /// Nothing is.
    #[default]
    Off,
    /// While a file is written sooner with it, by what this rank has measured on its tier.
    Auto,
    /// Everything that becomes shorter.
    On,
}

impl Compress {
    /// All of them.
    pub const ALL: [Compress; 3] = [Compress::Off, Compress::Auto, Compress::On];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Compress::Off => "off",
            Compress::Auto => "auto",
            Compress::On => "on",
        }
    }
}

/// Whether files refer to earlier ones, and to how many.
#[derive(Clone, Debug, PartialEq)]
pub struct ReductionConfig {
    /// What they leave to earlier files.
    pub method: Method,
    /// Bytes of a chunk, a power of two from 32 to 4096; `None`: the shortest from 128 for which there is room.
    pub chunk: Option<u64>,
    /// The most checkpoints that one may refer to, 1 to 32.
    pub sources: u64,
    /// A checkpoint of whose own bytes less than this part is still in use is not referred to any longer, above 0 and up to 1.
    pub live: f64,
    /// Every n-th checkpoint of a name that goes to files is whole. Zero: none for that reason.
    pub whole_every: u64,
    /// How references are checked before they are written.
    pub verify: Verify,
    /// Whether what is left is compressed.
    pub compress: Compress,
}

impl Default for ReductionConfig {
    fn default() -> Self {
        ReductionConfig {
            method: Method::Full,
            chunk: None,
            sources: 8,
            live: 0.25,
            whole_every: 0,
            verify: Verify::Digest,
            compress: Compress::Off,
        }
    }
}
