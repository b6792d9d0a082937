//! Boxes of cells, some of which need smaller steps than others, similar to MiniAMR. A step writes to an eighth of the cells, where a
//! front passes, and to a fourth of all cells, in turn.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;
use mpi::traits::*;
use std::ops::Range;

/// Cells of a box.
const BOX: u64 = 4096;
/// The boxes are in this many groups, each of which is either written to or not.
const GROUPS: u64 = 64;
const FRONT: u64 = GROUPS / 8;
const TURNS: u64 = 4;

pub struct Amr {
    cells: DeviceSpan,
    group: u64,
    none: f64,
}

impl Amr {
    pub fn open(bytes: u64, run: &Run) -> Result<Amr> {
        let group = (bytes / 4 / GROUPS / BOX * BOX).max(BOX);
        Ok(Amr { cells: run.machine.filled(GROUPS * group, run.world.rank() as u32, 1.0)?, group, none: 0.0 })
    }
}

/// The groups that a step writes to.
fn written(step: u64) -> impl Iterator<Item = Range<u64>> {
    let turn = step % TURNS * (GROUPS / TURNS);
    let front = step % GROUPS;
    let wrapped = (front + FRONT).saturating_sub(GROUPS);
    [turn..turn + GROUPS / TURNS, front..(front + FRONT).min(GROUPS), 0..wrapped]
        .into_iter()
        .filter(|groups| !groups.is_empty())
}

impl App for Amr {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        vec![("cells", self.cells.clone())]
    }

    /// There are none: the groups differ in each step, which declares them itself.
    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        Vec::new()
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.none
    }

    fn step(&mut self, step: u64, run: &Run) -> Result<()> {
        for groups in written(step) {
            let (at, items) = (groups.start * self.group, (groups.end - groups.start) * self.group);
            run.before_write(&self.cells.part(4 * at, 4 * items)?)?;
            let numbers = Numbers { items, at, width: BOX, step: step as u32 % 1024, value: 0.5, ..Numbers::default() };
            run.launch(Kernel::Refine, &[&self.cells], numbers)?;
        }
        Ok(())
    }
}
