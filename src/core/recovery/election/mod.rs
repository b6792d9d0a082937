//! The collective choice of what to restore, and the end of each attempt.
//!
//! ```text
//!   look       the newest 32 candidates that ranks know                    one reduction
//!   vote       AND of what each rank has (or the global tier has)          one reduction, which also elects
//!   gather     ranks tell homes which of their shards they have found      posts and one reduction, only if some rank lacks a shard
//!   sets       ranks with parity of a lost shard's set tell its home       the same, only if the previous step is not enough
//!   outline    the root tells what the checkpoint contains                 one reduction, only if a different number of ranks took it
//!   attempt    every rank loads                                            no messages except those that move shards
//!   end        have all ranks loaded everything?                           one reduction, which elects the next candidate if not
//! ```
//!
//! When nodes were lost, ranks moved, or the number of ranks changed, a shard may be on a node other than that of its [home](super::homes),
//! or may have to be rebuilt. In *gather*, each rank that has found a copy tells the home of the shard, and homes that have not been told
//! of any copy say which shards they seek. In *sets*, members of the redundancy sets of these shards tell the homes what they hold, and the
//! homes ask the homes of the other members for the rest. Then each home knows the ways to its shards. A rank that finds its own copy
//! damaged makes all ranks gather and try the same candidate once more, with these ways open to every rank.
//!
//! The root's decision on a reduction carries the elected candidate and its manifest on the global tier, so that no
//! other rank reads the global directory. Candidates are looked at newest first, in windows of 32. The next window is
//! looked at only when nothing in the current one is left.

mod error;
mod rank;
mod root;

pub use error::{RestartError, Tried, Unloaded, Want};
pub use rank::{Elected, Election, origin_of};
