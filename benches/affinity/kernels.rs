//! Three memory-bound kernels, each divided among threads: a stencil, a sparse matrix, and an FFT that transposes its data
//! between all threads. They stand in for the codes of the NAS Parallel Benchmarks in Middleware'14, section 4.
//!
//! An array is cut into one part for each thread, and that thread touches its part first. In a step, a thread writes its own
//! part of one array and reads parts of another, so one lock per part, taken once a step, is all the synchronization that
//! sharing needs. Results do not depend on the number of threads, down to the last bit.
#![forbid(unsafe_code)]

use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::{Barrier, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An array that is cut into one part for each thread.
pub struct Parts<T>(Vec<RwLock<Vec<T>>>);

impl<T: Copy + Default> Parts<T> {
    fn new(threads: usize) -> Parts<T> {
        Parts((0..threads).map(|_| RwLock::new(Vec::new())).collect())
    }

    /// How many parts there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A part, for reading.
    pub fn part(&self, thread: usize) -> RwLockReadGuard<'_, Vec<T>> {
        self.0[thread].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part, for writing.
    pub fn part_mut(&self, thread: usize) -> RwLockWriteGuard<'_, Vec<T>> {
        self.0[thread].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// All parts, one after the other.
    pub fn joined(&self) -> Vec<T> {
        (0..self.count()).flat_map(|thread| self.part(thread).clone()).collect()
    }
}

/// Two arrays, of which each step reads one and writes the other.
struct Pair([Parts<f64>; 2]);

impl Pair {
    fn new(threads: usize) -> Pair {
        Pair([Parts::new(threads), Parts::new(threads)])
    }

    /// The array that step `step` reads, and the array that it writes.
    fn of_step(&self, step: u64) -> (&Parts<f64>, &Parts<f64>) {
        let reads = (step % 2) as usize;
        (&self.0[reads], &self.0[1 - reads])
    }

    fn named(&self) -> Vec<(&'static str, &Parts<f64>)> {
        vec![("even", &self.0[0]), ("odd", &self.0[1])]
    }

    /// Allocates and fills a thread's part of both arrays, on the calling thread; these values are for the first array.
    fn fill(&self, thread: usize, values: impl Iterator<Item = f64>) {
        let values: Vec<f64> = values.collect();
        *self.0[1].part_mut(thread) = vec![1.0; values.len()];
        *self.0[0].part_mut(thread) = values;
    }
}

/// A computation divided among threads.
pub trait Kernel: Send + Sync {
    /// Allocates the calling thread's parts and fills them with what the computation starts from.
    fn start(&self, thread: usize);

    /// Does a thread's share of a step. All threads do the same step; they wait for each other after it, and within
    /// it at the barrier.
    fn step(&self, thread: usize, step: u64, barrier: &Barrier);

    /// All arrays of real numbers, for a checkpoint of the whole computation.
    fn reals(&self) -> Vec<(&'static str, &Parts<f64>)>;

    /// All arrays of indices, likewise.
    fn indices(&self) -> Vec<(&'static str, &Parts<u32>)> {
        Vec::new()
    }

    /// The result after this many steps.
    fn result(&self, steps: u64) -> &Parts<f64>;
}

/// The names of the kernels.
pub const NAMES: [&str; 3] = ["stencil", "sparse", "butterfly"];

/// The kernel of this name, with arrays of about this many bytes, or as many as the threads need at least.
pub fn of_name(name: &str, bytes: usize, threads: usize) -> Option<Box<dyn Kernel>> {
    match name {
        "stencil" => Some(Box::new(Stencil::new(((bytes / 16) as f64).cbrt() as usize, threads))),
        "sparse" => Some(Box::new(Sparse::new(bytes / (ENTRIES * 12 + 16), threads))),
        "butterfly" => {
            let side = ((bytes / 32) as f64).sqrt() as usize;
            // The nearest power of two.
            let below = 1 << side.max(2).ilog2();
            Some(Box::new(Butterfly::new(if side * 2 > below * 3 { below * 2 } else { below }, threads)))
        }
        _ => None,
    }
}

/// One number that is computed from the bits of all numbers, one after the other (FNV).
pub fn checksum(numbers: &[f64]) -> u64 {
    numbers.iter().fold(0xcbf2_9ce4_8422_2325, |sum, it| (sum ^ it.to_bits()).wrapping_mul(0x0100_0000_01b3))
}

/// A thread's share of `count` items.
fn share(count: usize, threads: usize, thread: usize) -> Range<usize> {
    count * thread / threads..count * (thread + 1) / threads
}

/// A number that looks random, the same for the same input (splitmix64).
fn scatter(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number from 0 to 1.
fn fraction(seed: u64) -> f64 {
    (scatter(seed) >> 11) as f64 / (1u64 << 53) as f64
}

/// Diffusion on a cube of side `n` by a 7-point stencil, zero outside. Each thread has a slab of planes, and reads one plane
/// from each neighbour.
pub struct Stencil {
    n: usize,
    threads: usize,
    cubes: Pair,
}

impl Stencil {
    /// A cube with at least one plane for each thread.
    pub fn new(n: usize, threads: usize) -> Stencil {
        Stencil { n: n.max(threads), threads, cubes: Pair::new(threads) }
    }
}

impl Kernel for Stencil {
    fn start(&self, thread: usize) {
        let plane = self.n * self.n;
        let planes = share(self.n, self.threads, thread);
        self.cubes.fill(thread, (planes.start * plane..planes.end * plane).map(|at| fraction(at as u64)));
    }

    fn step(&self, thread: usize, step: u64, _: &Barrier) {
        let (n, plane) = (self.n, self.n * self.n);
        let (old, new) = self.cubes.of_step(step);
        let below = thread.checked_sub(1).map(|below| old.part(below));
        let above = (thread + 1 < self.threads).then(|| old.part(thread + 1));
        let (own, mut target) = (old.part(thread), new.part_mut(thread));
        let outside = vec![0.0; plane];
        let planes = own.len() / plane;
        let side = vec![0.0; n];
        for z in 0..planes {
            let low = match (z, &below) {
                (0, Some(below)) => &below[below.len() - plane..],
                (0, None) => &outside[..],
                _ => &own[(z - 1) * plane..z * plane],
            };
            let high = match &above {
                Some(above) if z + 1 == planes => &above[..plane],
                None if z + 1 == planes => &outside[..],
                _ => &own[(z + 1) * plane..(z + 2) * plane],
            };
            let middle = &own[z * plane..(z + 1) * plane];
            for y in 0..n {
                let row = y * n..(y + 1) * n;
                let south = if y == 0 { &side[..] } else { &middle[row.start - n..row.start] };
                let north = if y + 1 == n { &side[..] } else { &middle[row.end..row.end + n] };
                let target = &mut target[z * plane + row.start..z * plane + row.end];
                stencil_row(&middle[row.clone()], [south, north, &low[row.clone()], &high[row]], target);
            }
        }
    }

    fn reals(&self) -> Vec<(&'static str, &Parts<f64>)> {
        self.cubes.named()
    }

    fn result(&self, steps: u64) -> &Parts<f64> {
        self.cubes.of_step(steps).0
    }
}

/// Computes a row of points from the old row and the four rows next to it.
fn stencil_row(own: &[f64], beside: [&[f64]; 4], target: &mut [f64]) {
    let n = target.len();
    let [south, north, low, high] = beside.map(|row| &row[..n]);
    let own = &own[..n];
    let point = |x: usize, west: f64, east: f64| {
        0.4 * own[x] + 0.1 * ((west + east) + (south[x] + north[x]) + (low[x] + high[x]))
    };
    if n == 1 {
        target[0] = point(0, 0.0, 0.0);
        return;
    }
    target[0] = point(0, 0.0, own[1]);
    for x in 1..n - 1 {
        target[x] = point(x, own[x - 1], own[x + 1]);
    }
    target[n - 1] = point(n - 1, own[n - 2], 0.0);
}

/// Entries of each row of the sparse matrix.
const ENTRIES: usize = 16;
/// How far a column may be from the diagonal.
const BAND: usize = 4096;

/// Products of a vector with a banded matrix of random entries in compressed rows. Each thread has rows, and reads what it needs
/// from the parts of its neighbours.
pub struct Sparse {
    rows: usize,
    threads: usize,
    vectors: Pair,
    values: Parts<f64>,
    columns: Parts<u32>,
    starts: Parts<u32>,
}

impl Sparse {
    /// A matrix with this many rows, at least one for each thread.
    pub fn new(rows: usize, threads: usize) -> Sparse {
        let rows = rows.max(threads);
        let (values, columns, starts) = (Parts::new(threads), Parts::new(threads), Parts::new(threads));
        Sparse { rows, threads, vectors: Pair::new(threads), values, columns, starts }
    }

    /// The columns of a row's entries: ascending, some twice.
    pub fn columns_of(&self, row: usize) -> Vec<u32> {
        let low = row.saturating_sub(BAND);
        let width = (row + BAND + 1).min(self.rows) - low;
        let column = |entry: usize| (low + scatter((row * ENTRIES + entry) as u64) as usize % width) as u32;
        let mut columns: Vec<u32> = (0..ENTRIES).map(column).collect();
        columns.sort_unstable();
        columns
    }

    /// The values of a row's entries. Their sum is below 1, so that no value grows without bounds.
    pub fn values_of(&self, row: usize) -> Vec<f64> {
        let value = |entry: usize| (fraction(!((row * ENTRIES + entry) as u64)) - 0.5) / ENTRIES as f64;
        (0..ENTRIES).map(value).collect()
    }

    /// What is added to a row in each step.
    pub fn source(row: usize) -> f64 {
        (row % 17) as f64
    }
}

impl Kernel for Sparse {
    fn start(&self, thread: usize) {
        let rows = share(self.rows, self.threads, thread);
        *self.starts.part_mut(thread) = (0..=rows.len()).map(|row| (row * ENTRIES) as u32).collect();
        *self.columns.part_mut(thread) = rows.clone().flat_map(|row| self.columns_of(row)).collect();
        *self.values.part_mut(thread) = rows.clone().flat_map(|row| self.values_of(row)).collect();
        self.vectors.fill(thread, rows.map(|row| fraction(row as u64)));
    }

    fn step(&self, thread: usize, step: u64, _: &Barrier) {
        let rows = share(self.rows, self.threads, thread);
        let (old, new) = self.vectors.of_step(step);
        let parts: Vec<_> = (0..self.threads).map(|thread| old.part(thread)).collect();
        let own = &parts[thread][..];
        // The parts of other threads are found by where each begins.
        let begins: Vec<usize> = (0..self.threads).map(|thread| share(self.rows, self.threads, thread).start).collect();
        let far = |column: usize| {
            let part = begins.partition_point(|begin| *begin <= column) - 1;
            parts[part][column - begins[part]]
        };
        let (starts, columns, values) = (self.starts.part(thread), self.columns.part(thread), self.values.part(thread));
        let mut target = new.part_mut(thread);
        for (row, (target, range)) in target.iter_mut().zip(starts.windows(2)).enumerate() {
            let entries = range[0] as usize..range[1] as usize;
            let mut sum = Sparse::source(rows.start + row);
            for (column, value) in columns[entries.clone()].iter().zip(&values[entries]) {
                let column = *column as usize;
                sum += value * own.get(column.wrapping_sub(rows.start)).copied().unwrap_or_else(|| far(column));
            }
            *target = sum;
        }
    }

    fn reals(&self) -> Vec<(&'static str, &Parts<f64>)> {
        [self.vectors.named(), vec![("values", &self.values)]].concat()
    }

    fn indices(&self) -> Vec<(&'static str, &Parts<u32>)> {
        vec![("columns", &self.columns), ("starts", &self.starts)]
    }

    fn result(&self, steps: u64) -> &Parts<f64> {
        self.vectors.of_step(steps).0
    }
}

/// A square of complex numbers, with real and imaginary parts in turn. Each step transforms every row by an FFT and
/// transposes the square, for which each thread reads from all others. Two steps are a two-dimensional Fourier transform.
pub struct Butterfly {
    side: usize,
    threads: usize,
    squares: Pair,
}

/// Rows and columns that are transposed at once.
const TILE: usize = 16;

impl Butterfly {
    /// A square with this side, but at least one row for each thread, rounded up to a power of two.
    pub fn new(side: usize, threads: usize) -> Butterfly {
        Butterfly { side: side.max(threads).next_power_of_two(), threads, squares: Pair::new(threads) }
    }

    /// Writes the columns that are the rows `rows` of the transposed square.
    fn transpose(&self, parts: &[RwLockReadGuard<'_, Vec<f64>>], rows: Range<usize>, target: &mut [f64]) {
        let side = self.side;
        for (thread, part) in parts.iter().enumerate() {
            let first = share(side, self.threads, thread).start;
            for block in rows.clone().step_by(TILE) {
                for (at, source) in part.chunks_exact(2 * side).enumerate() {
                    for column in block..(block + TILE).min(rows.end) {
                        let to = 2 * ((column - rows.start) * side + first + at);
                        target[to..to + 2].copy_from_slice(&source[2 * column..2 * column + 2]);
                    }
                }
            }
        }
    }
}

impl Kernel for Butterfly {
    fn start(&self, thread: usize) {
        let rows = share(self.side, self.threads, thread);
        let numbers = 2 * rows.start * self.side..2 * rows.end * self.side;
        self.squares.fill(thread, numbers.map(|at| fraction(at as u64) - 0.5));
    }

    fn step(&self, thread: usize, step: u64, barrier: &Barrier) {
        let (old, new) = self.squares.of_step(step);
        let turns = turns(self.side);
        for row in old.part_mut(thread).chunks_exact_mut(2 * self.side) {
            transform(row, &turns);
        }
        barrier.wait();
        let parts: Vec<_> = (0..self.threads).map(|thread| old.part(thread)).collect();
        self.transpose(&parts, share(self.side, self.threads, thread), &mut new.part_mut(thread));
    }

    fn reals(&self) -> Vec<(&'static str, &Parts<f64>)> {
        self.squares.named()
    }

    fn result(&self, steps: u64) -> &Parts<f64> {
        self.squares.of_step(steps).0
    }
}

/// The first half of the roots of unity.
fn turns(count: usize) -> Vec<(f64, f64)> {
    let turn = |at: usize| (TAU * at as f64 / count as f64).sin_cos();
    (0..count / 2).map(turn).map(|(sine, cosine)| (cosine, -sine)).collect()
}

/// The Fourier transform of a row, scaled so that its norm stays the same (radix 2, in place).
fn transform(row: &mut [f64], turns: &[(f64, f64)]) {
    let count = row.len() / 2;
    let bits = count.ilog2();
    for at in 0..count {
        let other = at.reverse_bits().checked_shr(usize::BITS - bits).unwrap_or(0);
        if at < other {
            row.swap(2 * at, 2 * other);
            row.swap(2 * at + 1, 2 * other + 1);
        }
    }
    for level in 0..bits {
        let half = 1 << level;
        for group in row.chunks_exact_mut(4 * half) {
            let (low, high) = group.split_at_mut(2 * half);
            let turns = turns.iter().step_by(count / 2 / half);
            for ((a, b), (cosine, sine)) in low.chunks_exact_mut(2).zip(high.chunks_exact_mut(2)).zip(turns) {
                let (real, imaginary) = (b[0] * cosine - b[1] * sine, b[0] * sine + b[1] * cosine);
                (b[0], b[1]) = (a[0] - real, a[1] - imaginary);
                (a[0], a[1]) = (a[0] + real, a[1] + imaginary);
            }
        }
    }
    let scale = 1.0 / (count as f64).sqrt();
    row.iter_mut().for_each(|number| *number *= scale);
}
