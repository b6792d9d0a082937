//! The counts of `mpi-examples/graphlets.rs`, without MPI, against a brute-force count that is independent of the example's method.
//!
//! The example's own files are compiled into this test.
#![deny(unsafe_code)] // The example's module `gpu` is an exception.

#[allow(dead_code)]
#[cfg(feature = "cuda")]
#[path = "../mpi-examples/card.rs"]
mod card;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/graph.rs"]
mod graph;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/inputs.rs"]
mod inputs;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/orbits.rs"]
mod orbits;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/subgraphs.rs"]
mod subgraphs;
#[allow(dead_code)]
#[path = "../mpi-examples/graphlets/sum.rs"]
mod sum;

use graph::Graph;
use inputs::{Kind, generate};
use machine::twin::Twin;
use machine::{Counters, Machine};
use orbits::{ORBITS, Table, bit};
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use subgraphs::{Overflow, Problem, roots_of};
use sum::Sum;

const KINDS: [Kind; 5] = [Kind::Delaunay, Kind::Road, Kind::Bubble, Kind::Race, Kind::Mesh];

/// The edges of each graphlet, and the orbits of its vertices in Pržulj's numbering; for five vertices, in the numbering of the program
/// ORCA (Hočevar and Demšar, 2014).
const KNOWN: [(&str, &[usize]); 30] = [
    ("01", &[0, 0]),
    ("01 02", &[2, 1, 1]),
    ("01 02 12", &[3, 3, 3]),
    ("01 02 13", &[5, 5, 4, 4]),
    ("01 02 03", &[7, 6, 6, 6]),
    ("01 02 13 23", &[8, 8, 8, 8]),
    ("01 02 03 12", &[11, 10, 10, 9]),
    ("01 02 03 12 13", &[13, 13, 12, 12]),
    ("01 02 03 12 13 23", &[14, 14, 14, 14]),
    ("01 02 13 24", &[17, 16, 16, 15, 15]),
    ("01 02 03 14", &[21, 20, 19, 19, 18]),
    ("01 02 03 04", &[23, 22, 22, 22, 22]),
    ("01 02 03 12 14", &[26, 26, 25, 24, 24]),
    ("01 02 03 12 34", &[30, 29, 29, 28, 27]),
    ("01 02 03 04 12", &[33, 32, 32, 31, 31]),
    ("01 02 13 24 34", &[34, 34, 34, 34, 34]),
    ("01 02 03 14 24", &[38, 37, 37, 35, 36]),
    ("01 02 03 04 12 13", &[42, 41, 40, 40, 39]),
    ("01 02 03 04 12 34", &[44, 43, 43, 43, 43]),
    ("01 02 03 12 13 24", &[48, 48, 47, 46, 45]),
    ("01 02 03 14 24 34", &[50, 49, 49, 49, 50]),
    ("01 02 03 12 14 34", &[53, 53, 52, 51, 51]),
    ("01 02 03 04 12 13 14", &[55, 55, 54, 54, 54]),
    ("01 02 03 04 12 13 23", &[58, 57, 57, 57, 56]),
    ("01 02 03 04 12 13 24", &[61, 60, 60, 59, 59]),
    ("01 02 03 12 13 24 34", &[64, 64, 63, 63, 62]),
    ("01 02 03 04 12 13 14 23", &[67, 67, 66, 66, 65]),
    ("01 02 03 04 12 13 24 34", &[69, 68, 68, 68, 68]),
    ("01 02 03 04 12 13 14 23 24", &[71, 71, 71, 70, 70]),
    ("01 02 03 04 12 13 14 23 24 34", &[72, 72, 72, 72, 72]),
];

type Edges = Vec<(usize, usize)>;

fn known() -> impl Iterator<Item = (Edges, &'static [usize])> {
    let digit = |byte: u8| usize::from(byte - b'0');
    let edge = move |text: &str| (digit(text.as_bytes()[0]), digit(text.as_bytes()[1]));
    KNOWN.iter().map(move |(text, orbits)| (text.split(' ').map(edge).collect(), *orbits))
}

