//! What is migrated: the ground, the grid that it is computed on, the shots, and the wavelet.
//!
//! Lengths are in metres, times in seconds, velocities in metres per second. Fields have one element per cell of the
//! *padded* grid: the ground, and around it a border in which waves are absorbed (a sponge). Rows run from west to
//! east, one below the other.
#![forbid(unsafe_code)]

use std::f64::consts::{PI, TAU};
use std::fmt;
use std::str::FromStr;

/// Side of a cell.
pub const CELL_M: f64 = 10.0;
/// Peak frequency of the source: ten cells per wavelength at 1500 m/s, so that the stencil hardly disperses it.
pub const PEAK_HZ: f64 = 15.0;
/// Cells that the stencil reaches to each side.
pub const REACH: usize = 4;
/// The row of the ground in which sources and receivers lie.
pub const SURFACE_ROW: usize = 2;
/// Least width of the absorbing border in cells: more than a wavelength at the highest velocity.
const BORDER: usize = 32;
/// Rows of a field begin at multiples of this many cells, 128 bytes, as a GPU reads them.
const ROW_CELLS: usize = 32;
/// Path per step in cells at the highest velocity. The stencil is stable below 2/√(2·6.5) = 0.555, 6.5 being the sum of its
/// coefficients' magnitudes.
const COURANT: f64 = 0.45;
/// What is left of a wave that crossed the border and came back, were the border's damping its only effect.
const SPONGE_REFLECTION: f64 = 1e-4;
/// The maximum velocity.
const VELOCITY_MAX: f64 = 4000.0;

/// Size of the ground in cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// From west to east.
    pub nx: usize,
    /// From the surface down.
    pub nz: usize,
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not NXxNZ, both from 16 to 65536");
        let (nx, nz) = text.split_once('x').ok_or_else(wrong)?;
        let side = |text: &str| text.parse().ok().filter(|cells| (16..=65536).contains(cells)).ok_or_else(wrong);
        Ok(Grid { nx: side(nx)?, nz: side(nz)? })
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nx, self.nz)
    }
}

/// The padded grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The ground within it.
    pub grid: Grid,
    /// Cells between its edge and the ground to the west, above and below; to the east there may be a few more.
    pub border: usize,
    /// Cells of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Shape {
    /// The ground with its border.
    pub fn new(grid: Grid) -> Shape {
        let width = (grid.nx + 2 * BORDER).next_multiple_of(ROW_CELLS);
        Shape { grid, border: BORDER, width, height: grid.nz + 2 * BORDER }
    }

    /// Cells of a field.
    pub fn cells(&self) -> usize {
        self.width * self.height
    }

    /// Where a cell of the ground lies in a field.
    pub fn index(&self, x: usize, z: usize) -> usize {
        (z + self.border) * self.width + x + self.border
    }

    /// Damping of each column, then of each row, per step; a cell is damped by the sum of the two. It grows with the square
    /// of the distance into the border.
    pub fn sponge(&self, seconds_per_step: f64) -> Vec<f32> {
        let depth_m = self.border as f64 * CELL_M;
        // Two passes through a border whose damping averages a third of the maximum leave that reflection.
        let greatest = 1.5 * VELOCITY_MAX / depth_m * (1.0 / SPONGE_REFLECTION).ln();
        let of = |cell: usize, ground: usize| {
            let before = self.border.saturating_sub(cell);
            let behind = (cell + 1).saturating_sub(self.border + ground);
            let part = before.max(behind).min(self.border) as f64 / self.border as f64;
            (greatest * part * part * seconds_per_step) as f32
        };
        let columns = (0..self.width).map(|x| of(x, self.grid.nx));
        columns.chain((0..self.height).map(|z| of(z, self.grid.nz))).collect()
    }
}

/// Velocities of the ground, row by row from the surface down.
#[derive(Clone, Debug, PartialEq)]
pub struct Ground {
    /// Its size.
    pub grid: Grid,
    /// One velocity per cell.
    pub velocity: Vec<f64>,
}

impl Ground {
    /// The ground with those velocities, given by column and row.
    pub fn from_fn(grid: Grid, velocity: impl Fn(usize, usize) -> f64) -> Ground {
        let cells = (0..grid.nz).flat_map(|z| (0..grid.nx).map(move |x| (x, z)));
        Ground { grid, velocity: cells.map(|(x, z)| velocity(x, z).min(VELOCITY_MAX)).collect() }
    }

