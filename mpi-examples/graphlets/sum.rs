//! The sum of the counters of all ranks.
#![forbid(unsafe_code)]

use super::orbits::{ORBITS, SIZE_MAX};
use super::subgraphs::Overflow;
use xxhash_rust::xxh3::Xxh3;

/// The sums of all counters, vertex by vertex: only their digest and the sums over all vertices are kept.
pub struct Sum {
    digest: Xxh3,
    orbits: Vec<u64>,
}

impl Sum {
    /// A sum over no vertices yet.
    pub fn new(width: usize) -> Sum {
        Sum { digest: Xxh3::new(), orbits: vec![0; width] }
    }

    /// Adds the sums of the next vertices, the first of which is `first`.
    ///
    /// # Errors
    /// A sum that has more than 32 bits.
    pub fn add(&mut self, first: usize, sums: &[u64]) -> Result<(), Overflow> {
        let width = self.orbits.len();
        for (index, sum) in sums.iter().enumerate() {
            let counter = u32::try_from(*sum).map_err(|_| Overflow::of(first * width + index, width))?;
            self.digest.update(&counter.to_le_bytes());
            self.orbits[index % width] += sum;
        }
        Ok(())
    }

    /// A digest of all counters.
    pub fn digest(&self) -> String {
        format!("{:032x}", self.digest.digest128())
    }

    /// The number of subgraphs of each size, starting with two: each was counted once for each of its vertices.
    pub fn subgraphs(&self) -> impl Iterator<Item = (usize, u64)> {
        let sizes = (2..=SIZE_MAX).filter(|size| ORBITS[*size] <= self.orbits.len());
        sizes.map(|size| (size, self.orbits[ORBITS[size - 1]..ORBITS[size]].iter().sum::<u64>() / size as u64))
    }
}