/// All one-to-one maps of this many vertices.
fn permutations(vertices: usize) -> Vec<Vec<usize>> {
    let all = (0..vertices.pow(vertices as u32)).map(|number| {
        (0..vertices).map(|place| number / vertices.pow(place as u32) % vertices).collect::<Vec<usize>>()
    });
    all.filter(|map| (0..vertices).all(|vertex| map.contains(&vertex))).collect()
}

fn degrees(edges: &Edges, vertices: usize) -> Vec<usize> {
    (0..vertices).map(|vertex| edges.iter().filter(|(a, b)| *a == vertex || *b == vertex).count()).collect()
}

/// Orbits by isomorphism: for each graph, the graph of the list that is isomorphic to it gives the orbits.
#[derive(Default)]
struct Isomorphisms {
    found: HashMap<(usize, Edges), Option<Vec<usize>>>,
    maps: HashMap<usize, Vec<Vec<usize>>>,
}

impl Isomorphisms {
    /// The orbit of each vertex, or `None` if the graph is not connected. The edges are sorted, and so are the ends of each edge.
    fn orbits(&mut self, vertices: usize, edges: &Edges) -> Option<Vec<usize>> {
        let maps = &*self.maps.entry(vertices).or_insert_with(|| permutations(vertices));
        let look = || {
            let ours = degrees(edges, vertices);
            known().filter(|(other, orbits)| orbits.len() == vertices && other.len() == edges.len()).find_map(
                |(other, orbits)| {
                    let theirs = degrees(&other, vertices);
                    let fits = |map: &&Vec<usize>| {
                        let mut mapped: Edges =
                            other.iter().map(|(a, b)| (map[*a].min(map[*b]), map[*a].max(map[*b]))).collect();
                        mapped.sort_unstable();
                        mapped == *edges
                    };
                    let same_degrees = |map: &&Vec<usize>| (0..vertices).all(|v| theirs[v] == ours[map[v]]);
                    let map = maps.iter().filter(same_degrees).find(fits)?;
                    let mut mine = vec![0; vertices];
                    (0..vertices).for_each(|vertex| mine[map[vertex]] = orbits[vertex]);
                    Some(mine)
                },
            )
        };
        self.found.entry((vertices, edges.clone())).or_insert_with(look).clone()
    }
}

/// Counts by trying every subset of the vertices.
fn brute_force(graph: &Graph, size: usize, known: &mut Isomorphisms) -> Vec<u32> {
    let (vertices, width) = (graph.vertices(), ORBITS[size]);
    let row = |from| (0..vertices as u32).map(|to| graph.neighbours(from).contains(&to)).collect::<Vec<bool>>();
    let matrix: Vec<Vec<bool>> = (0..vertices as u32).map(row).collect();
    let mut counters = vec![0; vertices * width];
    let mut subsets: Vec<Vec<usize>> = (0..vertices).map(|vertex| vec![vertex]).collect();
    for _ in 2..=size {
        let longer = subsets.iter().flat_map(|subset| {
            let next = subset.last().expect("none is empty") + 1;
            (next..vertices).map(move |vertex| [&subset[..], &[vertex]].concat())
        });
        subsets = longer.collect();
        for subset in &subsets {
            let pairs = (0..subset.len()).flat_map(|a| (a + 1..subset.len()).map(move |b| (a, b)));
            let edges: Edges = pairs.filter(|(a, b)| matrix[subset[*a]][subset[*b]]).collect();
            if edges.len() + 1 < subset.len() {
                continue;
            }
            for (vertex, orbit) in subset.iter().zip(known.orbits(subset.len(), &edges).unwrap_or_default()) {
                counters[vertex * width + orbit] += 1;
            }
        }
    }
    counters
}

fn problem(graph: Graph, size: usize) -> Problem {
    Problem { graph, table: Table::new(size) }
}

fn count(problem: &Problem) -> Vec<u32> {
    let mut counters = vec![0; problem.counters()];
    problem.count(0..problem.graph.vertices() as u32, &mut counters).unwrap();
    counters
}

