//! Bivouac: collective checkpoint and restart for MPI simulations.
//!
//! A simulation hands over the data that matters; Bivouac captures a globally consistent checkpoint, moves it down
//! the storage hierarchy behind the computation (node memory, node-local storage, parallel file system), and after
//! a failure brings every rank back to the same version. Start with [`Session`]; `src/ARCHITECTURE.md` tells how it
//! works inside, `docs/FORMAT.md` what it writes.

pub mod affinity;
pub mod base;
pub mod cache;
#[cfg(feature = "mpi")]
pub mod capi;
pub mod catalog;
pub mod comm;
pub mod config;
pub mod coordination;
pub mod device;
pub mod format;
pub mod policy;
pub mod recovery;
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
pub use format::ElementType;
pub use recovery::{LoadError, RestartError, Restorer};
pub use region::Element;
pub use session::{Checkpoint, Error, Pending, Restored, Result, Session, VersionInfo};
pub use transfer::history::{Caches, Field, FieldMut, History, HistoryError};
pub use transfer::{LevelVerdict, Stats};

/// The guide's example is compiled with the documentation tests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../docs/GPU.md")]
struct GpuGuide;
