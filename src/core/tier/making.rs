//! How the file tiers that all nodes share are made. The session itself finds the tiers that belong to one node.
#![forbid(unsafe_code)]

use super::contract::{Around, Tier};
use super::directory::DirectoryTier;
use super::object;
use super::spec::TierId;
use std::sync::Arc;

/// Makes a tier without touching anything, or returns the reason why there cannot be one.
pub type Make = fn(&Around<'_>) -> Result<Arc<dyn Tier>, String>;

const MAKERS: [(TierId, Make); 2] = [(TierId::GLOBAL, global), (TierId::OBJECT, object::make)];

/// How a tier is made, if all nodes share it.
pub fn maker(tier: TierId) -> Option<Make> {
    MAKERS.into_iter().find(|(of, _)| *of == tier).map(|(_, make)| make)
}

fn global(Around { config, directory, storage }: &Around<'_>) -> Result<Arc<dyn Tier>, String> {
    let root = directory.join(&config.job.global_directory);
    Ok(Arc::new(DirectoryTier::new(TierId::GLOBAL, (*storage).clone(), root)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_of_files_that_all_nodes_share_can_be_made() {
        for tier in TierId::files() {
            assert_eq!(maker(tier).is_some(), tier.spec().is_shared, "{tier}");
        }
    }
}
