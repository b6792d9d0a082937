//! What the checkpoint records about output files.
#![forbid(unsafe_code)]

use super::{Attempt, Shards};
use crate::format::FormatError;
use crate::format::companions::{CompanionRecord, decode};
use crate::recovery::access::ShardAccess;
use crate::recovery::load_error::LoadError;
use crate::region::{self, RegionError};

/// What a shard records about its rank's output files, as it is stored; empty if it records nothing.
fn stored(access: &mut ShardAccess) -> Result<Vec<u8>, LoadError> {
    match access.shared_bytes(region::COMPANIONS) {
        Err(LoadError::Missing { .. }) => Ok(Vec::new()),
        stored => stored,
    }
}

fn records(stored: &[u8]) -> Result<Vec<CompanionRecord>, FormatError> {
    if stored.is_empty() { Ok(Vec::new()) } else { decode(stored) }
}

impl Attempt {
    /// What the checkpoint records about the output files of this rank or, if a different number of ranks took it, of all of these ranks. A
    /// rank for which `wants` is false gets nothing.
    ///
    /// # Collective
    /// All ranks, if a different number of ranks took the checkpoint.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`], [`LoadError::Others`].
    pub(crate) fn companions(&mut self, wants: bool) -> Result<Vec<CompanionRecord>, LoadError> {
        if let Shards::Own(own) = &mut self.shards {
            let bytes = if wants { stored(own)? } else { Vec::new() };
            let rank = self.rank;
            return records(&bytes).map_err(|source| {
                let source = RegionError::Value { name: region::COMPANIONS.into(), source };
                LoadError::Value { rank, source }
            });
        }
        let of = if wants { self.saved_ranks() } else { 0 };
        let mut all = Vec::new();
        self.ask_homes(
            (region::COMPANIONS, "companions"),
            (0..of).map(|shard| (shard, 0)).collect(),
            |access, _| stored(access),
            |_, bytes| {
                all.extend(records(bytes).ok()?);
                Some(0)
            },
        )?;
        Ok(all)
    }
}
