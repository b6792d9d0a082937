//! Bringing every rank back to the same checkpoint: discover, choose, load.
//!
//! [`discover`] lists what a rank can reach of a series: slots of its node's segments (this run's and older ones), its
//! files on the local tier, and, on the root, the global tier. [`election`] finds with two reductions the newest
//! checkpoint that all ranks can restore, and decides after each attempt whether it counts. [`attempt`] is what the
//! application loads from inside an attempt: it takes each region from the nearest copy whose digests are right.
//!
//! Two tools work without a run: [`drain`] brings what a dead job left to the global tier, [`unpack`] makes checkpoints whole whose files refer
//! to others.
//!
//! A restart is an attempt: it counts only if all ranks loaded everything they asked for. Damage found on the way sends
//! all ranks to the next older candidate together; a region that the checkpoint does not have as the application asks
//! for it (name, type, length) is the application's disagreement with the checkpoint, which no older version mends: it ends
//! the restart with that error on all ranks.
#![forbid(unsafe_code)]

pub mod access;
pub mod attempt;
pub mod discover;
pub mod drain;
pub mod election;
pub mod homes;
mod load_error;
pub mod opener;
pub mod outline;
mod remade;
pub mod remote;
pub mod unpack;

pub use access::{Attempted, Copies};
pub use attempt::{Attempt, DealtRows, How, LoadedRows, RankPart, RegionReader, Window};
pub use election::{Elected, Election, RestartError, Tried, Unloaded, Want};
pub use load_error::LoadError;
