//! Who reads which shard in loads by all ranks together.
//!
//! The home of a shard reads it, if it has a copy on its node or if no rank has one. Otherwise the home asks a rank on a node that has a
//! copy to read the shard. Every rank can read for itself what is on its node, and on tiers that all nodes share.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::super::opener::Opener;
use super::together::{Together, plainly};
use crate::base::Rank;
use crate::base::log;
use crate::coordination::Payload;
use crate::decomposition::matching::Piece;
use crate::format::codec;
use crate::redundancy::holding::Alternative;
use crate::transfer::posting::{Handled, all_at_once};
use std::collections::{BTreeMap, BTreeSet};

/// What a rank reads in addition to the shards whose home it is.
#[derive(Default)]
pub struct Readers {
    /// Shards whose home this rank is, and which another rank reads.
    lent: BTreeSet<Rank>,
    /// Shards that this rank reads for all, and whose homes are elsewhere.
    taken: Vec<ShardAccess>,
    /// Shards that this rank reads for itself.
    near: BTreeMap<Rank, ShardAccess>,
    /// It is known who reads what.
    are_known: bool,
}

impl Readers {
    /// All shards that this rank has opened here.
    pub fn accesses(&self) -> impl Iterator<Item = &ShardAccess> {
        self.taken.iter().chain(self.near.values())
    }

    /// Finds out who reads what, once in an attempt. If each home has found its shards on its own node, no rank needs to ask.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks.
    pub fn find(
        &mut self,
        together: &Together<'_>,
        opener: &Opener,
        homes: &[ShardAccess],
        mistake: Option<&LoadError>,
    ) -> Result<(), LoadError> {
        if self.are_known || !opener.elected().has_gathered {
            self.are_known = true;
            return Ok(());
        }
        let (mut first, mut failure) = (Vec::new(), None);
        for shard in homes.iter().map(ShardAccess::shard) {
            let Some((reader, ways)) = opener.lender(shard) else { continue };
            match codec::encode("message", &(shard, ways)) {
                Ok(message) => {
                    first.push((reader, message));
                    self.lent.insert(shard);
                }
                Err(error) => failure = Some(together.of_this_rank(error.to_string())),
            }
        }
        let taken = &mut self.taken;
        let mut on_post = |_: Rank, bytes: &[u8]| {
            let message: (Rank, Vec<Alternative>) =
                codec::decode("message", bytes).map_err(|error| error.to_string())?;
            let (shard, ways) = message;
            taken.push(opener.access(shard, opener.with(shard, ways)));
            Ok(Handled::default())
        };
        let ballot = together.failed(together.ballot("readers", Payload::None), mistake.or(failure.as_ref()));
        together.exchange(&mut all_at_once(first), &mut on_post, |_| ballot, plainly)?;
        self.taken.sort_by_key(ShardAccess::shard);
        self.are_known = true;
        log::debug!("event=readers rank={} lent={} taken={}", together.rank(), self.lent.len(), self.taken.len());
        Ok(())
    }

    /// The shards that this rank reads for all.
    pub fn read_here<'a>(&'a mut self, homes: &'a mut [ShardAccess]) -> Vec<&'a mut ShardAccess> {
        let lent = &self.lent;
        homes.iter_mut().filter(|access| !lent.contains(&access.shard())).chain(&mut self.taken).collect()
    }

    /// The shard of a piece, if this rank can read it without any other rank.
    pub fn near(&mut self, opener: &Opener, piece: &Piece) -> Option<&mut ShardAccess> {
        let is_on_node = opener.engine().identity().node_ranks.contains(&piece.reader);
        // A damaged copy is left to its reader, which knows other ways.
        if opener.elected().is_again || !(piece.is_shared || is_on_node) {
            return None;
        }
        let shard = piece.shard;
        let access = self.near.entry(shard).or_insert_with(|| opener.access(shard, opener.near(shard)));
        (piece.is_shared || access.is_open()).then_some(access)
    }

    /// The shards of these ranks, each by the access through which this rank reads it for itself.
    pub fn of<'a>(&'a mut self, homes: &'a mut [ShardAccess], shards: &BTreeSet<Rank>) -> Vec<&'a mut ShardAccess> {
        let (lent, near) = (&self.lent, &mut self.near);
        let own = homes.iter_mut().filter(|access| !lent.contains(&access.shard())).chain(&mut self.taken);
        let own: BTreeMap<Rank, &mut ShardAccess> = own.map(|access| (access.shard(), access)).collect();
        let mut all: BTreeMap<Rank, &mut ShardAccess> =
            near.iter_mut().map(|(shard, access)| (*shard, access)).collect();
        // This rank knows more ways to the shards that it reads for others.
        all.extend(own);
        all.into_iter().filter(|(shard, _)| shards.contains(shard)).map(|(_, access)| access).collect()
    }
}
