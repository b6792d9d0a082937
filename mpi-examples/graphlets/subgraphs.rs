//! Finds every connected induced subgraph of up to five vertices once, and the orbits of its vertices, as `count.cu` does on a GPU.
//!
//! The enumeration is ESU (Wernicke, *Efficient detection of network motifs*, 2006). A subgraph belongs to its least vertex,
//! the *root*. It grows by a neighbour that is greater than the root and is not a neighbour of any earlier vertex, and then
//! only by the neighbours after that one, in the order of the vertices and of their lists. A place in that order is therefore
//! all that has to be remembered.
#![forbid(unsafe_code)]

use super::graph::Graph;
use super::orbits::{SIZE_MAX, Table};
use std::fmt;
use std::ops::Range;

/// What is counted: the graphlets of a graph.
pub struct Problem {
    /// The graph.
    pub graph: Graph,
    /// The graphlets.
    pub table: Table,
}

/// A counter would not fit into 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overflow {
    /// The vertex that it counts for.
    pub vertex: usize,
    /// The orbit that it counts.
    pub orbit: usize,
}

impl Overflow {
    /// The overflow of the counter with that index, where each vertex has `width` counters.
    pub fn of(index: usize, width: usize) -> Overflow {
        Overflow { vertex: index / width, orbit: index % width }
    }
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the counter of vertex {} and orbit {} is over its 32 bits", self.vertex, self.orbit)
    }
}

impl std::error::Error for Overflow {}

impl Problem {
    /// The number of counters: one for each orbit of each vertex, vertex by vertex.
    pub fn counters(&self) -> usize {
        self.graph.vertices() * self.table.width()
    }

    /// Adds the subgraphs of those roots to the counters.
    ///
    /// # Errors
    /// The first counter that would overflow. It stays as it is; others may have been added to.
    pub fn count(&self, roots: Range<u32>, counters: &mut [u32]) -> Result<(), Overflow> {
        let mut growing = Growing { problem: self, counters, vertices: [0; SIZE_MAX] };
        for root in roots {
            growing.vertices[0] = root;
            growing.grow(1, 0, (0, 0))?;
        }
        Ok(())
    }
}

/// The roots of a rank's part. All parts of all ranks have nearly the same number, and the ranks take parts in turn.
pub fn roots_of(part: usize, parts: usize, rank: usize, ranks: usize, vertices: usize) -> Range<u32> {
    let bound = |dealt: usize| (vertices as u64 * dealt as u64 / (parts as u64 * ranks as u64)) as u32;
    let dealt = part * ranks + rank;
    bound(dealt)..bound(dealt + 1)
}

/// A growing subgraph, and the counters that count it.
struct Growing<'a> {
    problem: &'a Problem,
    counters: &'a mut [u32],
    vertices: [u32; SIZE_MAX],
}

impl Growing<'_> {
    /// Adds each vertex that may join the first `size` ones, whose edges are in `mask`. `from` is where to continue: a vertex
    /// of the subgraph, and a place in its list.
    fn grow(&mut self, size: usize, mask: u32, from: (usize, usize)) -> Result<(), Overflow> {
        let graph = &self.problem.graph;
        for near in from.0..size {
            let first = if near == from.0 { from.1 } else { 0 };
            for (at, candidate) in graph.neighbours(self.vertices[near]).iter().enumerate().skip(first) {
                let is_known = |vertex: &u32| graph.is_edge(*vertex, *candidate);
                if *candidate <= self.vertices[0] || self.vertices[..near].iter().any(is_known) {
                    continue;
                }
                // It is not a neighbour of the vertices before `near`, as was just checked.
                let mut edges = 1 << near;
                for later in near + 1..size {
                    edges |= u32::from(is_known(&self.vertices[later])) << later;
                }
                let mask = mask | edges << (size * (size - 1) / 2);
                self.vertices[size] = *candidate;
                self.add(size + 1, mask)?;
                if size + 1 < self.problem.table.size {
                    self.grow(size + 1, mask, (near, at + 1))?;
                }
            }
        }
        Ok(())
    }

    /// Counts a subgraph once for each of its vertices.
    fn add(&mut self, size: usize, mask: u32) -> Result<(), Overflow> {
        let width = self.problem.table.width();
        let orbits = &self.problem.table.rows[mask as usize];
        for (vertex, orbit) in self.vertices[..size].iter().zip(orbits) {
            let index = *vertex as usize * width + usize::from(*orbit);
            self.counters[index] = self.counters[index].checked_add(1).ok_or(Overflow::of(index, width))?;
        }
        Ok(())
    }
}
