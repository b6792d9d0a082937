//! The graphs: made from a seed, without files.
//!
//! | graph | what | degree | after |
//! |---|---|---|---|
//! | `delaunay` | the Delaunay triangulation of random points | 6 | Delaunay N24 |
//! | `road` | a grid of junctions with gaps, whose roads are chains of vertices | 2.1 | Asia OSM |
//! | `bubble` | the triangles of such a triangulation, which have three neighbours | 3 | Hugebubbles |
//! | `race` | events of processes that send to one receiver in random order | 3 | Message Race |
//! | `mesh` | events of processes that exchange with their neighbours in an unstructured mesh | 3 | Unstructured Mesh |
//!
//! The last column is the input of the ICPP'23 paper (Tan and others, table 1) that the graph resembles. Vertices that are near each
//! other have near numbers: drawn vertices are numbered along a Hilbert curve, and events by time.
#![forbid(unsafe_code)]

use super::graph::Graph;
use delaunator::{EMPTY, Point, Triangulation, triangulate};

/// Processes of an event graph that has at least [`EVENTS_MIN`] events for each.
const PROCESSES: usize = 256;
/// Smaller graphs have fewer processes.
const EVENTS_MIN: usize = 16;
/// The part of a grid's roads that exists.
const ROADS: f64 = 0.75;
/// The maximum number of vertices between two junctions. With half as many on average, and 1.5 roads per junction, the mean degree is 2.1.
const CHAIN_MAX: u64 = 8;

/// Which graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Triangulation of random points.
    Delaunay,
    /// A network of roads.
    Road,
    /// Neighbouring triangles.
    Bubble,
    /// Events of a message race.
    Race,
    /// Events of an exchange in an unstructured mesh.
    Mesh,
}

/// A graph with exactly this many vertices. Equal seeds make equal graphs, on every machine.
pub fn generate(kind: Kind, vertices: usize, seed: u64) -> Graph {
    let mut random = Random(seed);
    match kind {
        Kind::Delaunay => delaunay(vertices, &mut random).graph(vertices),
        Kind::Road => road(vertices, &mut random).graph(vertices),
        Kind::Bubble => bubble(vertices, &mut random).graph(vertices),
        Kind::Race => race(vertices, &mut random),
        Kind::Mesh => mesh(vertices, &mut random),
    }
}

/// A graph in the plane.
#[derive(Default)]
struct Drawing {
    points: Vec<Point>,
    edges: Vec<(u32, u32)>,
}

impl Drawing {
    fn add(&mut self, x: f64, y: f64) -> u32 {
        self.points.push(Point { x, y });
        self.points.len() as u32 - 1
    }

    /// The graph of its first vertices along a Hilbert curve, which become neighbours in memory.
    fn graph(mut self, vertices: usize) -> Graph {
        let mut new = vec![0; self.points.len()];
        for (place, old) in along_curve(&self.points).into_iter().enumerate() {
            new[old] = place as u32;
        }
        self.edges.iter_mut().for_each(|(a, b)| (*a, *b) = (new[*a as usize], new[*b as usize]));
        Graph::new(vertices, &self.edges)
    }
}

/// The points' indices in the order of a Hilbert curve through the unit square.
fn along_curve(points: &[Point]) -> Vec<usize> {
    let mut keys: Vec<(u64, usize)> = points.iter().map(hilbert).zip(0..).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, index)| index).collect()
}

/// The place of a point of the unit square on the curve of order 16.
fn hilbert(point: &Point) -> u64 {
    const SIDE: u64 = 1 << 16;
    let cell = |part: f64| ((part * SIDE as f64) as u64).min(SIDE - 1);
    let (mut x, mut y, mut way) = (cell(point.x), cell(point.y), 0);
    let mut half = SIDE / 2;
    while half > 0 {
        let (right, upper) = (x & half != 0, y & half != 0);
        way = way << 2 | (3 * u64::from(right)) ^ u64::from(upper);
        if !upper {
            if right {
                (x, y) = (SIDE - 1 - x, SIDE - 1 - y);
            }
            (x, y) = (y, x);
        }
        half /= 2;
    }
    way
}

fn random_points(count: usize, random: &mut Random) -> Vec<Point> {
    (0..count).map(|_| Point { x: random.unit(), y: random.unit() }).collect()
}

/// Each edge of a triangulation once.
fn edges_of(triangulation: &Triangulation) -> Vec<(u32, u32)> {
    let ends = |side: usize| (triangulation.triangles[side], triangulation.triangles[delaunator::next_halfedge(side)]);
    // Inner edges occur twice, once in each direction.
    let is_first = |side: &usize| triangulation.halfedges[*side] == EMPTY || *side < triangulation.halfedges[*side];
    (0..triangulation.triangles.len()).filter(is_first).map(ends).map(|(a, b)| (a as u32, b as u32)).collect()
}

fn delaunay(vertices: usize, random: &mut Random) -> Drawing {
    let points = random_points(vertices, random);
    let edges = edges_of(&triangulate(&points));
    Drawing { points, edges }
}

