//! The physics without MPI: how the plate is cut into blocks, one block's cells, and the stencil.
//!
//! The plate is a grid of cells, each with a temperature and a conductivity. Heat flows between neighbouring cells
//! through four faces; a face conducts with the mean of its two cells. One explicit step adds to every cell
//!
//! ```text
//! RATE * sum over the four faces of mean(k, k_neighbour) * (t_neighbour - t)
//! ```
//!
//! Conductivities lie between 0 and 1, so the weights of the neighbours sum to at most 4 * RATE = 0.8. The scheme is
//! therefore stable, and keeps temperatures between the smallest and the largest initial one.
//!
//! A [`Block`] is the rectangle that one rank owns. Its cells are stored in a [`Plane`] with a ring of one cell around
//! them, the halo, which holds copies of the neighbours' edges or the condition at the border of the plate. Every
//! cell is computed by the same expression from the same values in the same order whichever block it falls in,
//! so the result does not depend on the number of ranks, down to the last bit.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::str::FromStr;

/// Time step times diffusivity over cell size squared.
const RATE: f64 = 0.2;
/// The hottest initial temperature; the coldest is zero.
pub const HOTTEST: f64 = 100.0;

/// Size of the plate in cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Cells from west to east.
    pub nx: usize,
    /// Cells from north to south.
    pub ny: usize,
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a grid: write NXxNY, for example 1024x768 (each from 1 to 1048576)");
        let (nx, ny) = text.split_once('x').ok_or_else(wrong)?;
        let extent = |text: &str| text.parse().ok().filter(|n| (1..=1 << 20).contains(n)).ok_or_else(wrong);
        Ok(Grid { nx: extent(nx)?, ny: extent(ny)? })
    }
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.nx, self.ny)
    }
}

/// A side of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Towards smaller x.
    West,
    /// Towards larger x.
    East,
    /// Towards smaller y.
    North,
    /// Towards larger y.
    South,
}

impl Side {
    /// All four.
    pub const ALL: [Side; 4] = [Side::West, Side::East, Side::North, Side::South];

    /// The side of the neighbour that touches this one.
    pub fn opposite(self) -> Side {
        match self {
            Side::West => Side::East,
            Side::East => Side::West,
            Side::North => Side::South,
            Side::South => Side::North,
        }
    }
}

/// The condition at the border of the plate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Border {
    /// No heat crosses the border.
    Insulated,
    /// The world around the plate stays at temperature zero.
    Fixed,
}

/// The plate cut into `px` times `py` blocks, one per rank, numbered row by row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decomposition {
    /// The whole plate.
    pub grid: Grid,
    /// Blocks from west to east.
    pub px: usize,
    /// Blocks from north to south.
    pub py: usize,
}

impl Decomposition {
    /// The decomposition with the smallest halo for this many ranks, or `None` if some rank would own no cell.
    pub fn new(grid: Grid, ranks: usize) -> Option<Self> {
        (1..=ranks)
            .filter(|px| ranks.is_multiple_of(*px))
            .map(|px| Decomposition { grid, px, py: ranks / px })
            .filter(|cut| cut.px <= grid.nx && cut.py <= grid.ny)
            .min_by_key(|cut| grid.nx.div_ceil(cut.px) + grid.ny.div_ceil(cut.py))
    }

    /// The rectangle of a rank.
    pub fn block(&self, rank: usize) -> Block {
        let share = |cells: usize, parts: usize, part: usize| cells * part / parts..cells * (part + 1) / parts;
        Block { x: share(self.grid.nx, self.px, rank % self.px), y: share(self.grid.ny, self.py, rank / self.px) }
    }

    /// The rank on that side, or `None` at the border of the plate.
    pub fn neighbour(&self, rank: usize, side: Side) -> Option<usize> {
        let (column, row) = (rank % self.px, rank / self.px);
        match side {
            Side::West => (column > 0).then(|| rank - 1),
            Side::East => (column + 1 < self.px).then(|| rank + 1),
            Side::North => (row > 0).then(|| rank - self.px),
            Side::South => (row + 1 < self.py).then(|| rank + self.px),
        }
    }
}

/// The cells that one rank owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Columns of the plate.
    pub x: Range<usize>,
    /// Rows of the plate.
    pub y: Range<usize>,
}

/// One number per cell of a block, with a ring of one cell around it.
#[derive(Clone, PartialEq, Debug)]
pub struct Plane {
    width: usize,
    height: usize,
    /// Row by row, the ring included: `(width + 2) * (height + 2)` numbers.
    pub cells: Vec<f64>,
}

impl Plane {
    /// Fills the inner cells from a function of the cell's place on the plate; the ring is zero.
    pub fn from_fn(block: &Block, value: impl Fn(usize, usize) -> f64) -> Self {
        let (width, height) = (block.x.len(), block.y.len());
        let mut plane = Plane { width, height, cells: vec![0.0; (width + 2) * (height + 2)] };
        for (row, y) in block.y.clone().enumerate() {
            for (cell, x) in plane.row_mut(row).iter_mut().zip(block.x.clone()) {
                *cell = value(x, y);
            }
        }
        plane
    }

