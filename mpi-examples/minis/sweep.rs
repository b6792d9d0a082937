//! Transport of particles in eight directions, one after the other, similar to SNAP. A step writes to everything, in a known order.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;
use mpi::traits::*;

const DIRECTIONS: usize = 8;
/// Energy groups.
const GROUPS: u64 = 8;
/// Planes of cells in the direction of the sweep.
const PLANES: u64 = 64;

/// Number of the write set after those of the directions.
const TOTAL: usize = DIRECTIONS;
const NAMES: [&str; DIRECTIONS] = [
    "direction 0",
    "direction 1",
    "direction 2",
    "direction 3",
    "direction 4",
    "direction 5",
    "direction 6",
    "direction 7",
];

pub struct Sweep {
    lines: u64,
    directions: Vec<DeviceSpan>,
    total: DeviceSpan,
    sections: DeviceSpan,
    /// Holds nothing between two steps.
    next: DeviceSpan,
    none: f64,
}

impl Sweep {
    pub fn open(bytes: u64, run: &Run) -> Result<Sweep> {
        let lines = (bytes / 4 / PLANES / (DIRECTIONS as u64 * GROUPS + 2)).max(64);
        let filled = |count, seed, value| run.machine.filled(count, seed, value);
        let cells = lines * PLANES;
        let directions: std::result::Result<_, _> =
            (0..DIRECTIONS).map(|seed| filled(cells * GROUPS, seed as u32, 1.0)).collect();
        let seed = 100 + run.world.rank() as u32;
        let (total, sections, next) = (filled(cells, 20, 1.0)?, filled(cells, seed, 1.0)?, filled(cells, 0, 0.0)?);
        Ok(Sweep { lines, directions: directions?, total, sections, next, none: 0.0 })
    }
}

impl App for Sweep {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        let directions = NAMES.into_iter().zip(self.directions.iter().cloned());
        directions.chain([("total", self.total.clone()), ("sections", self.sections.clone())]).collect()
    }

    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        let directions =
            NAMES.iter().zip(&self.directions).map(|(name, span)| ((*name).to_owned(), vec![span.clone()]));
        directions.chain([("total".to_owned(), vec![self.total.clone()])]).collect()
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.none
    }

    fn step(&mut self, _step: u64, run: &Run) -> Result<()> {
        for (direction, flux) in self.directions.iter().enumerate() {
            run.before(direction)?;
            let numbers = Numbers {
                items: self.lines,
                width: PLANES,
                height: GROUPS,
                step: direction as u32,
                value: 0.1,
                ..Numbers::default()
            };
            run.launch(Kernel::Sweep, &[flux, &self.total, &self.next, &self.sections], numbers)?;
        }
        run.before(TOTAL)?;
        let items = Numbers { items: self.lines * PLANES, ..Numbers::default() };
        run.launch(Kernel::Settle, &[&self.total, &self.next], items)
    }
}
