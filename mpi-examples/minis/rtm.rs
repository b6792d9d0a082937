//! A seismic wave from the middle of the ground: a step writes to one of two wavefields, in turn. The example `rtm` does more with it.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;
use mpi::traits::*;

/// Each wavefield is written in this many pieces.
const PIECES: u64 = 16;
const NAMES: [&str; 2] = ["even", "odd"];

pub struct Rtm {
    fields: [DeviceSpan; 2],
    courant: DeviceSpan,
    width: u64,
    height: u64,
    none: f64,
}

impl Rtm {
    pub fn open(bytes: u64, run: &Run) -> Result<Rtm> {
        let width = if bytes >= 1 << 30 { 16384 } else { 256 };
        let height = (bytes / 12 / width).max(2 * PIECES);
        let filled = |seed, value| run.machine.filled(width * height, seed, value);
        let courant = filled(30 + run.world.rank() as u32, 0.4)?;
        Ok(Rtm { fields: [filled(1, 0.01)?, filled(1, 0.01)?], courant, width, height, none: 0.0 })
    }

    /// First cell and cells of a piece.
    fn piece(&self, piece: u64) -> (u64, u64) {
        let row = |piece: u64| piece * self.height / PIECES;
        (row(piece) * self.width, (row(piece + 1) - row(piece)) * self.width)
    }
}

impl App for Rtm {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        let fields = NAMES.into_iter().zip(self.fields.iter().cloned());
        fields.chain([("courant", self.courant.clone())]).collect()
    }

    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        let set = |field: usize, piece| {
            let (first, cells) = self.piece(piece);
            let part = self.fields[field].part(4 * first, 4 * cells).expect("within the field");
            (format!("{} {piece}", NAMES[field]), vec![part])
        };
        (0..2)
            .flat_map(|field| (0..PIECES).map(move |piece| (field, piece)))
            .map(|(field, piece)| set(field, piece))
            .collect()
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.none
    }

    fn step(&mut self, step: u64, run: &Run) -> Result<()> {
        let own = (step % 2) as usize;
        for piece in 0..PIECES {
            run.before(own * PIECES as usize + piece as usize)?;
            let (at, items) = self.piece(piece);
            let value = (step as f32 * 0.05).sin();
            let numbers = Numbers { items, at, width: self.width, height: self.height, value, ..Numbers::default() };
            run.launch(Kernel::Wave, &[&self.fields[own], &self.fields[1 - own], &self.courant], numbers)?;
        }
        Ok(())
    }
}
