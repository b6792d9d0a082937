//! Graphlets and their orbits: which place a vertex has in a small graph.
//!
//! The 30 connected graphs of two to five vertices are numbered as Pržulj does (*Biological network comparison using graphlet
//! degree distribution*, 2007), and so are their 73 orbits: vertices that a symmetry of the graphlet maps onto each other share
//! one.
#![forbid(unsafe_code)]

/// Vertices of the largest graphlets.
pub const SIZE_MAX: usize = 5;
/// How many orbits the graphlets of up to this many vertices have.
pub const ORBITS: [usize; SIZE_MAX + 1] = [0, 0, 1, 4, 15, 73];

/// The edges of each graphlet.
#[rustfmt::skip]
const GRAPHLETS: [&[&str]; 30] = [
    &["01"],
    &["01", "12"],
    &["01", "12", "02"],
    &["01", "12", "23"],
    &["01", "02", "03"],
    &["01", "12", "23", "03"],
    &["01", "12", "02", "23"],
    &["01", "12", "23", "03", "02"],
    &["01", "12", "23", "03", "02", "13"],
    &["01", "12", "23", "34"],
    &["01", "12", "23", "14"],
    &["01", "02", "03", "04"],
    &["01", "12", "02", "13", "24"],
    &["01", "12", "02", "23", "34"],
    &["01", "12", "02", "23", "24"],
    &["01", "12", "23", "34", "04"],
    &["01", "12", "23", "03", "34"],
    &["01", "12", "23", "03", "13", "34"],
    &["01", "12", "02", "23", "34", "24"],
    &["01", "12", "23", "03", "13", "24"],
    &["01", "12", "23", "03", "14", "34"],
    &["01", "12", "23", "34", "04", "13"],
    &["01", "02", "12", "03", "13", "04", "14"],
    &["01", "12", "23", "03", "02", "13", "34"],
    &["01", "12", "23", "34", "04", "13", "14"],
    &["01", "12", "23", "34", "04", "13", "24"],
    &["01", "12", "23", "03", "02", "13", "34", "14"],
    &["01", "12", "23", "03", "04", "14", "24", "34"],
    &["01", "02", "03", "12", "13", "23", "14", "24", "34"],
    &["01", "02", "03", "04", "12", "13", "14", "23", "24", "34"],
];

/// The orbits of every connected graph of two to five vertices, however its vertices are numbered.
///
/// A graph is a mask with a [bit](bit) for each pair of vertices. The highest bits are those of the last vertex, so graphs
/// of different sizes have different masks.
pub struct Table {
    /// Vertices of the largest graphlets that are counted.
    pub size: usize,
    /// The orbits of the vertices, by mask. Eight bytes a row, as the GPU reads them; [`Table::NONE`] where there is no vertex.
    pub rows: Vec<[u8; 8]>,
}

/// The bit that stands for the edge between two vertices of a graph.
pub fn bit(a: usize, b: usize) -> u32 {
    let (low, high) = (a.min(b), a.max(b));
    1 << (high * (high - 1) / 2 + low)
}

impl Table {
    /// What rows hold where the graph has no vertex, or is not connected.
    pub const NONE: u8 = u8::MAX;

    /// The table for graphlets of up to this many vertices, two to [`SIZE_MAX`].
    pub fn new(size: usize) -> Table {
        let mut rows = vec![[Table::NONE; 8]; 1 << (size * (size - 1) / 2)];
        let mut first = 0;
        for edges in GRAPHLETS.map(read) {
            let vertices = 1 + edges.iter().map(|(_, b)| *b).max().expect("every graphlet has an edge");
            if vertices > size {
                break;
            }
            let (orbits, count) = orbits(&edges, vertices);
            for order in orders(vertices) {
                let mask: u32 = edges.iter().map(|(a, b)| bit(order[*a], order[*b])).sum();
                let row = &mut rows[mask as usize];
                (0..vertices).for_each(|vertex| row[order[vertex]] = (first + orbits[vertex]) as u8);
            }
            first += count;
        }
        Table { size, rows }
    }

    /// How many orbits are counted for each vertex.
    pub fn width(&self) -> usize {
        ORBITS[self.size]
    }
}

/// Reads edges from the text of [`GRAPHLETS`]; the second vertex is the greater one.
fn read(edges: &[&str]) -> Vec<(usize, usize)> {
    let digit = |byte: u8| usize::from(byte - b'0');
    edges.iter().map(|edge| (digit(edge.as_bytes()[0]), digit(edge.as_bytes()[1]))).collect()
}

/// The orbit of each vertex of a graphlet, counted from the graphlet's first orbit, and the number of orbits. Vertices
/// of one graphlet are in one orbit if their neighbours' degrees and their own have the same sum, and Pržulj's numbers
/// ascend with that sum.
fn orbits(edges: &[(usize, usize)], vertices: usize) -> (Vec<usize>, usize) {
    let neighbours = |vertex: usize| {
        edges.iter().filter_map(move |(a, b)| match vertex {
            v if v == *a => Some(*b),
            v if v == *b => Some(*a),
            _ => None,
        })
    };
    let degree = |vertex: usize| neighbours(vertex).count();
    let sums: Vec<usize> = (0..vertices).map(|v| degree(v) + neighbours(v).map(degree).sum::<usize>()).collect();
    let mut distinct = sums.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let place = |sum: &usize| distinct.partition_point(|other| other < sum);
    (sums.iter().map(place).collect(), distinct.len())
}

/// All orders of this many vertices.
fn orders(vertices: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for last in 0..vertices {
        let longer = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| [&order[..at], &[last], &order[at..]].concat())
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}