    /// Six wavy layers, the deeper the faster, and a slow lens in the middle. Equal seeds make equal ground.
    pub fn layered(grid: Grid, seed: u64) -> Ground {
        const LAYERS: usize = 6;
        // From -1 to 1, by SplitMix64: the same ground on every machine.
        let mut state = seed;
        let mut any = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % 2001) as f64 / 1000.0 - 1.0
        };
        let (nx, nz) = (grid.nx as f64, grid.nz as f64);
        let spacing = nz / LAYERS as f64;
        let layers: Vec<[f64; 5]> = (0..LAYERS)
            .map(|layer| {
                let top = spacing * (layer as f64 + 0.2 * any());
                let velocity = 1700.0 + 340.0 * layer as f64 + 80.0 * any();
                [top, velocity, 0.12 * spacing * any(), 1.5 + any(), PI * any()]
            })
            .collect();
        let lens = |x: f64, z: f64| ((x / nx - 0.5) / 0.15).powi(2) + ((z / nz - 0.55) / 0.06).powi(2) < 1.0;
        Ground::from_fn(grid, |x, z| {
            let (x, z) = (x as f64, z as f64);
            let is_above =
                |[top, _, height, waves, phase]: &&[f64; 5]| top + height * (TAU * waves * x / nx + phase).sin() <= z;
            let [_, velocity, ..] = layers.iter().skip(1).rfind(is_above).unwrap_or(&layers[0]);
            if lens(x, z) { 0.8 * velocity } else { *velocity }
        })
    }

    /// The ground as a velocity analysis would find it: slowness averaged over `radius` cells to each side, three times.
    pub fn smoothed(&self, radius: usize) -> Ground {
        let Grid { nx, nz } = self.grid;
        let mut slowness: Vec<f64> = self.velocity.iter().map(|velocity| 1.0 / velocity).collect();
        for _ in 0..3 {
            (0..nz).for_each(|z| average(&mut slowness, z * nx, 1, nx, radius));
            (0..nx).for_each(|x| average(&mut slowness, x, nx, nz, radius));
        }
        Ground { grid: self.grid, velocity: slowness.iter().map(|slowness| 1.0 / slowness).collect() }
    }

    /// The factor (velocity · step / cell)² of each cell of the padded grid; the border continues the ground's edge.
    pub fn courant(&self, shape: &Shape, seconds_per_step: f64) -> Vec<f32> {
        let clamp = |cell: usize, ground: usize| cell.saturating_sub(shape.border).min(ground - 1);
        let cells = (0..shape.height).flat_map(|z| (0..shape.width).map(move |x| (x, z)));
        cells
            .map(|(x, z)| {
                let velocity = self.velocity[clamp(z, self.grid.nz) * self.grid.nx + clamp(x, self.grid.nx)];
                (velocity * seconds_per_step / CELL_M).powi(2) as f32
            })
            .collect()
    }
}

/// Replaces `count` values, `stride` apart and starting at `first`, with their averages over `radius` neighbours on each side; beyond
/// the ends, the outermost value is repeated.
fn average(values: &mut [f64], first: usize, stride: usize, count: usize, radius: usize) {
    let line: Vec<f64> = (0..count).map(|index| values[first + index * stride]).collect();
    let at = |index: isize| line[index.clamp(0, count as isize - 1) as usize];
    let reach = radius as isize;
    let mut sum: f64 = (-reach..=reach).map(at).sum();
    for index in 0..count {
        values[first + index * stride] = sum / (2 * radius + 1) as f64;
        sum += at(index as isize + reach + 1) - at(index as isize - reach);
    }
}

/// How the shots are fired, recorded and migrated.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The grid.
    pub shape: Shape,
    /// Steps of each propagation.
    pub steps: usize,
    /// Steps between two states that are correlated.
    pub every: usize,
    /// Number of shots.
    pub shots: usize,
}

impl Survey {
    /// Length of a step.
    pub fn seconds_per_step(&self) -> f64 {
        COURANT * CELL_M / VELOCITY_MAX
    }

    /// Column of a shot's source: the shots are spread evenly over the surface.
    pub fn source_column(&self, shot: usize) -> usize {
        (2 * shot + 1) * self.shape.grid.nx / (2 * self.shots)
    }

    /// What the source adds in a step: a Ricker wavelet that begins near zero.
    pub fn wavelet(&self, step: usize) -> f32 {
        let seconds = step as f64 * self.seconds_per_step() - 1.2 / PEAK_HZ;
        let square = (PI * PEAK_HZ * seconds).powi(2);
        ((1.0 - 2.0 * square) * (-square).exp()) as f32
    }

    /// Number of states of a shot that are kept and correlated: those after the steps that are multiples of `every`.
    pub fn states(&self) -> u64 {
        (self.steps / self.every) as u64
    }

    /// The state that is kept and correlated after `step` steps, if one is.
    pub fn state(&self, step: usize) -> Option<u64> {
        step.is_multiple_of(self.every).then(|| (step / self.every) as u64)
    }

    /// Bytes of a field.
    pub fn field_bytes(&self) -> u64 {
        4 * self.shape.cells() as u64
    }
}
