//! Brings every rank back to the same checkpoint in three steps: discover, choose, load.
//!
//! [`discover`] lists what a rank can reach of a series: slots in its node's segments (those of this run and of older
//! ones), its files on the local tier and, on the root, the global tier. [`election`] finds, with two reductions, the
//! newest checkpoint that all ranks can restore, and decides after each attempt whether it counts. The application
//! loads from an [`attempt`], which takes each region from the nearest copy whose digests are right.
//!
//! Two tools work without a run: [`drain`] brings what a dead job left to the global tier, and [`unpack`] makes checkpoints whole whose
//! files refer to others.
//!
//! An attempt counts only if all ranks have loaded everything that they asked for. Damage that is found on the way sends all ranks to the
//! next older candidate together. If the checkpoint does not have a region as the application asks for it (name, type, length), the
//! application disagrees with the checkpoint, which no older version would mend. The restart then ends with that error on all ranks.
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
