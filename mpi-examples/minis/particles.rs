//! Atoms of a crystal that swing about their sites, with lists of neighbours that are never written to, similar to CoMD.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;
use mpi::traits::*;

/// Place, velocity, force, 18 neighbours.
const ATOM_BYTES: u64 = (3 + 3 + 3 + 18) * 4;

/// Numbers of the write sets.
const DRIFT: usize = 0;
const FORCE: usize = 1;

pub struct Particles {
    atoms: u64,
    places: DeviceSpan,
    velocities: DeviceSpan,
    forces: DeviceSpan,
    neighbours: DeviceSpan,
    none: f64,
}

impl Particles {
    pub fn open(bytes: u64, run: &Run) -> Result<Particles> {
        let atoms = (bytes / ATOM_BYTES / 64 * 64).clamp(4096, u64::from(u32::MAX) / 2);
        let filled = |seed, value| run.machine.filled(3 * atoms, seed, value);
        let neighbours = run.machine.device().allocate(18 * 4 * atoms)?;
        let width = (atoms as f64).cbrt() as u64;
        run.launch(Kernel::Lattice, &[&neighbours], Numbers { items: atoms, width, ..Numbers::default() })?;
        let rank = run.world.rank() as u32;
        let (places, velocities, forces) = (filled(10 + rank, 0.1)?, filled(0, 0.0)?, filled(0, 0.0)?);
        Ok(Particles { atoms, places, velocities, forces, neighbours, none: 0.0 })
    }
}

impl App for Particles {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        let all = [&self.places, &self.velocities, &self.forces, &self.neighbours].map(DeviceSpan::clone);
        ["places", "velocities", "forces", "neighbours"].into_iter().zip(all).collect()
    }

    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        vec![
            ("drift".into(), vec![self.places.clone(), self.velocities.clone()]),
            ("force".into(), vec![self.forces.clone()]),
        ]
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.none
    }

    fn step(&mut self, _step: u64, run: &Run) -> Result<()> {
        let Particles { atoms, places, velocities, forces, neighbours, .. } = self;
        let items = Numbers { items: *atoms, ..Numbers::default() };
        run.before(FORCE)?;
        run.launch(Kernel::Force, &[places, forces, neighbours], Numbers { value: 0.5, ..items })?;
        run.before(DRIFT)?;
        run.launch(Kernel::Drift, &[places, velocities, forces], Numbers { value: 0.01, ..items })
    }
}