/// Makes a problem from a list of edges, as the generators make them.
fn from_edges(vertices: usize, edges: &[(u32, u32)]) -> Problem {
    problem(Graph::new(vertices, edges), 5)
}

fn choose(of: u32, count: u32) -> u32 {
    (0..count).fold(1, |product, factor| product * (of - factor) / (factor + 1))
}

/// The orbits of a vertex whose counts are not zero, with these counts.
fn of(counters: &[u32], vertex: usize) -> Vec<(usize, u32)> {
    let row = &counters[vertex * 73..(vertex + 1) * 73];
    row.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect()
}

/// Two vertices are in the same orbit if, and only if, a symmetry of the graph maps one to the other. Two graphs share orbits if, and only
/// if, they differ only in the numbers of their vertices.
#[test]
fn the_table_has_the_orbits_of_all_graphs() {
    let table = Table::new(5);
    for vertices in 2..=5 {
        let pairs: Vec<(usize, usize)> = (0..vertices).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
        let maps = permutations(vertices);
        let mut known = Isomorphisms::default();
        let mut seen = 0;
        for mask in 0..1u32 << pairs.len() {
            let mut edges: Edges = pairs.iter().copied().filter(|(a, b)| mask & bit(*a, *b) > 0).collect();
            edges.sort_unstable();
            if edges.iter().all(|(_, b)| b + 1 < vertices) {
                continue; // This is a graph of fewer vertices.
            }
            let row = table.rows[mask as usize];
            let Some(orbits) = known.orbits(vertices, &edges) else {
                assert!(row.iter().all(|orbit| *orbit == Table::NONE), "{edges:?} is not connected: {row:?}");
                continue;
            };
            seen += 1;
            assert!(
                orbits.iter().eq(row[..vertices].iter().map(|orbit| usize::from(*orbit)).collect::<Vec<_>>().iter())
            );
            assert!(row[vertices..].iter().all(|orbit| *orbit == Table::NONE));
            let is_symmetry = |map: &&Vec<usize>| {
                edges.iter().all(|(a, b)| edges.contains(&(map[*a].min(map[*b]), map[*a].max(map[*b]))))
            };
            let mut alike = vec![vec![false; vertices]; vertices];
            maps.iter().filter(is_symmetry).for_each(|map| (0..vertices).for_each(|v| alike[v][map[v]] = true));
            for (a, b) in (0..vertices).flat_map(|a| (0..vertices).map(move |b| (a, b))) {
                assert_eq!(row[a] == row[b], alike[a][b], "{edges:?}, vertices {a} and {b}");
            }
        }
        // The number of connected labelled graphs (OEIS A001187).
        assert_eq!(seen, [1, 4, 38, 728][vertices - 2]);
    }
    for size in 2..=4 {
        let smaller = Table::new(size);
        assert_eq!((smaller.rows.len(), smaller.width()), [(2, 1), (8, 4), (64, 15)][size - 2]);
        assert_eq!(smaller.rows, table.rows[..smaller.rows.len()]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_are_those_of_a_brute_force(vertices in 5usize..41, density in 0.02f64..0.9, seed: u64) {
        let mut state = seed;
        let pairs = (0..vertices as u32).flat_map(|b| (0..b).map(move |a| (a, b)));
        let edges: Vec<(u32, u32)> = pairs.filter(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64) < density * (1u64 << 31) as f64
        }).collect();
        let mut known = Isomorphisms::default();
        for size in 2..=5 {
            let problem = problem(Graph::new(vertices, &edges), size);
            prop_assert_eq!(count(&problem), brute_force(&problem.graph, size, &mut known), "size {}", size);
        }
    }
}

#[test]
fn counts_of_every_kind_of_input_are_those_of_a_brute_force() {
    let mut known = Isomorphisms::default();
    for (kind, vertices) in KINDS.into_iter().flat_map(|kind| [(kind, 16), (kind, 40)]) {
        let problem = problem(generate(kind, vertices, 5), 5);
        assert!(count(&problem) == brute_force(&problem.graph, 5, &mut known), "{kind:?} of {vertices} vertices");
    }
}

