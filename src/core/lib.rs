//! The implementation of the crate `bivouac`, for its command, its C interface and its tests. Nobody else should build on it: it changes
//! without notice. `src/ARCHITECTURE.md` is its map.

pub mod affinity;
pub mod base;
pub mod cache;
pub mod catalog;
pub mod comm;
pub mod config;
pub mod coordination;
pub mod decomposition;
pub mod device;
pub mod format;
pub mod live;
pub mod planner;
pub mod policy;
pub mod recovery;
pub mod reduction;
pub mod redundancy;
pub mod region;
pub mod segment;
pub mod session;
pub mod tier;
pub mod transfer;

pub use affinity::keeper::AffinityReport;
pub use affinity::pinning::Pin;
pub use base::Level;
pub use config::Config;
pub use decomposition::{Boxes, Decomposition, Ids, OnResize};
pub use format::ElementType;
pub use live::LiveMemory;
pub use recovery::{Attempt, How, LoadError, LoadedRows, RankPart, RegionReader, RestartError};
pub use region::{Element, Elements};
pub use session::{Checkpoint, Companion, DeviceProtected, OnRestart, Protect, Protected, RegionWriter};
pub use session::{
    CheckpointBuilder, DeviceCheckpointBuilder, Error, Pending, Restore, Restored, Result, Rows, RowsMut, Session,
    VersionInfo,
};
pub use transfer::history::{Caches, Field, FieldMut, History, HistoryError};
pub use transfer::offload::{Offload, OffloadError, OffloadStats, WriteSet};
pub use transfer::{LevelVerdict, LiveStats, Stats};

/// Compiles the examples of this guide with the documentation tests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/GPU.md")]
struct GpuGuide;

/// Compiles the examples of this guide with the documentation tests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/OFFLOAD.md")]
struct OffloadGuide;

/// Compiles the examples of this guide with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/ELASTIC.md")]
struct ElasticGuide;

/// Compiles the examples of this guide with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/FILES.md")]
struct FilesGuide;
