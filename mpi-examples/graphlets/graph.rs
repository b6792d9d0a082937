//! A simple undirected graph, as the kernels read it.
#![forbid(unsafe_code)]

/// The neighbours of every vertex, one list after the other (compressed sparse rows).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where each vertex's list begins, and where the last one ends.
    pub offsets: Vec<u32>,
    /// The lists, each in ascending order.
    pub neighbours: Vec<u32>,
}

impl Graph {
    /// The graph with those edges, in any order and direction. Loops, repeated edges, and edges of vertices that do not
    /// exist are left out.
    pub fn new(vertices: usize, edges: &[(u32, u32)]) -> Graph {
        let is_edge = |(a, b): &&(u32, u32)| a != b && (*a.max(b) as usize) < vertices;
        let mut ends = vec![0u32; vertices + 1];
        for (a, b) in edges.iter().filter(is_edge) {
            ends[*a as usize] += 1;
            ends[*b as usize] += 1;
        }
        // Each list's end moves down to its beginning while it is filled.
        (0..vertices).for_each(|vertex| ends[vertex + 1] += ends[vertex]);
        let mut lists = vec![0; ends[vertices] as usize];
        for (a, b) in edges.iter().filter(is_edge) {
            for (from, to) in [(*a, *b), (*b, *a)] {
                ends[from as usize] -= 1;
                lists[ends[from as usize] as usize] = to;
            }
        }
        let mut graph = Graph { offsets: vec![0], neighbours: Vec::with_capacity(lists.len()) };
        for vertex in 0..vertices {
            let list = &mut lists[ends[vertex] as usize..ends[vertex + 1] as usize];
            list.sort_unstable();
            list.chunk_by(|a, b| a == b).for_each(|same| graph.neighbours.push(same[0]));
            graph.offsets.push(graph.neighbours.len() as u32);
        }
        graph
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of edges.
    pub fn edges(&self) -> usize {
        self.neighbours.len() / 2
    }

    /// The neighbours of a vertex, in ascending order.
    pub fn neighbours(&self, vertex: u32) -> &[u32] {
        &self.neighbours[self.offsets[vertex as usize] as usize..self.offsets[vertex as usize + 1] as usize]
    }

    /// Is there an edge between two vertices?
    pub fn is_edge(&self, a: u32, b: u32) -> bool {
        self.neighbours(a).binary_search(&b).is_ok()
    }
}
