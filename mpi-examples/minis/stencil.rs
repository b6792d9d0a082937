//! Heat on a plate, relaxed in place: first the cells of one colour of a chessboard, then those of the other. Every step writes to everything.
//!
//! The ranks' parts are stacked one above the other; their outermost rows are those of their neighbours.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;
use mpi::point_to_point::send_receive_into;
use mpi::traits::*;

/// The plate is relaxed in this many pieces, each declared separately: the first can be written to while the last is on its
/// way.
const PIECES: u64 = 32;
const HALO: usize = PIECES as usize;

pub struct Stencil {
    plate: DeviceSpan,
    width: u64,
    height: u64,
    none: f64,
}

impl Stencil {
    pub fn open(bytes: u64, run: &Run) -> Result<Stencil> {
        let width = if bytes >= 1 << 30 { 16384 } else { 1024 };
        let height = (bytes / 4 / width).max(2 * PIECES);
        Ok(Stencil { plate: run.machine.filled(width * height, 1, 1.0)?, width, height, none: 0.0 })
    }

    fn rows(&self, first: u64, count: u64) -> DeviceSpan {
        self.plate.part(4 * self.width * first, 4 * self.width * count).expect("within the plate")
    }

    fn piece(&self, piece: u64) -> (u64, u64) {
        let first = piece * self.height / PIECES;
        (first, (piece + 1) * self.height / PIECES - first)
    }

    /// Exchanges the rows that the neighbours have computed. Collective.
    fn exchange(&self, run: &Run) -> Result<()> {
        let (rank, ranks) = (run.world.rank(), run.world.size());
        let (above, below) = ((rank > 0).then(|| rank - 1), (rank + 1 < ranks).then(|| rank + 1));
        let last = self.height - 1;
        // Upwards: this rank's first own row goes to the rank above, and that of the rank below goes into this rank's last row;
        // likewise downwards.
        let ways = [
            (above, self.rows(1, 1), below, self.rows(last, 1)),
            (below, self.rows(last - 1, 1), above, self.rows(0, 1)),
        ];
        for (to, own, from, other) in ways {
            let (mut mine, mut theirs) = (vec![0f32; self.width as usize], vec![0f32; self.width as usize]);
            if to.is_some() {
                run.machine.stream().download(&mut [(own, bytemuck::cast_slice_mut(&mut mine))], None)?;
            }
            let process = |rank| run.world.process_at_rank(rank);
            match (to, from) {
                (Some(to), Some(from)) => {
                    _ = send_receive_into(&mine[..], &process(to), &mut theirs[..], &process(from))
                }
                (Some(to), None) => process(to).send(&mine[..]),
                (None, Some(from)) => _ = process(from).receive_into(&mut theirs[..]),
                (None, None) => {}
            }
            if from.is_some() {
                run.machine.stream().upload(&[(bytemuck::cast_slice(&theirs), other)], None)?;
            }
        }
        Ok(())
    }
}

impl App for Stencil {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        vec![("plate", self.plate.clone())]
    }

    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        let piece = |piece| {
            let (first, rows) = self.piece(piece);
            (format!("relax {piece}"), vec![self.rows(first, rows)])
        };
        let halo = ("halo".to_owned(), vec![self.rows(0, 1), self.rows(self.height - 1, 1)]);
        (0..PIECES).map(piece).chain([halo]).collect()
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.none
    }

    fn step(&mut self, _step: u64, run: &Run) -> Result<()> {
        for colour in 0..2 {
            run.before(HALO)?;
            self.exchange(run)?;
            for piece in 0..PIECES {
                run.before(piece as usize)?;
                let (at, rows) = self.piece(piece);
                let (width, height) = (self.width, self.height);
                let numbers = Numbers { items: rows * width / 2, at, width, height, step: colour, value: 0.001 };
                run.launch(Kernel::Relax, &[&self.plate], numbers)?;
            }
        }
        Ok(())
    }
}
