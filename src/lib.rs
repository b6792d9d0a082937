//! Bivouac: collective checkpoint and restart for MPI simulations.
//!
//! A simulation passes the data that matters. Bivouac captures a globally consistent checkpoint and moves it down the storage hierarchy
//! (node memory, node-local storage, parallel file system) while the simulation computes. After a failure it returns every rank to the
//! same version. Start with [`Session`], or with the guide `docs/RUST.md`. `src/ARCHITECTURE.md` says how it works inside, and `docs/FORMAT.md` what it writes.
//!
//! The implementation is the crate `bivouac-core`. The command, the C interface and the tests use its modules; it has no stable
//! interface for others. Programs may build on what is here.
#![forbid(unsafe_code)]

pub use bivouac_core::config::{self, Config};
pub use bivouac_core::session::{Checkpoint, Companion, DeviceProtected, OnRestart, Protect, Protected, RegionWriter};
pub use bivouac_core::session::{
    CheckpointBuilder, DeviceCheckpointBuilder, Error, Pending, Restore, Restored, Result, Session, VersionInfo,
};
pub use bivouac_core::transfer::{LevelVerdict, Stats};
pub use bivouac_core::{AffinityReport, Attempt, Element, ElementType, Level, LoadError, Pin, RestartError};
pub use bivouac_core::{Boxes, Decomposition, Elements, Ids, OnResize};
pub use bivouac_core::{Caches, Field, FieldMut, History, HistoryError};
pub use bivouac_core::{How, LoadedRows, RankPart, RegionReader, Rows};
pub use bivouac_derive::Checkpoint;

pub use bivouac_core::{LiveMemory, LiveStats};
pub use bivouac_core::{Offload, OffloadError, OffloadStats, WriteSet};

/// GPUs, and a device in host memory that replaces one where there is none.
pub mod device {
    #[cfg(feature = "cuda")]
    pub use bivouac_core::device::cuda;
    pub use bivouac_core::device::host;
    pub use bivouac_core::device::{Device, DeviceError, DeviceSpan, Priority, Stream};
}

/// What histories report, and how long they keep a version.
pub mod history {
    pub use bivouac_core::cache::Keep;
    pub use bivouac_core::transfer::history::{HistoryStats, Span};
}

/// The bytes on disk: shards, containers, manifests, as described in `docs/FORMAT.md`.
pub use bivouac_core::format;

/// Compiles the examples of this guide with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/RUST.md")]
struct RustGuide;
