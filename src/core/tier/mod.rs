//! Places where bytes are kept: directory trees (local and global tier) and the node segment (memory tier).
//!
//! A *directory tier* ([`directory`]) stores containers and manifests under
//! `<root>/<job>/<group>/<name>/gNNNNNN-vNNNNNNNNNN-oNNNNNN/`; the local and the global tier are directory tiers that differ only in
//! what a container holds (one rank, or the ranks of a node). The global tier also keeps the store id and the claims of runs
//! ([`claims`]). All access goes through the [`storage`] trait: [`posix`] is the real file system, `simulated` a file system that
//! loses unsynced writes, and `wrappers` make calls fail, slow them down and count them. [`source`] reads a shard from wherever it is,
//! checking every block against its digest. [`run_directory`] keeps the small files that a session shares with its supervisor,
//! [`routed`] the files that programs write themselves. [`ours`] says which directories are trusted at all.
#![forbid(unsafe_code)]

pub mod beneath;
pub mod claims;
mod contract;
pub mod directory;
mod error;
mod held;
mod joined;
mod making;
pub mod names;
#[cfg_attr(not(feature = "object-store"), path = "object_absent.rs")]
pub mod object;
pub mod ours;
pub mod owner;
pub mod packing;
pub mod pieces;
pub mod posix;
pub mod records;
pub mod routed;
pub mod run_directory;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;
pub mod source;
mod spec;
pub mod storage;
#[cfg(any(test, feature = "testing"))]
pub mod wrappers;

pub use contract::{Around, Tier, Upload, Writers, patiently, read_whole};
pub use error::TierError;
pub use joined::{Look, check_sources, join, mend, open_or_mend, open_source, packing_of, sources_in};
pub use making::{Make, maker};
pub use spec::{Gathering, Means, PerTier, TIERS, TierId, TierSet, TierSpec, Wish};