#[test]
fn known_graphs_have_known_counts() {
    let n = 9u32;
    let pairs = (0..n).flat_map(|b| (0..b).map(move |a| (a, b)));
    let complete = count(&from_edges(n as usize, &pairs.collect::<Vec<_>>()));
    let of_complete = [(0, n - 1), (3, choose(n - 1, 2)), (14, choose(n - 1, 3)), (72, choose(n - 1, 4))];
    let cycle = count(&from_edges(n as usize, &(0..n).map(|at| (at, (at + 1) % n)).collect::<Vec<_>>()));
    let of_cycle = [(0, 2), (1, 2), (2, 1), (4, 2), (5, 2), (15, 2), (16, 2), (17, 1)];
    for vertex in 0..n as usize {
        assert_eq!(of(&complete, vertex), of_complete);
        assert_eq!(of(&cycle, vertex), of_cycle);
    }
    // The centre is last, so that it is never the root.
    let star = count(&from_edges(n as usize + 1, &(0..n).map(|leaf| (leaf, n)).collect::<Vec<_>>()));
    let centre: Vec<(usize, u32)> = [0, 2, 7, 23].into_iter().zip((1..=4).map(|leaves| choose(n, leaves))).collect();
    let leaf: Vec<(usize, u32)> = [0, 1, 6, 22].into_iter().zip((0..4).map(|others| choose(n - 1, others))).collect();
    assert_eq!((of(&star, n as usize), of(&star, 0)), (centre, leaf));
    let path = count(&from_edges(n as usize, &(1..n).map(|at| (at - 1, at)).collect::<Vec<_>>()));
    assert_eq!(of(&path, 0), [(0, 1), (1, 1), (4, 1), (15, 1)]);
    assert_eq!(of(&path, 4), of_cycle);
}

#[test]
fn inputs_are_simple_graphs_of_their_kind_and_depend_on_the_seed_only() {
    for (kind, vertices) in KINDS.into_iter().flat_map(|kind| [16, 17, 100, 5000].map(|vertices| (kind, vertices))) {
        let graph = generate(kind, vertices, 3);
        assert_eq!(graph.vertices(), vertices, "{kind:?}");
        for vertex in 0..vertices as u32 {
            let list = graph.neighbours(vertex);
            assert!(list.is_sorted_by(|a, b| a < b), "{kind:?}: {list:?}");
            assert!(list.iter().all(|other| *other != vertex && graph.is_edge(*other, vertex)), "{kind:?}: {list:?}");
        }
        assert_eq!(graph, generate(kind, vertices, 3));
        assert_ne!(graph, generate(kind, vertices, 4));
    }
    let expected = [(5.9, 6.0, 20), (2.0, 2.3, 4), (2.8, 3.0, 3), (2.8, 3.0, 3), (2.8, 3.0, 3)];
    for (kind, (least, most, greatest)) in KINDS.into_iter().zip(expected) {
        let graph = generate(kind, 20_000, 1);
        let mean = 2.0 * graph.edges() as f64 / graph.vertices() as f64;
        assert!((least..=most).contains(&mean), "{kind:?}: mean degree {mean}");
        let degree = (0..20_000).map(|vertex| graph.neighbours(vertex).len()).max().unwrap();
        assert!(degree <= greatest, "{kind:?}: degree {degree}");
        // In a random order, half of the edges would be longer than a quarter of the vertices.
        let edges = (0..20_000u32).flat_map(|a| graph.neighbours(a).iter().map(move |b| a.abs_diff(*b)));
        let short = edges.filter(|length| *length < 3000).count();
        assert!(short * 10 > graph.neighbours.len() * 9, "{kind:?}: only {short} of {}", graph.neighbours.len());
    }
}

#[test]
fn loops_repeated_edges_and_edges_beyond_the_last_vertex_are_left_out() {
    let graph = Graph::new(4, &[(2, 0), (0, 2), (1, 1), (0, 1), (3, 4), (0, 2)]);
    assert_eq!(graph, Graph { offsets: vec![0, 2, 3, 4, 4], neighbours: vec![1, 2, 0, 0] });
    assert_eq!((graph.vertices(), graph.edges()), (4, 2));
}

