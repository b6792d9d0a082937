//! Bivouac: collective checkpoint and restart for MPI simulations.
//!
//! A simulation names the data that matters. Bivouac captures a globally consistent checkpoint and moves it down the storage hierarchy
//! (node memory, node-local storage, parallel file system) while the simulation computes. After a failure it returns every rank to the
//! same version. Start with [`Session`], or with the guide `docs/RUST.md`. `src/ARCHITECTURE.md` describes how Bivouac works inside, and
//! `docs/FORMAT.md` describes the files that it writes.
//!
//! The crate `bivouac-core` contains the implementation. The command, the C interface and the tests use its modules, but it offers no
//! stable interface to anyone else. Programs may build on everything that the crate `bivouac` exports.
#![forbid(unsafe_code)]

pub use bivouac_core::base::{CheckpointKey, Generation};
pub use bivouac_core::config::{self, Config};
pub use bivouac_core::coordination::Culprit;
pub use bivouac_core::session::{Checkpoint, Companion, DeviceProtected, OnRestart, Protect, Protected, RegionWriter};
pub use bivouac_core::session::{
    CheckpointBuilder, DeviceCheckpointBuilder, Error, Pending, Restore, Restored, Result, Session, VersionInfo,
};
pub use bivouac_core::tier::TierId;
pub use bivouac_core::transfer::{LevelVerdict, Report, Stats};
pub use bivouac_core::{AffinityReport, Attempt, Element, ElementType, Level, LoadError, Pin, RestartError};
pub use bivouac_core::{Boxes, Decomposition, Elements, Ids, OnResize};
pub use bivouac_core::{Caches, Field, FieldMut, History, HistoryError};
pub use bivouac_core::{How, LoadedRows, RankPart, RegionReader, Rows, RowsMut};

/// Implements `bivouac::Checkpoint` for a structure with named fields: each field is saved and loaded under its name.
///
/// Without an attribute, a field must be an array of elements (`Vec<T>`, `[T; N]`, `Box<[T]>`), a number, a boolean or a string, as for
/// `Protected::protect`. An attribute `#[checkpoint(…)]` changes that:
///
/// | attribute | the field is |
/// |---|---|
/// | `skip` | neither saved nor loaded |
/// | `name = "…"` | saved under this name; may be combined with any other attribute |
/// | `value` | a small value that `serde` can encode |
/// | `shared` | a small value that is the same on all ranks; it can be restored on any number of ranks |
/// | `per_rank = drop`, `ask` or `refuse` | a small value of this rank, handled in this way on a different number of ranks (`OnResize`) |
/// | `on = field` | this rank's part of an array; the named field, which must have `skip`, is its `Decomposition` |
/// | `state` | another structure that implements `Checkpoint`; its fields get the names `<name>/<field>` |
///
/// ```
/// use bivouac::{Checkpoint, Decomposition};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Random(u64);
///
/// #[derive(Checkpoint)]
/// struct Ocean {
///     salinity: Vec<f32>,
/// }
///
/// #[derive(Checkpoint)]
/// struct Model {
///     #[checkpoint(skip)]
///     grid: Decomposition,
///     #[checkpoint(shared)]
///     step: u64,
///     #[checkpoint(on = grid, name = "T")]
///     temperature: Vec<f64>,
///     #[checkpoint(per_rank = drop)]
///     random: Random,
///     #[checkpoint(state)]
///     ocean: Ocean,
/// }
///
/// fn step(session: &bivouac::Session, model: &mut Model) -> bivouac::Result<()> {
///     if session.should_checkpoint()? {
///         session.checkpoint("model", model.step, model)?;
///     }
///     Ok(())
/// }
/// ```
///
/// A field of any other type does not compile:
///
/// ```compile_fail
/// #[derive(bivouac::Checkpoint)]
/// struct Wrong {
///     file: std::fs::File,
/// }
/// ```
///
/// Two attributes that contradict each other, or a decomposition that is not a field, do not compile either:
///
/// ```compile_fail
/// #[derive(bivouac::Checkpoint)]
/// struct Wrong {
///     #[checkpoint(shared, value)]
///     step: u64,
/// }
/// ```
///
/// ```compile_fail
/// #[derive(bivouac::Checkpoint)]
/// struct Wrong {
///     #[checkpoint(on = grid)]
///     temperature: Vec<f64>,
/// }
/// ```
pub use bivouac_derive::Checkpoint;

pub use bivouac_core::{LiveMemory, LiveStats};
pub use bivouac_core::{Offload, OffloadError, OffloadStats, WriteSet};

/// GPUs, and a device in host memory that replaces a GPU on machines that have none.
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
#[cfg(all(doctest, feature = "mpi"))]
#[doc = include_str!("../docs/RUST.md")]
struct RustGuide;
