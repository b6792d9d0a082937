//! The six programs: the arrays that each has in device memory, and those that a step of it writes to.
#![forbid(unsafe_code)]

use super::kernels::{Kernel, Numbers};
use super::machine::Machine;
use super::options::{App as Kind, Options};
use super::{amr, cg, particles, rtm, stencil, sweep};
use bivouac::device::DeviceSpan;
use bivouac::{Offload, WriteSet};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;

/// The result of what a program does.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A program.
pub trait App {
    /// The fields that are saved, by name. Apart from [`App::scalar`], a program has nothing else that matters.
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)>;

    /// The memory that its pieces of work write to, by name.
    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)>;

    /// A number that is saved with the fields.
    fn scalar(&mut self) -> &mut f64;

    /// Does one step, from `step` to `step` + 1. Collective; work on the device is only enqueued where no
    /// other rank needs it.
    ///
    /// # Errors
    /// Any error that the device or Bivouac reports.
    fn step(&mut self, step: u64, run: &Run) -> Result<()>;
}

/// A program of that kind, with about this many bytes in device memory on each rank.
///
/// # Errors
/// There is no room.
pub fn open(options: &Options, run: &Run) -> Result<Box<dyn App>> {
    let bytes = options.bytes();
    Ok(match options.app {
        Kind::Stencil => Box::new(stencil::Stencil::open(bytes, run)?),
        Kind::Cg => Box::new(cg::Cg::open(bytes, run)?),
        Kind::Particles => Box::new(particles::Particles::open(bytes, run)?),
        Kind::Amr => Box::new(amr::Amr::open(bytes, run)?),
        Kind::Sweep => Box::new(sweep::Sweep::open(bytes, run)?),
        Kind::Rtm => Box::new(rtm::Rtm::open(bytes, run)?),
    })
}

/// The device and ranks that a step runs on, and the offload to which it declares its writes.
pub struct Run<'a> {
    /// The device.
    pub machine: &'a dyn Machine,
    /// The ranks.
    pub world: &'a SimpleCommunicator,
    offload: Option<Arc<Offload>>,
    sets: Vec<WriteSet>,
    /// All fields, for a write that stands for all.
    all: Option<WriteSet>,
    is_blind: Cell<bool>,
}

impl<'a> Run<'a> {
    /// A run that declares nothing to anyone.
    pub fn new(machine: &'a dyn Machine, world: &'a SimpleCommunicator) -> Run<'a> {
        Run { machine, world, offload: None, sets: Vec::new(), all: None, is_blind: Cell::new(false) }
    }

    /// From now on, tells `offload` what a program writes to, except for the set `forgotten`, to see what happens then.
    pub fn tell(&mut self, offload: Arc<Offload>, app: &dyn App, forgotten: Option<&str>) {
        let all = app.sets().into_iter();
        self.sets = all
            .map(|(name, spans)| {
                let is_forgotten = forgotten.is_some_and(|forgotten| name.split(' ').next() == Some(forgotten));
                offload.write_set(&name, if is_forgotten { &[] } else { &spans })
            })
            .collect();
        let fields: Vec<DeviceSpan> = app.fields().into_iter().map(|(_, field)| field).collect();
        self.all = Some(offload.write_set("everything", &fields));
        self.offload = Some(offload);
    }

    /// Makes the next declaration stand for a write to everything.
    pub fn blind(&self) {
        self.is_blind.set(true);
    }

    /// Declares everything, if that was asked for.
    fn declare_all(&self, offload: &Offload) -> Result<()> {
        match &self.all {
            Some(all) if self.is_blind.take() => Ok(offload.before(all, self.machine.stream())?),
            _ => Ok(()),
        }
    }

    /// Declares that the next work writes to the set with that number in [`App::sets`].
    ///
    /// # Errors
    /// Any error that Bivouac reports.
    pub fn before(&self, set: usize) -> Result<()> {
        match &self.offload {
            Some(offload) => {
                self.declare_all(offload)?;
                Ok(offload.before(&self.sets[set], self.machine.stream())?)
            }
            None => Ok(()),
        }
    }

    /// Declares that the next work writes to this memory.
    ///
    /// # Errors
    /// Any error that Bivouac reports.
    pub fn before_write(&self, span: &DeviceSpan) -> Result<()> {
        match &self.offload {
            Some(offload) => {
                self.declare_all(offload)?;
                Ok(offload.before_write(span, self.machine.stream())?)
            }
            None => Ok(()),
        }
    }

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub fn launch(&self, kernel: Kernel, arrays: &[&DeviceSpan], numbers: Numbers) -> Result<()> {
        Ok(self.machine.launch(kernel, arrays, numbers)?)
    }

    /// The sum over all ranks. Collective.
    pub fn sum(&self, mine: f64) -> f64 {
        let mut all = 0.0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::sum());
        all
    }
}