#[test]
fn parts_of_the_roots_add_up_to_the_whole() {
    for (kind, size) in [(Kind::Delaunay, 4), (Kind::Race, 5)] {
        let problem = problem(generate(kind, 333, 2), size);
        let whole = count(&problem);
        for (ranks, parts) in [(1, 7), (3, 5), (4, 100)] {
            let mut next = 0;
            let mut sums = vec![0; problem.counters()];
            for part in 0..parts {
                for rank in 0..ranks {
                    let roots = roots_of(part, parts, rank, ranks, 333);
                    assert_eq!(roots.start, next, "part {part} of rank {rank}");
                    next = roots.end;
                    problem.count(roots, &mut sums).unwrap();
                }
            }
            assert_eq!((next, sums == whole), (333, true), "{kind:?}: {parts} parts on {ranks} ranks");
        }
    }
    let last = roots_of(999_999, 1_000_000, 4095, 4096, 50_000_000);
    assert_eq!(last.end, 50_000_000);
}

#[test]
fn a_full_counter_is_refused_and_stays_full() {
    let problem = from_edges(4, &[(0, 1), (1, 2), (2, 3)]);
    let full = Overflow { vertex: 2, orbit: 5 };
    let index = full.vertex * 73 + full.orbit;
    let mut counters = vec![0; problem.counters()];
    counters[index] = u32::MAX - 1;
    problem.count(0..4, &mut counters).unwrap();
    assert_eq!((counters[index], problem.count(0..4, &mut counters)), (u32::MAX, Err(full)));
    assert_eq!(counters[index], u32::MAX);
    assert_eq!(full.to_string(), "the counter of vertex 2 and orbit 5 is over its 32 bits");

    let problem = Arc::new(problem);
    let mut twin = Twin::open(&problem).unwrap();
    fill(&twin, index);
    assert_eq!(twin.count(0..4).unwrap_err().downcast_ref(), Some(&full));
}

/// Sets a counter of a machine to its maximum.
fn fill(machine: &dyn Machine, index: usize) {
    let counter = machine.counters().part(4 * index as u64, 4).unwrap();
    machine.stream().upload(&[(&u32::MAX.to_le_bytes()[..], counter)], None).unwrap();
}

#[test]
fn sums_of_the_ranks_are_digested_added_up_and_refused_when_they_need_more_than_32_bits() {
    let problem = problem(generate(Kind::Delaunay, 500, 1), 5);
    let counters: Vec<u64> = count(&problem).into_iter().map(u64::from).collect();
    let digest = |piece: usize| {
        let mut sum = Sum::new(73);
        counters.chunks(piece * 73).zip(0..).for_each(|(sums, at)| sum.add(at * piece, sums).unwrap());
        (sum.digest(), sum.subgraphs().collect::<Vec<_>>())
    };
    assert_eq!(digest(500), digest(7));
    let (whole, subgraphs) = digest(500);
    assert_eq!(subgraphs[0], (2, problem.graph.edges() as u64));
    assert_eq!(subgraphs.len(), 4);
    let mut sum = Sum::new(73);
    let mut other = counters.clone();
    other[73 * 499 + 72] += 1;
    sum.add(0, &other).unwrap();
    assert_ne!(sum.digest(), whole);
    let mut sum = Sum::new(15);
    assert_eq!(sum.add(100, &[0, 1 << 32]), Err(Overflow { vertex: 100, orbit: 1 }));
}

/// Counts on a machine, and reads its counters piece by piece.
fn on(machine: Box<dyn Machine>, vertices: usize, width: usize) -> Vec<u32> {
    let mut counters = Counters::Device(machine);
    (0..3).for_each(|part| counters.count(roots_of(part, 3, 0, 1, vertices)).unwrap());
    let mut all = vec![0; vertices * width];
    all.chunks_mut(1000).zip(0..).for_each(|(piece, at)| counters.read(1000 * at, piece).unwrap());
    all
}