/// There are nearly two triangles for each point.
fn bubble(vertices: usize, random: &mut Random) -> Drawing {
    let mut count = vertices / 2 + 8;
    loop {
        let points = random_points(count, random);
        let triangulation = triangulate(&points);
        if triangulation.len() < vertices {
            count += count / 8;
            continue;
        }
        let mut drawing = Drawing::default();
        for corners in triangulation.triangles.chunks_exact(3) {
            let middle = |part: fn(&Point) -> f64| corners.iter().map(|at| part(&points[*at])).sum::<f64>() / 3.0;
            drawing.add(middle(|point| point.x), middle(|point| point.y));
        }
        let sides = triangulation.halfedges.iter().enumerate();
        let inner = sides.filter(|(side, opposite)| **opposite != EMPTY && *side < **opposite);
        drawing.edges = inner.map(|(side, opposite)| ((side / 3) as u32, (opposite / 3) as u32)).collect();
        return drawing;
    }
}

fn road(vertices: usize, random: &mut Random) -> Drawing {
    let per_junction = 1.0 + 2.0 * ROADS * CHAIN_MAX as f64 / 2.0;
    let mut side = (vertices as f64 / per_junction).sqrt() as usize + 2;
    loop {
        let drawing = roads(side, random);
        if drawing.points.len() >= vertices {
            return drawing;
        }
        side += side / 16 + 1;
    }
}

/// The junctions of a square, and the roads to those on the right and above.
fn roads(side: usize, random: &mut Random) -> Drawing {
    let mut drawing = Drawing::default();
    let place = |x: f64, y: f64| ((x + 0.5) / side as f64, (y + 0.5) / side as f64);
    for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
        let (x, y) = place(column as f64, row as f64);
        drawing.add(x, y);
    }
    for junction in 0..side * side {
        let (row, column) = (junction / side, junction % side);
        for (right, up) in [(1, 0), (0, 1)] {
            if column + right == side || row + up == side || random.unit() >= ROADS {
                continue;
            }
            let length = random.below(CHAIN_MAX + 1);
            let mut last = junction as u32;
            for step in 1..=length {
                let part = step as f64 / (length + 1) as f64;
                let (x, y) = place(column as f64 + part * right as f64, row as f64 + part * up as f64);
                let next = drawing.add(x, y);
                drawing.edges.push((last, next));
                last = next;
            }
            drawing.edges.push((last, (junction + right + up * side) as u32));
        }
    }
    drawing
}

fn processes(vertices: usize) -> usize {
    (vertices / EVENTS_MIN).clamp(4, PROCESSES)
}

/// Events of a race: in each round every process but one sends it a message, and the messages arrive in random order. Vertices
/// are sends and receives; edges lead from an event to the next one of its process and from a send to its receive. Events are
/// ordered by time: the messages in the order in which they arrive, each as its send and its receive.
fn race(vertices: usize, random: &mut Random) -> Graph {
    let mut senders: Vec<usize> = (1..processes(vertices)).collect();
    let mut events = Events::new(senders.len() + 1);
    while events.count < vertices {
        random.shuffle(&mut senders);
        for sender in &senders {
            let send = events.happen(*sender);
            let receive = events.happen(0);
            events.edges.push((send, receive));
        }
    }
    Graph::new(vertices, &events.edges)
}

/// Events of an exchange: in each round every process sends to each of its neighbours and then receives from them in random
/// order. The neighbours are those of a triangulation of random points. Events are ordered by time: round after round, and
/// within each, process after process along a Hilbert curve.
fn mesh(vertices: usize, random: &mut Random) -> Graph {
    let count = processes(vertices);
    let neighbours = delaunay(count, random).graph(count);
    let mut events = Events::new(count);
    while events.count < vertices {
        // The sends of each pair of neighbours, by the place of the pair in the lists.
        let mut sends = vec![0; neighbours.neighbours.len()];
        let mut receives = sends.clone();
        for process in 0..count {
            let mut pairs: Vec<usize> =
                (neighbours.offsets[process] as usize..neighbours.offsets[process + 1] as usize).collect();
            pairs.iter().for_each(|pair| sends[*pair] = events.happen(process));
            random.shuffle(&mut pairs);
            pairs.iter().for_each(|pair| receives[*pair] = events.happen(process));
        }
        for process in 0..count as u32 {
            for (at, to) in neighbours.neighbours(process).iter().enumerate() {
                let back = neighbours.neighbours(*to).partition_point(|other| *other < process);
                let pair = |from: u32, at: usize| neighbours.offsets[from as usize] as usize + at;
                events.edges.push((sends[pair(process, at)], receives[pair(*to, back)]));
            }
        }
    }
    Graph::new(vertices, &events.edges)
}

/// Events in the order in which they happen.
struct Events {
    count: usize,
    edges: Vec<(u32, u32)>,
    /// The last event of each process.
    last: Vec<Option<u32>>,
}

impl Events {
    fn new(processes: usize) -> Events {
        Events { count: 0, edges: Vec::new(), last: vec![None; processes] }
    }

    /// The next event, which belongs to that process.
    fn happen(&mut self, process: usize) -> u32 {
        let event = self.count as u32;
        self.count += 1;
        if let Some(before) = self.last[process].replace(event) {
            self.edges.push((before, event));
        }
        event
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to below `end`.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn shuffle(&mut self, values: &mut [usize]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
