//! What de-duplication compares: the graphlet counters of the paper's five inputs, version after version.

use super::battery::{self, Found};
use super::inputs::{self, Kind};
use super::orbits::Table;
use super::subgraphs::{Problem, roots_of};
use bivouac_core::base::digest::digest_bytes;
use std::collections::HashSet;

/// Versions of each input, spread evenly over the count.
const VERSIONS: usize = 20;

/// All inputs.
pub const INPUTS: [Kind; 5] = [Kind::Delaunay, Kind::Road, Kind::Bubble, Kind::Race, Kind::Mesh];

/// What the blocks of all versions of an input showed, and the pairs of its consecutive blocks that differ.
pub struct Counted {
    /// All pairs of different blocks.
    pub found: Found,
    /// Consecutive versions of a block that differ.
    pub changed: u64,
    /// The pairs among them that agree in a half of the digest.
    pub unseen: u64,
}

/// Counts graphlets of up to four vertices, and compares all blocks of this length of all versions.
pub fn counted(kind: Kind, vertices: usize, block: usize, seed: u64) -> Counted {
    let problem = Problem { graph: inputs::generate(kind, vertices, seed), table: Table::new(4) };
    let mut counters = vec![0u32; problem.counters()];
    let (mut before, mut known, mut digests) = (counters.clone(), HashSet::new(), Vec::new());
    let (mut changed, mut unseen) = (0, 0);
    for version in 0..VERSIONS {
        problem.count(roots_of(version, VERSIONS, 0, 1, vertices), &mut counters).expect("no counter overflows");
        let bytes = bytemuck::cast_slice::<u32, u8>;
        for (now, then) in bytes(&counters).chunks(block).zip(bytes(&before).chunks(block)) {
            let digest = battery::halves(digest_bytes(now));
            if now != then {
                let old = battery::halves(digest_bytes(then));
                changed += 1;
                unseen += u64::from(digest[0] == old[0] || digest[1] == old[1]);
            }
            if known.insert(xxhash_rust::xxh3::xxh3_128(now)) {
                digests.push(digest);
            }
        }
        before.copy_from_slice(&counters);
    }
    Counted { found: battery::judge(&digests), changed, unseen }
}