#[test]
fn the_twin_counts_what_the_host_counts() {
    let problem = Arc::new(problem(generate(Kind::Delaunay, 1000, 1), 5));
    assert!(on(Box::new(Twin::open(&problem).unwrap()), 1000, 73) == count(&problem));
    let mut host = Counters::host(&problem);
    host.count(0..1000).unwrap();
    let mut some = vec![0; 73];
    host.read(73 * 999, &mut some).unwrap();
    assert_eq!(some, count(&problem)[73 * 999..]);
}

/// Compiles the kernel for the processor. Returns `None`, with a note, if there is no compiler.
fn kernel_for_the_processor(folder: &Path) -> Option<PathBuf> {
    let (source, program) = (folder.join("graphlets.cpp"), folder.join("graphlets"));
    std::fs::write(&source, include_str!("programs/c/graphlets.cpp")).unwrap();
    std::fs::write(folder.join("count.cu"), include_str!("../mpi-examples/graphlets/count.cu")).unwrap();
    let compiled = Command::new("c++").args(["-O1", "-Wall", "-Werror"]).arg(&source).arg("-o").arg(&program).output();
    let Ok(compiled) = compiled else {
        eprintln!("SKIPPED: no C++ compiler on this machine");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(program)
}

/// The kernel's result if counter `full` is at its maximum before: the counters, and then the index plus one of a counter that overflowed.
fn emulated(program: &Path, problem: &Problem, full: usize) -> Vec<u32> {
    let Graph { offsets, neighbours } = &problem.graph;
    let sizes = [problem.graph.vertices(), neighbours.len(), problem.table.width(), problem.table.size, full];
    let orbits = problem.table.rows.iter().flatten().map(|orbit| u32::from(*orbit));
    let numbers = sizes.iter().map(|size| *size as u32).chain(offsets.iter().chain(neighbours).copied()).chain(orbits);
    let text: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let input = program.with_extension("txt");
    std::fs::write(&input, text.join(" ")).unwrap();
    let output = Command::new(program).stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// This test needs no GPU: the threads of the kernel run one after the other.
#[test]
fn the_kernel_counts_what_the_host_counts() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = kernel_for_the_processor(folder.path()) else { return };
    for (kind, size) in KINDS.into_iter().flat_map(|kind| (2..=5).map(move |size| (kind, size))) {
        let problem = problem(generate(kind, 700, 1), size);
        let mut expected = count(&problem);
        expected.push(0);
        assert!(emulated(&program, &problem, usize::MAX) == expected, "{kind:?}, size {size}");
    }
    let path = from_edges(4, &[(0, 1), (1, 2), (2, 3)]);
    let full = 73 * 2 + 5;
    assert_eq!(emulated(&program, &path, full).last(), Some(&(full as u32 + 1)));
    assert_eq!(emulated(&program, &path, full + 1).last(), Some(&0));
}

/// This test needs the NVRTC library but no GPU: CI installs the library.
#[cfg(feature = "cuda")]
#[test]
fn the_kernel_compiles() {
    if !card::has_compiler() {
        eprintln!("SKIPPED: no NVRTC library on this machine; ci/setup.sh --with-tests installs it");
        return;
    }
    let ptx = card::compile(machine::gpu::COUNT).unwrap_or_else(|error| panic!("{}", card::said(&error)));
    assert!(ptx.to_src().contains(".entry graphlets_count("));
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_counts_what_the_host_counts() {
    for (kind, size) in KINDS.into_iter().flat_map(|kind| (2..=5).map(move |size| (kind, size))) {
        let problem = problem(generate(kind, 3000, 1), size);
        let mut gpu = match machine::gpu::Gpu::open(&problem, 0) {
            Ok(gpu) => gpu,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        if size == 5 {
            // This is a counter of the last vertex, which is in many subgraphs.
            fill(&gpu, 73 * 2999);
            let full = Overflow { vertex: 2999, orbit: 0 };
            assert_eq!(gpu.count(0..3000).unwrap_err().downcast_ref(), Some(&full), "{kind:?}");
            gpu = machine::gpu::Gpu::open(&problem, 0).unwrap();
        }
        let there = on(Box::new(gpu), 3000, problem.table.width());
        assert!(there == count(&problem), "{kind:?}, size {size}");
    }
}
