//! The collective choice of what to restore, and the end of each attempt.
//!
//! ```text
//!   look       union of what ranks know, newest 32 of it        one reduction
//!   vote       AND of what each rank has (or the global tier)   one reduction, which also elects
//!   gather     who holds what, on which node                    one reduction, only if some rank lacks its shard
//!   attempt    every rank loads                                  no messages but those that move shards
//!   end        did all of them?                                  one reduction, which elects the next if not
//! ```
//!
//! When nodes were lost or ranks moved, a rank's shard may lie on another node, or have to be rebuilt there. The root
//! learns that in *gather* and sends along, with the candidate it elects, the ways to the shards that their ranks do not
//! have; those ranks then ask the holders. A rank that finds its own copy damaged makes all ranks gather and try
//! the same candidate once more, with these ways open to everybody.
//!
//! The root's decision of a reduction carries the elected candidate and its global manifest, so that no other rank reads
//! the global directory. Candidates go newest first in windows of 32; the next window is looked at only when nothing of
//! this one is left.

mod error;
mod rank;
mod root;

pub use error::{RestartError, Tried, Want};
pub use rank::{Elected, Election, origin_of};
