//! What the checkpoint records of output files.
#![forbid(unsafe_code)]

use super::{Attempt, Shards};
use crate::format::companions::{CompanionRecord, decode};
use crate::format::{FormatError, codec};
use crate::recovery::access::ShardAccess;
use crate::recovery::load_error::LoadError;
use crate::region::{self, RegionError};
use crate::tier::storage::zeroed;

/// What a shard records of its rank's, as it is stored; empty if there is none.
fn stored(access: &mut ShardAccess) -> Result<Vec<u8>, LoadError> {
    let source = access.source(region::COMPANIONS)?;
    let Some(region) = source.head().region(region::COMPANIONS).cloned() else { return Ok(Vec::new()) };
    let length = region.bytes.min(codec::LIMIT as u64);
    let mut bytes = zeroed(length).unwrap_or_default();
    access.load_all(std::iter::once(&region), |source| {
        source.read_region(&region, &mut bytes)?;
        Ok(length)
    })?;
    Ok(bytes)
}

fn records(stored: &[u8]) -> Result<Vec<CompanionRecord>, FormatError> {
    if stored.is_empty() { Ok(Vec::new()) } else { decode(stored) }
}

impl Attempt {
    /// What the checkpoint records of output files, of this rank or, if another number of ranks took it, of all of them. A rank that `wants` nothing
    /// gets nothing.
    ///
    /// # Collective
    /// All ranks, if another number of ranks took the checkpoint.
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
