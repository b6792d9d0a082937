//! The collective choice of what to restore, and the end of each attempt.
//!
//! ```text
//!   look       union of what ranks know, newest 32 of it        one reduction
//!   vote       AND of what each rank has (or the global tier)   one reduction, which also elects
//!   gather     who found what tells the homes of it             posts and one reduction, only if some rank lacks a shard
//!   sets       who has parity of a lost shard's set tells its home  the same, only if that is not enough
//!   outline    what the checkpoint has, from the root           one reduction, only if another number of ranks took it
//!   attempt    every rank loads                                  no messages but those that move shards
//!   end        did all of them?                                  one reduction, which elects the next if not
//! ```
//!
//! When nodes were lost, ranks moved, or there are more or fewer of them, a shard may lie on a node other than its [home](super::homes), or
//! have to be rebuilt. In *gather*, whoever found a copy tells its home, and homes that have not been told about any say
//! which shards they seek. Members of the sets of those then tell these homes what they hold, which ask the homes of other members for
//! the rest; and each home knows the ways to its shards. A rank that finds its own copy damaged makes all ranks gather and try
//! the same candidate once more, with these ways open to everybody.
//!
//! The root's decision of a reduction carries the elected candidate and its global manifest, so that no other rank reads
//! the global directory. Candidates go newest first in windows of 32; the next window is looked at only when nothing of
//! this one is left.

mod error;
mod rank;
mod root;

pub use error::{RestartError, Tried, Unloaded, Want};
pub use rank::{Elected, Election, origin_of};