    /// The inner cells of a row, counted from 0.
    pub fn row(&self, row: usize) -> &[f64] {
        let start = (row + 1) * (self.width + 2) + 1;
        &self.cells[start..start + self.width]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        let start = (row + 1) * (self.width + 2) + 1;
        &mut self.cells[start..start + self.width]
    }

    /// Number of cells along a side.
    pub fn side_len(&self, side: Side) -> usize {
        match side {
            Side::West | Side::East => self.height,
            Side::North | Side::South => self.width,
        }
    }

    /// Copies the outermost inner cells of a side into `edge`.
    pub fn copy_edge(&self, side: Side, edge: &mut Vec<f64>) {
        edge.clear();
        match side {
            Side::West => edge.extend((0..self.height).map(|row| self.row(row)[0])),
            Side::East => edge.extend((0..self.height).map(|row| self.row(row)[self.width - 1])),
            Side::North => edge.extend_from_slice(self.row(0)),
            Side::South => edge.extend_from_slice(self.row(self.height - 1)),
        }
    }

    /// Sets the ring on a side.
    ///
    /// # Panics
    /// If `values` is not as long as the side.
    pub fn set_halo(&mut self, side: Side, values: &[f64]) {
        assert_eq!(values.len(), self.side_len(side), "halo of the {side:?} side");
        let stride = self.width + 2;
        match side {
            Side::West | Side::East => {
                let column = if side == Side::West { 0 } else { self.width + 1 };
                for (row, value) in values.iter().enumerate() {
                    self.cells[(row + 1) * stride + column] = *value;
                }
            }
            Side::North => self.cells[1..=self.width].copy_from_slice(values),
            Side::South => {
                let start = (self.height + 1) * stride + 1;
                self.cells[start..start + self.width].copy_from_slice(values);
            }
        }
    }

    /// Sets the ring on a side to the side's own edge: nothing differs across it, so nothing flows.
    pub fn mirror_halo(&mut self, side: Side) {
        let mut edge = Vec::with_capacity(self.side_len(side));
        self.copy_edge(side, &mut edge);
        self.set_halo(side, &edge);
    }
}

/// The state of one rank's block.
pub struct Field {
    /// Current temperatures.
    pub now: Plane,
    /// Conductivities, from 0 to 1.
    pub conductivity: Plane,
    next: Plane,
}

impl Field {
    /// Starts from initial temperatures and conductivities.
    pub fn new(now: Plane, conductivity: Plane) -> Self {
        let next = now.clone();
        Field { now, conductivity, next }
    }

    /// Sets the ring of the temperatures at a border of the plate.
    pub fn close_border(&mut self, side: Side, border: Border) {
        match border {
            Border::Insulated => self.now.mirror_halo(side),
            Border::Fixed => {
                let zeros = vec![0.0; self.now.side_len(side)];
                self.now.set_halo(side, &zeros);
            }
        }
    }

    /// One explicit step. The rings of both planes must be up to date.
    pub fn step(&mut self) {
        let (width, stride) = (self.now.width, self.now.width + 2);
        let (t, k) = (&self.now.cells, &self.conductivity.cells);
        for row in 0..self.now.height {
            let start = (row + 1) * stride + 1;
            // Slices of the same length, so that the compiler drops the bounds checks and vectorises the loop.
            let both = |first: usize| (&t[first..][..width], &k[first..][..width]);
            let (t_mid, k_mid) = both(start);
            let (t_west, k_west) = both(start - 1);
            let (t_east, k_east) = both(start + 1);
            let (t_north, k_north) = both(start - stride);
            let (t_south, k_south) = both(start + stride);
            let next = &mut self.next.cells[start..start + width];
            for x in 0..width {
                let (here, conducts) = (t_mid[x], k_mid[x]);
                let flow = (conducts + k_west[x]) * (t_west[x] - here)
                    + (conducts + k_east[x]) * (t_east[x] - here)
                    + (conducts + k_north[x]) * (t_north[x] - here)
                    + (conducts + k_south[x]) * (t_south[x] - here);
                next[x] = here + 0.5 * RATE * flow;
            }
        }
        std::mem::swap(&mut self.now, &mut self.next);
    }
}

/// The plate that is used when no picture is given: three warm spots on a plate with bands that conduct poorly.
pub struct Formula(pub Grid);

impl Formula {
    /// Initial temperature of a cell.
    pub fn temperature(&self, x: usize, y: usize) -> f64 {
        let (u, v) = self.place(x, y);
        let spot = |cx: f64, cy: f64, heat: f64| heat / (1.0 + 60.0 * ((u - cx) * (u - cx) + (v - cy) * (v - cy)));
        (spot(0.25, 0.3, 1.0) + spot(0.7, 0.2, 0.6) + spot(0.6, 0.75, 0.8)).min(1.0) * HOTTEST
    }

    /// Conductivity of a cell.
    pub fn conductivity(&self, x: usize, y: usize) -> f64 {
        let (u, v) = self.place(x, y);
        let band = ((u + 0.5 * v) * 6.0).fract() < 0.15;
        if band { 0.05 } else { 0.4 + 0.6 * v }
    }

    fn place(&self, x: usize, y: usize) -> (f64, f64) {
        ((x as f64 + 0.5) / self.0.nx as f64, (y as f64 + 0.5) / self.0.ny as f64)
    }
}
